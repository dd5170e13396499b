"""Tables of timings: on the terminal, as JSON, as a plot."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lorentz_jax.studies.timing import Row, as_table, environment

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


def run(tables: Iterable[tuple[str, list[Row]]]) -> dict[str, Any]:
    """Print each table as soon as it is measured; returns all, with the environment."""
    console, results = make_console(), {"environment": environment(), "tables": {}}
    console.print(environment_line(results["environment"]))
    for title, rows in tables:
        results["tables"][title] = as_table(rows, rows[0].name)
        console.print(_rich(title, results["tables"][title]))
    return results


def environment_line(found: Mapping[str, Any]) -> str:
    """`timing.environment` as one line."""
    return "  ".join(f"{k}={v}" for k, v in found.items() if v)


def make_console() -> Console:
    """A terminal's own width; into a file or a pipe, wide enough for every column."""
    console = Console()
    return console if console.is_terminal else Console(width=110)


def _rich(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("", "ms", "ratio", "quartiles", "flops", "bytes", "temporary", "compile s"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        counts = ("flops_ratio", "bytes_accessed_ratio", "temporary_bytes_ratio")
        shares = ["n/a" if row[c] is None else f"{row[c]:.2f}" for c in counts]
        table.add_row(
            row["name"], f"{row['milliseconds']:.4g}", f"{row['ratio']:.2f}",
            f"{row['ratio_low']:.2f}-{row['ratio_high']:.2f}", *shares,
            f"{row['compile_seconds']:.1f}",
        )  # fmt: skip
    return table


def check_writable(data: Path | None, plot: Path | None) -> None:
    """Refuse places that cannot be written before the minutes of measuring, not after."""
    for path in (data, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"no folder {path.absolute().parent} to write {path.name} into")
    if plot is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        kinds = FigureCanvasBase.get_supported_filetypes()
        if plot.suffix.removeprefix(".").lower() not in kinds:
            raise ValueError(f"{plot.name} is no picture; use one of {', '.join(sorted(kinds))}")


def compare(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Ratios of two results side by side; `ValueError` where their devices differ."""
    if not all("tables" in result and "environment" in result for result in (first, second)):
        raise ValueError("expected two JSON files with times, from `--json` of a benchmark")
    devices = [result["environment"]["device"] for result in (first, second)]
    if devices[0] != devices[1]:
        raise ValueError(f"the results are of different devices: {devices[0]} and {devices[1]}")
    lines = [f"{'':40}{'first':>9}{'second':>9}{'second/first':>14}"]
    for title in first["tables"]:
        other = {row["name"]: row for row in second["tables"].get(title, [])}
        for row in first["tables"][title]:
            if row["name"] in other:
                a, b = row["ratio"], other[row["name"]]["ratio"]
                lines.append(f"{title + ' ' + row['name']:40.40}{a:9.3f}{b:9.3f}{b / a:14.3f}")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Ratio to the first arm, one group of bars a table, quartiles as error bars."""
    from matplotlib.figure import Figure

    tables = results["tables"]
    base, *names = dict.fromkeys(row["name"] for rows in tables.values() for row in rows)
    figure = Figure(figsize=(max(5, 1.6 * len(tables) + 3), 3.6), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        for place, rows in enumerate(tables.values()):
            for row in rows:
                if row["name"] == name:
                    spread = [[row["ratio"] - row["ratio_low"]], [row["ratio_high"] - row["ratio"]]]
                    axes.bar(
                        place + (index + 0.5) * width - 0.4, row["ratio"], width, yerr=spread,
                        color=COLOURS[1 + index % 6], label=name if place == 0 else None,
                    )  # fmt: skip
    axes.axhline(1, color=COLOURS[0], linewidth=1)
    axes.set_xticks(range(len(tables)), [title.replace(", ", "\n") for title in tables])
    axes.set_ylabel(f"time / time of {base}")
    axes.set_title(results["environment"]["device"], fontsize="small")
    axes.set_xlim(-0.5, len(tables) - 0.5)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)
