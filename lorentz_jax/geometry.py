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

Equation names are those of the paper "Fast and Geometrically Grounded Lorentz Neural Networks".
"""

import jax
import jax.numpy as jnp
import numpy as np

from lorentz_jax._src.arguments import (
    along_batch,
    as_array,
    as_kappa,
    compute_dtype,
    concrete,
    operation,
)
from lorentz_jax._src.centroid import average
from lorentz_jax._src.charts import (
    drop,
    from_klein,
    from_poincare,
    lift,
    time,
    to_klein,
    to_poincare,
)
from lorentz_jax._src.pairs import (
    d_kappa_log,
    d_kappa_transport,
    half_chord,
    holonomy,
    log_factors,
    polar_transport,
)
from lorentz_jax._src.radial import arc, arc_along
from lorentz_jax._src.scalars import binary_scale, divide, safe_norm, with_kappa_jvp
from lorentz_jax._src.translations import (
    boost,
    exponential,
    exponential_at_origin,
    from_origin,
    length_at,
    product_at,
    to_origin,
)

__all__ = [
    "centroid",
    "dist",
    "dist0",
    "drop",
    "exp",
    "exp0",
    "from_klein",
    "from_poincare",
    "inner",
    "lift",
    "log",
    "log0",
    "tangent_inner",
    "tangent_norm",
    "time",
    "to_klein",
    "to_poincare",
    "translate",
    "transport",
    "transport_from_origin",
    "transport_to_origin",
]


@operation
def dist(x, y, kappa):
    """Geodesic distance `d = (2/s) asinh(s p)`, `p = sinh(s d/2)/s` by a haversine; shape `(...)`.

    Equal to the paper's `arccosh(-kappa X o Y)/s`, without its cancellation. At coincident points
    the value is 0 and the gradient 0 by convention (that of `dist**2` is then exact).
    """
    p = half_chord(x, y, kappa)
    return (2 * arc(p, kappa))[..., 0]


@operation
def dist0(x, kappa):
    """Distance to the origin `asinh(s |x|)/s`, shape `(...)`; gradient 0 at the origin."""
    return arc(safe_norm(x, keepdims=True), kappa)[..., 0]


@operation
def inner(x, y, kappa):
    """Minkowski product of two points, `-x_t y_t + x.y = -1/kappa - 2 p^2`, shape `(...)`."""
    p = half_chord(x, y, kappa)
    return -(1 / kappa + 2 * p * p)[..., 0]


@operation
def exp0(v, kappa):
    """Exponential map at the origin, `sinh(s|v|)/(s|v|) v`; identity Jacobian at `v = 0`."""
    return exponential_at_origin(v, kappa)


@operation
def log0(x, kappa):
    """Logarithm at the origin, `asinh(s|x|)/(s|x|) x`; identity Jacobian at the origin."""
    return arc_along(x, kappa)


@operation
def translate(p, x, kappa):
    """The isometry (boost) that takes the origin to p along their geodesic, applied to x.

    `T_p(x) = x + p (s x_t + kappa p.x / (1 + s p_t))`; its inverse is `translate(-p, x, kappa)`.
    Evaluated in light-cone coordinates, so it does not cancel when x returns towards the origin.
    """
    return boost(p, x, kappa)


@operation
def transport_to_origin(x, v, kappa):
    """Parallel transport of the tangent vector v from x to the origin; an isometry."""
    return to_origin(x, v, kappa)


@operation
def transport_from_origin(y, v, kappa):
    """Parallel transport from the origin to y: `v + y kappa (y.v)/(1 + s y_t)`; an isometry."""
    return from_origin(y, v, kappa)


@operation
def tangent_inner(x, u, v, kappa):
    """Riemannian product at x of two tangent vectors, `u.v - u_t v_t`, shape `(...)`."""
    return product_at(x, u, v, kappa)[..., 0]


@operation
def tangent_norm(x, v, kappa):
    """Length at x of a tangent vector, `sqrt(|v|^2 - v_t^2)`, shape `(...)`; gradient 0 at 0."""
    return length_at(x, v, kappa)[..., 0]


@operation
def exp(x, v, kappa):
    """Exponential map at x, `cosh(s|v|_L) x + sinh(s|v|_L)/(s|v|_L) v`.

    Computed as the translation to x of the exponential at the origin (eq. expmap), which is exact
    at `v = 0` (Jacobian: the identity) and does not cancel far out.
    """
    return exponential(x, v, kappa)


@operation
def log(x, y, kappa):
    """Logarithm `log_x(y) = s d/sinh(s d) (y - cosh(s d) x)`, a tangent vector at x.

    (The paper prints `d / sinh(s d)`; the length is right only with `s d`.) Written with
    `q = sinh(s d/2)`: `cosh(s d) = 1 + 2 q^2`, so near points keep full precision. 0 at `y = x`.
    """
    return _log(x, y, kappa)


@jax.custom_jvp
def _log(x, y, kappa):
    a, b, _, _ = log_factors(jnp.sqrt(kappa) * half_chord(x, y, kappa))
    return a * (y - x) - b * x


@_log.defjvp
def _log_jvp(primals, tangents):
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    s = jnp.sqrt(kappa)
    p, dp = jax.jvp(lambda x, y: half_chord(x, y, kappa), (x, y), (dx, dy))
    a, b, slope_a, slope_b = log_factors(s * p)
    by_p = divide(slope_a, p) * (y - x) - divide(slope_b, p) * x
    return _log(x, y, kappa), a * (dy - dx) - b * dx + by_p * dp + d_kappa_log(x, y, kappa) * dkappa


@operation
def transport(x, y, v, kappa):
    """Parallel transport of v from x to y along their geodesic; keeps every product.

    Equal to `v + kappa (Y o V)/(1 - kappa X o Y) (x + y)`, which cancels when v is far larger than
    the result; computed as the transport x -> o -> y with the rotation that the detour leaves out.
    """
    return _transport(x, y, v, kappa)


def _transport_value(x, y, v, kappa):
    s, zero = jnp.sqrt(kappa), jnp.zeros_like(x)
    far = (s * safe_norm(x, keepdims=True) >= 1) & (s * safe_norm(y, keepdims=True) >= 1)
    # The branch not taken sees the origin, and both stay finite.
    start, end = jnp.where(far, zero, x), jnp.where(far, zero, y)
    turned = holonomy(start, end, to_origin(start, v, kappa), kappa)
    away = polar_transport(jnp.where(far, x, zero), jnp.where(far, y, zero), v, kappa)
    return jnp.where(far, away, from_origin(end, turned, kappa))


_transport = with_kappa_jvp(_transport_value, d_kappa_transport)


def centroid(x, kappa, weights=None, axis: int = -2):
    """Lorentzian centroid of points along `axis`: `M / (s sqrt(-M o M))`, `M = sum_i w_i X_i`.

    `weights` (default: equal) are >= 0, aligned with `x.shape[:-1]`, and need not sum to 1;
    concrete ones that are negative or sum to 0 raise `ValueError` (traced: the origin). kappa
    broadcasts against the batch shape without `axis`. `-M o M >= (sum w)^2/kappa` is used as a
    floor, and far clusters do not cancel: it is computed as a sum of positive terms.
    """
    x = as_array("x", x, min_ndim=2)
    axis = axis - x.ndim if axis >= 0 else axis
    if not -x.ndim <= axis <= -2:
        raise ValueError(f"axis must name a batch axis of x, shape {x.shape}")
    if x.shape[axis] == 0:
        raise ValueError(f"the centroid of no points is undefined, x has shape {x.shape}")
    dtype = jnp.result_type(x) if weights is None else jnp.result_type(x, weights)
    inner_dtype = compute_dtype(dtype)
    if weights is None:
        weights = jnp.full((x.shape[axis],), 1 / x.shape[axis], inner_dtype)
    else:
        weights = as_array("weights", weights)
        if concrete(weights):
            values = np.asarray(weights, np.float64)
            if (values < 0).any() or not (values.sum(axis + 1) > 0).all():
                raise ValueError("weights must be >= 0 with a positive sum along the axis")
        weights = jnp.moveaxis(weights.astype(inner_dtype), axis + 1, -1)
    x = jnp.moveaxis(x.astype(inner_dtype), axis, -2)
    if weights.shape[-1] != x.shape[-2]:
        raise ValueError(f"{weights.shape[-1]} weights for {x.shape[-2]} points")
    batch = jnp.broadcast_shapes(weights.shape[:-1], x.shape[:-2])
    kappa = along_batch(as_kappa(kappa, inner_dtype, batch))
    return _centroid(x, along_batch(kappa), weights[..., None])[..., 0, :].astype(dtype)


@jax.jit
def _centroid(x, kappa, weights):
    # Sums of weights of order 1 do not overflow where the points do not.
    most = jnp.sum(weights, axis=-2, keepdims=True)
    return average(x, kappa, weights / binary_scale(most, (-1, -2)))
