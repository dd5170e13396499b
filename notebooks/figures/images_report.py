"""The tables of `images_study`: means over seeds, and differences from the Euclidean twin."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from lorentz_jax.bench.style import make_table

from .image_nets import ARMS
from .image_training import best_rate

__all__ = [
    "COLUMNS", "DIFFERENCES", "TABLES", "Column", "cell", "difference", "rates", "rows", "tables",
    "values",
]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A measure of a run.

    Attributes:
      title: of the column.
      of: takes the measure out of a run.
      digits: after the point.
    """

    title: str
    of: Callable[[Mapping[str, Any]], float]
    digits: int = 1


COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy %", lambda r: 100 * r["hierarchy"]["accuracy"]),
    "height": Column("height", lambda r: r["hierarchy"]["height"], 3),
    "mistakes": Column("of mistakes", lambda r: r["hierarchy"]["height of mistakes"], 2),
    "1-shot": Column("1-shot %", lambda r: 100 * r["few-shot"]["1-shot"]),
    "5-shot": Column("5-shot %", lambda r: 100 * r["few-shot"]["5-shot"]),
    "radius": Column("radius", lambda r: r["foreign"]["digits"]["radius"], 2),
    "softmax": Column("softmax", lambda r: r["foreign"]["digits"]["softmax"], 2),
    "radius, shuffled": Column("radius, shuffled", lambda r: r["foreign"]["shuffled"]["radius"], 2),
    "softmax, shuffled": Column(
        "softmax, shuffled", lambda r: r["foreign"]["shuffled"]["softmax"], 2
    ),
    "0": Column("no noise", lambda r: 100 * r["noise"]["0"]),
    "0.05": Column("noise 0.05", lambda r: 100 * r["noise"]["0.05"]),
    "0.1": Column("noise 0.1", lambda r: 100 * r["noise"]["0.1"]),
    "0.2": Column("noise 0.2", lambda r: 100 * r["noise"]["0.2"]),
}

TABLES: dict[str, tuple[str, ...]] = {
    "Hierarchy and few shots": ("accuracy", "height", "mistakes", "1-shot", "5-shot"),
    "Foreign images": ("radius", "softmax", "radius, shuffled", "softmax, shuffled"),
    "Noise": ("0", "0.05", "0.1", "0.2"),
}

DIFFERENCES = ("accuracy", "height", "mistakes", "1-shot", "5-shot", "radius", "softmax", "0.2")
"""The columns of the table of differences from the Euclidean arm."""


def values(results: Mapping[str, Any], arm: str, dim: int, column: str) -> dict[str, float]:
    """Return a measure of an arm by seed; none where it was not run."""
    runs = results["runs"].get(arm, {}).get(f"{dim}", {})
    return {seed: COLUMNS[column].of(run) for seed, run in runs.items()}


def cell(results: Mapping[str, Any], arm: str, dim: int, column: str) -> str:
    """Format mean and standard deviation over the seeds."""
    found, digits = list(values(results, arm, dim, column).values()), COLUMNS[column].digits
    if not found:
        return "-"
    mean = f"{np.mean(found):.{digits}f}"
    return f"{mean} ± {np.std(found, ddof=1):.{digits}f}" if len(found) > 1 else mean


def difference(
    results: Mapping[str, Any], arm: str, dim: int, column: str, base: str = "euclidean"
) -> str:
    """Format the mean difference from the base arm of the same seeds, and its standard error."""
    one, other = (values(results, name, dim, column) for name in (arm, base))
    apart = [one[seed] - other[seed] for seed in one if seed in other]
    digits = COLUMNS[column].digits
    if len(apart) < 2:
        return "-"
    error = np.std(apart, ddof=1) / np.sqrt(len(apart))
    return f"{np.mean(apart):+.{digits}f} ± {error:.{digits}f}"


def rows(
    results: Mapping[str, Any],
    columns: Sequence[str],
    of: Callable[[Mapping[str, Any], str, int, str], str] = cell,
) -> list[list[str]]:
    """Return a row for each dimension and arm: D, the arm's label, its seeds, and the cells."""
    found = results["runs"]
    dims = sorted({int(dim) for arm in found.values() for dim in arm})
    return [
        [
            f"{dim}",
            ARMS[arm].label,
            f"{len(found[arm][f'{dim}'])}",
            *(of(results, arm, dim, column) for column in columns),
        ]
        for dim in dims
        for arm in ARMS
        if f"{dim}" in found.get(arm, {}) and (of is cell or arm != "euclidean")
    ]


def tables(results: Mapping[str, Any]) -> Iterator[Table]:
    """Yield `TABLES`, and the differences."""
    for title, columns in TABLES.items():
        yield _table(title, columns, rows(results, columns))
    title = "Differences from Euclidean with the same seed, ± standard error"
    yield _table(title, DIFFERENCES, rows(results, DIFFERENCES, difference))


def _table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    titles = (COLUMNS[column].title for column in columns)
    out = make_table(title, "D", "arm", "seeds", *titles, left=2)
    for line in lines:
        out.add_row(*line)
    return out


def rates(results: Mapping[str, Any]) -> dict[tuple[str, int], tuple[float, bool]]:
    """Return the rate of every arm and dimension, and whether worse ones on both sides were run."""
    found = {}
    for arm, dims in results["tuning"].items():
        for dim, by_rate in dims.items():
            accuracies = {float(rate): accuracy for rate, accuracy in by_rate.items()}
            best = best_rate(accuracies)
            found[arm, int(dim)] = best, min(accuracies) < best < max(accuracies)
    return found
