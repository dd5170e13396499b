"""Train a network from the command line: `python train.py --help` lists every option."""

import sys

try:
    from lorentz_jax.training.cli import main
except ModuleNotFoundError as error:
    sys.exit(f"train.py: error: {error}")

if __name__ == "__main__":
    sys.exit(main())
