"""The centroid of weighted points `(..., n, D)` and its derivative, for `geometry.centroid`.

kappa and weights are `(..., n or 1, 1)`, results keep the axis of the points at length 1.
"""

import jax
import jax.numpy as jnp

from lorentz_jax._src.charts import scaled_time
from lorentz_jax._src.pairs import directions, dot
from lorentz_jax._src.scalars import (
    binary_scale,
    direction,
    divide,
    hypot,
    product_difference,
    safe_norm,
    split,
)


def _frame(x, kappa, weights):
    """The mean vector m, the length L of M, and of each point what `-M o M` is made of.

    Light-cone coordinates `plus = s (x_t + u.x)` along the direction u of an anchor, a point that
    contributes much, with the rest of each point across it; then the null rotation that makes the
    mean of `across` vanish leaves `L^2 = sum w plus sum w reach^2/plus`, of positive terms.
    """

    def total(values):
        return jnp.sum(weights * values, axis=-2, keepdims=True)

    s, xt = jnp.sqrt(kappa), scaled_time(x, kappa)
    size = safe_norm(x, keepdims=True)
    first = jnp.argmax(weights * size, axis=-2, keepdims=True)
    batch = jnp.broadcast_shapes(x.shape[:-2], first.shape[:-2])
    anchor = jnp.take_along_axis(jnp.broadcast_to(x, batch + x.shape[-2:]), first, axis=-2)
    unit = direction(anchor, safe_norm(anchor, keepdims=True))
    along = dot(unit, x)
    # Any multiple of the anchor may be taken off before projecting. An equal point leaves 0.
    scale = binary_scale(anchor)
    share = divide(along / scale, safe_norm(anchor / scale, keepdims=True))
    near = jnp.abs(share - 1) < 2.0**-4
    other = scale * product_difference(jnp.ones_like(x), x / scale, share, anchor / scale)
    across = split(unit, jnp.where(near, x - anchor, other))[1]
    ahead, along = along >= 0, s * along
    larger = xt + jnp.where(ahead, along, -along)
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(xt))
    plus = jnp.where(ahead, larger, floor * (floor / larger))
    mean_plus = total(plus)
    around = across - plus * divide(total(across), mean_plus)
    reach = hypot(s * safe_norm(around, keepdims=True), jnp.ones_like(xt))
    length = jnp.sqrt(mean_plus) * jnp.sqrt(total(reach * (reach / plus)))
    length = jnp.maximum(length, total(jnp.ones_like(xt)))
    return total(x), length, (anchor, plus, around)


@jax.custom_jvp
def average(x, kappa, weights):
    """`m/L`, the space part of the centroid."""
    mean, length, _ = _frame(x, kappa, weights)
    return divide(mean, length)


@average.defjvp
def _average_jvp(primals, tangents):
    """`dC = (dM + kappa (C o dM) C)/L`, with `C o dM` as sums of differences of points.

    With Klein coordinates `k = x/(s x_t)`: `C o dX_i = T (mean k - k_i).dx_i`, T = s c_t; and
    `-kappa C o X_i = 1 + 2 z_i` in the frame of `_frame`.
    """
    (x, kappa, weights), (dx, dkappa, dweights) = primals, tangents
    mean, length, (anchor, plus, around) = _frame(x, kappa, weights)
    c, s, xt = divide(mean, length), jnp.sqrt(kappa), scaled_time(x, kappa)
    ct = scaled_time(c, kappa)

    def total(values):
        return jnp.sum(values, axis=-2, keepdims=True)

    def spread(rest, at_anchor):
        """Differences from the weighted mean, of those from the anchor; and that mean."""
        middle = total(weights * rest) / whole
        return rest - middle, at_anchor + middle

    whole = total(weights)
    size, anchor_size, _, unit, gap, turn = directions(x, anchor)
    at = scaled_time(anchor, kappa)
    u, v = size / xt, anchor_size / at
    radial = divide((gap / xt) * ((size + anchor_size) / at), u + v) / xt
    klein = turn * ct * u + unit * (radial * (ct / at))
    pull = total(weights * xt / total(weights * xt) * klein) - klein
    # L^2 - W^2 for W = sum w, over L (L + W): a sum of positive terms.
    rise = s * gap * (s * (size + anchor_size) / (xt + at))
    forward = dot(unit, x - anchor)
    anchor_plus = s * anchor_size + at
    climb = jnp.where(2 * plus > anchor_plus, rise + s * forward, plus - anchor_plus)
    by_plus, mean_plus = spread(climb, anchor_plus)
    by_time, mean_time = spread(rise, at)
    by_x, mean_x = spread(x - anchor, anchor)
    tall = s * safe_norm(around, keepdims=True)
    most = length + whole
    excess = total(weights * (by_plus / plus) * (by_plus / mean_plus)) * (whole / length) / most
    excess += total(weights * (tall / length) * ((tall / plus) * (mean_plus / most))) * whole
    ratio = whole / length * (mean_plus / plus)
    inverse = length / whole * (plus / mean_plus)  # 1 / ratio may overflow before it
    rest = -(whole / length) * (by_plus / plus) - excess
    twice_z = ratio * tall / 2 * tall + rest * (rest * inverse / 2)
    by_weights = total(dweights * (by_x + mean_x * excess - twice_z * c))
    by_points = total(weights * dx) + kappa * c * total(weights * dot(pull, dx))
    drift = excess * (most / length)
    drift -= total(weights * (by_time / xt) * (by_time / mean_time)) * (whole / length) / length
    return c, (by_weights + by_points) / length - c * drift / (2 * kappa) * dkappa
