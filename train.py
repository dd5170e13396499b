"""Train a network from the command line: `python train.py --help` lists every option.

Results go to `runs/<name>/`. A mistake in the input ends with one line on standard error and
exit status 2; a run that diverges, with status 1.
"""

import dataclasses
import sys

import tyro

from lorentz_jax.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Options(TrainConfig):
    """Train a Lorentz network on images; `runs/<name>/` gets the results."""

    def __post_init__(self) -> None:
        """Check nothing yet: tyro would wrap the message into a box."""


def main() -> int:
    """Run the command; returns its exit status."""
    options = tyro.cli(Options)
    try:
        config = TrainConfig(**vars(options))
        # JAX takes seconds to import: only now, so that a bad flag is answered at once.
        from lorentz_jax.training import loop

        summary = loop.train(config)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except ArithmeticError as error:
        return fail(error, 1)
    except (ValueError, TypeError, OSError) as error:
        return fail(error, 2)
    print(f"test_accuracy {loop.show(summary['test_accuracy'])} on {summary['test_count']} images")
    print(
        f"{summary['steps']} steps in {summary['seconds']:.1f} s, of which compiling took "
        f"{summary['compile_seconds']:.1f} s; results in {config.path}"
    )
    return 0


def fail(reason: object, status: int) -> int:
    """Say in one line why the command stops."""
    print(f"train.py: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
