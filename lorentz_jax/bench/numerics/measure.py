"""Measure and report the errors of every public function and its gradients, against mpmath.

The points lie all over the domain. The unit is one ulp: the dtype's eps relative to the norm of the
exact result, for vectors the norm of the difference over the norm of the truth. Truth is that of
the rounded inputs. The limit beside it is what a change of one relative eps in every input entry
can do to the result, by its exact first derivatives. bfloat16 is computed in float32; there the
limit is half an ulp for the rounding of the result and float32's eps for the inputs. A function
owes an error within a few ulps of that limit. Gradients are products with one random cotangent for
each sample. They are measured for each argument on its own, kappa included, and reported for the
worst of them. Hessians of the product with the cotangent, forward over reverse, are measured block
by block, an argument against another: a smaller set of the samples, see `hessians`.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from lorentz_jax.bench import external
from lorentz_jax.bench.numerics import grid
from lorentz_jax.bench.numerics.cases import CASES, COORDINATES, Case
from lorentz_jax.bench.numerics.differences import exact
from lorentz_jax.bench.numerics.errors import columns, compare, norm, summary
from lorentz_jax.bench.numerics.hessians import chosen, measure_hessians
from lorentz_jax.bench.style import COLOURS, make_panels, make_table
from lorentz_jax.bench.timing import environment, environment_line

DTYPES = tuple(grid.FORMATS)
Truth = list[dict[str, Any]]
_CHUNK = 10
OWED = 8.0
"""An error of so many ulps beyond what the conditioning allows is one to explain."""
_COLUMNS = ("worst", "limit", "median", "beyond_low", "beyond", "nonfinite")
_TITLES = ("worst", "limit", "median", "beyond", "D>48", "bad")
# Hessians are those of three coordinates.
_HESSIAN_COLUMNS = ("worst", "limit", "beyond", "beside", "nonfinite")
_HESSIAN_TITLES = ("worst", "limit", "beyond", "beside", "bad")
_PARTS = ("value", "gradient", "hessian")


def sample(case: Case, dtype: str, count: int, seed: int = 0) -> tuple[list, np.ndarray, Any]:
    """Return arguments of `case`, cotangents of its output and levels of `grid.spread`.

    They hold an entry for each sample, in the dtype, before spreading. bfloat16 has kappa and
    normals in float32, as in use, with kernels that it represents: rounding those is the caller's.
    """
    arrays = grid.samples(dtype, count, seed, case.share)
    if dtype == "bfloat16":
        wide = ("kappa", "time", "length")
        arrays |= {name: arrays[name].astype(np.float32) for name in wide}
    scalar, vector = arrays["scalar"], arrays["cotangent"]
    cotangent = {"scalar": scalar, "vector": vector, "triple": vector}.get(case.output)
    if cotangent is None:
        cotangent = np.concatenate([scalar[:, None], vector], axis=1)
    return [arrays[name] for name in case.inputs], cotangent, arrays["level"]


def truths(name: str, dtype: str, count: int, start: int, stop: int) -> Truth:
    """Return exact results of samples `start` to `stop` of one case, in a process of its own."""
    case = CASES[name]
    arguments, cotangent, level = sample(case, dtype, count)
    second = set(chosen(dtype, level).tolist())
    *arguments, cotangent = (np.asarray(a, np.float64) for a in (*arguments, cotangent))
    return [
        exact(case.truth, [a[i] for a in arguments], cotangent[i], i in second)
        for i in range(start, stop)
    ]


def _widen(x: np.ndarray, output: str, level: np.ndarray) -> np.ndarray:
    """Spread vectors; a lifted point has its time before its coordinates."""
    if output == "vector":
        return grid.spread(x, level)
    if output == "lift":
        return np.concatenate([x[:, :1], grid.spread(x[:, 1:], level)], axis=1)
    return x


def evaluate(case: Case, dtype: str, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return values and gradients of all samples, in the dtype, from one compiled program."""
    arguments, cotangent, level = sample(case, dtype, count)
    wide = [
        grid.spread(a, level) if name in COORDINATES else a
        for name, a in zip(case.inputs, arguments, strict=True)
    ]

    def value_and_gradients(cotangent: Array, *arguments: Array):
        value, pull = jax.vjp(case.call, *arguments)
        return value, pull(cotangent.astype(value.dtype))

    with jax.enable_x64(dtype == "float64"), jax.debug_nans(False):
        value, gradients = jax.jit(jax.vmap(value_and_gradients))(
            _widen(cotangent, case.output, level), *wide
        )
        return np.asarray(value), [np.asarray(g) for g in gradients]


def measure(case: Case, dtype: str, count: int, results: Truth) -> dict[str, Any]:
    """Return one row of the table: the errors of a case's values, gradients and Hessians."""
    arguments, cotangent, level = sample(case, dtype, count)
    value, gradients = evaluate(case, dtype, count)
    parts = columns([r["value"] for r in results], () if case.output == "scalar" else (-1,))
    high, low = (_widen(part, case.output, level) for part in parts)
    moves = np.array([r["moves"] for r in results])
    values, size = compare(value, (high, low), moves, dtype), norm(high)
    reachable = size < grid.FORMATS[dtype].largest / 4
    compared = []
    for i, (name, gradient) in enumerate(zip(case.inputs, gradients, strict=True)):
        parts = columns([r["gradients"][i] for r in results], arguments[i].shape[1:])
        high, low = (grid.spread(p, level) if name in COORDINATES else p for p in parts)
        high[~reachable] = np.inf  # not in the domain
        if case.kink:
            by_convention = (size == 0) & np.isfinite(norm(gradient))
            gradient = np.where(by_convention.reshape(-1, *[1] * (high.ndim - 1)), high, gradient)
        moves = np.array([r["gradient_moves"][i] for r in results])
        floor = np.array([r["floors"][i] for r in results])
        compared.append(compare(gradient, (high, low), moves, dtype, floor))
    found = {"value": summary([values], level), "gradient": summary(compared, level)}
    second = measure_hessians(case, dtype, arguments, cotangent, level, results)
    return {**found, "hessian": second}


def rows(
    names: Iterable[str],
    dtype: str,
    count: int,
    processes: int | None = None,
    peers: Mapping[str, Callable] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each case, in order; `processes` find the truth (0: this one).

    `peers` holds the functions of a peer library by case; their rows follow those of the cases.
    """
    names = list(names)
    jobs = [
        (name, dtype, count, start, min(start + _CHUNK, count))
        for name in names
        for start in range(0, count, _CHUNK)
    ]
    workers = len(os.sched_getaffinity(0)) if processes is None else processes
    context = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(max(workers, 1), context) as pool:
        columns = list(zip(*jobs, strict=True))
        chunks = (pool.map if workers else map)(truths, *columns)
        for name in names:
            results = [result for _ in range(0, count, _CHUNK) for result in next(chunks)]
            case = CASES[name]
            row = {"module": case.module, "name": name, "note": case.note}
            row["second_note"] = case.second_note
            yield row | measure(case, dtype, count, results)
            if peers and name in peers:
                peer = dataclasses.replace(case, call=peers[name])
                row = {"module": "peer", "name": f"{name}, hyperbolix", "note": ""}
                row["second_note"] = ""
                yield row | measure(peer, dtype, count, results)


def select(functions: Sequence[str]) -> list[str]:
    """Return the names of cases, given names of cases and of modules; all of them for none."""
    modules = {case.module for case in CASES.values()}
    unknown = [name for name in functions if name not in modules and name not in CASES]
    if unknown:
        raise ValueError(f"no function or module {unknown[0]!r}; there are {[*modules, *CASES]}")
    chosen = [n for n, case in CASES.items() if n in functions or case.module in functions]
    return chosen or list(CASES)


def run(
    dtypes: Sequence[str] = DTYPES,
    count: int = 100,
    functions: Sequence[str] = (),
    peers: bool = False,
) -> dict[str, Any]:
    """Measure and print a table for each dtype as soon as it is there; return all."""
    unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
    if unknown:
        raise ValueError(f"dtypes must be among {list(DTYPES)}, got {unknown[0]!r}")
    if count < 4:  # the grid begins with four special points
        raise ValueError(f"samples must be at least 4, got {count}")
    names, console, begin = select(functions), Console(width=230), time.perf_counter()
    calls = external.functions() if peers else {}
    results: dict[str, Any] = {"environment": environment(), "samples": count, "tables": {}}
    console.print(environment_line(results["environment"]))
    console.print(
        "Unit: eps relative to the norm of the exact result for the rounded inputs. limit: what a "
        "change of one eps in every input does, at the worst sample. beyond: the largest error "
        "less its limit, for up to 48 coordinates; D>48: in any dimension; bad: not finite. "
        "Hessians: by blocks, in three coordinates; beside: relative to the largest block."
    )
    for dtype in dtypes:
        results["tables"][dtype] = list(rows(names, dtype, count, peers=calls))
        results["seconds"] = time.perf_counter() - begin
        console.print(table(dtype, results))
        for row in results["tables"][dtype]:
            if row["note"] and any(row[part].get("beyond", 0) > OWED for part in _PARTS[:2]):
                console.print(f"{row['name']}: {row['note']}")
            if row["second_note"] and row["hessian"].get("beside", 0) > OWED:
                console.print(f"{row['name']}, Hessian: {row['second_note']}")
    return results


def table(dtype: str, results: dict[str, Any]) -> Table:
    """Make a row for each function: errors of its values, then of its gradients."""
    what = "values, gradients and Hessians"
    title = f"{dtype}, errors in ulps of {what} ({results['seconds']:.0f} s)"
    out = make_table(title, "", *_TITLES, *_TITLES, *_HESSIAN_TITLES)
    for row in results["tables"][dtype]:
        cells = [_cell(row[part], key) for part in _PARTS[:2] for key in _COLUMNS]
        cells += [_cell(row["hessian"], key) for key in _HESSIAN_COLUMNS]
        out.add_row(row["name"], *cells)
    return out


def _cell(summary: dict[str, Any], column: str) -> str:
    number = summary.get(column)
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the excess over the limit of every row, a panel for each dtype.

    That of Hessians is beside the largest block.
    """
    tables = results["tables"]
    names = [row["name"] for row in next(iter(tables.values()))]
    size = (2 + 2.6 * len(tables), 1 + 0.19 * len(names))
    figure, [panels] = make_panels(*size, columns=len(tables), sharey=True)
    for axes, (dtype, table_rows) in zip(panels, tables.items(), strict=True):
        keys = ("beyond_low", "beyond_low", "beside")
        looks = zip(_PARTS, keys, (COLOURS[1], COLOURS[5], COLOURS[3]), (-0.2, 0, 0.2), strict=True)
        for part, key, colour, shift in looks:
            excess = [min(max(row[part].get(key, 0), 1e-3), 1e18) for row in table_rows]
            heights = [index + shift for index in range(len(table_rows))]
            axes.plot(excess, heights, "o", markersize=3.5, color=colour, label=part)
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
