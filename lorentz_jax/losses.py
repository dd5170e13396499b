"""Losses between points: contrastive over all pairs, and entailment cones; needs JAX alone.

Conventions as in `lorentz_jax.geometry`. Both losses are those of MERU (Desai et al., 2023), for
every kappa. `(D192)` and so on are equations of `docs/derivations.md`. Examples assume what those
of `geometry` do, and `from lorentz_jax import losses`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax import geometry
from lorentz_jax._src.arguments import as_array, check_shapes, compute_dtype, concrete, operation
from lorentz_jax._src.scalars import direction, safe_norm
from lorentz_jax._src.smooth import split
from lorentz_jax._src.translations import boost

__all__ = ["contrastive", "entailment", "exterior_angle", "half_aperture"]


def contrastive(x: ArrayLike, y: ArrayLike, temperature: ArrayLike, kappa: ArrayLike) -> Array:
    """Compute the contrastive loss of pairs, with all other pairs of the batch as negatives.

    The logits are `-d(x_i, y_j)/temperature`. The loss of pair i is the mean of two cross
    entropies: that of y_i among all y_j, and that of x_i among all x_j.

    Args:
        x, y: Points `(B, D)`; row i of one belongs to row i of the other.
        temperature: Positive, one number.
        kappa: Minus the curvature, one number.

    Returns:
        Losses `(B,)` in nats.

    Raises:
        ValueError: The shapes differ or are not `(B, D)`, or a concrete temperature is not
            positive.

    >>> x = jnp.array([[3.0, 0.0], [0.0, 3.0]])
    >>> print(losses.contrastive(x, x, 1.0, 1.0))
    [0.0489 0.0489]
    """
    x, y = as_array("x", x, min_ndim=2), as_array("y", y, min_ndim=2)
    check_shapes((*x.shape[:1], *x.shape[-1:]), x=x, y=y)
    dtype = compute_dtype(jnp.result_type(x, y))
    temperature = _positive_number("temperature", temperature, dtype)
    distances = geometry.pairwise_dist(x.astype(dtype), y.astype(dtype), kappa)
    logits = -distances / temperature
    right = jnp.sum(jnp.where(jnp.eye(len(x), dtype=bool), logits, 0), axis=-1)
    among_y, among_x = (jax.nn.logsumexp(logits, axis=axis) - right for axis in (1, 0))
    return ((among_y + among_x) / 2).astype(jnp.result_type(x, y))


def _positive_number(name: str, value: ArrayLike, dtype: Any) -> Array:
    """One number in this dtype; `ValueError` where it is not, or a concrete one is not positive."""
    number = jnp.asarray(value, dtype)
    if number.ndim:
        raise ValueError(f"{name} must be one number, got shape {number.shape}")
    if concrete(number) and not number > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return number


@operation
def exterior_angle(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the angle at x between the way on from the origin and the way to y (D192).

    With `z = T_(-x)(y)` it is the angle between x and z, by atan2 of the parts of z. The textbook's
    arccos loses half of the digits near 0 and pi.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Angles `(...)` from 0 to pi. At x = y it is 0; at the origin, which has no way on, it is
        pi/2. The gradient is 0 there, and 0 by convention where the computed angle is 0 or pi.

    >>> x = jnp.array([0.75, 0.0])
    >>> print(losses.exterior_angle(x, jnp.array([[2.0, 0.0], [0.0, 0.0]]), 1.0))
    [0.     3.1416]
    """
    x, y = jnp.asarray(x), jnp.asarray(y)
    z = boost(-x, y, kappa)
    # Where a direction is missing, another one goes through the formula: no derivative is NaN.
    start = jnp.all(x == 0, axis=-1, keepdims=True)
    there = jnp.all(z == 0, axis=-1, keepdims=True)
    x, z = jnp.where(start, 1, x), jnp.where(there, 1, z)
    # Of length 1 first: the squares of far points would overflow in the derivative of atan2.
    z = direction(z, safe_norm(z, keepdims=True))
    along, across = split(direction(x, safe_norm(x, keepdims=True)), z)
    height = safe_norm(across, keepdims=True)
    angle = jnp.where(start, jnp.pi / 2, jnp.arctan2(height, along))
    return jnp.where(there, 0, angle)[..., 0]


def half_aperture(x: ArrayLike, kappa: ArrayLike, min_radius: ArrayLike = 0.1) -> Array:
    """Compute half the angle of the entailment cone at x, `asin(2 min_radius/(s |x|))` (D193).

    Nearer to the origin than `s |x| = 2 min_radius` there is no cone: the value is pi/2 there, and
    its gradient 0.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.
        min_radius: The constant K of the cones, one positive number; it may be traced.

    Returns:
        Angles `(...)` in (0, pi/2].

    Raises:
        ValueError: `min_radius` is not one number, or a concrete one is not positive.

    >>> print(f"{losses.half_aperture(jnp.array([0.4, 0.0]), 1.0):.4f}")  # asin(1/2)
    0.5236
    """
    x = as_array("x", x)
    radius = _positive_number("min_radius", min_radius, compute_dtype(x.dtype))
    return _half_aperture(x.astype(radius.dtype) / (2 * radius), kappa).astype(x.dtype)


@operation
def _half_aperture(x, kappa):
    size = (jnp.sqrt(kappa) * safe_norm(x, keepdims=True))[..., 0]
    inside = size <= 1
    return jnp.where(inside, jnp.pi / 2, jnp.arcsin(1 / jnp.where(inside, 2, size)))


def entailment(x: ArrayLike, y: ArrayLike, kappa: ArrayLike, min_radius: ArrayLike = 0.1) -> Array:
    """Compute by how much y lies outside the entailment cone of x, as an angle (D193).

    `max(0, exterior_angle(x, y) - half_aperture(x))`: x is the more general of the two.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.
        min_radius: The constant K of the cones, as in `half_aperture`.

    Returns:
        Losses `(...)` in radians; 0 inside the cone.

    >>> x, y = jnp.array([0.4, 0.0]), jnp.array([[2.0, 0.5], [-2.0, 0.0]])
    >>> print(losses.entailment(x, y, 1.0))
    [0.    2.618]
    """
    angle = exterior_angle(x, y, kappa)
    return jax.nn.relu(angle - half_aperture(x, kappa, min_radius).astype(angle.dtype))
