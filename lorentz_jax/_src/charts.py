"""Coordinates: the time of a point, the paper's ambient vectors, Poincare and Klein balls.

Conventions and limits as in `lorentz_jax.geometry`, which re-exports all of this.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax._src.arguments import as_array, concrete, operation
from lorentz_jax._src.radial import complement
from lorentz_jax._src.scalars import direction, hypot, safe_norm, split


def time_column(x: Array, kappa: Array) -> Array:
    """`x_t` with the coordinate axis kept at length 1, for formulas."""
    return hypot(safe_norm(x, keepdims=True), 1 / jnp.sqrt(kappa))


def scaled_time(x: Array, kappa: Array) -> Array:
    """`s x_t = sqrt(1 + kappa |x|^2)`, shape `(..., 1)`.

    Its gradient in kappa does not cancel as kappa -> 0, where that of `s * time` does.
    """
    size = jnp.sqrt(kappa) * safe_norm(x, keepdims=True)
    return hypot(size, jnp.ones_like(size))


@operation
def time(x, kappa):
    """Time coordinate `x_t = sqrt(1/kappa + |x|^2)`, shape `(...)`; squares do not overflow."""
    return time_column(x, kappa)[..., 0]


@operation
def lift(x, kappa):
    """The paper's vector `(x_t, x)`, shape `(..., D + 1)`, time first."""
    return jnp.concatenate([time_column(x, kappa), x], axis=-1)


def drop(X, kappa, rtol: float | None = None):
    """Space part `(..., D)` of ambient points `(..., D + 1)`; inverse of `lift`.

    Concrete points are checked: finite, on the upper sheet (`x_t > 0`), and with a time that
    differs from `sqrt(1/kappa + |x|^2)` by at most `rtol * x_t` (default: the square root of the
    dtype's epsilon). `ValueError` names the first offending row. Traced points are not checked.
    """
    X = as_array("X", X)
    if X.shape[-1] < 2:
        raise ValueError(f"an ambient point has D + 1 >= 2 coordinates, got shape {X.shape}")
    x = X[..., 1:]
    # The check itself validates kappa and its shape, so it is made for tracers too.
    expected = time(x, kappa)
    if concrete(expected) and concrete(X):
        tolerance = float(jnp.finfo(X.dtype).eps) ** 0.5 if rtol is None else rtol
        got, want = np.asarray(X[..., 0], np.float64), np.asarray(expected, np.float64)
        finite = np.isfinite(np.asarray(X, np.float64)).all(axis=-1)
        with np.errstate(invalid="ignore"):
            good = finite & (got > 0) & (np.abs(got - want) <= tolerance * want)
        if not good.all():
            row = tuple(int(i) for i in np.argwhere(~good)[0])
            raise ValueError(
                f"not a point of the hyperboloid x.x - x_t^2 = -1/kappa, x_t > 0: row {row} has "
                f"time {got[row]:.6g}, its space part needs {want[row]:.6g}"
            )
    return x


def _ball(x, kappa, offset):
    """`x / (offset + s x_t)`: the Poincare ball for offset 1, Klein's for 0."""

    @jax.custom_jvp
    def chart(x, kappa):
        return x / (offset + scaled_time(x, kappa))

    @chart.defjvp
    def chart_jvp(primals, tangents):
        # Closed forms: autodiff's terms cancel along x and in kappa, and overflow far out.
        (x, kappa), (dx, dkappa) = primals, tangents
        size, time = safe_norm(x, keepdims=True), scaled_time(x, kappa)
        out, unit, shift = chart(x, kappa), direction(x, size), offset + time
        radial, across = split(unit, dx)
        along = radial / shift / time if offset else radial / time / time / time
        by_kappa = -out * (size / shift) * (size / time) / 2
        return out, across / shift + unit * along + by_kappa * dkappa

    return chart(x, kappa)


@operation
def to_poincare(x, kappa):
    """Point of the Poincare ball of radius 1/s, `x / (1 + s x_t)`."""
    return _ball(x, kappa, 1)


@operation
def from_poincare(y, kappa):
    """Space part of a point of the Poincare ball: `2 y / (1 - kappa |y|^2)`, for `|y| < 1/s`.

    At or outside the edge the result is not finite or not the inverse: keep `s |y| < 1`.
    """
    size = jnp.sqrt(kappa) * safe_norm(y, keepdims=True)
    return 2 * y / complement(size)


@operation
def to_klein(x, kappa):
    """Point of the Klein ball of radius 1/s, `x / (s x_t)`; geodesics are straight lines there."""
    return _ball(x, kappa, 0)


@operation
def from_klein(y, kappa):
    """Space part of a point of the Klein ball: `y / sqrt(1 - kappa |y|^2)`, for `|y| < 1/s`."""
    size = jnp.sqrt(kappa) * safe_norm(y, keepdims=True)
    return y / jnp.sqrt(complement(size))
