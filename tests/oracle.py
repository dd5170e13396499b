"""Independent truth for the tests: textbook formulas in high-precision mpmath, and golden data.

Vectors are lists of `mpf`. Capital letters are the paper's ambient `(D + 1)` vectors, time first;
a point stored by its space part becomes one through `mp_lift`. `SPACE` holds every function of
`lorentz_jax.geometry` with its own signature. Nothing here shares a formula with the package:
distances are arccosh of the Minkowski product, translations are exp o transport o log, and so on.
"""

import functools
import itertools
import math
from pathlib import Path

import mpmath as mp
import numpy as np

from lorentz_jax import geometry
from lorentz_jax.bench.numerics import truth
from lorentz_jax.bench.numerics.cases import CASES
from lorentz_jax.bench.numerics.truth import combine, dot, minkowski

__all__ = ["combine", "dot", "minkowski"]

# --- textbook formulas (ambient): those of `bench.numerics.truth`, by the names of the tests ---

euclidean_norm, mp_time, mp_lift = truth.length, truth.time, truth.point
mp_dist, mp_exp, mp_log = truth.distance, truth.exponential, truth.logarithm
mp_transport, mp_translate, mp_normals = truth.transported, truth.translated, truth.normal


def mp_origin(dimension, kappa):
    return truth.origin([0] * dimension, kappa)


def mp_centroid(points, kappa, weights=None):
    return truth.centre(points, [mp.mpf(1)] * len(points) if weights is None else weights, kappa)


def mp_signed_distance(X, w, b, kappa, scale="inside"):
    """Signed distance of X to the hyperplane (w, b); `scale` is None, "inside" or "outside"."""
    s, size = mp.sqrt(kappa), euclidean_norm(w)
    z = minkowski(X, mp_normals(w, b, kappa))
    if scale == "inside":
        return mp.asinh(s * z) / s
    return mp.asinh(s * z / size) / s * (size if scale == "outside" else 1)


def mp_linear(X, rows, biases, kappa, activation=lambda a: a):
    """The point whose signed distances to the coordinate hyperplanes are Lorentzian activations.

    `rows` are the weight vectors of the units. Unit i has space coordinate `activation(z_i)`,
    with `z_i = sinh(s a_i)/s` and `a_i` the inside-scaled distance.
    """
    s = mp.sqrt(kappa)
    y = [
        activation(mp.sinh(s * mp_signed_distance(X, w, b, kappa)) / s)
        for w, b in zip(rows, biases, strict=True)
    ]
    return mp_lift(y, kappa)


# The functions of `geometry` on space parts, with their own signatures.
OTHERS = {"centroid", "drop", "pairwise_dist"}  # with signatures of their own
SPACE = {name: CASES[name].truth for name in geometry.__all__ if name not in OTHERS}

# --- evaluation on arrays -------------------------------------------------------------------


def exactly(values):
    """A number or an array of any float dtype as `mpf`s, nested as the array is; no rounding."""
    values = np.asarray(values, np.float64)
    return mp.mpf(float(values)) if values.ndim == 0 else [exactly(v) for v in values]


def digits(*arrays) -> int:
    """Enough digits for 50 to remain after the worst cancellation of these inputs."""
    sizes = np.concatenate([np.abs(np.asarray(a, np.float64)).ravel() for a in arrays])
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    return 60 + int(4 * np.abs(np.log10(sizes)).max(initial=0))


def _rows(arrays, kappa):
    """Rows of the arrays `(..., D)` and of kappa, broadcast over the batch; and its shape."""
    arrays, kappa = [np.asarray(a, np.float64) for a in arrays], np.asarray(kappa, np.float64)
    batch = np.broadcast_shapes(kappa.shape, *(a.shape[:-1] for a in arrays))
    columns = [np.broadcast_to(a, batch + a.shape[-1:]).reshape(-1, a.shape[-1]) for a in arrays]
    return zip(*columns, np.broadcast_to(kappa, batch).ravel(), strict=True), batch


def _floats(value):
    return np.asarray([float(v) for v in value] if isinstance(value, list) else float(value))


def evaluate(function, *arrays, kappa):
    """`function(*rows, kappa)` at every row of the broadcast batch, as float64."""
    rows, batch = _rows(arrays, kappa)
    results = []
    for row in rows:
        with mp.workdps(digits(*row)):
            results.append(_floats(function(*map(exactly, row))))
    return np.stack(results).reshape(batch + results[0].shape)


def gradients(function, *arrays, kappa, cotangent=None):
    """Derivatives of `sum(cotangent * function)` by mpmath differences, for every argument.

    One float64 array an argument, kappa last; each row is differentiated on its own, so arguments
    must have the full batch shape for the result to be the gradient.
    """
    rows, batch = _rows(arrays, kappa)
    weights = np.ones(()) if cotangent is None else np.asarray(cotangent, np.float64)
    weights = weights.reshape(math.prod(batch), -1) if weights.ndim else itertools.repeat([1.0])
    results = []
    for row, weight in zip(rows, weights, strict=False):
        with mp.workdps(digits(*row)):
            flat = [v for argument in row for v in np.atleast_1d(exactly(argument))]
            sizes, weight = [np.size(argument) for argument in row], exactly(weight)

            def scalar(position, t, flat=flat, sizes=sizes, weight=weight):
                moved, start, arguments = flat[:position] + [t] + flat[position + 1 :], 0, []
                for size in sizes[:-1]:
                    arguments.append(moved[start : start + size])
                    start += size
                value = function(*arguments, moved[-1])
                return dot(weight, value if isinstance(value, list) else [value])

            results.append(
                [float(mp.diff(functools.partial(scalar, i), flat[i])) for i in range(len(flat))]
            )
    results = np.asarray(results).reshape(*batch, -1)
    parts = np.split(results, np.cumsum([np.shape(a)[-1] for a in arrays]), axis=-1)
    return [*parts[:-1], parts[-1][..., 0]]


def conditioning(function, *arrays, kappa, eps):
    """How far each row moves when every input entry, kappa included, moves by one part in 1/eps."""
    arguments = [np.asarray(a, np.float64) for a in (*arrays, kappa)]
    want, total = evaluate(function, *arrays, kappa=kappa), 0.0
    for i, argument in enumerate(arguments):
        for entry in range(argument.shape[-1] if i < len(arrays) else 1):
            moved = argument.copy()
            moved[(..., entry) if i < len(arrays) else ...] *= 1 + eps
            changed = [*arguments[:i], moved, *arguments[i + 1 :]]
            shift = evaluate(function, *changed[:-1], kappa=changed[-1]) - want
            total = total + _size(shift, np.ndim(kappa))
    return total


def _size(values, batch_ndim):
    """Largest entry of each row."""
    values = np.abs(values)
    return values.max(axis=-1) if values.ndim > batch_ndim else values


# --- comparison -----------------------------------------------------------------------------


def error(got, want, axis=-1):
    """Largest error relative to the size of `want` along `axis` (None: entry by entry)."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if got.size == 0:
        return 0.0
    size = np.abs(want) if axis is None or want.ndim == 0 else np.abs(want).max(axis, keepdims=True)
    gap = np.abs(got - want)
    return float(np.max(np.where(gap == 0, 0.0, gap / np.where(size > 0, size, 1.0))))


def assert_close(got, want, rtol, axis=-1, what=""):
    """Every entry within `rtol` of the largest of `want` along `axis`; NaN fails."""
    worst = error(got, want, axis)
    assert worst <= rtol, f"{what} relative error {worst:.3g} > {rtol:.3g}\n got {got}\nwant {want}"


def assert_accurate(got, function, *arrays, kappa, factor=6.0, what=""):
    """Errors within `factor` times what rounding the inputs and the result once would do.

    `kappa` is an array of the batch shape in the inputs' dtype, which sets the rounding.
    """
    eps, kappa = float(np.finfo(np.asarray(kappa).dtype).eps), np.asarray(kappa)
    want = evaluate(function, *arrays, kappa=kappa)
    scale = conditioning(function, *arrays, kappa=kappa, eps=eps) + eps * _size(want, kappa.ndim)
    gap = _size(np.asarray(got, np.float64) - want, kappa.ndim)
    ratio = np.where(gap == 0, 0.0, gap / np.where(scale > 0, scale, 1e-300))
    row = int(np.argmax(np.nan_to_num(ratio, nan=np.inf)))
    assert ratio.ravel()[row] <= factor, (
        f"{what} row {row}: error {ratio.ravel()[row]:.3g} times the conditioning for "
        f"{[np.asarray(a)[row] for a in arrays]}, kappa {kappa[row]}"
    )


# --- golden data ----------------------------------------------------------------------------

DATA = Path(__file__).parent / "golden"


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    """All arrays of `tests/golden/<name>.npz`."""
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}
