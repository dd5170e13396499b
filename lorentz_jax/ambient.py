"""`geometry` and the layers on the paper's ambient `(D + 1)` vectors, time first.

For arrays that come from, or go to, code that stores the time. Every function here is the one of
the same name on space parts, which says more, with its arguments dropped and its result lifted:

- a point is `(x_t, x)`, checked by `geometry.drop` when concrete;
- a tangent vector at x is `(v_t, v)` with `v_t = x.v/x_t`, at the origin `(0, v)`. A concrete time
  may be off by the square root of the dtype's epsilon, relative to the vector's largest entry (it
  is recomputed from v); more is a `ValueError`, for such a vector is not tangent;
- coordinates of a ball, weights, normals and numbers are what they are in `geometry`.

The last axis of every ambient argument must hold D + 1 coordinates: `ValueError`, traced or not.

Gradients are those along the manifold: the result does not depend on the times that are passed, so
their cotangents are 0 and those of the space coordinates are total derivatives. The Riemannian
gradient `P_x J g` of such a g is that of any other ambient expression of the same function.

`expmap`, `expmap0`, `logmap` and `logmap0` are other libraries' names of `exp`, `exp0`, `log` and
`log0`; `transp` (geoopt) and `ptransp` (hyperbolix) of `transport`, and `transp0` and `ptransp0` of
`transport_from_origin`.

Examples assume what those of `geometry` do, `from lorentz_jax import ambient, hyperplane` and

>>> x, y = jnp.array([1.25, 0.75, 0.0]), jnp.array([1.25, 0.0, 0.75])  # points, at kappa = 1
>>> v = jnp.array([0.0, 0.0, 1.0])  # tangent at x and at the origin
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax import functional, geometry, hyperplane
from lorentz_jax._src.arguments import Activation
from lorentz_jax._src.vectors import (
    checked,
    checked_input,
    drop_origin,
    drop_point,
    drop_tangent,
    lift_origin,
    lift_tangent,
)
from lorentz_jax.hyperplane import Normals

__all__ = ["from_klein", "from_poincare", "to_klein", "to_poincare"]
__all__ += ["linear", "mlr", "signed_distance"]
__all__ += ["centroid", "dist", "dist0", "exp", "exp0", "inner", "log", "log0", "pairwise_dist"]
__all__ += ["squared_dist", "translate", "transport", "transport_from_origin"]
__all__ += ["transport_to_origin"]
__all__ += ["tangent_inner", "tangent_norm"]
__all__ += ["expmap", "expmap0", "logmap", "logmap0", "ptransp", "ptransp0", "transp", "transp0"]


def inner(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Form the Minkowski product of two points, `-x_t y_t + x.y`.

    Args:
        x, y: Points `(..., D + 1)`.

    Returns:
        Products `(...)`.

    >>> print(ambient.inner(jnp.stack([x, y]), x, 1.0))
    [-1.     -1.5625]
    """
    x, y, at = checked(kappa, x=x, y=y)
    return geometry.inner(drop_point("x", x, at), drop_point("y", y, at), kappa)


def dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the geodesic distance of two points.

    Args:
        x, y: Points `(..., D + 1)`.

    Returns:
        Distances `(...)`.

    >>> print(f"{ambient.dist(x, y, 1.0):.4f}")
    1.0163
    """
    x, y, at = checked(kappa, x=x, y=y)
    return geometry.dist(drop_point("x", x, at), drop_point("y", y, at), kappa)


def squared_dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the squared geodesic distance of two points, which is smooth everywhere.

    Args:
        x, y: Points `(..., D + 1)`.

    Returns:
        Squares of distances `(...)`.

    >>> print(f"{ambient.squared_dist(x, y, 1.0):.4f}")
    1.0330
    """
    x, y, at = checked(kappa, x=x, y=y)
    return geometry.squared_dist(drop_point("x", x, at), drop_point("y", y, at), kappa)


def dist0(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the distance to the origin.

    Args:
        x: Points `(..., D + 1)`.

    Returns:
        Distances `(...)`.

    >>> print(f"{ambient.dist0(x, 1.0):.4f}")
    0.6931
    """
    return geometry.dist0(drop_point("x", *checked(kappa, x=x)), kappa)


def exp(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Map a tangent vector at x to the point it leads to.

    Args:
        x: Points `(..., D + 1)`.
        v: Tangent vectors at x, `(..., D + 1)`.

    Returns:
        Points `(..., D + 1)`.

    >>> print(ambient.exp(x, v, 1.0))
    [1.9289 1.1573 1.1752]
    """
    x, v, at = checked(kappa, x=x, v=v)
    y = geometry.exp(drop_point("x", x, at), drop_tangent("v", v, "x", x), kappa)
    return geometry.lift(y, kappa)


def log(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Find the tangent vector at x that leads to y.

    Args:
        x, y: Points `(..., D + 1)`.

    Returns:
        Tangent vectors at x, `(..., D + 1)`.

    >>> print(ambient.log(x, y, 1.0))
    [-0.5952 -0.992   0.6349]
    """
    x, y, at = checked(kappa, x=x, y=y)
    x, y = drop_point("x", x, at), drop_point("y", y, at)
    return lift_tangent(x, geometry.log(x, y, kappa), kappa)


def exp0(v: ArrayLike, kappa: ArrayLike) -> Array:
    """Map a tangent vector at the origin to the point it leads to.

    Args:
        v: Tangent vectors at the origin, `(..., D + 1)`.

    Returns:
        Points `(..., D + 1)`.

    >>> print(ambient.exp0(v, 1.0))
    [1.5431 0.     1.1752]
    """
    v, _ = checked(kappa, v=v)
    return geometry.lift(geometry.exp0(drop_origin("v", v), kappa), kappa)


def log0(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Find the tangent vector at the origin that leads to x.

    Args:
        x: Points `(..., D + 1)`.

    Returns:
        Tangent vectors at the origin, `(..., D + 1)`.

    >>> print(ambient.log0(x, 1.0))
    [0.     0.6931 0.    ]
    """
    return lift_origin(geometry.log0(drop_point("x", *checked(kappa, x=x)), kappa))


def transport(x: ArrayLike, y: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from x to y along their geodesic.

    Args:
        x, y: Points `(..., D + 1)`.
        v: Tangent vectors at x, `(..., D + 1)`.

    Returns:
        Tangent vectors at y, `(..., D + 1)`.

    >>> print(ambient.transport(x, y, v, 1.0))
    [0.7317 0.2195 1.2195]
    """
    x, y, v, at = checked(kappa, x=x, y=y, v=v)
    start, y = drop_point("x", x, at), drop_point("y", y, at)
    moved = geometry.transport(start, y, drop_tangent("v", v, "x", x), kappa)
    return lift_tangent(y, moved, kappa)


def transport_to_origin(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from x to the origin.

    Args:
        x: Points `(..., D + 1)`.
        v: Tangent vectors at x, `(..., D + 1)`.

    Returns:
        Tangent vectors at the origin, `(..., D + 1)`.

    >>> print(ambient.transport_to_origin(x, v, 1.0))
    [0. 0. 1.]
    """
    x, v, at = checked(kappa, x=x, v=v)
    moved = geometry.transport_to_origin(
        drop_point("x", x, at), drop_tangent("v", v, "x", x), kappa
    )
    return lift_origin(moved)


def transport_from_origin(y: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from the origin to y.

    Args:
        y: Points `(..., D + 1)`.
        v: Tangent vectors at the origin, `(..., D + 1)`.

    Returns:
        Tangent vectors at y, `(..., D + 1)`.

    >>> print(ambient.transport_from_origin(y, v, 1.0))
    [0.75 0.   1.25]
    """
    y, v, at = checked(kappa, y=y, v=v)
    y = drop_point("y", y, at)
    moved = geometry.transport_from_origin(y, drop_origin("v", v), kappa)
    return lift_tangent(y, moved, kappa)


def tangent_inner(x: ArrayLike, u: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Form the Riemannian product at x of two tangent vectors, `u.v - u_t v_t`.

    Args:
        x: Points `(..., D + 1)`.
        u, v: Tangent vectors at x, `(..., D + 1)`.

    Returns:
        Products `(...)`.

    >>> print(f"{ambient.tangent_inner(x, v, v, 1.0):.4f}")
    1.0000
    """
    x, u, v, at = checked(kappa, x=x, u=u, v=v)
    u_space, v_space = drop_tangent("u", u, "x", x), drop_tangent("v", v, "x", x)
    return geometry.tangent_inner(drop_point("x", x, at), u_space, v_space, kappa)


def tangent_norm(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure a tangent vector at x, `sqrt(|v|^2 - v_t^2)`.

    Args:
        x: Points `(..., D + 1)`.
        v: Tangent vectors at x, `(..., D + 1)`.

    Returns:
        Lengths `(...)`.

    >>> print(f"{ambient.tangent_norm(x, v, 1.0):.4f}")
    1.0000
    """
    x, v, at = checked(kappa, x=x, v=v)
    return geometry.tangent_norm(drop_point("x", x, at), drop_tangent("v", v, "x", x), kappa)


def translate(p: ArrayLike, x: ArrayLike, kappa: ArrayLike) -> Array:
    """Apply to x the isometry that takes the origin to p; its inverse is that of (p_t, -p).

    Args:
        p, x: Points `(..., D + 1)`.

    Returns:
        Points `(..., D + 1)`.

    >>> print(ambient.translate(x, y, 1.0))
    [1.5625 0.9375 0.75  ]
    """
    p, x, at = checked(kappa, p=p, x=x)
    moved = geometry.translate(drop_point("p", p, at), drop_point("x", x, at), kappa)
    return geometry.lift(moved, kappa)


def centroid(
    x: ArrayLike, kappa: ArrayLike, weights: ArrayLike | None = None, axis: int = -2
) -> Array:
    """Compute the Lorentzian centroid of points.

    Args:
        x: Points, an axis of the batch shape `(..., D + 1)` being summed over.
        kappa: Minus the curvature, one number or of the batch shape without `axis`.
        weights: As in `geometry.centroid`.
        axis: The axis of x to sum over.

    Returns:
        Points, shaped as x without `axis`.

    >>> print(ambient.centroid(jnp.stack([x, y]), 1.0))
    [1.1043 0.3313 0.3313]
    """
    x, at = checked(kappa, x=x)
    if at.ndim:  # it lacks the axis of the points
        last = axis - x.ndim if axis >= 0 else axis
        at = jnp.expand_dims(at, last + 1) if at.ndim >= -last - 2 else at
    return geometry.lift(geometry.centroid(drop_point("x", x, at), kappa, weights, axis), kappa)


def pairwise_dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike, method: str = "exact") -> Array:
    """Measure the geodesic distances of all pairs of two sets of points.

    Args:
        x: Points `(..., B, D + 1)`.
        y: Points `(..., C, D + 1)`.
        kappa: Minus the curvature, one number or of the batch shape `(...)`.
        method: As in `geometry.pairwise_dist`.

    Returns:
        Distances `(..., B, C)`.

    >>> print(ambient.pairwise_dist(x[None], jnp.stack([x, y]), 1.0))
    [[0.     1.0163]]
    """
    x, y, at = checked(kappa, x=x, y=y)
    at = at[..., None] if at.ndim else at
    return geometry.pairwise_dist(drop_point("x", x, at), drop_point("y", y, at), kappa, method)


def to_poincare(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Map to the Poincare ball of radius 1/s.

    Args:
        x: Points `(..., D + 1)`.

    Returns:
        Points of the ball, `(..., D)`.

    >>> print(ambient.to_poincare(x, 1.0))
    [0.3333 0.    ]
    """
    return geometry.to_poincare(drop_point("x", *checked(kappa, x=x)), kappa)


def to_klein(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Map to the Klein ball of radius 1/s.

    Args:
        x: Points `(..., D + 1)`.

    Returns:
        Points of the ball, `(..., D)`.

    >>> print(ambient.to_klein(jnp.stack([x, y]), 1.0))
    [[0.6 0. ]
     [0.  0.6]]
    """
    return geometry.to_klein(drop_point("x", *checked(kappa, x=x)), kappa)


def from_klein(y: ArrayLike, kappa: ArrayLike) -> Array:
    """Map from the Klein ball of radius 1/s.

    Args:
        y: Points of the ball, `(..., D)`.

    Returns:
        Points `(..., D + 1)`.

    >>> in_ball = ambient.to_klein(x, 1.0)
    >>> print(ambient.from_klein(in_ball, 1.0))
    [1.25 0.75 0.  ]
    """
    return geometry.lift(geometry.from_klein(y, kappa), kappa)


def from_poincare(y: ArrayLike, kappa: ArrayLike) -> Array:
    """Map from the Poincare ball of radius 1/s.

    Args:
        y: Points of the ball, `(..., D)`.

    Returns:
        Points `(..., D + 1)`.

    >>> print(ambient.from_poincare(jnp.array([0.5, 0.0]), 1.0))
    [1.6667 1.3333 0.    ]
    """
    return geometry.lift(geometry.from_poincare(y, kappa), kappa)


def linear(
    x: ArrayLike, normals: Normals, kappa: ArrayLike, activation: Activation | None = None
) -> Array:
    """Apply the Lorentz fully connected layer.

    Args:
        x: Points `(..., D_in + 1)`.
        normals: One plane per output coordinate, space part `(D_in, D_out)`.
        activation: Elementwise on space parts; None for none.

    Returns:
        Points `(..., D_out + 1)`.

    >>> normals = hyperplane.normals(jnp.array([[1.0], [0.0]]), jnp.zeros(1), 1.0)
    >>> print(ambient.linear(x, normals, 1.0))
    [1.25 0.75]
    """
    x, at = checked_input(kappa, x, normals)
    y = functional.linear(drop_point("x", x, at), normals, kappa, activation)
    return geometry.lift(y, kappa)


def signed_distance(
    x: ArrayLike, normals: Normals, kappa: ArrayLike, scale: str | None = "inside"
) -> Array:
    """Measure the signed distances of points to hyperplanes.

    Args:
        x: Points `(..., D + 1)`.
        normals: The planes, space part `(D, out)`.
        scale: Which distance, as in `hyperplane.signed_distance`.

    Returns:
        Distances `(..., out)`.

    >>> normals = hyperplane.normals(jnp.array([[1.0], [0.0]]), jnp.zeros(1), 1.0)
    >>> print(ambient.signed_distance(x, normals, 1.0))
    [0.6931]
    """
    x, at = checked_input(kappa, x, normals)
    return hyperplane.signed_distance(drop_point("x", x, at), normals, kappa, scale)


def mlr(x: ArrayLike, normals: Normals, kappa: ArrayLike, scale: str | None = "inside") -> Array:
    """Compute the logits of Lorentz multinomial regression: `signed_distance` to the class planes.

    Args:
        x, normals, kappa, scale: As in `signed_distance`.

    Returns:
        Logits `(..., classes)`.

    >>> normals = hyperplane.normals(jnp.array([[0.0], [1.0]]), jnp.zeros(1), 1.0)
    >>> print(ambient.mlr(x, normals, 1.0))
    [0.]
    """
    return signed_distance(x, normals, kappa, scale)


expmap, expmap0, logmap, logmap0 = exp, exp0, log, log0
transp = ptransp = transport
transp0 = ptransp0 = transport_from_origin
