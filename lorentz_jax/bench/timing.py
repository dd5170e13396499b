"""Time several programs against each other in one run: compile first, then interleave.

Interleaving matters more than repeating. Whatever else the machine does slows every arm of a round
alike, so the ratios of a round stay right where absolute times drift. XLA's own counts (flops,
bytes accessed, temporary memory) do not vary at all.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from lorentz_jax.bench.style import COLOURS, make_console, make_panels, make_table


@dataclass(frozen=True)
class Arm:
    """A timed variant: a compiled program, its arguments and XLA's counts.

    The first `donated` arguments are those whose memory the program may use for its results.
    """

    run: Callable[..., Any]
    arguments: tuple
    flops: float
    bytes_accessed: float
    temporary_bytes: int
    compile_seconds: float
    donated: int = 0


@dataclass(frozen=True)
class Row:
    """The result of one arm; ratios are to the base arm of the same run."""

    name: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    flops: float
    bytes_accessed: float
    temporary_bytes: int
    compile_seconds: float


def compile_arm(function: Callable[..., Any], *arguments: Any, donated: int = 0) -> Arm:
    """Compile `function` for these arguments, which stay arguments and become no constants."""
    start = time.perf_counter()
    jitted = jax.jit(function, donate_argnums=tuple(range(donated)))
    compiled = jitted.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    flops, accessed = float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0))
    temporary = int(memory.temp_size_in_bytes) if memory else 0
    return Arm(compiled, arguments, flops, accessed, temporary, seconds, donated)


def call_seconds(run: Callable[..., Any], arguments: Sequence[Any], donated: int = 0) -> float:
    """Time one call until its results are there; what it may use up is copied before."""
    given = jax.tree.map(jnp.copy, tuple(arguments[:donated]))
    jax.block_until_ready(given)
    start = time.perf_counter()
    jax.block_until_ready(run(*given, *arguments[donated:]))
    return time.perf_counter() - start


def interleave(
    arms: Mapping[str, Arm], base: str, seconds: float, min_rounds: int = 5, max_rounds: int = 2000
) -> list[Row]:
    """Time the arms in turn for about `seconds`, blocking on results; rows in the arms' order.

    A round calls every arm once, in an order that turns from round to round. A row holds the median
    time, and of the per-round ratios to `base` the median with its quartiles.
    """
    names = list(arms)
    for arm in arms.values():  # the first call of a program pays for its buffers
        call_seconds(arm.run, arm.arguments, arm.donated)
    times: dict[str, list[float]] = {name: [] for name in names}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < max_rounds and (rounds < min_rounds or time.perf_counter() < end):
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            arm = arms[name]
            times[name].append(call_seconds(arm.run, arm.arguments, arm.donated))
        rounds += 1

    def row(name: str, arm: Arm) -> Row:
        ratios = np.asarray(times[name]) / np.asarray(times[base])
        low, ratio, high = map(float, np.percentile(ratios, [25, 50, 75]))
        counts = arm.flops, arm.bytes_accessed, arm.temporary_bytes, arm.compile_seconds
        return Row(name, 1e3 * float(np.median(times[name])), ratio, low, high, *counts)

    return [row(name, arm) for name, arm in arms.items()]


def environment() -> dict[str, Any]:
    """Return device, versions and thread settings, without which a timing means nothing."""
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


def environment_line(values: Mapping[str, Any]) -> str:
    """Format an `environment` as one line."""
    return "  ".join(f"{name}={value}" for name, value in values.items() if value)


def run(tables: Iterable[tuple[str, list[Row]]]) -> dict[str, Any]:
    """Print each table as soon as it is measured; return all of them, with the environment."""
    console, results = make_console(), {"environment": environment(), "tables": {}}
    console.print(environment_line(results["environment"]))
    for title, rows in tables:
        results["tables"][title] = as_table(rows, rows[0].name)
        console.print(_printable(title, results["tables"][title]))
    return results


def as_table(rows: list[Row], base: str) -> list[dict[str, Any]]:
    """Convert rows to plain dictionaries, with XLA's counts relative to the base arm added."""
    reference = next(row for row in rows if row.name == base)

    def share(row: Row, count: str) -> float | None:
        total = getattr(reference, count)
        return getattr(row, count) / total if total else None

    counts = ("flops", "bytes_accessed", "temporary_bytes")
    return [asdict(row) | {f"{name}_ratio": share(row, name) for name in counts} for row in rows]


def _printable(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = ("", "ms", "ratio", "quartiles", "flops", "bytes", "temporary", "compile s")
    table = make_table(title, *columns)
    for row in rows:
        counts = ("flops_ratio", "bytes_accessed_ratio", "temporary_bytes_ratio")
        shares = ["n/a" if row[c] is None else f"{row[c]:.2f}" for c in counts]
        times = f"{row['milliseconds']:.4g}", f"{row['ratio']:.2f}"
        quartiles = f"{row['ratio_low']:.2f}-{row['ratio_high']:.2f}"
        table.add_row(row["name"], *times, quartiles, *shares, f"{row['compile_seconds']:.1f}")
    return table


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw ratios to the first arm, a group of bars for each table, quartiles as error bars."""
    tables = results["tables"]
    base, *names = dict.fromkeys(row["name"] for rows in tables.values() for row in rows)
    figure, [[axes]] = make_panels(max(5, 1.6 * len(tables) + 3), 3.6)
    width = 0.8 / max(len(names), 1)
    for group, rows in enumerate(tables.values()):
        for row in rows:
            if row["name"] == base:
                continue
            index, ratio = names.index(row["name"]), row["ratio"]
            x, spread = group + (index + 0.5) * width - 0.4, (row["ratio_low"], row["ratio_high"])
            look = {"color": COLOURS[1 + index % 6], "label": row["name"] if group == 0 else None}
            axes.bar(x, ratio, width, yerr=np.abs(np.array(spread)[:, None] - ratio), **look)
    axes.axhline(1, color=COLOURS[0], linewidth=1)
    axes.set_xticks(range(len(tables)), [title.replace(", ", "\n") for title in tables])
    axes.set_ylabel(f"time / time of {base}")
    axes.set_title(results["environment"]["device"], fontsize="small")
    axes.set_xlim(-0.5, len(tables) - 0.5)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)


@dataclass(frozen=True)
class Measured:
    """What `compare` needs of a result: the device, and ratios by table and arm."""

    device: str
    ratios: Mapping[str, Mapping[str, float]]


def measured(result: Any) -> Measured:
    """Return the ratios of a result that was written as JSON, by anybody.

    Raises:
        ValueError: it is something else.
    """
    try:
        device, tables = result["environment"]["device"], result["tables"].items()
        ratios = {title: {row["name"]: row["ratio"] for row in rows} for title, rows in tables}
        values = [ratio for table in ratios.values() for ratio in table.values()]
        good = isinstance(device, str) and all(0 < ratio < math.inf for ratio in values)
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise ValueError(
            "expected a JSON file that a benchmark of times against a twin wrote, such as layers"
        )
    return Measured(device, ratios)


def compare(first: Measured, second: Measured) -> str:
    """Format the ratios of two results side by side.

    Raises:
        ValueError: their devices differ, or they have no arm in common.
    """
    if first.device != second.device:
        raise ValueError(
            f"the results are of different devices: {first.device} and {second.device}"
        )
    pairs = {
        f"{title} {name}": (a, second.ratios[title][name])
        for title, ratios in first.ratios.items()
        for name, a in ratios.items()
        if name in second.ratios.get(title, {})
    }
    if not pairs:
        raise ValueError("the results have no measurement in common")
    wide = max(map(len, pairs))
    lines = [f"{'':{wide}}{'first':>9}{'second':>9}{'second/first':>14}"]
    lines += [f"{name:{wide}}{a:9.3f}{b:9.3f}{b / a:14.3f}" for name, (a, b) in pairs.items()]
    return "\n".join(lines)
