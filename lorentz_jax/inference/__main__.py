"""Evaluate a compiled model: `python -m lorentz_jax.inference FILE --dataset digits`."""

import dataclasses
import json
import sys
from pathlib import Path

import tyro

from lorentz_jax import data, inference
from lorentz_jax.training.metrics import show


@dataclasses.dataclass(frozen=True)
class Options:
    """Evaluate a compiled model on the test set of a dataset."""

    file: tyro.conf.Positional[Path]
    """A file of `lorentz_jax.inference.save`."""
    dataset: str = "digits"
    """Name of the dataset."""
    batch_size: int = 256
    """Images a step; the result does not depend on it."""
    kappa: float | None = None
    """Refuse a model of another kappa."""
    json: bool = False
    """Print one line of JSON instead of text."""


def main() -> int:
    """Run the command; returns its exit status."""
    options = tyro.cli(Options, prog="python -m lorentz_jax.inference")
    try:
        compiled = inference.load(options.file, kappa=options.kappa)
        dataset = data.load(options.dataset)
        result = inference.evaluate(compiled, dataset, options.batch_size)
    except (ValueError, TypeError, OSError) as error:
        print(f"lorentz_jax.inference: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"test_accuracy {show(result['accuracy'])} test_loss {show(result['loss'])} "
            f"on {result['count']} images of {dataset.name}, kappa {compiled.kappa}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
