"""Convolution of images of points, and its fusion with the centring batch norm.

`conv_center` is `functional.conv` followed by `functional.center` at the batch's own mean, in one
step with a hand-written backward pass. Autodiff of the two keeps or recomputes several image-sized
arrays; this keeps the input, the convolution's output and five numbers per pixel. It has no
forward-mode derivative (jvp): the plain functions do.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lorentz_jax._src.plain import point_time, precise, shifts, to_hyperboloid
from lorentz_jax._src.scalars import divide

Padding = str | int | Sequence[int | tuple[int, int]] | None


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


def _product(x, space, strides, pads, dtype=None):
    return lax.conv_general_dilated(
        x, space.astype(x.dtype), strides, pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=dtype,
    )  # fmt: skip


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def conv_center(x, space, unit_scale, time, beta, kappa, strides, pads):
    return _forward(x, space, unit_scale, time, beta, kappa, strides, pads)[0]


def _forward(x, space, unit_scale, time, beta, kappa, strides, pads):
    dtype = kappa.dtype
    t = patch_time(x, kappa, space.shape[:2], strides, pads)
    stored = (unit_scale * _product(x, space, strides, pads, dtype) - t * time).astype(x.dtype)
    shape, t = stored.shape, t.reshape(-1, 1)
    y = stored.astype(dtype).reshape(-1, shape[-1])
    tau = jnp.sqrt(1 / kappa + jnp.sum(y * y, axis=1, keepdims=True))
    mean, mean_t = jnp.mean(y, axis=0), jnp.mean(tau)
    mu = to_hyperboloid(mean, mean_t, kappa)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    vectors = jnp.stack([mu, beta, time], axis=1)
    # One skinny product for three row sums; f = y.time only serves the backward pass.
    d, e, f = jnp.split(precise(y, vectors), 3, axis=1)
    a, b = shifts(d, e, tau, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    out = (y + a * mu + b * beta).astype(x.dtype).reshape(shape)
    rows = (t, stored, tau, d, e, f, a, b)
    kept = (x, space, unit_scale, time, beta, kappa, *rows, mu, mean_t / mu_t, out)
    return (out, mu), kept


def _backward(strides, pads, kept, cotangents):
    x, space, unit_scale, time, beta, kappa, t, stored, tau, d, e, f, a, b, mu, length, out = kept
    s, dtype, pixels = jnp.sqrt(kappa), kappa.dtype, t.size
    g, y = (i.astype(dtype).reshape(pixels, -1) for i in (cotangents[0], stored))
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    m, k1, k2 = jnp.sum(mu * beta), kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)

    # Cotangents of the per-pixel numbers d, e, tau.
    p, q, r = jnp.split(precise(g, jnp.stack([mu, beta, time], axis=1)), 3, axis=1)
    through_a = p + k2 * m * q
    g_d, g_e, g_tau = k1 * through_a - kappa * q, k2 * q, kappa * mu_t * q - s * through_a

    # Cotangents of mu and beta, as points: space and time together.
    a_g, b_g, t_g = precise(jnp.concatenate([a, b, t], axis=1).T, g)
    columns = jnp.concatenate([g_d, g_e, g_tau * t / tau, t / tau], axis=1)
    d_y, e_y, tau_y, lean_y = precise(columns.T, y)
    g_m = k2 * jnp.sum(a * q)
    g_mu, g_beta = a_g + d_y + g_m * beta, b_g + e_y + g_m * mu
    g_mu_t = kappa * jnp.sum(tau * q) - s / kappa * k1**2 * jnp.sum(d * through_a)
    g_beta_t = -s / kappa * k2**2 * jnp.sum((e + m * a) * q)
    g_beta = g_beta + g_beta_t * beta / beta_t

    # Through the batch mean, whose Lorentz length was divided out.
    radial = (jnp.sum(g_mu * mu) + g_mu_t * mu_t) / length
    h = (g_mu / length + kappa * radial * mu) / pixels
    h_t = (g_mu_t / length - kappa * radial * mu_t) / pixels
    w = (g_tau + h_t) / tau
    g_y = (unit_scale * (g + g_d * mu + g_e * beta + w * y + h)).astype(x.dtype).reshape(out.shape)

    # Through y = unit_scale conv(x) - t time; g_y is already the cotangent of conv(x), and that
    # of time follows without another pass over it.
    along = jnp.sum(t * g_d) * mu + jnp.sum(t * g_e) * beta + jnp.sum(t) * h
    g_time = -(t_g + along + tau_y + h_t * lean_y)
    g_t = -(r + g_d * jnp.sum(mu * time) + g_e * jnp.sum(beta * time) + w * f + jnp.sum(h * time))
    (g_x,) = jax.linear_transpose(lambda x: _product(x, space, strides, pads), x)(g_y)
    (g_space,) = jax.linear_transpose(lambda k: _product(x, k, strides, pads), space)(g_y)
    if space.size < y.size:
        g_unit_scale = divide(jnp.sum(g_space * space, axis=(0, 1, 2)), unit_scale)
    else:  # conv(x) = (y + t time)/unit_scale: here images are what is cheaper to read
        along_y = jnp.sum(g_y.astype(dtype) * stored.astype(dtype), axis=(0, 1, 2))
        g_unit_scale = divide(divide(along_y, unit_scale) - time * g_time, unit_scale)
    window = functools.partial(window_sum, window=space.shape[:2], strides=strides, pads=pads)
    squares = jax.ShapeDtypeStruct((*x.shape[:3], 1), dtype)
    (g_squares,) = jax.linear_transpose(window, squares)((g_t / (2 * t)).reshape(*out.shape[:3], 1))
    g_x = g_x.astype(dtype) + 2 * x.astype(dtype) * g_squares
    # s out is a function of (s x, s beta) alone, so Euler's theorem gives kappa its cotangent.
    euler = jnp.sum(g_x * x.astype(dtype)) + jnp.sum(g_beta * beta)
    g_kappa = (euler - jnp.sum(g * out.astype(dtype).reshape(g.shape))) / (2 * kappa)
    return g_x.astype(x.dtype), g_space, g_unit_scale, g_time, g_beta, g_kappa


conv_center.defvjp(_forward, _backward)
