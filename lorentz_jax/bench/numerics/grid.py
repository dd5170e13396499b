"""The points, tangent vectors and planes at which `bench.numerics` measures errors.

Each sample has three coordinates, some of them 0. They are made in extended precision, where their
squares do not overflow, and rounded to the dtype that is measured; truth belongs to the rounded
numbers. High dimensions are the same samples again, see `spread`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray]

DIMENSION = 1024
_BASE = 3
# Radii that every run holds, at each of these kappas; inf is the farthest representable one.
_RADII = (0.0, 1e-12, 1e-4, 1.0, 10.0, 40.0, np.inf)
_KAPPAS = (1e-6, 1e-2, 1.0, 100.0)


@dataclass(frozen=True)
class Format:
    """A dtype of the table: its name, its limits, and the dtype that it is computed in."""

    name: str
    eps: float
    inner_eps: float
    smallest: float
    largest: float
    reach: float
    """Largest s r of a point."""
    radius: float
    """Largest r of a point, except the farthest ones."""


FORMATS = {
    "float32": Format("float32", 2.0**-23, 2.0**-23, 2.0**-126, 3.4e38, 87.0, 40.0),
    "float64": Format("float64", 2.0**-52, 2.0**-52, 2.0**-1022, 1.79e308, 705.0, 300.0),
    "bfloat16": Format("bfloat16", 2.0**-7, 2.0**-23, 2.0**-126, 3.38e38, 87.0, 40.0),
}


def rounded(x: NDArray, name: str) -> NDArray:
    """Round to a dtype by name, bfloat16 too."""
    if name != "bfloat16":
        return x.astype(name)
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)


def spread(x: NDArray, level: NDArray, dimension: int = DIMENSION) -> NDArray:
    """Make vectors of `dimension` of vectors of 3 coordinates, without changing any product.

    A coordinate becomes `4^level` entries `+-2^-level` times as large: an isometry of Euclidean
    space that is exact in floating point, so the truth in three dimensions is spread alike.
    `x` has shape `(N, ..., 3)` and `level`, 0 to 4, shape `(N,)`.
    """
    out = np.zeros((*x.shape[:-1], dimension), x.dtype)
    signs = 1 - 2 * (np.arange(dimension) % 3 % 2)
    for k in np.unique(level):
        rows, copies = level == k, 4 ** int(k)
        wide = np.repeat(x[rows] * np.asarray(2.0**-k, x.dtype), copies, axis=-1)
        out[rows, ..., : _BASE * copies] = wide * signs[: _BASE * copies].astype(x.dtype)
    return out


def _directions(rng, count, plane):
    u = rng.normal(size=(count, _BASE)).astype(np.longdouble)
    u[plane, 2] = 0
    return u / np.linalg.norm(u, axis=-1, keepdims=True)


def _boost(p, v, kappa):
    """Transport v from the origin to p, and take exp at p of it: `(N, 3)` each, in float64."""
    s = np.sqrt(kappa)[:, None]

    def scaled_time(x):
        return np.hypot(s * np.linalg.norm(x, axis=-1, keepdims=True), 1)

    def move(x, time):
        along = s * np.sum(p * x, -1, keepdims=True)
        return x + p * (time + s * along / (1 + scaled_time(p)))

    size = s * np.linalg.norm(v, axis=-1, keepdims=True)
    grown = v * np.where(size > 0, np.sinh(size) / np.where(size > 0, size, 1), 1)
    return move(v, np.zeros_like(size)), move(grown, scaled_time(grown))


def samples(name: str, count: int, seed: int = 0, share: float = 1.0) -> Arrays:
    """Make `count` samples in the dtype `name`: the corners first, then random ones.

    Keys: points `x`, `y` (near x, or at an angle to it seen from the origin), tangent vectors at
    x `v`, `u` and at the origin `o`, points of the balls `poincare`, `klein`, three points
    `points` with `weights`, a plane `w`, `b` with its normal `space`, `time`, `length`; `level`,
    the dimension as `spread` takes it, and `kappa`. Points have s r up to `share` of the largest
    and coordinates up to that power of the largest.
    """
    form, rng = FORMATS[name], np.random.default_rng(seed)
    corners = [(k, r) for k in _KAPPAS for r in _RADII][: count // 2]
    more = count - len(corners)
    kappa = np.array([k for k, _ in corners] + list(10 ** rng.uniform(-6, 2, more)))
    radius = 10 ** rng.uniform(-12, 0, more)
    radius[::2] = rng.uniform(0, form.radius, more)[::2]
    radius = np.array([r for _, r in corners] + list(radius))
    kappa = np.asarray(rounded(kappa, name), np.longdouble)
    s = np.sqrt(kappa)
    reach = np.minimum(share * form.reach, np.log(s * np.longdouble(form.largest) ** share / 8))
    radius = np.minimum(radius, reach / s)

    index = rng.permutation(count)
    plane, axis = index % 3 == 0, index % 5 < 2  # in a plane; on an axis, where rounding is radial
    u = _directions(rng, count, plane)
    u[axis] = np.eye(_BASE, dtype=np.longdouble)[rng.integers(0, 2, axis.sum())]
    x = np.sinh(s * radius)[:, None] / s[:, None] * u

    # Lengths of tangent vectors: 1e-10 to 10, as far as there is room above x.
    room = np.minimum(10, (reach - s * radius) / s)
    lengths = [np.minimum(10 ** rng.uniform(-10, 1, count), room) for _ in range(3)]
    to_y, to_v, to_u = (size[:, None] * _directions(rng, count, plane) for size in lengths)
    across = rng.random(count) < 0.5  # far out, a radial vector drowns the rest of itself
    to_v[across] -= u[across] * np.sum(to_v * u, -1, keepdims=True)[across]
    (_, near), (v, _), (w_at_x, _) = (_boost(x, t, kappa) for t in (to_y, to_v, to_u))
    angle = 10 ** rng.uniform(-8, np.log10(np.pi), count)
    angle[index % 7 == 0] = np.pi
    size = np.where(rng.random(count) < 0.5, radius, np.minimum(10 ** rng.uniform(-12, 1.6), room))
    turned = _turn(u, angle, rng, plane)
    y = np.sinh(s * size)[:, None] / s[:, None] * turned
    y = np.where((index % 2 == 0)[:, None], near, y)

    # Where the dtype cannot tell the edge of a ball any more it has no points.
    inside = np.minimum(s * radius, -np.log(form.eps) / 2 - 2)[:, None]
    size = 10 ** rng.uniform(-6, 3, count)
    theta = 79 * rng.uniform(-1, 1, count) * 10 ** rng.uniform(-8, 0, count)
    theta[:4] = 79, -79, 40, 1e-8
    w, b = size[:, None] * _directions(rng, count, plane), -size * theta / s
    w, b = (np.asarray(rounded(a, name), np.longdouble) for a in (w, b))
    norm = np.linalg.norm(w, axis=-1)
    theta = -s * b / norm
    poincare, klein = np.tanh(inside / 2) / s[:, None] * u, np.tanh(inside) / s[:, None] * u
    arrays = {"x": x, "y": y, "v": v, "u": w_at_x, "o": to_v, "distances": to_v}
    arrays |= {"poincare": poincare, "klein": klein, "beta": to_u, "mean": near, "w": w, "b": b}
    arrays |= {"points": np.stack([x, y, near], 1), "weights": rng.uniform(0.1, 1, (count, 3))}
    arrays |= {"space": w * np.cosh(theta)[:, None], "time": norm * np.sinh(theta), "length": norm}
    arrays |= {"kappa": kappa, "gain": rng.normal(size=count), "distance": theta / s}
    arrays |= {"cotangent": rng.normal(size=(count, _BASE)), "scalar": rng.normal(size=count)}
    size = np.minimum(radius, 5 / s)[:, None, None]
    arrays |= {"image": rng.normal(size=(count, 2, 2)) * size}
    arrays |= {"kernel": rng.normal(size=(count, 3, 3))}
    arrays = {key: rounded(value, name) for key, value in arrays.items()}
    return {**arrays, "level": np.where(index % 4 < 3, 0, 1 + index % 16 // 4)}


def _turn(u, angle, rng, plane):
    """Return unit vectors at an angle to `u`, also within 1e-8 of it."""
    side = _directions(rng, len(u), plane)
    side -= u * np.sum(side * u, -1, keepdims=True)
    side /= np.linalg.norm(side, axis=-1, keepdims=True)
    return u * np.cos(angle)[:, None] + side * np.sin(angle)[:, None]
