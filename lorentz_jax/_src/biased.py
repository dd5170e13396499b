"""Convolution with a bias, its normals' time included, fused with the centring batch norm.

`conv_center` is `functional.conv` followed by `functional.center` at the batch's own mean, in one
step with a hand-written backward pass. Autodiff of the two keeps or recomputes several image-sized
arrays. Forward mode has a rule of its own, see `linear_map` and `tangents`. `(D68)` and so on are
equations of `docs/derivations.md`, whose letters these are.

On a CPU its backward pass keeps the points y; skinny products of matrices give all sums. Elsewhere
it keeps the ordinary convolution z, of which y is `unit_scale z - t time`, in the dtype of x, and
`centering` has the formulas.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src import centering
from lorentz_jax._src.arguments import row
from lorentz_jax._src.conv import conv_images, conv_tangent, patch_time, sum_inputs, window_sum
from lorentz_jax._src.forms import Form, by_platform, hold
from lorentz_jax._src.linear_map import linear_map
from lorentz_jax._src.plain import point_time, precise, shifts, time_of, to_hyperboloid
from lorentz_jax._src.scalars import divide
from lorentz_jax._src.shifting import Constants
from lorentz_jax._src.shifting import shifts as plain_shifts
from lorentz_jax._src.tangents import center_tangent


class _Residuals(NamedTuple):
    """What the backward pass keeps: arguments, then rows of one number a pixel and the result.

    Attributes:
        kernel: the space part as an accelerator's convolution has it, in the dtype of x.
        t, tau: times of the patch and of the pixel `(pixels, 1)`.
        d, e, f: products of the pixel with mu, beta and the time row.
        a, b: by how much of mu and of beta the pixel moves (`plain.shifts`).
        stored: an image as `out` is: the points y on a CPU, elsewhere the convolution z.
        mu: the batch mean `(D,)`.
        constants: numbers of the whole batch.
    """

    x: Array
    space: Array
    unit_scale: Array
    time: Array
    beta: Array
    kappa: Array
    kernel: Array
    t: Array
    stored: Array
    tau: Array
    d: Array
    e: Array
    f: Array
    a: Array
    b: Array
    mu: Array
    constants: Constants
    out: Array


class _Constants(NamedTuple):
    """Numbers of the whole batch (D70)."""

    s: Array
    mu_t: Array
    beta_t: Array
    m: Array
    k1: Array
    k2: Array


def _constants(kept: _Residuals) -> _Constants:
    mu, beta, kappa = kept.mu, kept.beta, kept.kappa
    s, mu_t, beta_t = jnp.sqrt(kappa), point_time(mu, kappa), point_time(beta, kappa)
    m, k1, k2 = jnp.sum(mu * beta), kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)
    return _Constants(s, mu_t, beta_t, m, k1, k2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(6,))
def conv_center(x, space, unit_scale, time, beta, kappa, window):
    """The centred convolution and the batch mean that it was centred at."""
    return _keep(window, x, space, unit_scale, time, beta, kappa)[0]


def _keep(window, *arguments):
    cpu = functools.partial(_forward, window)
    return by_platform(lambda form, *a: _forward_in(form, window, *a), *arguments, cpu=cpu)


def _forward(window, x, space, unit_scale, time, beta, kappa):
    dtype = kappa.dtype
    t = patch_time(x, kappa, space.shape[:-2], window)
    product = conv_images(x, space, window, dtype)
    stored = (row(unit_scale, t) * product - t * row(time, t)).astype(x.dtype)  # (D68)
    shape, t = stored.shape, t.reshape(-1, 1)
    y = stored.astype(dtype).reshape(-1, shape[-1])
    tau = time_of(y, kappa)
    mean, mean_t = jnp.mean(y, axis=0), jnp.mean(tau)
    mu = to_hyperboloid(mean, mean_t, kappa)  # (D69)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    vectors = jnp.stack([mu, beta, time], axis=1)
    # One skinny product for three row sums; f = y.time only serves the backward pass.
    d, e, f = jnp.split(precise(y, vectors), 3, axis=1)
    m = jnp.sum(mu * beta)
    a, b = shifts(d, e, tau, m, mu_t, beta_t, kappa)
    out = (y + a * mu[None] + b * beta[None]).astype(x.dtype).reshape(shape)  # (D70)
    arguments = (x, space, unit_scale, time, beta, kappa, space.astype(x.dtype))
    n = Constants(mu_t, beta_t, m, mean_t / mu_t)
    return (out, mu), _Residuals(*arguments, t, stored, tau, d, e, f, a, b, mu, n, out)


def _forward_in(form: Form, window, x, space, unit_scale, time, beta, kappa):
    t = patch_time(x, kappa, space.shape[:-2], window)[..., 0]
    (kernel,) = hold(space.astype(x.dtype))  # as in `centering.conv_center`
    z = conv_images(x, kernel, window)
    tilt = centering.Tilt(t, time)
    (out, mu), kept = centering.forward(form, z, unit_scale, beta, kappa, tilt)
    a, b = plain_shifts(kept.d, kept.e, kept.tau, kappa, kept.constants)
    numbers = (n.reshape(-1, 1) for n in (t, kept.tau, kept.d, kept.e, kept.f, a, b))
    t, tau, d, e, f, a, b = numbers
    arguments = (x, space, unit_scale, time, beta, kappa, kernel)
    return (out, mu), _Residuals(*arguments, t, z, tau, d, e, f, a, b, mu, kept.constants, out)


def _pixel_cotangents(g, kept: _Residuals, n: _Constants):
    """Cotangents of d, e and tau; A (`through_a`); and q and r, products with beta and the time."""
    vectors = jnp.stack([kept.mu, kept.beta, kept.time], axis=1)
    p, q, r = jnp.split(precise(g, vectors), 3, axis=1)
    through_a = p + n.k2 * n.m * q  # (D71)
    g_d, g_e = n.k1 * through_a - kept.kappa * q, n.k2 * q
    g_tau = kept.kappa * n.mu_t * q - n.s * through_a
    return g_d, g_e, g_tau, through_a, q, r


def _point_cotangents(g, y, pixels, kept: _Residuals, n: _Constants):
    """Cotangents of mu, with its time, and of beta; and three sums that the time row needs (D77).

    Those ride in the same two skinny products, which read g and y once.
    """
    g_d, g_e, g_tau, through_a, q, _ = pixels
    t, tau, d, e, a, b = kept.t, kept.tau, kept.d, kept.e, kept.a, kept.b
    kappa, s = kept.kappa, n.s
    a_g, b_g, t_g = precise(jnp.concatenate([a, b, t], axis=1).T, g)
    columns = jnp.concatenate([g_d, g_e, g_tau * t / tau, t / tau], axis=1)
    d_y, e_y, tau_y, lean_y = precise(columns.T, y)
    g_m = n.k2 * jnp.sum(a * q)  # (D72)
    g_mu, g_beta = a_g + d_y + g_m * kept.beta, b_g + e_y + g_m * kept.mu  # (D73)
    # (D74)
    g_mu_t = kappa * jnp.sum(tau * q) - s / kappa * n.k1**2 * jnp.sum(d * through_a)
    g_beta_t = -s / kappa * n.k2**2 * jnp.sum((e + n.m * a) * q)
    g_beta = g_beta + g_beta_t * kept.beta / n.beta_t
    return g_mu, g_mu_t, g_beta, (t_g, tau_y, lean_y)


def _mean_cotangent(g_mu, g_mu_t, kept: _Residuals, n: _Constants):
    """Cotangent, space and time, of each point through the mean (D75)."""
    mu, length, kappa, pixels = kept.mu, kept.constants.length, kept.kappa, kept.t.size
    radial = (jnp.sum(g_mu * mu) + g_mu_t * n.mu_t) / length
    eta = (g_mu / length + kappa * radial * mu) / pixels
    eta_t = (g_mu_t / length - kappa * radial * n.mu_t) / pixels
    return eta, eta_t


def _unit_scale_cotangent(g_space, g_y, g_time, kept: _Residuals):
    """(D80), from the kernel or from the image, whichever is smaller."""
    if kept.space.size < kept.out.size:
        return divide(sum_inputs(g_space * kept.space), kept.unit_scale)
    dtype = kept.kappa.dtype
    along_y = sum_inputs(g_y.astype(dtype) * kept.stored.astype(dtype))
    return divide(divide(along_y, kept.unit_scale) - kept.time * g_time, kept.unit_scale)


def _kappa_by_euler(g, g_x, g_beta, kept: _Residuals):
    """`s out` is a function of `(s x, s beta)` alone: Euler's theorem (D81)."""
    dtype = kept.kappa.dtype
    euler = jnp.sum(g_x * kept.x.astype(dtype)) + jnp.sum(g_beta * kept.beta)
    return (euler - jnp.sum(g * kept.out.astype(dtype).reshape(g.shape))) / (2 * kept.kappa)


def _points(kept: _Residuals):
    return kept.stored.astype(kept.kappa.dtype)


def _points_in(form: Form, kept: _Residuals):
    del form
    tilt = centering.Tilt(kept.t.reshape(kept.stored.shape[:-1]), kept.time)
    return centering.points(kept.stored, kept.unit_scale, tilt, kept.kappa.dtype)


def _push(window, kept: _Residuals, tangents):
    """The tangent of the centred convolution; None for a tangent is 0."""
    dx, dspace, dscale, dtime, dbeta, dkappa = tangents
    x, t, dtype = kept.x, kept.t, kept.kappa.dtype
    y = by_platform(_points_in, kept, cpu=_points).reshape(t.size, -1)
    # (D164)
    wide = jnp.zeros(kept.stored.shape, dtype)
    product = conv_tangent(x, dx, kept.space, dspace, wide, window).reshape(y.shape)
    unit_scale, time = kept.unit_scale[None], kept.time[None]
    dy = unit_scale * product
    if dscale is not None:
        dy = dy + dscale[None] * divide(y + t * time, unit_scale)
    if dtime is not None:
        dy = dy - t * dtime[None]
    squares = jnp.zeros_like(t)
    if dx is not None:
        along = jnp.sum(2 * x.astype(dtype) * dx.astype(dtype), axis=-1, keepdims=True)
        squares = window_sum(along, kept.space.shape[:-2], window).reshape(t.shape)
    if dkappa is not None:
        squares = squares - dkappa / (kept.kappa * kept.kappa)
    dy = dy - squares / (2 * t) * time
    numbers = kept.tau, kept.d, kept.e, kept.mu, kept.constants.length
    out = center_tangent(y, dy, *numbers, kept.beta, dbeta, kept.kappa, dkappa)
    return out.astype(x.dtype).reshape(kept.out.shape)


def _through_squares(x, space, by_square, window):
    """The cotangent of x through the squares that the time of a patch is made of."""
    sums = functools.partial(window_sum, size=space.shape[:-2], window=window)
    # An array, not its shape: that would lose over which axes of a mesh it varies.
    squares = jnp.zeros_like(x[..., :1], by_square.dtype)
    (g_squares,) = jax.linear_transpose(sums, squares)(by_square)
    return 2 * x.astype(by_square.dtype) * g_squares


def _backward(window, kept: _Residuals, cotangent):
    x, space, time, mu, beta, t = kept.x, kept.space, kept.time, kept.mu, kept.beta, kept.t
    dtype = kept.kappa.dtype
    g, y = (i.astype(dtype).reshape(t.size, -1) for i in (cotangent, kept.stored))
    n = _constants(kept)
    pixels = _pixel_cotangents(g, kept, n)
    g_d, g_e, g_tau, _, _, r = pixels
    g_mu, g_mu_t, g_beta, (t_g, tau_y, lean_y) = _point_cotangents(g, y, pixels, kept, n)
    eta, eta_t = _mean_cotangent(g_mu, g_mu_t, kept, n)
    omega = (g_tau + eta_t) / kept.tau  # (D76), times the unit scale: the cotangent of conv(x)
    g_y = g + g_d * mu[None] + g_e * beta[None] + omega * y + eta[None]
    g_y = kept.unit_scale[None] * g_y
    g_y = g_y.astype(x.dtype).reshape(kept.out.shape)
    # (D77): without another pass over g_y.
    along = jnp.sum(t * g_d) * mu + jnp.sum(t * g_e) * beta + jnp.sum(t) * eta
    g_time = -(t_g + along + tau_y + eta_t * lean_y)
    mu_v, beta_v, eta_v = (jnp.sum(point * time) for point in (mu, beta, eta))
    g_t = -(r + g_d * mu_v + g_e * beta_v + omega * kept.f + eta_v)  # (D78)
    # (D79)
    (g_x,) = jax.linear_transpose(lambda x: conv_images(x, space, window), x)(g_y)
    (g_space,) = jax.linear_transpose(lambda k: conv_images(x, k, window), space)(g_y)
    g_unit_scale = _unit_scale_cotangent(g_space, g_y, g_time, kept)
    by_square = (g_t / (2 * t)).reshape(*kept.out.shape[:-1], 1)
    g_x = g_x.astype(dtype) + _through_squares(x, space, by_square, window)
    g_kappa = _kappa_by_euler(g, g_x, g_beta, kept)
    return g_x.astype(x.dtype), g_space, g_unit_scale, g_time, g_beta, g_kappa


def _backward_in(form: Form, window, kept: _Residuals, g):
    x, space, scale, time, beta, kappa = kept[:6]
    pixels, dtype = kept.stored.shape[:-1], kappa.dtype
    t, tau, d, e, f = (n.reshape(pixels) for n in (kept.t, kept.tau, kept.d, kept.e, kept.f))
    tilt, points = centering.Tilt(t, time), (tau, d, e, f, kept.mu, kept.constants)
    ours = centering.Residuals(kept.stored, scale, beta, kappa, tilt, *points)
    g_z, g_beta, g_kappa, g_tilt = centering.backward(form, ours, g)
    g_t, g_time = g_tilt
    g_x, g_space, g_scale = centering.pull_conv(x, kept.kernel, scale, g_z, window)
    by_square = g_t / (2 * t)
    g_x = g_x.astype(dtype) + _through_squares(x, space, by_square[..., None], window)
    g_kappa = g_kappa - jnp.sum(by_square) / (kappa * kappa)  # (D84)
    return g_x.astype(x.dtype), g_space, g_scale, g_time, g_beta, g_kappa


def _pull(window, kept, g):
    cpu = functools.partial(_backward, window)
    return by_platform(lambda form, *a: _backward_in(form, window, *a), kept, g, cpu=cpu)


def _conv_center_jvp(window, primals, tangents):
    (out, mu), kept = _keep(window, *primals)
    push, pull = functools.partial(_push, window), functools.partial(_pull, window)
    return (out, mu), (linear_map(push, pull, kept, tangents, out), jnp.zeros_like(mu))


conv_center.defjvp(_conv_center_jvp, symbolic_zeros=True)
