"""Coordinates: the time of a point, the paper's ambient vectors, Poincare and Klein balls.

Conventions and limits as in `lorentz_jax.geometry`, which re-exports the functions of the end.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import as_array, concrete, operation
from lorentz_jax._src.smooth import (
    NEAR,
    dot,
    outward,
    over,
    size,
    split,
    square_and_scale,
    with_jvp,
)
from lorentz_jax._src.smooth import scaled_time as scaled_time


def _time_column(x, kappa):
    square, scale = square_and_scale(x, 1 / jnp.sqrt(kappa))
    return jnp.sqrt(square) / scale, None


def _d_time_column(primals, time, _, moves):
    return dot(over(primals[0], time), moves[0])  # (D131)


def _d_kappa_time_column(primals, time, _):
    return -over(1 / primals[1], time) / (2 * primals[1])  # (D131)


time_column = with_jvp(_time_column, _d_time_column, _d_kappa_time_column)
"""`x_t` with the coordinate axis kept at length 1, for formulas."""


def _ball(x, kappa, offset):
    """`x / (offset + s x_t)`: the Poincare ball for offset 1, Klein's for 0."""

    def chart(x, kappa):
        time, _, axis = outward(x, kappa)
        return x / (offset + time), (time, axis)

    def d_chart(primals, _, parts, moves):
        # (D20): one factor of the terms of autodiff cancels along x, and they overflow far out.
        (_, kappa), (dx,), (time, axis) = primals, moves, parts
        shift, near = offset + time, time < NEAR
        unit = jnp.where(near, 0, axis)
        share = over(jnp.ones_like(time), shift)
        far = over(share if offset else over(share, time), time)
        slope = jnp.where(near, -over(kappa * share * share, time), far)
        return over(split(unit, dx)[1], shift) + axis * (slope * dot(axis, dx))

    def d_kappa(primals, ball, parts):
        return ball * (dot(ball, over(primals[0], parts[0])) / -2)  # (D21)

    return with_jvp(chart, d_chart, d_kappa)(x, kappa)


def _value_edge_gap(y, kappa):
    scaled = jnp.sqrt(kappa) * size(y)
    return (1 - scaled) * (1 + scaled), None


_edge_gap = with_jvp(
    _value_edge_gap,
    lambda primals, _, __, moves: -2 * dot(primals[1] * primals[0], moves[0]),  # (D9)
    lambda primals, _, __: -dot(primals[0], primals[0]),
)
"""`1 - kappa |y|^2` of a point of a ball, precise up to the edge."""


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
    return 2 * jnp.asarray(y) / _edge_gap(y, kappa)


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
    return jnp.asarray(y) / jnp.sqrt(_edge_gap(y, kappa))
