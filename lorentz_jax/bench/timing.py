"""Timing several programs against each other in one run: compiled first, then interleaved.

Interleaving matters more than repeating: whatever else the machine does slows every arm of a
round alike, so the ratios of a round stay right where absolute times drift. XLA's own counts
(flops, bytes accessed, temporary memory) do not vary at all.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Arm:
    """One compiled program with its arguments and XLA's counts."""

    run: Callable[..., Any]
    arguments: tuple
    flops: float
    bytes_accessed: float
    temporary_bytes: int
    compile_seconds: float


@dataclass(frozen=True)
class Row:
    """What is reported of one arm; ratios are to the base arm of the same run."""

    name: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    flops: float
    bytes_accessed: float
    temporary_bytes: int
    compile_seconds: float


def compile_arm(function: Callable[..., Any], *arguments: Any) -> Arm:
    """`jax.jit(function)` compiled for these arguments, which stay arguments (no constants)."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Arm(
        compiled, arguments, float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0)),
        int(memory.temp_size_in_bytes) if memory else 0, seconds,
    )  # fmt: skip


def interleave(
    arms: Mapping[str, Arm], base: str, seconds: float, min_rounds: int = 5, max_rounds: int = 2000
) -> list[Row]:
    """Time the arms in turn for about `seconds`, results blocked on; rows in the arms' order.

    A round calls every arm once, in an order that turns from round to round. Reported are the
    median time, and of the per-round ratios to `base` the median with its quartiles.
    """
    names = list(arms)
    for arm in arms.values():  # the first call of a program pays for its buffers
        jax.block_until_ready(arm.run(*arm.arguments))
    times: dict[str, list[float]] = {name: [] for name in names}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < max_rounds and (rounds < min_rounds or time.perf_counter() < end):
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            arm = arms[name]
            start = time.perf_counter()
            jax.block_until_ready(arm.run(*arm.arguments))
            times[name].append(time.perf_counter() - start)
        rounds += 1
    reference = np.asarray(times[base])
    rows = []
    for name in names:
        low, ratio, high = np.percentile(np.asarray(times[name]) / reference, [25, 50, 75])
        arm, median = arms[name], 1e3 * float(np.median(times[name]))
        rows.append(
            Row(name, median, float(ratio), float(low), float(high), arm.flops,
                arm.bytes_accessed, arm.temporary_bytes, arm.compile_seconds)
        )  # fmt: skip
    return rows


def environment() -> dict[str, Any]:
    """Device, versions and thread settings: what a timing means nothing without."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
    }


def as_table(rows: list[Row], base: str) -> list[dict[str, Any]]:
    """Rows as plain dictionaries, with the XLA counts relative to the base arm too."""
    reference = next(row for row in rows if row.name == base)
    table = []
    for row in rows:
        entry = asdict(row)
        for count in ("flops", "bytes_accessed", "temporary_bytes"):
            whole = getattr(reference, count)
            entry[f"{count}_ratio"] = getattr(row, count) / whole if whole else None
        table.append(entry)
    return table


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
