"""Benchmarks: `python bench.py --help` lists them."""

import os
import signal
import sys


def interrupt(*_: object) -> None:
    """End at once with one line: for the imports, which would make a traceback of Ctrl-C."""
    os.write(2, b"bench.py: error: interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    from lorentz_jax.commands import bench

    sys.exit(bench())
