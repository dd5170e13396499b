"""Where the results of a benchmark go, and which options can be measured at all."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase

from lorentz_jax._src.arguments import check_sizes
from lorentz_jax._src.output import check_writable, write_atomic
from lorentz_jax.bench import external

Plot = Callable[[dict[str, Any], Path], None]
Outcome = tuple[dict[str, Any], Plot]
"""Results, and the function that draws them."""


@dataclass(frozen=True)
class Files:
    """Where the results of a benchmark go, besides the terminal."""

    json: Path | None = None
    """Write the results to this file."""
    plot: Path | None = None
    """Draw them to this file (PNG, PDF, SVG)."""

    def run(self) -> Outcome:
        """Measure and print; return the results and the function that draws them."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what cannot be measured or written, before the minutes of measuring."""
        formats = sorted(FigureCanvasBase.get_supported_filetypes())
        if self.plot and self.plot.suffix.removeprefix(".").lower() not in formats:
            raise ValueError(f"{self.plot.name} is no picture; use one of {', '.join(formats)}")
        files = [path for path in (self.json, self.plot) if path is not None]
        if len({path.resolve() for path in files}) < len(files):
            raise ValueError(f"--json and --plot are one file, {self.json}")
        for path in files:
            check_writable(path)
        for field in dataclasses.fields(self):
            check_option(field.name, getattr(self, field.name))

    def write(self, results: dict[str, Any], plot: Plot) -> None:
        """Write the files, each whole or not at all."""
        text = json.dumps(results, indent=1) + "\n"
        try:
            if self.json:
                write_atomic(self.json, lambda file: file.write(text.encode()))
            if self.plot:
                write_atomic(self.plot, lambda file: plot(results, Path(file.name)))
        except OSError:
            print(text)  # the disk has filled up meanwhile
            raise


_SIZES = {"widths", "width", "batch", "batches", "sizes", "stages", "images", "cap", "samples"}
_SIZES |= {"nodes", "features", "pairs", "sequences", "depth", "patch"}
_NAMES = {"models", "methods", "dtypes", "distances", "cases"}


def check_option(name: str, value: Any) -> None:
    """Raise `ValueError` unless an option of this name can be measured with this value."""
    option, number = f"--{name}", value if isinstance(value, float) else 1.0
    if isinstance(value, tuple) and name in _SIZES | _NAMES and not value:
        raise ValueError(f"{option} needs at least one value")
    if name in _SIZES:
        for size in np.ravel(np.asarray(value)).tolist():
            check_sizes(**{option: size})
    info = np.finfo(np.float32)
    if name == "kappa" and not float(info.tiny) <= number <= float(info.max):
        raise ValueError(f"{option} must be a positive number of float32, got {value}")
    if name == "seconds" and not 0 <= number < math.inf:
        raise ValueError(f"{option} must be 0 or a positive number, got {value}")
    if name == "peers" and value:
        external.check()
