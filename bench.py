"""Benchmarks: `python bench.py --help` lists them."""

import sys

from lorentz_jax.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
