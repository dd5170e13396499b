"""Errors in ulps beside what rounding the inputs is worth, and their summary as a row of the table.

See `measure` for the unit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lorentz_jax.bench.numerics import grid

Parts = tuple[np.ndarray, np.ndarray]
LOW = 2
"""Largest level of `grid.spread` with at most 48 coordinates."""


def errors_of(got: np.ndarray, high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the norm of `got - (high + low)` of each sample."""
    with np.errstate(invalid="ignore", over="ignore"):
        gap = (np.asarray(got, np.float64) - high) - low
        return norm(gap)


def norm(x: np.ndarray) -> np.ndarray:
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
    size, error = norm(high), errors_of(got, high, low)
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


def summary(parts: Sequence[tuple[np.ndarray, ...]], level: np.ndarray) -> dict[str, Any]:
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


def columns(entries: list, shape: tuple[int, ...]) -> Parts:
    """Return the numbers of all samples as arrays of their high and low parts."""
    pairs = np.array(entries, np.float64).reshape(len(entries), *shape, 2)
    return pairs[..., 0], pairs[..., 1]
