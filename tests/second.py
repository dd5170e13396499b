"""Second derivatives against mpmath: of a function along one direction.

A direction moves all arguments at once, kappa included, so each block of the Hessian counts.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from tests import oracle
from tests.compiled import enable_x64, quick_jit

KAPPAS = (0.1, 1.0, 2.5)
FORWARD_OVER_REVERSE, REVERSE_OVER_FORWARD, REVERSE_OVER_REVERSE = range(3)


@functools.cache
def _program(call, modes):
    """`d^2/dt^2 sum(cotangent * call(*(arguments + t * moves)))` of every row, once a mode."""

    def one_row(arguments, moves, cotangent):
        def value(*arguments):
            return jnp.sum(jnp.ravel(call(*arguments)) * cotangent)

        def gradient(function, arguments):
            slopes = jax.grad(function, tuple(range(len(arguments))))(*arguments)
            return sum(jnp.sum(g * m) for g, m in zip(slopes, moves, strict=True))

        def forward(*arguments):
            return jax.jvp(value, arguments, moves)[1]

        def reverse(*arguments):
            return gradient(value, arguments)

        ways = {
            FORWARD_OVER_REVERSE: lambda: jax.jvp(reverse, arguments, moves)[1],
            REVERSE_OVER_FORWARD: lambda: gradient(forward, arguments),
            REVERSE_OVER_REVERSE: lambda: gradient(reverse, arguments),
        }
        return jnp.stack([ways[mode]() for mode in modes])

    return quick_jit(jax.vmap(one_row))


def _flat(x):
    return [entry for part in x for entry in _flat(part)] if isinstance(x, list) else [x]


def _moved(a, t, b):
    if isinstance(a, list):
        return [_moved(x, t, y) for x, y in zip(a, b, strict=True)]
    return a + t * b


def _truth(function, arguments, moves, cotangent):
    sizes = np.abs(np.concatenate([np.ravel(a) for a in arguments]).astype(np.float64))
    with mp.workdps(100 + int(8 * np.log10(max(sizes.max(), 1)))):
        start, way = ([oracle.exactly(a) for a in group] for group in (arguments, moves))
        weights: Any = oracle.exactly(cotangent)

        def at(t):
            arrays = (_moved(a, t, b) for a, b in zip(start, way, strict=True))
            return oracle.dot(weights, _flat([function(*arrays)]))

        step = mp.mpf(10) ** -20
        return float((at(step) - 2 * at(mp.mpf(0)) + at(-step)) / step**2)


def check(call, function, rows, rtol, dtype: Any = np.float64, modes=(FORWARD_OVER_REVERSE,)):
    """Compare at every row of arguments and every kappa, which is added as the last one.

    Moves are as large as the argument, and of order 1 for an argument 0. Results that are 0 may be
    off by `rtol` times 1e-2.
    """
    rng = np.random.default_rng(0)
    rows = [(*row, kappa) for row in rows for kappa in KAPPAS]
    arguments = [np.array(column, dtype) for column in zip(*rows, strict=True)]
    sizes = [np.abs(a).reshape(len(a), -1).max(axis=1) for a in arguments]
    moves = [
        (rng.normal(size=a.shape) * np.where(size > 0, size, 1).reshape(-1, *[1] * (a.ndim - 1)))
        for a, size in zip(arguments, sizes, strict=True)
    ]
    moves = [m.astype(dtype) for m in moves]
    shape = jax.eval_shape(call, *(a[0] for a in arguments)).shape
    cotangent = rng.normal(size=(len(rows), int(np.prod(shape)))).astype(dtype)
    with jax.debug_nans(False), enable_x64(dtype == np.float64):
        found = np.asarray(_program(call, modes)(tuple(arguments), tuple(moves), cotangent))
    for i, row in enumerate(rows):
        want = _truth(function, [a[i] for a in arguments], [m[i] for m in moves], cotangent[i])
        assert np.all(np.abs(found[i] - want) <= rtol * (abs(want) + 0.01)), (row, found[i], want)
