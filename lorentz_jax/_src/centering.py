"""The centring batch norm at the batch's own mean, with a hand-written backward pass.

Autodiff of `functional.center` at `functional.batch_mean` keeps or recomputes several image-sized
arrays; this keeps the input and three numbers a point. Forward mode has a rule of its own, see
`linear_map` and `tangents`. `(D69)` and so on are equations of `docs/derivations.md`, whose letters
these are.

The formulas are the same on every device. What differs is how sums over channels and over points
are asked for, and where arrays are held apart: see `Form`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.arguments import row
from lorentz_jax._src.conv import conv_images, conv_tangent, sum_inputs
from lorentz_jax._src.forms import Form, by_platform, hold
from lorentz_jax._src.linear_map import linear_map
from lorentz_jax._src.scalars import divide
from lorentz_jax._src.shifting import (
    Columns,
    Constants,
    Products,
    constants,
    pull_mean,
    pull_shifts,
    shifts,
    through_a,
)
from lorentz_jax._src.tangents import center_tangent


class Tilt(NamedTuple):
    """What a bias takes away from every point: `t time`, a number a point and one vector."""

    t: Array
    time: Array


class Residuals(NamedTuple):
    """What the backward pass keeps.

    Attributes:
        z, scale, beta, kappa, tilt: the arguments.
        tau, d, e: time of every point `y = scale z - t time`, and its products with mu and beta.
        f: its product with the time row; None without a tilt.
        mu: the batch mean `(D,)`.
        constants: times of mu and beta, their product m, and the length that mu was divided by.
    """

    z: Array
    scale: Array | None
    beta: Array
    kappa: Array
    tilt: Tilt | None
    tau: Array
    d: Array
    e: Array
    f: Any
    mu: Array
    constants: Constants


def _times(scale, vector):
    return vector if scale is None else row(scale, vector) * vector


def points(z, scale, tilt, dtype):
    """The points y."""
    y = _times(scale, z.astype(dtype))
    return y if tilt is None else y - tilt.t[..., None] * row(tilt.time, y)


def _mean(mean, tau, beta, kappa) -> tuple[Array, Constants]:
    """The point mu on the ray of the mean vector, and the constants (D69)."""
    # Small sums cost a device more to start than to do, so this is one.
    pairs = jnp.stack([mean * mean, mean * beta, beta * beta])
    squared, product, beta_squared = jnp.sum(pairs, axis=1)
    n = constants(squared, product, beta_squared, jnp.mean(tau), kappa)
    return mean / n.length, n


def forward(form: Form, z, scale, beta, kappa, tilt=None):
    """Centre the points `scale z - t time`: `((out, mu), residuals)`.

    A scale of None is one of ones, and without a tilt there is no time.
    """
    dtype, axes = kappa.dtype, tuple(range(z.ndim - 1))
    mean = _times(scale, jnp.mean(z.astype(dtype), axis=axes))
    if tilt is not None:
        mean = mean - jnp.mean(tilt.t) * tilt.time
    again, mean = form.hold_images(z, mean)
    y = points(again, scale, tilt, dtype)
    # mu is the mean over a number, so one pass gives all products before mu is known.
    vectors = (None, mean, beta) if tilt is None else (None, mean, beta, tilt.time)
    squares, along_mean, e, *f = form.rows(y, vectors)
    tau = jnp.sqrt(1 / kappa + squares)
    mu, n = _mean(mean, tau, beta, kappa)
    d = along_mean / n.length
    a, b = form.hold_numbers(*shifts(d, e, tau, kappa, n))
    (again,) = form.hold_images(z)
    y = points(again, scale, tilt, dtype)
    out = y + a[..., None] * row(mu, y) + b[..., None] * row(beta, y)  # (D70)
    f = f[0] if f else None
    return (out.astype(z.dtype), mu), Residuals(z, scale, beta, kappa, tilt, tau, d, e, f, mu, n)


def _columns_of_points(form, numbers, z, scale, tilt, dtype) -> tuple[Array, Any]:
    """Sums over all points of each number times y, and times t."""
    sums = _times(scale, form.columns(numbers, z, dtype))
    if tilt is None:
        return sums, None
    along = form.totals(numbers, tilt.t)
    return sums - along[:, None] * tilt.time[None], along


def backward(form: Form, kept: Residuals, g):
    """The cotangents of z, beta, kappa and the tilt."""
    z, scale, beta, kappa, tilt, tau, d, e, f, mu, n = kept
    dtype = kappa.dtype
    a, b = shifts(d, e, tau, kappa, n)
    (g,) = form.hold_images(g)
    vectors = (mu, beta) if tilt is None else (mu, beta, tilt.time)
    p, q, *r = form.rows(g.astype(dtype), vectors)
    big = through_a(p, q, kappa, n)
    a, b, q, big = form.hold_numbers(a, b, q, big)
    g, z = form.hold_images(g, z)
    of_g, of_y = [a, b], [big, q]
    g_d, g_e, g_tau = pull_shifts(big, q, kappa, n)
    if tilt is not None:
        lean = tilt.t / tau
        lean, pull = form.hold_numbers(lean, lean * g_tau)
        of_g, of_y = [*of_g, tilt.t], [*of_y, pull, lean]
    of_g = form.columns(of_g, g, dtype)
    of_y, along_t = _columns_of_points(form, of_y, z, scale, tilt, dtype)
    sums = jnp.concatenate([of_g[:2], of_y[:2]])
    (_, a_q), _, (a_d, _), (q_d, q_e) = jnp.sum(sums[:, None] * jnp.stack([mu, beta])[None], axis=2)
    dots = Products(a_q, a_d, q_d, q_e)
    g_beta, eta, eta_t = pull_mean(Columns(*sums), dots, mu, beta, kappa, n, tau.size)
    omega = (g_tau + eta_t) / tau
    g_d, g_e, omega = form.hold_numbers(g_d, g_e, omega)
    g, z = form.hold_images(g, z)
    # (D76)
    g_y = g.astype(dtype) + g_d[..., None] * row(mu, g) + g_e[..., None] * row(beta, g)
    g_y = g_y + omega[..., None] * points(z, scale, tilt, dtype) + row(eta, g)
    # `s out` is a function of `(s y, s beta)` alone: Euler's theorem, by numbers a point (D83).
    along = g_d * d + g_e * e + omega * (tau * tau - 1 / kappa) - a * p - b * q
    along = jnp.sum(along) + tau.size * n.length * jnp.sum(eta * mu) + jnp.sum(g_beta * beta)
    g_tilt: Any = None
    if tilt is not None:
        # (D77): without another pass over g_y.
        t_d, t_e, _ = pull_shifts(along_t[0], along_t[1], kappa, n)
        t = jnp.sum(tilt.t)
        g_time = -(of_g[2] + t_d * mu + t_e * beta + t * eta + of_y[2] + eta_t * of_y[3])
        mu_v, beta_v, eta_v = (jnp.sum(v * tilt.time) for v in (mu, beta, eta))
        g_t = -(r[0] + g_d * mu_v + g_e * beta_v + omega * f + eta_v)  # (D78)
        g_tilt = Tilt(g_t, g_time)
    return _times(scale, g_y).astype(z.dtype), g_beta, along / (2 * kappa), g_tilt


@jax.custom_jvp
def center_batch(y: Array, beta: Array, kappa: Array) -> tuple[Array, Array]:
    """The points moved by `T_beta o T_(-mean)`, and their mean, whose tangent is left out."""
    return keep(y, None, beta, kappa)[0]


def keep(*arguments: Any) -> Any:
    """`forward` in the form of the device."""
    return by_platform(forward, *arguments)


def pull_back(kept: Residuals, g: Array) -> tuple[Array, Array, Array]:
    """`backward` in the form of the device: the transpose of `push_forward`."""
    return by_platform(backward, kept, g)[:3]


def push_forward(kept: Residuals, dz: Array, dscale: Any, dbeta: Any, dkappa: Any) -> Array:
    """The tangent of the centred points; None for a tangent is 0."""
    z, scale, beta, kappa, _, tau, d, e, _, mu, n = kept
    z, dz = z.astype(kappa.dtype), dz.astype(kappa.dtype)
    y, dy = _times(scale, z), _times(scale, dz)
    dy = dy if dscale is None else dy + row(dscale, z) * z
    tau, d, e = (numbers[..., None] for numbers in (tau, d, e))
    out = center_tangent(y, dy, tau, d, e, mu, n.length, beta, dbeta, kappa, dkappa)
    return out.astype(kept.z.dtype)


def _push_points(kept, tangents):
    dy, dbeta, dkappa = tangents
    dy = jnp.zeros_like(kept.z) if dy is None else dy
    return push_forward(kept, dy, None, dbeta, dkappa)


def _center_batch_jvp(primals, tangents):
    y, beta, kappa = primals
    (out, mu), kept = keep(y, None, beta, kappa)
    return (out, mu), (linear_map(_push_points, pull_back, kept, tangents, out), jnp.zeros_like(mu))


center_batch.defjvp(_center_batch_jvp, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(5,))
def conv_center(x, space, scale, beta, kappa, window):
    """The centred convolution `scale conv(x)` without a bias, and the mean."""
    return _keep_conv(x, space, scale, beta, kappa, window)[0]


def _keep_conv(x, space, scale, beta, kappa, window):
    # Held, for the sum of `pull_conv`: made again it would be brought to another order.
    (kernel,) = hold(space.astype(x.dtype))
    results, kept = keep(conv_images(x, kernel, window), scale, beta, kappa)
    return results, (x, kernel, kept)


def _push_conv(window, residuals, tangents):
    x, kernel, kept = residuals
    dx, dspace, dscale, dbeta, dkappa = tangents
    dz = conv_tangent(x, dx, kernel, dspace, kept.z, window)
    return push_forward(kept, dz, dscale, dbeta, dkappa)


def _pull_back_conv(window, residuals, g):
    x, kernel, kept = residuals
    g_z, g_beta, g_kappa = pull_back(kept, g)
    return (*pull_conv(x, kernel, kept.scale, g_z, window), g_beta, g_kappa)


def pull_conv(x, kernel, scale, g_z, window):
    """The cotangents of x, kernel and scale, from that of the convolution."""
    dtype = scale.dtype
    (g_x,) = jax.linear_transpose(lambda x: conv_images(x, kernel, window), x)(g_z)
    (g_kernel,) = jax.linear_transpose(lambda k: conv_images(x, k, window), kernel)(g_z)
    # The kernel as the convolution has it: a GPU keeps it in an order of axes of its own.
    along = sum_inputs(g_kernel.astype(dtype) * kernel.astype(dtype))
    return g_x, g_kernel.astype(dtype), divide(along, scale)  # (D80)


def _conv_center_jvp(window, primals, tangents):
    (out, mu), kept = _keep_conv(*primals, window=window)
    push = functools.partial(_push_conv, window)
    pull = functools.partial(_pull_back_conv, window)
    return (out, mu), (linear_map(push, pull, kept, tangents, out), jnp.zeros_like(mu))


conv_center.defjvp(_conv_center_jvp, symbolic_zeros=True)
