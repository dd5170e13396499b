"""Arguments for every function of `geometry`, and how to run it on them without compiling anew."""

import functools

import jax
import numpy as np

from lorentz_jax import geometry
from tests.compiled import enable_x64, quick_jit

# Letters: p point, t tangent vector at the first argument, o at the origin, b point of the
# Poincare ball, k of the Klein ball.
KINDS = {
    "time": "p", "lift": "p", "dist0": "p", "log0": "p", "to_poincare": "p", "to_klein": "p",
    "exp0": "o", "from_poincare": "b", "from_klein": "k",
    "inner": "pp", "dist": "pp", "squared_dist": "pp", "log": "pp", "translate": "pp",
    "exp": "pt", "tangent_norm": "pt", "transport_to_origin": "pt", "transport_from_origin": "po",
    "transport": "ppt", "tangent_inner": "ptt",
}  # fmt: skip
# Their results have no coordinate axis.
SCALARS = ("time", "dist0", "inner", "dist", "squared_dist", "tangent_inner", "tangent_norm")


def polar(radius, angle, kappa, dtype):
    """Points of the plane at s-scaled distance `radius` from the origin."""
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return ((np.sinh(radius) / np.sqrt(kappa))[..., None] * direction).astype(dtype)


def tangent(x, v, kappa):
    """The tangent vector at x that is v at the origin, in x's dtype."""
    point, kappa = x.astype(np.float64), np.asarray(kappa, np.float64)[..., None]
    time = np.sqrt(1 + kappa * (point**2).sum(-1, keepdims=True))
    along = (point * v).sum(-1, keepdims=True)
    return (v + point * kappa * along / (1 + time)).astype(x.dtype)


class Grid:
    """Rows `(radius of x, radius of y, angle between them)` in one dtype.

    Every row at every kappa, or with `paired` each at one of them in turn.

    Tangent vectors at x have the lengths of y's radius and 1/s. `arrays(name)` are the arguments
    of a function, without kappa, and `kappa` is an array of the batch shape.
    """

    def __init__(self, rows, kappas, dtype, paired=False, seed=0):
        r, q, turn = np.array(rows, np.float64).T
        if paired:
            kappa = np.resize(np.asarray(kappas, np.float64), len(r))
        else:
            kappa, r = (a.ravel() for a in np.meshgrid(kappas, r, indexing="ij"))
            q, turn = np.tile(q, len(kappas)), np.tile(turn, len(kappas))
        start = np.random.default_rng(seed).uniform(0, 6, len(r))
        # kappa itself is rounded first: points are placed by the one that is passed.
        self.kappa = kappa.astype(dtype)
        kappa = self.kappa.astype(np.float64)
        scale = 1 / np.sqrt(kappa)[:, None]
        self.x, self.y = polar(r, start, kappa, dtype), polar(q, start + turn, kappa, dtype)
        along = np.stack([np.cos(start + turn), np.sin(start + turn)], -1) * q[:, None] * scale
        across = np.stack([np.cos(start + 1), np.sin(start + 1)], -1) * scale
        self.origin = along.astype(dtype)
        self.v, self.u = tangent(self.x, along, kappa), tangent(self.x, across, kappa)
        # Balls end where the dtype cannot tell the edge any more.
        inside = np.minimum(r, -np.log(np.finfo(dtype).eps) / 2 - 2)
        direction = np.stack([np.cos(start), np.sin(start)], -1) * scale
        self.poincare = (np.tanh(inside / 2)[:, None] * direction).astype(dtype)
        self.klein = (np.tanh(inside)[:, None] * direction).astype(dtype)

    def arrays(self, name):
        """Second points are y, second tangent vectors u."""
        kinds, result = KINDS[name], []
        points, tangents = [self.x, self.y], [self.v, self.u]
        if name == "transport":
            tangents = [self.u]
        pools = {"p": points, "t": tangents, "o": [self.origin], "b": [self.poincare],
                 "k": [self.klein]}  # fmt: skip
        for kind in kinds:
            result.append(pools[kind].pop(0))
        return tuple(result)


ROWS, COLUMNS = 48, 8


@functools.cache
def _compiled(name):
    function = getattr(geometry, name)

    def value_and_gradients(arrays, kappa, cotangent):
        value, pull = jax.vjp(function, *arrays, kappa)
        return value, pull(cotangent)

    return quick_jit(value_and_gradients)


def run(name, arrays, kappa, cotangent=None):
    """Value and gradients (of `sum(cotangent * value)`) of one function, as NumPy arrays.

    All is padded to one shape, so that a function compiles once a dtype in the whole run:
    with coordinates 0, which change nothing, and with copies of the last row. float32 runs as it
    does for users, without 64 bits.
    """
    kappa = np.broadcast_to(np.asarray(kappa, arrays[0].dtype), arrays[0].shape[:-1])
    rows, columns = arrays[0].shape
    more = name == "lift"
    shape = (rows,) if name in SCALARS else (rows, columns + more)

    def pad(x, width=COLUMNS):
        x = np.pad(x, [(0, ROWS - rows)] + [(0, 0)] * (x.ndim - 1), mode="edge")
        return x if x.ndim == 1 else np.pad(x, [(0, 0), (0, width - x.shape[1])])

    cotangent = np.ones(shape, kappa.dtype) if cotangent is None else cotangent
    # The tests look for NaN themselves.
    with jax.debug_nans(False), enable_x64(kappa.dtype == np.float64):
        value, gradients = _compiled(name)(
            tuple(map(pad, arrays)), pad(kappa), pad(cotangent, COLUMNS + more)
        )
    *gradients, by_kappa = (np.asarray(g)[:rows] for g in gradients)
    value = np.asarray(value)[:rows]
    value = value if value.ndim == 1 else value[:, : columns + more]
    return value, [*(g[:, :columns] for g in gradients), by_kappa]


def call(name, arrays, kappa):
    """The value alone."""
    return run(name, arrays, kappa)[0]


class Compiled:
    """The functions of `geometry` on arrays `(N, D)`, through `call`."""

    def __getattr__(self, name):
        return lambda *arguments: call(name, arguments[:-1], arguments[-1])
