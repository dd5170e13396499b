"""Train a network from the command line: `python train.py --help` lists every option."""

import sys

from lorentz_jax.commands import train

if __name__ == "__main__":
    sys.exit(train())
