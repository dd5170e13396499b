"""Train a network from the command line: `python train.py --help` lists every option."""

import sys

from lorentz_jax.training.cli import main

if __name__ == "__main__":
    sys.exit(main())
