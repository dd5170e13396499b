"""Evaluate a compiled model: `python -m lorentz_jax.inference FILE`."""

import dataclasses
import json
import sys
from pathlib import Path

import tyro

from lorentz_jax import data, inference
from lorentz_jax._src.output import report_error
from lorentz_jax.metrics import format_metric


@dataclasses.dataclass(frozen=True)
class Options:
    """Evaluate a compiled model on the test set of a dataset."""

    file: tyro.conf.Positional[Path]
    """A file of `lorentz_jax.inference.save`."""
    dataset: str | None = None
    """Dataset to evaluate on; by default the one that the model was trained on."""
    data_dir: Path | None = None
    """Folder of the datasets; see `train.py --help`."""
    batch_size: int = 256
    """Images in a step; the result does not depend on it."""
    kappa: float | None = None
    """Refuse a model of another kappa."""
    json: bool = False
    """Print one line of JSON instead of text."""


def main() -> int:
    """Run the command; returns its exit status."""
    options = tyro.cli(Options, prog="python -m lorentz_jax.inference")
    try:
        compiled = inference.load(options.file, kappa=options.kappa)
        name = options.dataset or compiled.info.get("dataset")
        if name is None:
            raise ValueError(f"{options.file} names no dataset: choose one with --dataset")
        dataset = data.load(name, data_dir=options.data_dir)
        result = inference.evaluate(compiled, dataset, options.batch_size)
    except (ValueError, TypeError, OSError) as error:
        return report_error("lorentz_jax.inference", error, 2)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"test_accuracy {format_metric(result['accuracy'])} "
            f"test_loss {format_metric(result['loss'])} "
            f"on {result['count']} images of {dataset.name}"
            + ("" if compiled.kappa is None else f", kappa {compiled.kappa}")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
