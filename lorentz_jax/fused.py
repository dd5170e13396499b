"""Convolution, time term and centring batch norm in one step, with a hand-written backward pass.

The same function as `functional.conv` followed by `functional.center` at the batch's own mean.
Autodiff of those keeps or recomputes several image-sized arrays; this keeps the input, the
convolution's output and five numbers per pixel. It has no forward-mode derivative (jvp): the
plain functions do.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax import functional
from lorentz_jax.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax.functional import point_time, precise
from lorentz_jax.hyperplane import Normals, check_input
from lorentz_jax.numerics import divide


def conv_center(
    x: Any, normals: Normals, beta: Any, kappa: Any,
    strides: int | Sequence[int] = 1, padding: functional.Padding = None, scale: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """`center(y, mean, beta)` of `y = conv(x)`, `mean = batch_mean(y)`; returns it and the mean.

    x is `(N, H, W, C_in)` and not empty, `beta` the space part `(C_out,)` of a point, kappa a
    scalar; `strides` and `padding` as in `functional.conv`. `scale` `(C_out,)` multiplies the space
    part of the normals (see `hyperplane.factored_normals`); where it is 0 it gets no gradient.
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
    strides, pads = functional.window_arguments(strides, padding, window)
    scale = jnp.ones_like(normals.time) if scale is None else as_array("scale", scale)
    if scale.shape != normals.time.shape:
        raise ValueError(f"scale must have shape {normals.time.shape}, got {scale.shape}")
    planes = (a.astype(dtype) for a in (normals.space, scale, normals.time))
    results: Any = _conv_center(
        x, *planes, beta.astype(dtype), as_kappa(kappa, dtype), strides, pads
    )
    return results[0], lax.stop_gradient(results[1])


def _product(x, space, strides, pads, dtype=None):
    return lax.conv_general_dilated(
        x, space.astype(x.dtype), strides, pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=dtype,
    )  # fmt: skip


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _conv_center(x, space, scale, time, beta, kappa, strides, pads):
    return _forward(x, space, scale, time, beta, kappa, strides, pads)[0]


def _forward(x, space, scale, time, beta, kappa, strides, pads):
    dtype = kappa.dtype
    t = functional.patch_time(x, kappa, space.shape[:2], strides, pads)
    stored = (scale * _product(x, space, strides, pads, dtype) - t * time).astype(x.dtype)
    shape, t = stored.shape, t.reshape(-1, 1)
    y = stored.astype(dtype).reshape(-1, shape[-1])
    tau = jnp.sqrt(1 / kappa + jnp.sum(y * y, axis=1, keepdims=True))
    mean, mean_t = jnp.mean(y, axis=0), jnp.mean(tau)
    mu = functional.to_hyperboloid(mean, mean_t, kappa)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    vectors = jnp.stack([mu, beta, time], axis=1)
    # One skinny product for three row sums; f = y.time only serves the backward pass.
    d, e, f = jnp.split(precise(y, vectors), 3, axis=1)
    a, b = functional.shifts(d, e, tau, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    out = (y + a * mu + b * beta).astype(x.dtype).reshape(shape)
    rows = (t, stored, tau, d, e, f, a, b)
    kept = (x, space, scale, time, beta, kappa, *rows, mu, mean_t / mu_t, out)
    return (out, mu), kept


def _backward(strides, pads, kept, cotangents):
    x, space, scale, time, beta, kappa, t, stored, tau, d, e, f, a, b, mu, length, out = kept
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
    g_y = (scale * (g + g_d * mu + g_e * beta + w * y + h)).astype(x.dtype).reshape(out.shape)

    # Through y = scale conv(x) - t time; g_y is already the cotangent of conv(x), and the one of
    # time follows without another pass over it.
    along = jnp.sum(t * g_d) * mu + jnp.sum(t * g_e) * beta + jnp.sum(t) * h
    g_time = -(t_g + along + tau_y + h_t * lean_y)
    g_t = -(r + g_d * jnp.sum(mu * time) + g_e * jnp.sum(beta * time) + w * f + jnp.sum(h * time))
    (g_x,) = jax.linear_transpose(lambda x: _product(x, space, strides, pads), x)(g_y)
    (g_space,) = jax.linear_transpose(lambda k: _product(x, k, strides, pads), space)(g_y)
    if space.size < y.size:
        g_scale = divide(jnp.sum(g_space * space, axis=(0, 1, 2)), scale)
    else:  # conv(x) = (y + t time)/scale: here images are what is cheaper to read
        along_y = jnp.sum(g_y.astype(dtype) * stored.astype(dtype), axis=(0, 1, 2))
        g_scale = divide(divide(along_y, scale) - time * g_time, scale)
    window = functools.partial(
        functional.window_sum, window=space.shape[:2], strides=strides, pads=pads
    )
    squares = jax.ShapeDtypeStruct((*x.shape[:3], 1), dtype)
    (g_squares,) = jax.linear_transpose(window, squares)((g_t / (2 * t)).reshape(*out.shape[:3], 1))
    g_x = g_x.astype(dtype) + 2 * x.astype(dtype) * g_squares
    # s out is a function of (s x, s beta) alone, so Euler's theorem gives kappa its cotangent.
    euler = jnp.sum(g_x * x.astype(dtype)) + jnp.sum(g_beta * beta)
    g_kappa = (euler - jnp.sum(g * out.astype(dtype).reshape(g.shape))) / (2 * kappa)
    return g_x.astype(x.dtype), g_space, g_scale, g_time, g_beta, g_kappa


_conv_center.defvjp(_forward, _backward)
