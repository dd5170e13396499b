"""Timing several programs against each other in one run: compiled first, then interleaved.

Interleaving matters more than repeating: whatever else the machine does slows every arm of a
round alike, so the ratios of a round stay right where absolute times drift. XLA's own counts
(flops, bytes accessed, temporary memory) do not vary at all.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np


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
