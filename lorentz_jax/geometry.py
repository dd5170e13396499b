"""The hyperboloid of curvature -kappa, its points stored by their space part.

A point is `X = (x_t, x)` with `-x_t^2 + |x|^2 = -1/kappa` and `x_t > 0`. Only `x`, shape
`(..., D)`, is kept: `x_t = sqrt(1/kappa + |x|^2)` is a function of it, so no operation can leave
the manifold. A tangent vector at `x` is stored by its space part too (its time is `x.v / x_t`);
at the origin it is a plain vector of R^D. `kappa > 0` is a number, or an array that broadcasts
against the batch shape `(...)`. `s = sqrt(kappa)` throughout.

Every function broadcasts as NumPy does, keeps the dtype (bfloat16 and float16 are computed in
float32), raises `TypeError` for integers and `ValueError` for a kappa that is not finite and
positive or for last axes that differ. Coordinates grow like `e^(s r)/s` with the distance r from
the origin, so a point at s r = 89 (float32) or 710 (float64) is the farthest there is.

Equation names are those of the paper "Fast and Geometrically Grounded Lorentz Neural Networks",
`(D35)` and so on those of `docs/derivations.md`. Examples assume `import jax.numpy as jnp`,
`from lorentz_jax import geometry` and `jnp.set_printoptions(precision=4, suppress=True)`.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src import pairs, translations
from lorentz_jax._src.arguments import operation
from lorentz_jax._src.centroid import centroid
from lorentz_jax._src.charts import (
    drop,
    from_klein,
    from_poincare,
    lift,
    time,
    to_klein,
    to_poincare,
)
from lorentz_jax._src.pairwise import pairwise_dist
from lorentz_jax._src.radial import arc, arc_along
from lorentz_jax._src.scalars import safe_norm
from lorentz_jax._src.transport import transported

__all__ = ["drop", "from_klein", "from_poincare", "lift", "time", "to_klein", "to_poincare"]
__all__ += ["centroid", "dist", "dist0", "exp", "exp0", "inner", "log", "log0", "pairwise_dist"]
__all__ += ["squared_dist", "translate", "transport", "transport_from_origin"]
__all__ += ["transport_to_origin"]
__all__ += ["tangent_inner", "tangent_norm"]

for _function in (centroid, drop, from_klein, from_poincare, lift, time, to_klein, to_poincare):
    _function.__module__ = __name__


@operation
def dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the geodesic distance, `d = (2/s) asinh(s p)` of `p = sinh(s d/2)/s` (D35).

    Equal to the paper's `arccosh(-kappa X o Y)/s`, without its cancellation: p^2 is a sum of
    squares. At x = y the gradient is 0 by convention. All derivatives of `dist**2` and other smooth
    functions of it are then exact, since from the second derivative on the distance is that of
    `sqrt(d^2 + tiny^2)` (D100). Its own Hessian there, truly infinite, is the finite metric over
    a number near `tiny` (2^-42 in float32), and cancels where both points move alike.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Distances `(...)`.

    >>> print(f"{geometry.dist(jnp.zeros(2), jnp.array([0.75, 0.0]), 1.0):.4f}")
    0.6931
    """
    p = pairs.half_chord(*map(jnp.asarray, (x, y, kappa)))
    return (2 * arc(p, kappa))[..., 0]


@operation
def dist0(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the distance to the origin, `asinh(s |x|)/s`.

    At the origin the gradient is 0 by convention, and second derivatives are as in `dist`.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Distances `(...)`.

    >>> print(f"{geometry.dist0(jnp.array([0.75, 0.0]), 1.0):.4f}")
    0.6931
    """
    return arc(safe_norm(jnp.asarray(x), keepdims=True), jnp.asarray(kappa))[..., 0]


@operation
def squared_dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure the squared geodesic distance, `d^2 = (4/kappa) asinh(s p)^2` (D106).

    Smooth everywhere, at x = y too, where its Hessian in either point is twice the metric.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Squares of distances `(...)`.

    >>> print(f"{geometry.squared_dist(jnp.zeros(2), jnp.array([0.75, 0.0]), 1.0):.4f}")
    0.4805
    """
    return pairs.squared_distance(x, y, kappa)[..., 0]


@operation
def inner(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Form the Minkowski product of two points, `-x_t y_t + x.y = -1/kappa - 2 p^2` (D35).

    At y = x its gradient is 0.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Products `(...)`, at most -1/kappa.

    >>> print(f"{geometry.inner(jnp.zeros(2), jnp.array([0.75, 0.0]), 1.0):.4f}")
    -1.2500
    """
    return pairs.minkowski(*map(jnp.asarray, (x, y, kappa)))[..., 0]


@operation
def exp0(v: ArrayLike, kappa: ArrayLike) -> Array:
    """Map a tangent vector at the origin to the point it leads to, `sinh(s|v|)/(s|v|) v`.

    At v = 0 the Jacobian is the identity.

    Args:
        v: Vectors `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`, at the distances |v| from the origin.

    >>> print(geometry.exp0(jnp.array([1.0, 0.0]), 1.0))
    [1.1752 0.    ]
    """
    return translations.exponential_at_origin(v, kappa)


@operation
def log0(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Find the tangent vector at the origin that leads to x, `asinh(s|x|)/(s|x|) x`.

    At the origin the Jacobian is the identity.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Vectors `(..., D)`, whose lengths are the distances from the origin.

    >>> print(geometry.log0(jnp.array([0.75, 0.0]), 1.0))
    [0.6931 0.    ]
    """
    return arc_along(x, kappa)


@operation
def translate(p: ArrayLike, x: ArrayLike, kappa: ArrayLike) -> Array:
    """Apply to x the isometry (boost) that takes the origin to p along their geodesic.

    `T_p(x) = x + p (s x_t + kappa p.x/(1 + s p_t))`; its inverse is `translate(-p, x, kappa)`.
    Evaluated in light-cone coordinates (D23), so it does not cancel when x returns to the origin.

    Args:
        p, x: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`.

    >>> p, x = jnp.array([0.75, 0.0]), jnp.array([0.0, 2.0])
    >>> there = geometry.translate(p, x, 1.0)
    >>> print(there, abs(geometry.translate(-p, there, 1.0)))
    [1.6771 2.    ] [0. 2.]
    """
    return translations.boost(p, x, kappa)


@operation
def transport_to_origin(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from x to the origin, `v - x kappa (x.v)/((1 + s x_t) s x_t)`.

    An isometry. Far out it is computed by parts along x and across it (D29), (D138).

    Args:
        x: Points `(..., D)`.
        v: Tangent vectors at x, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Vectors `(..., D)`.

    >>> x = jnp.array([0.75, 0.0])
    >>> print(geometry.transport_to_origin(x, jnp.array([1.25, 1.0]), 1.0))
    [1. 1.]
    """
    return translations.to_origin(x, v, kappa)


@operation
def transport_from_origin(y: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from the origin to y, `v + y kappa (y.v)/(1 + s y_t)` (D29).

    An isometry, the inverse of `transport_to_origin`.

    Args:
        y: Points `(..., D)`.
        v: Vectors `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Tangent vectors at y, `(..., D)`.

    >>> y = jnp.array([0.75, 0.0])
    >>> print(geometry.transport_from_origin(y, jnp.array([1.0, 1.0]), 1.0))
    [1.25 1.  ]
    """
    return translations.from_origin(y, v, kappa)


@operation
def tangent_inner(x: ArrayLike, u: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Form the Riemannian product at x of two tangent vectors, `u.v - u_t v_t` (D30).

    Args:
        x: Points `(..., D)`.
        u, v: Tangent vectors at x, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Products `(...)`.

    >>> x, u = jnp.array([0.75, 0.0]), jnp.array([1.25, 1.0])
    >>> print(f"{geometry.tangent_inner(x, u, u, 1.0):.4f}")
    2.0000
    """
    return translations.product_at(x, u, v, kappa)[..., 0]


@operation
def tangent_norm(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Measure a tangent vector at x, `sqrt(|v|^2 - v_t^2)`.

    At v = 0 the gradient is 0 by convention, and the derivatives of its square are exact.

    Args:
        x: Points `(..., D)`.
        v: Tangent vectors at x, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Lengths `(...)`.

    >>> print(f"{geometry.tangent_norm(jnp.array([0.75, 0.0]), jnp.array([1.25, 0.0]), 1.0):.4f}")
    1.0000
    """
    return translations.length_at(x, v, kappa)[..., 0]


@operation
def exp(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Map a tangent vector at x to the point it leads to (eq. expmap).

    `cosh(s|v|_L) x + sinh(s|v|_L)/(s|v|_L) v`, computed as the translation to x of the exponential
    at the origin (D31): exact at v = 0 (Jacobian: the identity), without cancellation far out.

    Args:
        x: Points `(..., D)`.
        v: Tangent vectors at x, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`, at the distances |v|_L from x.

    >>> x, v = jnp.array([0.75, 0.0]), jnp.array([0.0, 1.0])
    >>> print(geometry.exp(x, v, 1.0))
    [1.1573 1.1752]
    """
    return translations.exponential(x, v, kappa)


@operation
def log(x: ArrayLike, y: ArrayLike, kappa: ArrayLike) -> Array:
    """Find the tangent vector at x that leads to y, `s d/sinh(s d) (y - cosh(s d) x)` (D39).

    (The paper prints `d / sinh(s d)`; the length is right only with `s d`.) Written with
    `q = sinh(s d/2)`: `cosh(s d) = 1 + 2 q^2`, so near points keep full precision. 0 at y = x.

    Args:
        x, y: Points `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Tangent vectors at x, `(..., D)`, as long as the distances.

    >>> x, y = jnp.array([0.75, 0.0]), jnp.array([0.0, 2.0])
    >>> print(geometry.log(x, y, 1.0))
    [-1.3552  1.293 ]
    """
    return pairs.logarithm(x, y, kappa)


@operation
def transport(x: ArrayLike, y: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """Transport v in parallel from x to y along their geodesic; keeps every product.

    `v + kappa (Y o V)/(1 - kappa X o Y) (x + y)` cancels when v is far larger than the result; far
    out the sum of its parts along x is taken in closed form (D108).

    Args:
        x, y: Points `(..., D)`.
        v: Tangent vectors at x, `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Tangent vectors at y, `(..., D)`.

    >>> x, y = jnp.array([0.75, 0.0]), jnp.array([0.0, 2.0])
    >>> print(geometry.transport(x, y, jnp.array([0.0, 1.0]), 1.0))
    [0.3952 2.054 ]
    """
    return transported(x, y, v, kappa)
