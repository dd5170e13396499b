"""Evaluate, describe or export a compiled model: `python -m lorentz_jax.inference COMMAND FILE`."""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from tyro.conf import Positional, subcommand

from lorentz_jax import data, inference
from lorentz_jax._src.output import report_error
from lorentz_jax.metrics import format_metric


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a compiled model on the test set of a dataset."""

    file: Positional[Path]
    """A file of `lorentz_jax.inference.save`."""
    like: str | None = None
    """`module:function` that makes a model of the same classes, for a model of your own."""
    dataset: str | None = None
    """Name of the dataset; by default the one that the model was trained on."""
    data_dir: Path | None = None
    """Where the datasets are; see `train.py --help`."""
    batch_size: int = 256
    """Images a step; the result does not depend on it."""
    kappa: float | None = None
    """Refuse a model of another kappa."""
    json: bool = False
    """Print one line of JSON instead of text."""

    def run(self) -> str:
        """The text to print."""
        compiled = inference.load(self.file, kappa=self.kappa, like=_model(self.like))
        name = self.dataset or compiled.info.get("dataset")
        if not isinstance(name, str):
            raise ValueError(f"{self.file} names no dataset: choose one with --dataset")
        dataset = data.load(name, data_dir=self.data_dir)
        result = inference.evaluate(compiled, dataset, self.batch_size)
        if self.json:
            return json.dumps(result)
        text = (
            f"test_accuracy {format_metric(result['accuracy'])} "
            f"test_loss {format_metric(result['loss'])} "
            f"on {result['count']} images of {dataset.name}"
        )
        return text if compiled.kappa is None else f"{text}, kappa {compiled.kappa}"


@dataclass(frozen=True)
class Describe:
    """Print what a compiled model holds, without building it."""

    file: Positional[Path]
    """A file of `lorentz_jax.inference.save`."""
    json: bool = False
    """Print the header as JSON instead of text."""

    def run(self) -> str:
        """The text to print."""
        header = inference.describe(self.file)
        if self.json:
            return json.dumps(header, indent=1)
        arrays, layers = header["arrays"], header["layers"]
        lines = [
            f"network {header['description'] or 'of your own: load it with like='}",
            f"kappa {header['kappa']}, half precision {header['dtype'] or 'none'}, "
            f"{len(arrays)} arrays",
            *(f"info {name} {value}" for name, value in header["info"].items()),
        ]
        for path, layer in layers.items():
            fold = " with its norm" if layer["folded"] else ""
            lines.append(f"{path or '(the model)'}: {layer['layer']} kappa {layer['kappa']}{fold}")
        lines += [f"{key} {a['dtype']} {tuple(a['shape'])}" for key, a in arrays.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Export:
    """Export a compiled model as StableHLO, for any batch size."""

    file: Positional[Path]
    """A file of `lorentz_jax.inference.save`."""
    to: Positional[Path]
    """The file to write."""
    sample: tuple[str, ...]
    """Shape of one sample, such as 28 28 1; a letter stays a symbol: h w 3."""
    like: str | None = None
    """`module:function` that makes a model of the same classes, for a model of your own."""
    platforms: tuple[str, ...] | None = None
    """For example `cpu cuda`; by default the present one."""
    gradient: bool = False
    """Export the derivative by the input too."""

    def run(self) -> str:
        """The text to print."""
        compiled = inference.load(self.file, like=_model(self.like))
        sizes = [int(size) if size.isdecimal() else size for size in self.sample]
        exported = inference.export(
            compiled, sizes, self.to, platforms=self.platforms, vjp_order=int(self.gradient)
        )
        return f"{self.to}: {exported.in_avals[0]} to {exported.out_avals[0]}"


Command = (
    Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Describe, subcommand("describe")]
    | Annotated[Export, subcommand("export")]
)


def _model(name: str | None) -> Any:
    """The model that `module:function` makes."""
    if name is None:
        return None
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"expected --like module:function, got {name!r}")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--like {name}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    command = tyro.cli(Command, prog="python -m lorentz_jax.inference", args=arguments)
    try:
        print(command.run())
    except KeyboardInterrupt:
        return report_error("lorentz_jax.inference", "interrupted", 130)
    except (ArithmeticError, MemoryError, jax.errors.JaxRuntimeError) as error:
        return report_error("lorentz_jax.inference", str(error) or type(error).__name__, 1)
    except (ValueError, TypeError, OSError) as error:
        return report_error("lorentz_jax.inference", error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
