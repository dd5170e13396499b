"""What the programs of the functions of `geometry` cost: to compile, to call, and in memory.

A program is the gradient of the sum of one function's results, by every array and kappa, for
batches of points. Compiling is timed from a cold cache, tracing included. Calls of a function and
of its peer are timed in turn, so that both see the same machine. Lines of StableHLO and XLA's
temporary bytes do not vary.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.table import Table

from lorentz_jax import geometry
from lorentz_jax.bench import external
from lorentz_jax.bench.style import COLOURS, make_console, make_panels, make_table
from lorentz_jax.bench.timing import environment, environment_line

Program = Callable[..., Any]
_CALLS = 100
"""Calls of each program in one round."""


def names() -> list[str]:
    """Return the functions that can be measured: all of `geometry`."""
    return sorted(geometry.__all__)


def select(functions: Sequence[str]) -> list[str]:
    """Return these functions, all of them for none; raise `ValueError` for another name."""
    unknown = [name for name in functions if name not in names()]
    if unknown:
        raise ValueError(f"no function {unknown[0]!r}; there are {names()}")
    return list(functions) or names()


def arguments(name: str, batch: int, width: int) -> tuple[Array, ...]:
    """Return random arrays for a function, and kappa; points of a ball lie inside of it."""
    rng, kappa = np.random.default_rng(0), jnp.float32(0.7)
    parameters = list(inspect.signature(getattr(geometry, name)).parameters)
    count = parameters.index("kappa")
    shape = (batch, 4, width) if name == "centroid" else (batch, width)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(count)]
    if name == "drop":
        arrays = [geometry.lift(arrays[0], kappa)]
    if name.startswith("from_"):  # `from_klein` and `from_poincare`
        arrays = [arrays[0] / (2 + jnp.linalg.norm(arrays[0], axis=-1, keepdims=True))]
    return (*arrays, kappa)


def _gradient(function: Program, count: int) -> Program:
    return jax.grad(lambda *a: function(*a).sum(), tuple(range(count)))


def _cold(function: Program, values: tuple[Array, ...], repeats: int) -> tuple[dict[str, Any], Any]:
    """Return what compiling costs, the least of several times, and the program."""
    seconds = []
    for _ in range(repeats):
        jax.clear_caches()
        start = time.perf_counter()
        lowered = jax.jit(_gradient(function, len(values))).lower(*values)
        compiled = lowered.compile()
        seconds.append(time.perf_counter() - start)
    memory = compiled.memory_analysis()
    row = {
        "compile_seconds": min(seconds),
        "lines": len(lowered.as_text().splitlines()),
        "temporary_bytes": int(memory.temp_size_in_bytes) if memory else 0,
    }
    return row, compiled


def _microseconds(programs: Sequence[Any], values: tuple[Array, ...], rounds: int) -> list[float]:
    """Return the least time of a call of each program, in rounds that take all in turn."""
    best = [np.inf] * len(programs)
    for _ in range(rounds):
        for index, program in enumerate(programs):
            start = time.perf_counter()
            for _ in range(_CALLS):
                out = program(*values)
            jax.block_until_ready(out)
            best[index] = min(best[index], (time.perf_counter() - start) / _CALLS)
    return [1e6 * seconds for seconds in best]


def rows(
    functions: Sequence[str], batch: int, width: int, peers: bool, repeats: int, rounds: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield the row of each function, and that of its peer where there is one."""
    others = external.functions() if peers else {}
    for name in functions:
        values, arms = arguments(name, batch, width), {name: getattr(geometry, name)}
        if name in others:
            axes = (0,) * (len(values) - 1) + (None,)
            arms[f"{name}, hyperbolix"] = jax.vmap(others[name], axes)
        measured = [_cold(arm, values, repeats) for arm in arms.values()]
        times = _microseconds([program for _, program in measured], values, rounds)
        yield [
            {"name": arm, **row, "microseconds": call}
            for arm, (row, _), call in zip(arms, measured, times, strict=True)
        ]


def run(
    functions: Sequence[str], batch: int, width: int, peers: bool, repeats: int, rounds: int
) -> dict[str, Any]:
    """Measure and print the table; return it with the environment."""
    console, results = make_console(), {"environment": environment(), "batch": batch}
    console.print(environment_line(results["environment"]))
    found = rows(select(functions), batch, width, peers, repeats, rounds)
    results |= {"width": width, "rows": [row for group in found for row in group]}
    console.print(_table(results))
    return results


def _table(results: dict[str, Any]) -> Table:
    title = f"gradients of batches of {results['batch']} in dimension {results['width']}"
    table = make_table(title, "", "compile s", "lines", "us a call", "temporary bytes")
    for row in results["rows"]:
        counts = f"{row['compile_seconds']:.2f}", str(row["lines"]), f"{row['microseconds']:.0f}"
        table.add_row(row["name"], *counts, f"{row['temporary_bytes']:,}")
    return table


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw seconds to compile and microseconds a call, a bar for each row."""
    table = results["rows"]
    figure, [panels] = make_panels(8, 1 + 0.2 * len(table), columns=2, sharey=True)
    columns = (("compile_seconds", "seconds to compile"), ("microseconds", "microseconds a call"))
    for axes, (column, label) in zip(panels, columns, strict=True):
        colours = [COLOURS[2 if "hyperbolix" in row["name"] else 1] for row in table]
        axes.barh(range(len(table)), [row[column] for row in table], color=colours)
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=7)
    panels[0].set_yticks(range(len(table)), [row["name"] for row in table])
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=150)
