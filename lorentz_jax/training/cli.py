"""The command `train.py`, also installed as `lorentz-train`: `--help` lists every option.

Results go to `runs/<name>/`. Exit status: 0 done; 1 the run diverged or the device is full; 2 a
mistake in the input, or a file that cannot be read or written; 130 interrupted, 143 ended by
SIGTERM, both after saving a checkpoint. Every failure is one line on standard error.
"""

import functools
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from lorentz_jax._src.output import report_error
from lorentz_jax._src.signals import INTERRUPTED, WATCH
from lorentz_jax.metrics import format_metric
from lorentz_jax.training import devices, run
from lorentz_jax.training.config import RECIPES, TrainConfig


@dataclass(frozen=True)
class Options(TrainConfig):
    """Train a Lorentz network on images; `runs/<name>/` gets the results."""

    recipe: Literal["none", "paper-cifar10", "paper-cifar100"] = "none"
    """Start from the settings of a published experiment; other flags override them."""

    def __post_init__(self) -> None:
        """Check nothing yet: tyro would wrap the message into a box."""


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of a command line; a recipe's settings are the defaults of the flags."""
    program = Path(sys.argv[0]).name
    options = tyro.cli(Options, prog=program, args=arguments)
    if options.recipe != "none":
        default = Options(recipe=options.recipe, **RECIPES[options.recipe])
        options = tyro.cli(Options, prog=program, args=arguments, default=default)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's; returns its exit status."""
    values = vars(parse(arguments))
    del values["recipe"]
    fail = functools.partial(report_error, "train.py")
    try:
        config = TrainConfig(**values)
        if config.compilation_cache is None:
            devices.keep_programs()
        if config.dry_run:
            run.dry_run(config)
            return 0
        summary = run.train(config)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except run.Terminated as reason:
        status = INTERRUPTED if WATCH.came == signal.SIGINT else 128 + signal.SIGTERM
        return fail(f"{reason}; go on with --resume", status)
    except (ArithmeticError, MemoryError) as error:
        return fail(error, 1)
    except (ValueError, TypeError, OSError) as error:
        return fail(error, 2)
    accuracy = format_metric(summary["test_accuracy"])
    devices.print_main(f"test_accuracy {accuracy} on {summary['test_count']} images")
    devices.print_main(
        f"{summary['steps']} steps in {summary['seconds']:.1f} s, of which compiling took "
        f"{summary['compile_seconds']:.1f} s; results in {config.path}"
    )
    return 0
