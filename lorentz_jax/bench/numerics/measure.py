"""Measure and report the errors of every public function and its gradients, against mpmath.

The points lie all over the domain. The unit is one ulp: the dtype's eps relative to the norm of the
exact result, for vectors the norm of the difference over the norm of the truth. Truth is that of
the rounded inputs. The limit beside it is what a change of one relative eps in every input entry
can do to the result, by its exact first derivatives. bfloat16 is computed in float32; there the
limit is half an ulp for the rounding of the result and float32's eps for the inputs. A function
owes an error within a few ulps of that limit. Gradients are products with one random cotangent for
each sample. They are measured for each argument on its own, kappa included, and reported for the
worst of them.
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
from lorentz_jax.bench.numerics.truth import exact
from lorentz_jax.bench.style import COLOURS, make_panels, make_table
from lorentz_jax.bench.timing import environment, environment_line

DTYPES = tuple(grid.FORMATS)
Truth = list[dict[str, Any]]
Parts = tuple[np.ndarray, np.ndarray]
_CHUNK = 10
LOW = 2
"""Largest level of `grid.spread` with at most 48 coordinates."""
OWED = 8.0
"""An error of so many ulps beyond what the conditioning allows is one to explain."""
_COLUMNS = ("worst", "limit", "median", "beyond_low", "beyond", "nonfinite")
_TITLES = ("worst", "limit", "median", "beyond", "D>48", "bad")
_PARTS = ("value", "gradient")


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
    arguments, cotangent, _ = sample(case, dtype, count)
    *arguments, cotangent = (np.asarray(a, np.float64) for a in (*arguments, cotangent))
    return [exact(case.truth, [a[i] for a in arguments], cotangent[i]) for i in range(start, stop)]


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


def _errors(got: np.ndarray, high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the norm of `got - (high + low)` of each sample."""
    with np.errstate(invalid="ignore", over="ignore"):
        gap = (np.asarray(got, np.float64) - high) - low
        return _norm(gap)


def _norm(x: np.ndarray) -> np.ndarray:
    """Return the norm of each sample; no square overflows."""
    flat = np.abs(x.reshape(len(x), -1)).astype(np.float64)
    largest = flat.max(axis=1, initial=0, keepdims=True)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
    with np.errstate(over="ignore"):
        return scale[:, 0] * np.sqrt(((flat / scale) ** 2).sum(axis=1))


def compare(
    got: np.ndarray, exactly: Parts, moves: np.ndarray, dtype: str, floor: Any = 0.0
) -> tuple[np.ndarray, ...]:
    """Return errors, limits and excesses in ulps, and whether it is not finite, of each sample.

    Outside the domain are samples whose exact result the dtype cannot represent (overflow, or so
    small that it loses digits): NaN in every array. An exact 0 has no relative error: excess 0 if
    the result is within what its conditioning allows and eps^2 of `floor`, else inf.
    """
    form, (high, low) = grid.FORMATS[dtype], exactly
    size, error = _norm(high), _errors(got, high, low)
    inside = (size < form.largest / 4) & ((size > form.smallest / form.eps) | (size == 0))
    finite = np.isfinite(np.asarray(got, np.float64).reshape(len(got), -1)).all(axis=1)
    half = 0.5 if form.eps != form.inner_eps else 0.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        limit = half + moves * form.inner_eps / (form.eps * size)
        ulps = error / (form.eps * size)
        excess = np.maximum(ulps - limit, 0)
    zero = size == 0
    owed = form.inner_eps * (moves + form.inner_eps * floor)
    excess[zero] = np.where(error <= owed, 0, np.inf)[zero]
    ulps[zero] = limit[zero] = np.nan
    ulps[~inside | ~finite] = excess[~inside | ~finite] = limit[~inside] = np.nan
    return ulps, limit, excess, inside & ~finite


def _summary(parts: Sequence[tuple[np.ndarray, ...]], level: np.ndarray) -> dict[str, Any]:
    """Return worst and median error over all parts and samples; `beyond_low` for D up to 48."""
    ulps, limit, excess, bad = (np.stack(column) for column in zip(*parts, strict=True))
    live = np.isfinite(ulps)
    if not live.any():
        return {"samples": 0, "nonfinite": int(bad.sum())}
    worst = np.unravel_index(np.argmax(np.where(live, ulps, -1)), ulps.shape)
    beyond = np.where(np.isnan(excess), -1, excess)
    farthest = np.unravel_index(np.argmax(beyond), beyond.shape)
    few = level <= LOW
    return {
        "samples": int(live.any(axis=0).sum()),
        "worst": float(ulps[worst]),
        "limit": float(limit[worst]),
        "median": float(np.median(ulps[live])),
        "beyond": float(beyond[farthest]),
        "beyond_low": float(beyond[:, few].max(initial=0)),
        "beyond_at": [int(i) for i in farthest],
        "nonfinite": int(bad.sum()),
    }


def _columns(entries: list, shape: tuple[int, ...]) -> Parts:
    """Return the numbers of all samples as arrays of their high and low parts."""
    pairs = np.array(entries, np.float64).reshape(len(entries), *shape, 2)
    return pairs[..., 0], pairs[..., 1]


def measure(case: Case, dtype: str, count: int, results: Truth) -> dict[str, Any]:
    """Return one row of the table: the errors of a case's values and gradients."""
    arguments, _, level = sample(case, dtype, count)
    value, gradients = evaluate(case, dtype, count)
    parts = _columns([r["value"] for r in results], () if case.output == "scalar" else (-1,))
    high, low = (_widen(part, case.output, level) for part in parts)
    moves = np.array([r["moves"] for r in results])
    values, size = compare(value, (high, low), moves, dtype), _norm(high)
    reachable = size < grid.FORMATS[dtype].largest / 4
    compared = []
    for i, (name, gradient) in enumerate(zip(case.inputs, gradients, strict=True)):
        parts = _columns([r["gradients"][i] for r in results], arguments[i].shape[1:])
        high, low = (grid.spread(p, level) if name in COORDINATES else p for p in parts)
        high[~reachable] = np.inf  # not in the domain
        if case.kink:
            by_convention = (size == 0) & np.isfinite(_norm(gradient))
            gradient = np.where(by_convention.reshape(-1, *[1] * (high.ndim - 1)), high, gradient)
        moves = np.array([r["gradient_moves"][i] for r in results])
        floor = np.array([r["floors"][i] for r in results])
        compared.append(compare(gradient, (high, low), moves, dtype, floor))
    return {"value": _summary([values], level), "gradient": _summary(compared, level)}


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
            yield row | measure(case, dtype, count, results)
            if peers and name in peers:
                peer = dataclasses.replace(case, call=peers[name], note="")
                row = {"module": "peer", "name": f"{name}, hyperbolix", "note": ""}
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
    names, console, begin = select(functions), Console(width=150), time.perf_counter()
    calls = external.functions() if peers else {}
    results: dict[str, Any] = {"environment": environment(), "samples": count, "tables": {}}
    console.print(environment_line(results["environment"]))
    console.print(
        "Unit: eps relative to the norm of the exact result for the rounded inputs. limit: what a "
        "change of one eps in every input does, at the worst sample. beyond: the largest error "
        "less its limit, for up to 48 coordinates; D>48: in any dimension; bad: not finite."
    )
    for dtype in dtypes:
        results["tables"][dtype] = list(rows(names, dtype, count, peers=calls))
        results["seconds"] = time.perf_counter() - begin
        console.print(table(dtype, results))
        for row in results["tables"][dtype]:
            if row["note"] and any(row[part].get("beyond", 0) > OWED for part in _PARTS):
                console.print(f"{row['name']}: {row['note']}")
    return results


def table(dtype: str, results: dict[str, Any]) -> Table:
    """Make a row for each function: errors of its values, then of its gradients."""
    title = f"{dtype}, errors in ulps of values and of gradients ({results['seconds']:.0f} s)"
    out = make_table(title, "", *_TITLES, *_TITLES)
    for row in results["tables"][dtype]:
        out.add_row(row["name"], *(_cell(row[part], key) for part in _PARTS for key in _COLUMNS))
    return out


def _cell(summary: dict[str, Any], column: str) -> str:
    number = summary.get(column)
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the excess over the limit of every row, values and gradients, a panel for each dtype."""
    tables = results["tables"]
    names = [row["name"] for row in next(iter(tables.values()))]
    size = (2 + 2.6 * len(tables), 1 + 0.19 * len(names))
    figure, [panels] = make_panels(*size, columns=len(tables), sharey=True)
    for axes, (dtype, table_rows) in zip(panels, tables.items(), strict=True):
        for part, colour, shift in (("value", COLOURS[1], -0.15), ("gradient", COLOURS[5], 0.15)):
            excess = [min(max(row[part].get("beyond_low", 0), 1e-3), 1e18) for row in table_rows]
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
