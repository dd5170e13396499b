"""The commands, before anything heavy is imported: their streams, and how SIGINT ends them."""

import contextlib
import importlib
import os
import sys

from lorentz_jax._src.output import report_error
from lorentz_jax._src.signals import INTERRUPTED, WATCH

__all__ = ["bench", "train"]


def train() -> int:
    """Run `train.py`, also installed as `lorentz-train`; returns the exit status."""
    return _run("train.py", "lorentz_jax.training.cli")


def bench() -> int:
    """Run `bench.py`, also installed as `lorentz-bench`; returns the exit status."""
    return _run("bench.py", "lorentz_jax.bench.cli")


def _run(program: str, module: str) -> int:
    open_streams()
    WATCH.start(program)
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        return report_error(program, error, 1)
    status = main()
    if status == INTERRUPTED:
        # At its usual end Python would wait for all threads, for one that compiles a minute long.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    return status


def open_streams() -> None:
    """Open /dev/null for standard streams that are closed (`2>&-`).

    Otherwise a data file would get their number, and the messages of libraries.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
