"""Forward mode of the centring norm: how a batch moves when what it is made of moves.

`center_tangent` is the transpose of the backward passes of `biased` and `centering`. `(D160)` and
so on are equations of `docs/derivations.md`, whose letters these are.
"""

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.arguments import row
from lorentz_jax._src.plain import point_time, shifts


def center_tangent(
    y: Array, dy: Array, tau: Array, d: Array, e: Array, mu: Array, length: Array,
    beta: Array, dbeta: Array | None, kappa: Array, dkappa: Array | None,
) -> Array:  # fmt: skip
    """Return the tangent of `center(y, batch_mean(y), beta)`.

    Args:
        y, dy: points `(..., D)` and their tangent.
        tau, d, e: `(..., 1)`, times of the points, and products with mu and beta.
        mu, length: the batch mean `(D,)`, and the Lorentz length that it was divided by.
        beta, dbeta: a point `(D,)`.
        kappa, dkappa: a number. None for a tangent is 0.
    """
    dbeta = jnp.zeros_like(beta) if dbeta is None else dbeta
    dkappa = jnp.zeros_like(kappa) if dkappa is None else dkappa
    axes, bend = tuple(range(y.ndim - 1)), dkappa / (2 * kappa * kappa)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    dtau = (_along(y, dy) - bend) / tau  # (D160)
    mean, mean_t = jnp.mean(dy, axis=axes), jnp.mean(dtau)
    stretch = dkappa / (2 * kappa) + kappa * (mu_t * mean_t - jnp.sum(mu * mean)) / length  # (D161)
    dmu, dmu_t = mean / length - stretch * mu, mean_t / length - stretch * mu_t
    dbeta_t = (jnp.sum(beta * dbeta) - bend) / beta_t
    # (D162)
    dd, de = _along(dy, mu) + _along(y, dmu), _along(dy, beta) + _along(y, dbeta)
    m, dm = jnp.sum(mu * beta), jnp.sum(dmu * beta) + jnp.sum(mu * dbeta)
    numbers = d, e, tau, m, mu_t, beta_t, kappa
    (a, b), (da, db) = jax.jvp(shifts, numbers, (dd, de, dtau, dm, dmu_t, dbeta_t, dkappa))
    mu, dmu, beta, dbeta = (row(v, y) for v in (mu, dmu, beta, dbeta))
    return dy + da * mu + a * dmu + db * beta + b * dbeta  # (D163)


def _along(x: Array, y: Array) -> Array:
    return jnp.sum(row(x, y) * row(y, x), axis=-1, keepdims=True)
