"""The layers as pure functions of arrays, on points stored by their space part.

Conventions as in `lorentz_jax.geometry`; images are NHWC and kernels `(kh, kw, in, out)`.
Layers square their inputs, so they need coordinates below the root of the largest number: a
radius s r below 45 in float32 and 355 in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax.hyperplane import Normals, check_input, signed_distance
from lorentz_jax.numerics import asinh_scaled, divide, safe_norm, theta_limit

Padding = str | int | Sequence[int | tuple[int, int]] | None


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
    kappa = kappa[..., None] if kappa.ndim else kappa
    return _linear(x, normals.space, normals.time, kappa, activation or _identity)


def _linear(x, space, time, kappa, activation):
    dtype = kappa.dtype
    squares = jnp.sum(jnp.square(x.astype(dtype)), axis=-1, keepdims=True)
    product = jnp.matmul(x, space.astype(x.dtype), preferred_element_type=dtype)
    z = product - jnp.sqrt(1 / kappa + squares) * time.astype(dtype)
    return activation(z).astype(x.dtype)


def window_arguments(strides: int | Sequence[int], padding: Padding, window: Sequence[int]):
    """Strides as a pair and padding as `lax` takes it (hashable).

    None is (k - 1)//2 on both sides, whatever the stride (the reference's).
    """
    strides = (strides, strides) if isinstance(strides, int) else tuple(strides)
    if len(strides) != 2 or min(strides) < 1:
        raise ValueError(f"strides must be one or two positive numbers, got {strides}")
    if isinstance(padding, str):
        return strides, padding
    if padding is None:
        padding = [(k - 1) // 2 for k in window]
    pairs = [padding] * 2 if isinstance(padding, int) else list(padding)
    if len(pairs) != 2:
        raise ValueError(f"padding must name two spatial axes, got {padding!r}")
    return strides, tuple((p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in pairs)


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


def window_sum(x, window, strides, pads):
    """Sum over windows of one-channel images `(N, H, W, 1)`."""
    return lax.reduce_window(  # a NumPy zero: a traced one would hide that this is a sum
        x, np.zeros((), x.dtype), lax.add, (1, *window, 1), (1, *strides, 1),
        pads if isinstance(pads, str) else [(0, 0), *pads, (0, 0)],
    )  # fmt: skip


def patch_time(x, kappa, window, strides, pads):
    """Time of the concatenated point of each patch, `(N, H', W', 1)`, in kappa's dtype."""
    squares = jnp.sum(jnp.square(x.astype(kappa.dtype)), axis=-1, keepdims=True)
    return jnp.sqrt(1 / kappa + window_sum(squares, window, strides, pads))


def conv_product(x, space, time, t, strides, pads):
    """`X o v` of every patch, whose time is `t`, with every unit; in the dtype of `t`.

    Its backward pass keeps x, which the convolution keeps anyway, and the one channel t.
    """
    product = lax.conv_general_dilated(
        x, space.astype(x.dtype), strides, pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=t.dtype,
    )  # fmt: skip
    # A product of matrices and a sum: the backward pass of `- t * time` would write out the negated
    # cotangent and sum it slowly. In full precision, since the two terms may cancel.
    rank_one = jnp.matmul(t, -time.astype(t.dtype)[None], precision=lax.Precision.HIGHEST)
    return product + rank_one


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


def to_hyperboloid(space, time, kappa):
    """Space part of the timelike vector `(time, space)`, `(D,)`, divided by its Lorentz length.

    A mean of points has `time^2 - |space|^2 >= 1/kappa`, which is used as a floor.
    """
    size = safe_norm(space)
    squared = jnp.maximum((time - size) * (time + size), 1 / kappa)
    return space / jnp.sqrt(kappa * squared)


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


def point_time(p, kappa):
    """Time of one point `(D,)`, a number; squares p, as layers do."""
    return jnp.sqrt(1 / kappa + jnp.sum(p * p))


def precise(x, y):
    """A matrix product in full precision on every device; for skinny ones."""
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def shifts(d, e, time, m, mu_t, beta_t, kappa):
    """The numbers a and b of `center`, each `(..., 1)`, from those per point and `m = mean.beta`.

    They are linear in d, e and time. As a matrix product XLA keeps them; as sums it would form them
    again for every channel, and in the next layer's backward pass in an order that suits no cache.
    """
    s = jnp.sqrt(kappa)
    k1, k2 = kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)
    of_a = jnp.stack([k1, jnp.zeros_like(k1), -s])
    of_b = jnp.stack([k2 * m * k1 - kappa, k2, kappa * mu_t - k2 * m * s])
    rows = precise(jnp.concatenate([d, e, time], axis=-1), jnp.stack([of_a, of_b], axis=1))
    return rows[..., :1], rows[..., 1:]


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
