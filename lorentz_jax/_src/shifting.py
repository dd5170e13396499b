"""Algebra of the centring norm at the batch's mean: numbers of a point, vectors of the batch.

What `centering` asks XLA for and what `kernels` writes by hand have these formulas in common.
`(D69)` and so on are equations of `docs/derivations.md`, whose letters these are.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.plain import lorentz_length


class Constants(NamedTuple):
    """Numbers of the whole batch (D70)."""

    mu_t: Array
    beta_t: Array
    m: Array
    length: Array


class Columns(NamedTuple):
    """Sums over all points, `(D,)`: of `a g` and `b g`, and of `A y` and `q y` (D73)."""

    a_g: Array
    b_g: Array
    a_y: Array
    q_y: Array


class Products(NamedTuple):
    """Sums over all points of `a q`, `A d`, `q d` and `q e`: numbers, from `Columns` (D82)."""

    a_q: Array
    a_d: Array
    q_d: Array
    q_e: Array


def constants(
    squared: Array, product: Array, beta_squared: Array, time: Array, kappa: Array
) -> Constants:
    """The constants, from the mean's square and product with beta, and its time (D69)."""
    length = lorentz_length(squared, time, kappa)
    mu_t = jnp.sqrt(1 / kappa + squared / length / length)
    return Constants(mu_t, jnp.sqrt(1 / kappa + beta_squared), product / length, length)


def factors(kappa: Array, n: Constants) -> tuple[Array, Array, Array]:
    """`s`, `k1` and `k2` (D70)."""
    s = jnp.sqrt(kappa)
    return s, kappa / (1 + s * n.mu_t), kappa / (1 + s * n.beta_t)


def shifts(d: Array, e: Array, tau: Array, kappa: Array, n: Constants) -> tuple[Array, Array]:
    """By how much of mu and of beta a point moves (D70)."""
    s, k1, k2 = factors(kappa, n)
    a = k1 * d - s * tau
    return a, k2 * (e + n.m * a) + kappa * (n.mu_t * tau - d)


def through_a(p: Array, q: Array, kappa: Array, n: Constants) -> Array:
    """The cotangent of a, from the products of a cotangent with mu and beta (D71)."""
    return p + factors(kappa, n)[2] * n.m * q


def pull_shifts(big: Array, q: Array, kappa: Array, n: Constants) -> tuple[Array, Array, Array]:
    """The cotangents of d, e and tau, from A (`through_a`) and q (D71)."""
    s, k1, k2 = factors(kappa, n)
    return k1 * big - kappa * q, k2 * q, kappa * n.mu_t * q - s * big


def pull_mean(
    sums: Columns, dots: Products, mu: Array, beta: Array, kappa: Array, n: Constants, points: int
) -> tuple[Array, Array, Array]:
    """The cotangent of beta, and what every point gets through the mean: space and time."""
    s, k1, k2 = factors(kappa, n)
    tau_q = (k1 * dots.q_d - dots.a_q) / s  # the sum of tau q
    g_m = k2 * dots.a_q  # (D72)
    g_mu = sums.a_g + k1 * sums.a_y - kappa * sums.q_y + g_m * beta  # (D73)
    # (D74)
    g_mu_t = kappa * tau_q - s / kappa * k1**2 * dots.a_d
    g_beta_t = -s / kappa * k2**2 * (dots.q_e + n.m * dots.a_q)
    g_beta = sums.b_g + k2 * sums.q_y + g_m * mu + g_beta_t * beta / n.beta_t
    # (D75)
    radial = (jnp.sum(g_mu * mu) + g_mu_t * n.mu_t) / n.length
    eta = (g_mu / n.length + kappa * radial * mu) / points
    return g_beta, eta, (g_mu_t / n.length - kappa * radial * n.mu_t) / points
