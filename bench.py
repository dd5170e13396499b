"""Benchmarks: `python bench.py --help` lists them."""

import sys

try:
    from lorentz_jax.bench.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"bench.py: error: {error}")
except KeyboardInterrupt:
    print("bench.py: error: interrupted", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
