"""`geometry.centroid`: its formula and derivative, for weighted points `(..., n, D)`.

In the formulas kappa and weights are `(..., n or 1, 1)`, and results keep the axis of the points
at length 1. Symbols as in `radial`; `(D53)` and so on are equations of `docs/derivations.md`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src import scalars
from lorentz_jax._src.arguments import along_batch, as_array, as_kappa, compute_dtype, concrete, row
from lorentz_jax._src.charts import scaled_time
from lorentz_jax._src.pairs import directions, dot
from lorentz_jax._src.scalars import direction, divide, hypot, safe_norm, split


class _Frame(NamedTuple):
    """Light-cone coordinates along the anchor, a point that contributes much.

    Attributes:
        mean: the vector `m = sum w x`.
        length: `L = sqrt(-kappa M o M)` of `M = sum w X`.
        anchor: the point.
        plus: `s (x_t + u.x)` of every point, u the direction of the anchor.
        around: the part of every point across u, after the null rotation that makes the mean of
            these parts vanish.
    """

    mean: Array
    length: Array
    anchor: Array
    plus: Array
    around: Array


def _total(values: Array) -> Array:
    """Sum over the points."""
    return jnp.sum(values, axis=-2, keepdims=True)


def _frame(x, kappa, weights):
    """The frame, with `L^2 = sum w plus sum w reach^2/plus`, of positive terms (D54)."""
    s, xt = jnp.sqrt(kappa), scaled_time(x, kappa)
    size = safe_norm(x, keepdims=True)
    first = jnp.argmax(weights * size, axis=-2, keepdims=True)
    # Not by indexing: the points may lie on several devices.
    number = jax.lax.broadcasted_iota(first.dtype, (x.shape[-2], 1), 0)
    anchor = _total(jnp.where(row(number, first) == first, x, 0))
    unit = direction(anchor, safe_norm(anchor, keepdims=True))
    along = dot(unit, x)
    # Any multiple of the anchor may be taken off before projecting. An equal point leaves 0.
    scale = scalars.binary_scale(anchor)
    share = divide(along / scale, safe_norm(anchor / scale, keepdims=True))
    near = jnp.abs(share - 1) < 2.0**-4
    apart = scalars.product_difference(jnp.ones_like(x), x / scale, share, anchor / scale)
    across = split(unit, jnp.where(near, x - anchor, scale * apart))[1]
    ahead, along = along >= 0, s * along
    larger = xt + jnp.where(ahead, along, -along)
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(xt))
    plus = jnp.where(ahead, larger, floor * (floor / larger))  # (D53)
    mean_plus = _total(weights * plus)
    around = across - plus * divide(_total(weights * across), mean_plus)  # (D54)
    reach = hypot(s * safe_norm(around, keepdims=True), jnp.ones_like(xt))
    length = jnp.sqrt(mean_plus) * jnp.sqrt(_total(weights * (reach * (reach / plus))))
    length = jnp.maximum(length, _total(weights * jnp.ones_like(xt)))
    return _Frame(_total(weights * x), length, anchor, plus, around)


@jax.custom_jvp
def average(x, kappa, weights):
    """`m/L`, the space part of the centroid."""
    frame = _frame(x, kappa, weights)
    return divide(frame.mean, frame.length)


class _Gaps(NamedTuple):
    """Every point beside the anchor: sizes, scaled times, and the differences of `directions`."""

    size: Array
    anchor_size: Array
    time: Array
    anchor_time: Array
    unit: Array
    gap: Array
    turn: Array


def _gaps(x, anchor, kappa):
    time = scaled_time(x, kappa)
    size, anchor_size, _, unit, gap, turn = directions(x, anchor)
    return _Gaps(size, anchor_size, time, scaled_time(anchor, kappa), unit, gap, turn)


def _pull(gaps, weights, c_time):
    """`T (mean k - k_i)` of Klein coordinates k, T the scaled time of the centroid (D56).

    The weights of this mean are `w s x_t`. Differences from the anchor's k are formed by (D57).
    """
    size, anchor_size, xt, at, unit, gap, turn = gaps
    u, v = size / xt, anchor_size / at
    radial = divide((gap / xt) * ((size + anchor_size) / at), u + v) / xt
    klein = turn * c_time * u + unit * (radial * (c_time / at))
    return _total(weights * xt / _total(weights * xt) * klein) - klein


@average.defjvp
def _average_jvp(primals, tangents):
    """`dC = (dM + kappa (C o dM) C)/L` (D55), with `C o dM` as sums of differences of points.

    `C o dX_i` is `_pull`, and `-kappa C o X_i = 1 + 2 z_i` in the frame of `_frame`.
    """
    (x, kappa, weights), (dx, dkappa, dweights) = primals, tangents
    mean, length, anchor, plus, around = _frame(x, kappa, weights)
    c, s = divide(mean, length), jnp.sqrt(kappa)
    gaps, weight_sum = _gaps(x, anchor, kappa), _total(weights)
    size, anchor_size, xt, at, unit, gap, _ = gaps
    pull = _pull(gaps, weights, scaled_time(c, kappa))

    def about_mean(from_anchor, at_anchor):
        """Differences from the weighted mean, of those from the anchor; and that mean."""
        middle = _total(weights * from_anchor) / weight_sum
        return from_anchor - middle, at_anchor + middle

    time_gap = s * gap * (s * (size + anchor_size) / (xt + at))
    forward = dot(unit, x - anchor)
    anchor_plus = s * anchor_size + at
    climb = jnp.where(2 * plus > anchor_plus, time_gap + s * forward, plus - anchor_plus)
    by_plus, mean_plus = about_mean(climb, anchor_plus)
    by_time, mean_time = about_mean(time_gap, at)
    by_x, mean_x = about_mean(x - anchor, anchor)
    # `surplus` is L^2 - W^2, W the sum of weights, over L (L + W): positive terms (D58).
    tall = s * safe_norm(around, keepdims=True)
    sum_of_both, share = length + weight_sum, weight_sum / length
    surplus = _total(weights * (by_plus / plus) * (by_plus / mean_plus)) * share / sum_of_both
    bent = weights * (tall / length) * ((tall / plus) * (mean_plus / sum_of_both))
    surplus += _total(bent) * weight_sum
    # (D59)
    ratio = share * (mean_plus / plus)
    inverse = length / weight_sum * (plus / mean_plus)  # 1 / ratio may overflow before it
    ratio_less_1 = -share * (by_plus / plus) - surplus
    twice_z = ratio * tall / 2 * tall + ratio_less_1 * (ratio_less_1 * inverse / 2)
    by_weights = _total(dweights * (by_x + mean_x * surplus - twice_z * c))  # (D60)
    by_points = _total(weights * dx) + kappa * c * _total(weights * dot(pull, dx))
    # (D61)
    decay = surplus * (sum_of_both / length)
    decay -= _total(weights * (by_time / xt) * (by_time / mean_time)) * share / length
    return c, (by_weights + by_points) / length - c * decay / (2 * kappa) * dkappa


def centroid(
    x: ArrayLike, kappa: ArrayLike, weights: ArrayLike | None = None, axis: int = -2
) -> Array:
    """Compute the Lorentzian centroid of points, `M/(s sqrt(-M o M))` of `M = sum_i w_i X_i`.

    `-M o M >= (sum w)^2/kappa` is used as a floor, and far clusters do not cancel: it is computed
    as a sum of positive terms (D54). This exact form reads several arrays of the points' size: with
    weights `(256, 256)` of 16 coordinates, value and gradients take 250 times as long as the matrix
    product, and 37 MB. For weights of one set of points, `functional.aggregate` takes 1.6 times.

    Args:
        x: Points, an axis of the batch shape `(..., D)` being summed over.
        kappa: Minus the curvature, one number or of the batch shape without `axis`.
        weights: w >= 0, aligned with `x.shape[:-1]`; they need not sum to 1. Default: equal.
        axis: The axis of x to sum over.

    Returns:
        Points, shaped as x without `axis`.

    Raises:
        ValueError: if there are no points, or concrete weights are negative or sum to 0. (Traced
            ones that sum to 0 give the origin.)

    >>> x = jnp.array([[0.75, 0.0], [0.0, 0.0]])
    >>> print(geometry.centroid(x, 1.0))
    [0.3536 0.    ]
    """
    x = as_array("x", x, min_ndim=2)
    axis = axis - x.ndim if axis >= 0 else axis
    if not -x.ndim <= axis <= -2:
        raise ValueError(f"axis must name a batch axis of x, shape {x.shape}")
    if x.shape[axis] == 0:
        raise ValueError(f"the centroid of no points is undefined, x has shape {x.shape}")
    dtype = jnp.result_type(x) if weights is None else jnp.result_type(x, weights)
    inner_dtype = compute_dtype(dtype)
    if weights is None:
        weights = jnp.full((x.shape[axis],), 1 / x.shape[axis], inner_dtype)
    else:
        weights = as_array("weights", weights)
        if concrete(weights):
            values = np.asarray(weights, np.float64)
            if (values < 0).any() or not (values.sum(axis + 1) > 0).all():
                raise ValueError("weights must be >= 0 with a positive sum along the axis")
        weights = jnp.moveaxis(weights.astype(inner_dtype), axis + 1, -1)
    x = jnp.moveaxis(x.astype(inner_dtype), axis, -2)
    if weights.shape[-1] != x.shape[-2]:
        raise ValueError(f"{weights.shape[-1]} weights for {x.shape[-2]} points")
    batch = jnp.broadcast_shapes(weights.shape[:-1], x.shape[:-2])
    kappa = along_batch(as_kappa(kappa, inner_dtype, batch))
    weights = row(weights[..., None], x)
    return _centroid(x, along_batch(kappa), weights)[..., 0, :].astype(dtype)


@jax.jit
def _centroid(x, kappa, weights):
    # Sums of weights of order 1 do not overflow where the points do not.
    most = jnp.sum(weights, axis=-2, keepdims=True)
    return average(x, kappa, weights / scalars.binary_scale(most, (-1, -2)))
