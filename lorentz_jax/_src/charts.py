"""Coordinates: the time of a point, the paper's ambient vectors, Poincare and Klein balls.

Conventions and limits as in `lorentz_jax.geometry`, which re-exports the functions of the end.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import as_array, concrete, operation
from lorentz_jax._src.radial import complement
from lorentz_jax._src.scalars import direction, hypot, safe_norm, split


def time_column(x: Array, kappa: Array) -> Array:
    """`x_t` with the coordinate axis kept at length 1, for formulas."""
    return hypot(safe_norm(x, keepdims=True), 1 / jnp.sqrt(kappa))


def scaled_time(x: Array, kappa: Array) -> Array:
    """`h = s x_t = sqrt(1 + kappa |x|^2)`, shape `(..., 1)`.

    Its gradient in kappa does not cancel as kappa -> 0, where that of `s * time` does (D19).
    """
    size = jnp.sqrt(kappa) * safe_norm(x, keepdims=True)
    return hypot(size, jnp.ones_like(size))


def _ball(x, kappa, offset):
    """`x / (offset + s x_t)`: the Poincare ball for offset 1, Klein's for 0."""

    @jax.custom_jvp
    def chart(x, kappa):
        return x / (offset + scaled_time(x, kappa))

    @chart.defjvp
    def chart_jvp(primals, tangents):
        # (D20), (D21): autodiff's terms cancel along x and in kappa, and overflow far out.
        (x, kappa), (dx, dkappa) = primals, tangents
        size, time = safe_norm(x, keepdims=True), scaled_time(x, kappa)
        out, unit, shift = chart(x, kappa), direction(x, size), offset + time
        radial, across = split(unit, dx)
        along = radial / shift / time if offset else radial / time / time / time
        by_kappa = -out * (size / shift) * (size / time) / 2
        return out, across / shift + unit * along + by_kappa * dkappa

    return chart(x, kappa)


@operation
def time(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Compute the time coordinate `x_t = sqrt(1/kappa + |x|^2)`.

    Squares do not overflow.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Times `(...)`.

    >>> geometry.time(jnp.ones((8, 2)), 1.0).shape
    (8,)
    """
    return time_column(jnp.asarray(x), jnp.asarray(kappa))[..., 0]


@operation
def lift(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Make the paper's ambient vector `(x_t, x)`, time first.

    The inverse is `drop`.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Vectors `(..., D + 1)`.

    >>> X = geometry.lift(jnp.array([0.75, 0.0]), 1.0)
    >>> print(X)
    [1.25 0.75 0.  ]
    """
    x = jnp.asarray(x)
    return jnp.concatenate([time_column(x, jnp.asarray(kappa)), x], axis=-1)


def drop(X: ArrayLike, kappa: ArrayLike, rtol: float | None = None) -> Array:
    """Take the space part of ambient points, the inverse of `lift`.

    Args:
        X: Vectors `(..., D + 1)`, time first.
        kappa: Minus the curvature, one number or of the batch shape.
        rtol: By how much of x_t the time may differ from `sqrt(1/kappa + |x|^2)`; default: the
            square root of the dtype's epsilon.

    Returns:
        Points `(..., D)`.

    Raises:
        ValueError: names the first concrete row that is not finite, not on the upper sheet
            (`x_t > 0`) or off it in time. Traced points are not checked.

    >>> print(geometry.drop(jnp.array([1.25, 0.75, 0.0]), 1.0))
    [0.75 0.  ]
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


@operation
def to_poincare(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Map to the Poincare ball of radius 1/s, `x / (1 + s x_t)` (D20).

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points of the ball, `(..., D)`.

    >>> print(geometry.to_poincare(jnp.array([0.75, 0.0]), 1.0))
    [0.3333 0.    ]
    """
    return _ball(x, kappa, 1)


@operation
def from_poincare(y: ArrayLike, kappa: ArrayLike) -> Array:
    """Map from the Poincare ball, `2 y / (1 - kappa |y|^2)` (D22).

    At or outside the edge the result is not finite or not the inverse: keep `s |y| < 1`.

    Args:
        y: Points of the ball, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`.

    >>> print(geometry.from_poincare(jnp.array([0.5, 0.0]), 1.0))
    [1.3333 0.    ]
    """
    y = jnp.asarray(y)
    size = jnp.sqrt(kappa) * safe_norm(y, keepdims=True)
    return 2 * y / complement(size)


@operation
def to_klein(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Map to the Klein ball of radius 1/s, `x / (s x_t)` (D20).

    Geodesics are straight lines there.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points of the ball, `(..., D)`.

    >>> x, y = jnp.array([0.75, 0.0]), jnp.array([0.0, 0.75])
    >>> print(geometry.to_klein(jnp.stack([x, y]), 1.0))
    [[0.6 0. ]
     [0.  0.6]]
    """
    return _ball(x, kappa, 0)


@operation
def from_klein(y: ArrayLike, kappa: ArrayLike) -> Array:
    """Map from the Klein ball, `y / sqrt(1 - kappa |y|^2)` (D22).

    At or outside the edge the result is not finite: keep `s |y| < 1`.

    Args:
        y: Points of the ball, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`.

    >>> in_ball = geometry.to_klein(jnp.array([0.75, 0.0]), 1.0)
    >>> print(geometry.from_klein(in_ball, 1.0))
    [0.75 0.  ]
    """
    y = jnp.asarray(y)
    size = jnp.sqrt(kappa) * safe_norm(y, keepdims=True)
    return y / jnp.sqrt(complement(size))
