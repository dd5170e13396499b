"""The Lorentzian activation, for `lorentz_jax.functional`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import Activation, as_array, kappa_beside
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
