"""Functions of each coordinate's signed distance, for `lorentz_jax.functional`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import Activation, along_batch, as_array, kappa_beside, row
from lorentz_jax._src.plain import inverse
from lorentz_jax._src.scalars import asinh_scaled, divide, theta_limit


def lorentzian(h: Activation) -> Callable[[ArrayLike, ArrayLike], Array]:
    """Make the Lorentzian activation of h, `asinh(s h(sinh(s x)/s))/s`, for signed distances.

    Where sinh would overflow, h is continued by its power law there (its value and logarithmic
    slope at the last representable sinh), which is exact for ReLU-like, bounded and polynomial h.

    Args:
        h: An elementwise function.

    Returns:
        A function of x, of any shape, and of a kappa that broadcasts to it; the result is like x.

    >>> relu = functional.lorentzian(jax.nn.relu)
    >>> print(relu(jnp.array([-2.0, 2.0, 1000.0]), 1.0))
    [   0.    2. 1000.]
    """

    def activation(x: ArrayLike, kappa: ArrayLike) -> Array:
        x = as_array("x", x, min_ndim=0)
        kappa = kappa_beside(x, kappa, x.shape)
        return _lorentzian(h, x.astype(kappa.dtype), kappa).astype(x.dtype)

    return activation


def _lorentzian(h, x, kappa):
    s = jnp.sqrt(kappa)
    scaled = s * x
    limit = theta_limit(x.dtype) / 2  # leaves room for h to square its argument
    edge = jnp.clip(scaled, -limit, limit)
    u = jnp.sinh(edge) / s
    value, slope = jax.jvp(h, (u,), (jnp.ones_like(u),))
    # Not arcsinh(s value): its derivative is 0 where the square of s value overflows.
    near = asinh_scaled(value, s, jnp.zeros_like(value))
    # log|h(u)| = log|h(u_edge)| + power (|s x| - limit) beyond the edge.
    beyond = jnp.abs(scaled) > limit
    power = divide(u * slope, value)
    ratio = jnp.abs(divide(value, u))
    log_ratio = jnp.log(jnp.where(beyond & (ratio > 0), ratio, 1))
    grown = log_ratio + limit + power * (jnp.abs(scaled) - limit)
    grows = beyond & (jnp.abs(s * value) > 1) & (power > 0)
    return jnp.where(grows, jnp.sign(value) * grown, near) / s


def scale_distance(x: ArrayLike, gain: ArrayLike, kappa: ArrayLike) -> Array:
    """Multiply the distance of points from each coordinate hyperplane by a gain (D220).

    `y_j = sinh(g_j asinh(s x_j))/s`: `asinh(s x_j)/s` is the signed distance of x from the
    hyperplane where its coordinate j is 0, which `linear` puts out as this coordinate, and that of
    y is g_j times as long. A gain of 1 changes nothing, and near the origin or for kappa -> 0 it is
    an ordinary product. It moves distances linearly, where a longer weight of `linear` moves
    them by its logarithm. The derivative by kappa is a difference that cancels near the origin.

    Args:
        x: Points `(..., D)`.
        gain: g, one number or `(D,)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`. The scaled distance `s g d` is cut at 40 in float32 and 350 in float64,
        so that the next layer can square the coordinates; the derivative beyond is 0.

    Raises:
        ValueError: if the gain is neither a number nor of shape `(D,)`.

    >>> print(functional.scale_distance(jnp.sinh(jnp.array([1.0, -2.0])), 2.0, 1.0))
    [  3.6269 -27.2899]
    """
    x, gain = as_array("x", x), as_array("gain", gain, min_ndim=0)
    if gain.shape not in ((), x.shape[-1:]):
        expected = f"() or {x.shape[-1:]}"
        raise ValueError(f"gain must have shape {expected}, got {gain.shape}")
    kappa = along_batch(kappa_beside(x, kappa, x.shape[:-1]))
    dtype = kappa.dtype
    gain = row(gain.astype(dtype), x) if gain.ndim else gain.astype(dtype)
    return distances_scaled(x.astype(dtype), gain, jnp.sqrt(kappa)).astype(x.dtype)


def distances_scaled(x: Array, gain: Array, s: Array) -> Array:
    """Return `sinh(g asinh(s x))/s`, the angle cut where a square would overflow."""
    limit = theta_limit(x.dtype) / 2
    return jnp.sinh(jnp.clip(gain * _angle(s * x), -limit, limit)) / s


@jax.custom_jvp
def _angle(u: Array) -> Array:
    """asinh. Autodiff of it forms the third power of its argument in the second derivative."""
    return jnp.arcsinh(u)


@_angle.defjvp
def _angle_jvp(primals, tangents):
    angle = _angle(*primals)
    return angle, inverse(jnp.cosh(angle)) * tangents[0]
