"""The centring batch norm at the batch's own mean, with a hand-written backward pass.

Autodiff of `functional.center` at `functional.batch_mean` keeps or recomputes several image-sized
arrays; this keeps the input and three numbers a point. It has no forward-mode derivative (jvp):
the plain functions do. `(D69)` and so on are equations of `docs/derivations.md`, whose letters
these are.

The formulas are the same on every device. What differs is how sums over channels and over points
are asked for, and where arrays are held apart: see `Form`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax._src.plain import lorentz_length, point_time, precise


class Form(NamedTuple):
    """How a device likes to sum.

    Attributes:
        rows: `(y, vectors) -> sums`, the products of every point with each vector, each sum of the
            shape of y without its last axis. None in place of a vector stands for y itself.
        columns: `(numbers, y, dtype) -> (k, D)`, for k numbers a point: sums over all points of
            the number times the point.
        hold: returns its arguments. XLA makes none of them again for what comes behind it, nor
            joins what comes before and behind it to one kernel.
    """

    rows: Callable[[Array, Sequence[Any]], Sequence[Array]]
    columns: Callable[[Sequence[Array], Array, Any], Array]
    hold: Callable[..., Sequence[Array]]


def _products(y, vectors):
    """The summands of `Form.rows`, in the dtype of the vectors."""
    y = y.astype(vectors[-1].dtype)
    return [y * (y if v is None else v) for v in vectors]


def _skinny_rows(y, vectors):
    flat = y.astype(vectors[-1].dtype).reshape(-1, y.shape[-1])
    sums = precise(flat, jnp.stack([v for v in vectors if v is not None], axis=1))
    sums = iter(jnp.split(sums, sums.shape[1], axis=1))
    squares = jnp.sum(flat * flat, axis=1) if None in vectors else None
    return [(squares if v is None else next(sums)).reshape(y.shape[:-1]) for v in vectors]


def _variadic_rows(y, vectors):
    products = _products(y, vectors)
    zeros = tuple(np.zeros((), p.dtype) for p in products)
    add = lambda x, y: tuple(i + j for i, j in zip(x, y, strict=True))  # noqa: E731
    return lax.reduce(tuple(products), zeros, add, (y.ndim - 1,))


def _plain_rows(y, vectors):
    return [jnp.sum(p, axis=-1) for p in _products(y, vectors)]


def _skinny_columns(numbers, y, dtype):
    # Where y is in half precision, so are the numbers: a product of matrices of two dtypes would
    # write y out in the larger one.
    flat = jnp.stack([n.reshape(-1) for n in numbers]).astype(y.dtype)
    return jnp.matmul(
        flat,
        y.reshape(-1, y.shape[-1]),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=dtype,
    )


def _exact_columns(numbers, y, dtype):
    return _skinny_columns(numbers, y.astype(dtype), dtype)


def _plain_columns(numbers, y, dtype):
    axes = tuple(range(y.ndim - 1))
    return jnp.stack([jnp.sum(n[..., None] * y.astype(dtype), axis=axes) for n in numbers])


def _hold(*arrays):
    return lax.optimization_barrier(arrays)


def _pass_on(*arrays):
    return arrays


CPU = Form(_skinny_rows, _exact_columns, _hold)
GPU = Form(_variadic_rows, _skinny_columns, _hold)
TPU = Form(_plain_rows, _plain_columns, _pass_on)


class _Residuals(NamedTuple):
    """What the backward pass keeps.

    Attributes:
        y, beta, kappa: the arguments.
        tau, d, e: time of every point, and its products with mu and beta.
        mu, length: the batch mean `(D,)`, and the Lorentz length that it was divided by.
    """

    y: Array
    beta: Array
    kappa: Array
    tau: Array
    d: Array
    e: Array
    mu: Array
    length: Array


class _Constants(NamedTuple):
    """Numbers of the whole batch (D70)."""

    s: Array
    mu_t: Array
    beta_t: Array
    m: Array
    k1: Array
    k2: Array


def _constants(mu, beta, kappa) -> _Constants:
    s, mu_t, beta_t = jnp.sqrt(kappa), point_time(mu, kappa), point_time(beta, kappa)
    m, k1, k2 = jnp.sum(mu * beta), kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)
    return _Constants(s, mu_t, beta_t, m, k1, k2)


def _shifts(d, e, tau, kappa, n: _Constants):
    """By how much of mu and of beta a point moves (D70)."""
    a = n.k1 * d - n.s * tau
    return a, n.k2 * (e + n.m * a) + kappa * (n.mu_t * tau - d)


def _forward(form: Form, y, beta, kappa):
    dtype, axes = kappa.dtype, tuple(range(y.ndim - 1))
    mean = jnp.mean(y.astype(dtype), axis=axes)
    again, mean = form.hold(y, mean)
    # mu is the mean over a number, so one pass gives all products before mu is known.
    squares, along_mean, e = form.rows(again, (None, mean, beta))
    tau = jnp.sqrt(1 / kappa + squares)
    length = lorentz_length(mean, jnp.mean(tau), kappa)
    mu, d = mean / length, along_mean / length  # (D69)
    a, b = _shifts(d, e, tau, kappa, _constants(mu, beta, kappa))
    again, a, b = form.hold(y, a, b)
    out = again.astype(dtype) + a[..., None] * mu + b[..., None] * beta  # (D70)
    return (out.astype(y.dtype), mu), _Residuals(y, beta, kappa, tau, d, e, mu, length)


def _backward(form: Form, kept: _Residuals, g):
    y, beta, kappa, tau, d, e, mu, length = kept
    dtype, n, points = kappa.dtype, _constants(mu, beta, kappa), tau.size
    a, b = _shifts(d, e, tau, kappa, n)
    (g,) = form.hold(g)
    p, q = form.rows(g, (mu, beta))
    through_a = p + n.k2 * n.m * q  # (D71)
    g_d, g_e = n.k1 * through_a - kappa * q, n.k2 * q
    g_tau = kappa * n.mu_t * q - n.s * through_a
    g, y, a, b, g_d, g_e, g_tau = form.hold(g, y, a, b, g_d, g_e, g_tau)
    a_g, b_g = form.columns([a, b], g, dtype)
    d_y, e_y = form.columns([g_d, g_e], y, dtype)
    g_m = n.k2 * jnp.sum(a * q)  # (D72)
    g_mu, g_beta = a_g + d_y + g_m * beta, b_g + e_y + g_m * mu  # (D73)
    # (D74)
    g_mu_t = kappa * jnp.sum(tau * q) - n.s / kappa * n.k1**2 * jnp.sum(d * through_a)
    g_beta_t = -n.s / kappa * n.k2**2 * jnp.sum((e + n.m * a) * q)
    g_beta = g_beta + g_beta_t * beta / n.beta_t
    # (D75)
    radial = (jnp.sum(g_mu * mu) + g_mu_t * n.mu_t) / length
    eta = (g_mu / length + kappa * radial * mu) / points
    omega = (g_tau + (g_mu_t / length - kappa * radial * n.mu_t) / points) / tau
    g, y, g_d, g_e, omega = form.hold(g, y, g_d, g_e, omega)
    # (D76)
    g_y = g.astype(dtype) + g_d[..., None] * mu + g_e[..., None] * beta
    g_y = g_y + omega[..., None] * y.astype(dtype) + eta
    # `s out` is a function of `(s y, s beta)` alone: Euler's theorem, by numbers a point (D81).
    along = g_d * d + g_e * e + omega * (tau * tau - 1 / kappa) - a * p - b * q
    along = jnp.sum(along) + points * length * jnp.sum(eta * mu) + jnp.sum(g_beta * beta)
    return g_y.astype(y.dtype), g_beta, along / (2 * kappa)


def _by_platform(function: Callable, *arguments: Any) -> Any:
    """Run `function(form, ...)` in the form of the device that it is lowered for."""
    forms = {"cpu": CPU, "cuda": GPU, "rocm": GPU, "tpu": TPU, "default": CPU}
    branches: Any = {name: functools.partial(function, form) for name, form in forms.items()}
    return lax.platform_dependent(*arguments, **branches)


@jax.custom_vjp
def center_batch(y: Array, beta: Array, kappa: Array) -> tuple[Array, Array]:
    """The points moved by `T_beta o T_(-mean)`, and their mean, which gets no cotangent."""
    return _by_platform(_forward, y, beta, kappa)[0]


def _keep(y, beta, kappa):
    return _by_platform(_forward, y, beta, kappa)


def _pull_back(kept, cotangents):
    return _by_platform(_backward, kept, cotangents[0])


center_batch.defvjp(_keep, _pull_back)
