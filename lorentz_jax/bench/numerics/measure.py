"""Errors of every public function and its gradients, against mpmath, over the whole domain.

The unit is one ulp, taken as the dtype's eps relative to the norm of the exact result: for vectors
the norm of the difference over the norm of the truth. Truth is that of the rounded inputs. The
limit beside it is what changing every input entry by one relative eps can do to the result, by its
exact first derivatives; in bfloat16, which is computed in float32, it is half an ulp for the
rounding of the result and float32's eps for the inputs. What is owed is an error within a few
ulps of that limit. Gradients are products with one random cotangent a sample, measured for each
argument on its own, kappa included, and reported for the worst of them.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from lorentz_jax.bench.numerics import grid
from lorentz_jax.bench.numerics.cases import CASES, COORDINATES, Case
from lorentz_jax.bench.numerics.exact import exact

DTYPES = tuple(grid.FORMATS)
Truth = list[dict[str, Any]]
_CHUNK = 10
LOW = 2


def sample(case: Case, dtype: str, count: int, seed: int = 0) -> tuple[list, np.ndarray, Any]:
    """Arguments of `case`, cotangents of its output and levels of `grid.spread`, for each sample.

    All in the dtype, before spreading. bfloat16 has kappa and normals in float32, as in use, with
    kernels that it represents: rounding those is the caller's.
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
    """Exact results of samples `start` to `stop` of one case; runs in a process of its own."""
    case = CASES[name]
    arguments, cotangent, _ = sample(case, dtype, count)
    return [
        exact(case.truth, [np.asarray(a[i], np.float64) for a in arguments],
              np.asarray(cotangent[i], np.float64))
        for i in range(start, stop)
    ]  # fmt: skip


def _widen(x: np.ndarray, output: str, level: np.ndarray) -> np.ndarray:
    """Spread vectors; a lifted point has its time before them."""
    if output == "vector":
        return grid.spread(x, level)
    if output == "lift":
        return np.concatenate([x[:, :1], grid.spread(x[:, 1:], level)], axis=1)
    return x


def evaluate(case: Case, dtype: str, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Values and gradients of all samples, in the dtype, from one compiled program."""
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
    """Norms of `got - (high + low)`, a sample each."""
    with np.errstate(invalid="ignore", over="ignore"):
        gap = (np.asarray(got, np.float64) - high) - low
        return _norm(gap)


def _norm(x: np.ndarray) -> np.ndarray:
    """Norms of the samples, whose squares do not overflow."""
    flat = np.abs(x.reshape(len(x), -1)).astype(np.float64)
    largest = flat.max(axis=1, initial=0, keepdims=True)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
    with np.errstate(over="ignore"):
        return scale[:, 0] * np.sqrt(((flat / scale) ** 2).sum(axis=1))


def compare(
    got: np.ndarray,
    high: np.ndarray,
    low: np.ndarray,
    moves: np.ndarray,
    dtype: str,
    floor: Any = 0.0,
):
    """Errors, limits and excesses in ulps, and non-finite results, of each sample in the domain.

    Outside the domain are samples whose exact result the dtype cannot represent (overflow, or so
    small that it loses digits): NaN in every array. An exact 0 has no relative error: excess 0 if
    the result is within what its conditioning allows and eps^2 of `floor`, else inf.
    """
    form = grid.FORMATS[dtype]
    size, error = _norm(high), _errors(got, high, low)
    inside = (size < form.largest / 4) & ((size > form.smallest / form.eps) | (size == 0))
    finite = np.isfinite(np.asarray(got, np.float64).reshape(len(got), -1)).all(axis=1)
    half = 0.5 if form.eps != form.inner_eps else 0.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        limit = half + moves * form.inner_eps / (form.eps * size)
        ulps = error / (form.eps * size)
        excess = np.maximum(ulps - limit, 0)
    zero = size == 0
    excess[zero] = np.where(error <= form.inner_eps * (moves + form.inner_eps * floor), 0, np.inf)[
        zero
    ]
    ulps[zero] = limit[zero] = np.nan
    ulps[~inside | ~finite] = excess[~inside | ~finite] = limit[~inside] = np.nan
    return ulps, limit, excess, inside & ~finite


def _summary(parts: Sequence[tuple[np.ndarray, ...]], level: np.ndarray) -> dict[str, Any]:
    """Worst and median error over all parts of all samples; `beyond_low` for D up to 48."""
    ulps, limit, excess, bad = (np.stack(column) for column in zip(*parts, strict=True))
    live = np.isfinite(ulps)
    if not live.any():
        return {"samples": 0, "nonfinite": int(bad.sum())}
    worst = np.unravel_index(np.argmax(np.where(live, ulps, -1)), ulps.shape)
    beyond = np.where(np.isnan(excess), -1, excess)
    place = np.unravel_index(np.argmax(beyond), beyond.shape)
    few = level <= LOW
    return {
        "samples": int(live.any(axis=0).sum()),
        "worst": float(ulps[worst]),
        "limit": float(limit[worst]),
        "median": float(np.median(ulps[live])),
        "beyond": float(beyond[place]),
        "beyond_low": float(beyond[:, few].max(initial=0)),
        "beyond_at": [int(i) for i in place],
        "nonfinite": int(bad.sum()),
    }


def _columns(entries: list, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all samples as arrays of their high and low parts."""
    pairs = np.array(entries, np.float64).reshape(len(entries), *shape, 2)
    return pairs[..., 0], pairs[..., 1]


def measure(case: Case, dtype: str, count: int, found: Truth) -> dict[str, Any]:
    """One row of the table: the errors of a case's values and gradients."""
    arguments, _, level = sample(case, dtype, count)
    value, gradients = evaluate(case, dtype, count)
    parts = _columns([f["value"] for f in found], () if case.output == "scalar" else (-1,))
    high, low = (_widen(part, case.output, level) for part in parts)
    moves = np.array([f["moves"] for f in found])
    values, size = compare(value, high, low, moves, dtype), _norm(high)
    reachable = size < grid.FORMATS[dtype].largest / 4
    compared = []
    for i, (name, gradient) in enumerate(zip(case.inputs, gradients, strict=True)):
        parts = _columns([f["gradients"][i] for f in found], arguments[i].shape[1:])
        high, low = (grid.spread(p, level) if name in COORDINATES else p for p in parts)
        high[~reachable] = np.inf  # not in the domain
        if case.kink:
            by_convention = (size == 0) & np.isfinite(_norm(gradient))
            gradient = np.where(by_convention.reshape(-1, *[1] * (high.ndim - 1)), high, gradient)
        moves = np.array([f["gradient_moves"][i] for f in found])
        floor = np.array([f["floors"][i] for f in found])
        compared.append(compare(gradient, high, low, moves, dtype, floor))
    return {"value": _summary([values], level), "gradient": _summary(compared, level)}


def rows(
    names: Iterable[str],
    dtype: str,
    count: int,
    processes: int | None = None,
    others: Mapping[str, Callable] | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each case, in order, truth found by `processes` processes (0: in this one).

    `others` holds what another package has for a case; its row follows.
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
        found = (pool.map if workers else map)(truths, *columns)
        for name in names:
            exact_results = [result for _ in range(0, count, _CHUNK) for result in next(found)]
            case = CASES[name]
            row = {"module": case.module, "name": name, "note": case.note}
            yield row | measure(case, dtype, count, exact_results)
            if others and name in others:
                theirs = dataclasses.replace(case, call=others[name], note="")
                row = {"module": "peer", "name": f"{name}, hyperbolix", "note": ""}
                yield row | measure(theirs, dtype, count, exact_results)


def select(functions: Sequence[str]) -> list[str]:
    """Names of cases, from names of cases and of modules; all of them for none."""
    modules = {case.module for case in CASES.values()}
    unknown = [name for name in functions if name not in modules and name not in CASES]
    if unknown:
        raise ValueError(f"no function or module {unknown[0]!r}; there are {[*modules, *CASES]}")
    chosen = [n for n, case in CASES.items() if n in functions or case.module in functions]
    return chosen or list(CASES)
