"""`geometry.centroid`: its formula and derivative, for weighted points `(..., n, D)`.

In the formulas kappa and weights are `(..., n or 1, 1)`, and results keep the axis of the points
at length 1. Symbols as in `radial`; `(D53)` and so on are equations of `docs/derivations.md`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from lorentz_jax._src import scalars
from lorentz_jax._src.arguments import along_batch, as_array, as_kappa, compute_dtype, concrete, row
from lorentz_jax._src.scalars import divide
from lorentz_jax._src.smooth import coarse_scale, dot, over, polar, scaled_time, size, split


class _Frame(NamedTuple):
    """Light-cone coordinates along the anchor, a point that contributes much.

    The results do not depend on the choice of the axis, so anchor and axis have no derivative. An
    anchor at the origin has the axis 0, which stands for one across all coordinates (D146).

    Attributes:
        time: `h` of every point.
        anchor, anchor_time: the point, and its own.
        unit: the direction of the anchor.
        across: the part of every point across it.
        plus, minus: `h +- s u.x` of every point.
        bulge: `kappa |y|^2 / plus`, y being `across` after the null rotation that makes the mean of
            these parts vanish.
        mean: the vector `m = sum w x`.
        length: `L = sqrt(-kappa M o M)` of `M = sum w X`.
    """

    time: Array
    anchor: Array
    anchor_time: Array
    unit: Array
    across: Array
    plus: Array
    minus: Array
    bulge: Array
    mean: Array
    length: Array


def _total(values: Array) -> Array:
    """Sum over the points."""
    return jnp.sum(values, axis=-2, keepdims=True)


@jax.custom_jvp
def _part_across(x, anchor, unit):
    """The part of x across the anchor. An equal point leaves 0, and so does a multiple."""
    # Any multiple of the anchor may be taken off before projecting.
    scale = coarse_scale(anchor)
    share = divide(dot(unit, x) * scale, size(anchor) * scale)
    near = jnp.abs(share - 1) < 2.0**-4
    apart = scalars.product_difference(jnp.ones_like(x), x * scale, share, anchor * scale)
    return split(unit, jnp.where(near, x - anchor, apart / scale))[1]


@_part_across.defjvp
def _part_across_jvp(primals, tangents):
    return _part_across(*primals), split(primals[2], tangents[0])[1]


def _frame(x, weights, kappa):
    """The frame, with `L^2 = sum w plus sum w (1/plus + bulge)`, of positive terms (D54)."""
    s, time = jnp.sqrt(kappa), scaled_time(x, kappa)
    first = jnp.argmax(weights * size(x), axis=-2, keepdims=True)
    # Not by indexing: the points may lie on several devices.
    number = jax.lax.broadcasted_iota(first.dtype, (x.shape[-2], 1), 0)
    anchor = _total(jnp.where(row(number, first) == first, x, 0))
    anchor = jax.lax.stop_gradient(anchor)
    _, unit = polar(anchor)
    across, along = _part_across(x, anchor, unit), s * dot(unit, x)
    ahead = along >= 0
    larger = time + jnp.where(ahead, along, -along)
    inverse = over(jnp.ones_like(larger), larger)
    smaller = inverse + kappa * dot(across, across * inverse)
    plus, minus = jnp.where(ahead, larger, smaller), jnp.where(ahead, smaller, larger)  # (D53)
    mean_plus = _total(weights * plus)
    around = across - plus * divide(_total(weights * across), mean_plus)  # (D54)
    bulge = kappa * dot(around, over(around, plus))
    square = _total(weights * (over(jnp.ones_like(plus), plus) + bulge))
    length = jnp.sqrt(mean_plus) * jnp.sqrt(square)
    # The bound is a matter of rounding, and the derivatives are those of the length.
    least = _total(weights * jnp.ones_like(time))
    length = length + jax.lax.stop_gradient(jnp.maximum(least - length, 0))
    anchor_time = scaled_time(anchor, kappa)
    mean = _total(weights * x)
    return _Frame(time, anchor, anchor_time, unit, across, plus, minus, bulge, mean, length)


@jax.custom_jvp
def average(x, weights, kappa):
    """`m/L`, the space part of the centroid."""
    frame = _frame(x, weights, kappa)
    return divide(frame.mean, frame.length)


@jax.custom_jvp
def _known(c, x, weights, kappa):
    """`average`, whose value is `c` already."""
    return c


def _pull(frame, weights, kappa):
    """`C o dX_i = pull.dx_i`, by the parts of `pull = c - (h_c/h_i) x_i` (D56)."""
    plus = divide(_total(weights * frame.plus), frame.length)
    across = divide(_total(weights * frame.across), frame.length)
    minus = divide(1.0 + 0 * plus, plus) + kappa * dot(across, divide(across, plus))
    klein = over(frame.across, frame.time)
    # The smaller of both coordinates may be as small as numbers can be.
    radial = over(plus, frame.time) * frame.minus - minus * over(frame.plus, frame.time)
    return across - klein * ((plus + minus) / 2) + frame.unit * (radial / (2 * jnp.sqrt(kappa)))


def _average_jvp(primals, tangents):
    """`dC = (dM + kappa (C o dM) C)/L` (D55). Parts known to be 0 are not formed."""
    x, weights, kappa = primals
    dx, dweights, dkappa = (None if isinstance(t, SymbolicZero) else t for t in tangents)
    frame = _frame(x, weights, kappa)
    c = _known(divide(frame.mean, frame.length), x, weights, kappa)
    tangent: Any = jnp.zeros_like(c)
    if dx is not None:
        pull = _pull(frame, weights, kappa)
        tangent = _total(weights * dx) + kappa * c * _total(weights * dot(pull, dx))
        tangent = divide(tangent, frame.length)
    if dweights is not None or dkappa is not None:
        by_weights, by_kappa = _other_derivatives(x, weights, kappa, c, frame)
        if dweights is not None:
            tangent += divide(_total(dweights * by_weights), frame.length)
        if dkappa is not None:
            tangent += by_kappa * dkappa
    return c, tangent


average.defjvp(_average_jvp, symbolic_zeros=True)
_known.defjvp(
    lambda primals, tangents: _average_jvp(primals[1:], tangents[1:]), symbolic_zeros=True
)


def _other_derivatives(x, weights, kappa, c, frame):
    """The derivative by every weight, times L, and that in kappa.

    Both are sums of differences of points; `-kappa C o X_i = 1 + 2 z_i`.
    """
    s, weight_sum = jnp.sqrt(kappa), _total(weights)
    time, anchor, anchor_time, unit, plus, bulge, length = (
        frame.time, frame.anchor, frame.anchor_time, frame.unit, frame.plus, frame.bulge,
        frame.length,
    )  # fmt: skip

    def about_mean(from_anchor, at_anchor):
        """Differences from the weighted mean, of those from the anchor; and that mean."""
        middle = _total(weights * from_anchor) / weight_sum
        return from_anchor - middle, at_anchor + middle

    time_gap = kappa * dot(x - anchor, over(x + anchor, time + anchor_time))
    forward = dot(unit, x - anchor)
    anchor_plus = s * dot(unit, anchor) + anchor_time
    climb = jnp.where(2 * plus > anchor_plus, time_gap + s * forward, plus - anchor_plus)
    by_plus, mean_plus = about_mean(climb, anchor_plus)
    by_time, mean_time = about_mean(time_gap, anchor_time)
    by_x, mean_x = about_mean(x - anchor, anchor)
    # `surplus` is L^2 - W^2, W the sum of weights, over L (L + W): positive terms (D58).
    sum_of_both, share = length + weight_sum, weight_sum / length
    surplus = _total(weights * (by_plus / plus) * (by_plus / mean_plus)) * share / sum_of_both
    surplus += _total(weights * (bulge / length) * (mean_plus / sum_of_both)) * weight_sum
    # (D59)
    inverse = length / weight_sum * (plus / mean_plus)
    ratio_less_1 = -share * (by_plus / plus) - surplus
    twice_z = share * mean_plus * (bulge / 2) + ratio_less_1 * (ratio_less_1 * inverse / 2)
    # (D61)
    decay = surplus * (sum_of_both / length)
    decay -= _total(weights * (by_time / time) * (by_time / mean_time)) * share / length
    return by_x + mean_x * surplus - twice_z * c, -c * decay / (2 * kappa)  # (D60)


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
    return average(x, weights / scalars.binary_scale(most, (-1, -2)), kappa)
