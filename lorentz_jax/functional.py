"""The layers as pure functions of arrays, on points stored by their space part.

Conventions as in `lorentz_jax.geometry`; images are NHWC and kernels `(kh, kw, in, out)`.
Layers square their inputs, so they need coordinates below the root of the largest number: a
radius s r below 45 in float32 and 355 in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax._src import conv as _conv
from lorentz_jax._src.arguments import along_batch, as_array, as_kappa, compute_dtype
from lorentz_jax._src.conv import Padding, conv_product, patch_time, window_arguments
from lorentz_jax._src.plain import point_time, precise, shifts, to_hyperboloid
from lorentz_jax._src.scalars import asinh_scaled, divide, safe_norm, theta_limit
from lorentz_jax.hyperplane import Normals, check_input, signed_distance


def _identity(x: Array) -> Array:
    return x


def linear(
    x: Any, normals: Normals, kappa: Any, activation: Callable[[Array], Array] | None = None
) -> Array:
    """Lorentz fully connected layer, `y = h(x.v - x_t v_t)`, from `(..., D_in)` to `(..., D_out)`.

    This is the whole of the paper's eq. FC: the asinh of the signed distance, the Lorentzian
    activation and the sinh of the output cancel. `h` acts on space parts. Any normals, any batch
    shape; kappa may vary along the batch.
    """
    x = check_input(x, normals, axes=1)
    dtype = compute_dtype(x.dtype)
    kappa = as_kappa(kappa, dtype, x.shape[:-1])
    return _linear(x, normals.space, normals.time, along_batch(kappa), activation or _identity)


def _linear(x, space, time, kappa, activation):
    dtype = kappa.dtype
    squares = jnp.sum(jnp.square(x.astype(dtype)), axis=-1, keepdims=True)
    product = jnp.matmul(x, space.astype(x.dtype), preferred_element_type=dtype)
    z = product - jnp.sqrt(1 / kappa + squares) * time.astype(dtype)
    return activation(z).astype(x.dtype)


def conv(
    x: Any,
    normals: Normals,
    kappa: Any,
    strides: int | Sequence[int] = 1,
    padding: Padding = None,
    activation: Callable[[Array], Array] | None = None,
) -> Array:
    """Lorentz convolution of images `(..., H, W, C_in)`, the FC layer of each concatenated patch.

    The concatenation of a patch's points has time `t = sqrt(1/kappa + sum_patch |x|^2)`, so
    `y = h(conv(x, v) - t v_t)`: one ordinary convolution, a window sum over one channel and a
    rank-1 term; no patch is ever formed. Padding with zeros is padding with the origin.
    `padding`: None for (k - 1)//2 on both sides, an int, two ints, two pairs, or "SAME"/"VALID" as
    in `lax`. kappa is a scalar.
    """
    x = check_input(x, normals, axes=3)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    window = normals.space.shape[:2]
    strides, pads = window_arguments(strides, padding, window)
    images = x.reshape((-1, *x.shape[-3:]))
    t = patch_time(images, kappa, window, strides, pads)
    z = conv_product(images, normals.space, normals.time, t, strides, pads)
    y = (activation or _identity)(z).astype(x.dtype)
    return y.reshape(x.shape[:-3] + y.shape[1:])


def batch_mean(x: Any, kappa: Any) -> Array:
    """Centroid `(D,)` of all points of a batch `(..., D)`, as the centring norm needs it.

    The fast form of `geometry.centroid`, `m/(s sqrt(m_t^2 - |m|^2))` with the mean vector m: it
    loses about `eps e^(2 rho)` for a mean at s-scaled radius rho. Raises for an empty batch.
    """
    x = as_array("x", x)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    return _batch_mean(x, kappa).astype(x.dtype)


def _batch_mean(x, kappa):
    axes = tuple(range(x.ndim - 1))
    points = x.astype(kappa.dtype)
    squares = jnp.sum(jnp.square(points), axis=-1)
    mean, mean_time = jnp.mean(points, axis=axes), jnp.mean(jnp.sqrt(1 / kappa + squares))
    return to_hyperboloid(mean, mean_time, kappa)


def center(x: Any, mean: Any, beta: Any, kappa: Any) -> Array:
    """Move a batch `(..., D)` by the isometry `T_beta o T_(-mean)`, which takes mean to beta.

    Exactly the paper's centring batch norm (log at the mean, transport to the origin, transport to
    beta, exp at beta), with no transcendental function: a rank-2 update
    `x + a mean + b beta`, where with d = x.mean, e = x.beta,
    `a = kappa d/(1 + s mean_t) - s x_t`, `t' = s (mean_t x_t - d)`,
    `b = kappa (e + (mean.beta) a)/(1 + s beta_t) + s t'`. `mean` and `beta` are space parts `(D,)`;
    kappa is a scalar.
    """
    x, mean, beta = as_array("x", x), as_array("mean", mean), as_array("beta", beta)
    if not x.shape[-1:] == mean.shape == beta.shape:
        raise ValueError(
            f"mean and beta must have shape {x.shape[-1:]} to go with x {x.shape}, "
            f"got {mean.shape} and {beta.shape}"
        )
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    return jax.checkpoint(_center)(x, mean, beta, kappa)


def _center(x, mean, beta, kappa):
    dtype = kappa.dtype
    points, mu, beta = x.astype(dtype), mean.astype(dtype), beta.astype(dtype)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    # One skinny product: on a CPU it beats two reductions over the channels.
    dots = precise(points, jnp.stack([mu, beta], axis=1))
    time = jnp.sqrt(1 / kappa + jnp.sum(points * points, axis=-1, keepdims=True))
    a, b = shifts(dots[..., :1], dots[..., 1:], time, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    return (points + a * mu + b * beta).astype(x.dtype)


def conv_center(
    x: Any, normals: Normals, beta: Any, kappa: Any,
    strides: int | Sequence[int] = 1, padding: Padding = None, unit_scale: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """`center(y, mean, beta)` of `y = conv(x)`, `mean = batch_mean(y)`; returns it and the mean.

    x is `(N, H, W, C_in)` and not empty, `beta` the space part `(C_out,)` of a point, kappa a
    scalar; `strides` and `padding` as in `conv`. `unit_scale` `(C_out,)` multiplies the space part
    of the normals (see `hyperplane.factored_normals`); where it is 0 it gets no gradient.
    Gradients flow through the mean and reach kappa; the returned mean itself is for running
    statistics and carries none.
    """
    x = check_input(x, normals, axes=3)
    beta = as_array("beta", beta)
    if x.ndim != 4 or x.size == 0:
        raise ValueError(f"expected images (N, H, W, C_in) with pixels in them, got {x.shape}")
    if beta.shape != normals.time.shape:
        raise ValueError(f"beta must have shape {normals.time.shape}, got {beta.shape}")
    dtype = compute_dtype(x.dtype)
    window = normals.space.shape[:2]
    strides, pads = window_arguments(strides, padding, window)
    unit_scale = (
        jnp.ones_like(normals.time) if unit_scale is None else as_array("unit_scale", unit_scale)
    )
    if unit_scale.shape != normals.time.shape:
        raise ValueError(f"unit_scale must have shape {normals.time.shape}, got {unit_scale.shape}")
    planes = (a.astype(dtype) for a in (normals.space, unit_scale, normals.time))
    results: Any = _conv.conv_center(
        x, *planes, beta.astype(dtype), as_kappa(kappa, dtype), strides, pads
    )
    return results[0], lax.stop_gradient(results[1])


def weight_norm(direction: Any, gain: Any) -> Array:
    """`w = g a/|a|`, the norm over every axis of the direction `a` `(..., out)` but the last.

    `gain` has shape `(out,)`. (The reference code passes `softplus(g)` as the gain.) `a = 0` gives
    0 with zero gradient; a negative gain turns w round.
    """
    a, g = as_array("direction", direction, min_ndim=2), as_array("gain", gain)
    if g.shape != a.shape[-1:]:
        raise ValueError(f"gain must have shape {a.shape[-1:]}, got {g.shape}")
    dtype = compute_dtype(jnp.result_type(a, g))
    size = safe_norm(a.astype(dtype), tuple(range(a.ndim - 1)))
    return (divide(g.astype(dtype), size) * a.astype(dtype)).astype(jnp.result_type(a, g))


def lorentzian(h: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
    """Lorentzian activation of an elementwise h: `(x, kappa) -> asinh(s h(sinh(s x)/s))/s`.

    It acts on signed distances; kappa must broadcast to the shape of x. Where sinh would overflow,
    h is continued by its power law there (its value and logarithmic slope at the last
    representable sinh), which is exact for ReLU-like, bounded and polynomial h.
    """

    def activation(x: Any, kappa: Any) -> Array:
        x = as_array("x", x, min_ndim=0)
        dtype = compute_dtype(x.dtype)
        kappa = as_kappa(kappa, dtype, x.shape)
        return _lorentzian(h, x.astype(dtype), kappa).astype(x.dtype)

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


def mlr(x: Any, normals: Normals, kappa: Any, scale: str | None = "inside") -> Array:
    """Logits of Lorentz multinomial regression: signed distances to one hyperplane per class."""
    return signed_distance(x, normals, kappa, scale)
