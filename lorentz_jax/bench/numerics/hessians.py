"""Errors of Hessians, for `measure`: which samples have one, and block by block how far off it is.

A Hessian is that of the product of a value with its cotangent, by all arguments at once and kappa
among them. A block, of one argument against another, may be far smaller than the others where it
matters less than they do. So there are two measures: each block beside its own norm, and all of
them beside the largest, every derivative multiplied by the sizes of the two arguments.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax.bench.numerics import grid
from lorentz_jax.bench.numerics.cases import Case
from lorentz_jax.bench.numerics.errors import columns, compare, errors_of, norm, summary

_EVERY = 2
"""Of how many samples with three coordinates one has its Hessian measured."""


def chosen(dtype: str, level: np.ndarray) -> np.ndarray:
    """Return the samples that have a Hessian: every other one of three coordinates.

    There are none in bfloat16, where all is computed in float32.
    """
    return np.flatnonzero(level == 0)[::_EVERY] if dtype != "bfloat16" else np.arange(0)


def evaluate(
    case: Case, dtype: str, arguments: Sequence[np.ndarray], cotangent: np.ndarray
) -> list[list[np.ndarray]]:
    """Return the blocks of all samples, forward over reverse, from one compiled program."""
    numbers = tuple(range(len(arguments)))

    def hessian(cotangent: Array, *arguments: Array):
        def product(*arguments: Array) -> Array:
            value = case.call(*arguments)
            return jnp.sum(cotangent.astype(value.dtype) * value)

        return jax.jacfwd(jax.grad(product, numbers), numbers)(*arguments)

    with jax.enable_x64(dtype == "float64"), jax.debug_nans(False):
        blocks = jax.jit(jax.vmap(hessian))(cotangent, *arguments)
        return [[np.asarray(block).reshape(len(cotangent), -1) for block in row] for row in blocks]


def measure_hessians(
    case: Case,
    dtype: str,
    arguments: Sequence[np.ndarray],
    cotangent: np.ndarray,
    level: np.ndarray,
    results: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Return the summary of the blocks' errors, with "beside": beside the largest block.

    That one is what is left of the error, beyond the limit, in eps of the largest block.
    """
    samples = chosen(dtype, level)
    if not samples.size:
        return {"samples": 0, "nonfinite": 0}
    arguments = [a[samples] for a in arguments]
    blocks = evaluate(case, dtype, arguments, cotangent[samples])
    truth = [results[i] for i in samples]
    high, low = columns([r["hessian"] for r in truth], (-1, len(truth[0]["hessian"])))
    moves = np.array([r["hessian_moves"] for r in truth])
    value = norm(columns([r["value"] for r in truth], (-1,))[0])
    edges = np.cumsum([0, *(a[0].size for a in arguments)])
    spans = [slice(*edges[i : i + 2]) for i in range(len(arguments))]
    sizes = [_size(a) for a in arguments]
    compared, totals = [], []
    for i, rows in enumerate(spans):
        for j, across in enumerate(spans):
            got = blocks[i][j]
            want = [part[:, rows, across].reshape(got.shape) for part in (high, low)]
            if case.kink:
                by_convention = (value == 0) & np.isfinite(norm(got))
                got = np.where(by_convention[:, None], want[0], got)
            moved, scale = norm(moves[:, rows, across]), sizes[i] * sizes[j]
            with np.errstate(over="ignore", invalid="ignore"):
                floor = np.asarray(value / scale, np.float64)
                found = compare(got, (want[0], want[1]), moved, dtype, floor)
                # No digit is owed of what is too small to be represented.
                error = np.where(np.isnan(found[2]), 0, errors_of(got, *want))
                totals.append([scale * a for a in (error, moved, norm(want[0]))])
            compared.append(found)
    bad = np.any([found[3] for found in compared], axis=0)
    left = _beside(totals, bad, dtype)
    worst = int(np.argmax(left))
    beside = {"beside": float(left[worst]), "beside_at": int(samples[worst])}
    return summary(compared, level[samples]) | beside


def _size(x: np.ndarray) -> np.ndarray:
    """Return the largest entry of each sample, 1 for zeros, in a type where squares are finite."""
    largest = np.abs(x.astype(np.longdouble)).reshape(len(x), -1).max(axis=1)
    return np.where(largest > 0, largest, 1)


def _beside(totals: list, bad: np.ndarray, dtype: str) -> np.ndarray:
    """Return what is left of each sample's error, in eps of its largest block; 0 if not finite."""
    errors, moves, sizes = np.max(np.array(totals), axis=0)
    eps = grid.FORMATS[dtype].eps
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = np.maximum(errors / eps - moves, 0) / sizes
    return np.where(np.isfinite(left) & ~bad, left, 0)
