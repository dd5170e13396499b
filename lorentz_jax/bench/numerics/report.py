"""The errors of `bench.numerics` as a table a dtype, as data for a file and as a plot."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lorentz_jax.bench.numerics.measure import DTYPES, rows, select
from lorentz_jax.bench.timing import COLOURS, environment, environment_line

# An error of so many ulps beyond what the conditioning allows is one to explain.
OWED = 8.0
_COLUMNS = ("worst", "limit", "median", "beyond_low", "beyond", "nonfinite")
_TITLES = ("worst", "limit", "median", "beyond", "D>48", "bad")


def run(
    dtypes: Sequence[str] = DTYPES,
    count: int = 100,
    functions: Sequence[str] = (),
    peers: bool = False,
) -> dict[str, Any]:
    """Measure and print a table for each dtype as soon as it is there; returns all."""
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown:
        raise ValueError(f"dtypes must be among {list(DTYPES)}, got {unknown[0]!r}")
    if count < 1:
        raise ValueError(f"samples must be at least 1, got {count}")
    names, console = select(functions), Console(width=150)
    others = {}
    if peers:
        from lorentz_jax.bench.external import peers as theirs

        others = {name: call for name, call in theirs().items() if name in names}
    begin = time.perf_counter()
    results: dict[str, Any] = {"environment": environment(), "samples": count, "tables": {}}
    console.print(environment_line(results["environment"]))
    console.print(
        "Unit: eps relative to the norm of the exact result for the rounded inputs. limit: what a "
        "change of one eps in every input does, at the worst sample. beyond: the largest error "
        "less its limit, for up to 48 coordinates; D>48: in any dimension; bad: not finite."
    )
    for dtype in dtypes:
        results["tables"][dtype] = list(rows(names, dtype, count, others=others))
        results["seconds"] = time.perf_counter() - begin
        console.print(table(dtype, results))
        for row in results["tables"][dtype]:
            if row["note"] and _exceeds(row):
                console.print(f"{row['name']}: {row['note']}")
    return results


def _exceeds(row: dict[str, Any]) -> bool:
    return any(row[part].get("beyond", 0) > OWED for part in ("value", "gradient"))


def table(dtype: str, results: dict[str, Any]) -> Table:
    """One row a function: errors of its values, then of its gradients."""
    title = f"{dtype}, errors in ulps of values and of gradients ({results['seconds']:.0f} s)"
    out = Table(title=title, title_justify="left")
    for name in ("", *_TITLES, *_TITLES):
        out.add_column(name, justify="right" if name else "left")
    for row in results["tables"][dtype]:
        out.add_row(row["name"], *(_cell(row[part], c) for part in _PARTS for c in _COLUMNS))
    return out


_PARTS = ("value", "gradient")


def _cell(summary: dict[str, Any], column: str) -> str:
    number = summary.get(column)
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def plot(results: dict[str, Any], path: Path) -> None:
    """Excess over the limit of every row, values and gradients, a panel for each dtype."""
    from matplotlib.figure import Figure

    tables = results["tables"]
    names = [row["name"] for row in next(iter(tables.values()))]
    size = (2 + 2.6 * len(tables), 1 + 0.19 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (dtype, found) in zip(panels, tables.items(), strict=True):
        for part, colour, shift in (("value", COLOURS[1], -0.15), ("gradient", COLOURS[5], 0.15)):
            excess = [min(max(row[part].get("beyond_low", 0), 1e-3), 1e18) for row in found]
            places = [index + shift for index in range(len(found))]
            axes.plot(excess, places, "o", markersize=3.5, color=colour, label=part)
        axes.axvline(OWED, color=COLOURS[0], linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_title(dtype, fontsize=9)
        axes.set_xlabel("ulps beyond the conditioning", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.5, axis="y")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize=7)
    figure.savefig(path, dpi=150)
