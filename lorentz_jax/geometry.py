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

from lorentz_jax.arguments import (
    along_batch,
    as_array,
    as_kappa,
    compute_dtype,
    concrete,
    operation,
)
from lorentz_jax.charts import (
    drop,
    from_klein,
    from_poincare,
    lift,
    scaled_time,
    time,
    to_klein,
    to_poincare,
)
from lorentz_jax.numerics import (
    asinhc,
    binary_scale,
    divide,
    hypot,
    product_difference,
    safe_norm,
    sinhc,
)
from lorentz_jax.triangle import dot, half_chord, holonomy

__all__ = [
    "centroid",
    "dist",
    "drop",
    "exp",
    "exp0",
    "from_klein",
    "from_poincare",
    "inner",
    "lift",
    "log",
    "log0",
    "norm",
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
    return (2 * p * asinhc(jnp.sqrt(kappa) * p))[..., 0]


@operation
def norm(x, kappa):
    """Distance to the origin `asinh(s |x|)/s`, shape `(...)`; gradient 0 at the origin."""
    size = safe_norm(x)
    return size * asinhc(jnp.sqrt(kappa[..., 0] if kappa.ndim else kappa) * size)


@operation
def inner(x, y, kappa):
    """Minkowski product of two points, `-x_t y_t + x.y = -1/kappa - 2 p^2`, shape `(...)`."""
    p = half_chord(x, y, kappa)
    return -(1 / kappa + 2 * p * p)[..., 0]


def _exp0(v, kappa):
    return sinhc(jnp.sqrt(kappa) * safe_norm(v, keepdims=True)) * v


@operation
def exp0(v, kappa):
    """Exponential map at the origin, `sinh(s|v|)/(s|v|) v`; identity Jacobian at `v = 0`."""
    return _exp0(v, kappa)


@operation
def log0(x, kappa):
    """Logarithm at the origin, `asinh(s|x|)/(s|x|) x`; identity Jacobian at the origin."""
    return asinhc(jnp.sqrt(kappa) * safe_norm(x, keepdims=True)) * x


def _translate(p, x, kappa):
    s = jnp.sqrt(kappa)
    a, pt, xt = safe_norm(p, keepdims=True), scaled_time(p, kappa), scaled_time(x, kappa)
    u = divide(p, a)
    along = s * dot(u, x)
    across = x - u * dot(u, x)
    # Light-cone coordinates s (x_t +- u.x): a boost multiplies them by e^(+-r). The smaller one is
    # 1 + kappa |across|^2 over the larger one, since their difference would cancel.
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(xt))
    ahead = along >= 0
    larger = xt + jnp.where(ahead, along, -along)
    smaller = floor * (floor / larger)
    plus, minus = jnp.where(ahead, larger, smaller), jnp.where(ahead, smaller, larger)
    stretch = s * a + pt  # e^r
    rate = 1 + s * a / (1 + pt)  # (e^r - 1)/(s |p|), regular at p = 0
    near = x + p * (rate * (plus + minus / stretch) / 2)
    far = across + u * ((stretch * plus - minus / stretch) / (2 * s))
    # `near` is exact through the origin; `far` when x and p are far out and may cancel.
    return jnp.where((s * a < 1) | (jnp.abs(along) < 1), near, far)


@operation
def translate(p, x, kappa):
    """The isometry (boost) that takes the origin to p along their geodesic, applied to x.

    `T_p(x) = x + p (s x_t + kappa p.x / (1 + s p_t))`; its inverse is `translate(-p, x, kappa)`.
    Evaluated in light-cone coordinates, so it does not cancel when x returns towards the origin.
    """
    return _translate(p, x, kappa)


def _to_origin(x, v, kappa):
    s = jnp.sqrt(kappa)
    a, scaled = safe_norm(x, keepdims=True), scaled_time(x, kappa)
    near = s * a < 1
    close = jnp.where(near, x, jnp.zeros_like(x))
    smooth = v - close * (kappa * dot(close, v) / ((1 + scaled) * scaled))
    u = divide(x, a)
    radial = dot(u, v)  # far out the radial part shrinks by 1/(s x_t): subtracting would cancel
    across = v - u * radial
    across = across - u * dot(u, across)  # once more: its rounding error is of the size of v
    return jnp.where(near, smooth, across + u * (radial / scaled))


def _from_origin(y, v, kappa):
    s = jnp.sqrt(kappa)
    a, scaled = safe_norm(y, keepdims=True), scaled_time(y, kappa)
    return v + y * (s * dot(divide(y, a), v) * (s * a / (1 + scaled)))


@operation
def transport_to_origin(x, v, kappa):
    """Parallel transport of the tangent vector v from x to the origin; an isometry."""
    return _to_origin(x, v, kappa)


@operation
def transport_from_origin(y, v, kappa):
    """Parallel transport from the origin to y: `v + y kappa (y.v)/(1 + s y_t)`; an isometry."""
    return _from_origin(y, v, kappa)


@operation
def tangent_inner(x, u, v, kappa):
    """Riemannian product at x of two tangent vectors, `u.v - u_t v_t`, shape `(...)`."""
    return dot(_to_origin(x, u, kappa), _to_origin(x, v, kappa))[..., 0]


@operation
def tangent_norm(x, v, kappa):
    """Length at x of a tangent vector, `sqrt(|v|^2 - v_t^2)`, shape `(...)`; gradient 0 at 0."""
    return safe_norm(_to_origin(x, v, kappa))


@operation
def exp(x, v, kappa):
    """Exponential map at x, `cosh(s|v|_L) x + sinh(s|v|_L)/(s|v|_L) v`.

    Computed as the translation to x of the exponential at the origin (eq. expmap), which is exact
    at `v = 0` (Jacobian: the identity) and does not cancel far out.
    """
    return _translate(x, _exp0(_to_origin(x, v, kappa), kappa), kappa)


@operation
def log(x, y, kappa):
    """Logarithm `log_x(y) = s d/sinh(s d) (y - cosh(s d) x)`, a tangent vector at x.

    (The paper prints `d / sinh(s d)`; the length is right only with `s d`.) Written with
    `q = sinh(s d/2)`: `cosh(s d) = 1 + 2 q^2`, so near points keep full precision. 0 at `y = x`.
    """
    s = jnp.sqrt(kappa)
    q = s * half_chord(x, y, kappa)
    root = hypot(q, jnp.ones_like(q))
    # Neither q^2 nor its derivative is formed: far out they overflow before the result does.
    return (asinhc(q) / root) * (y - x) - (2 * (q / root) * (q * asinhc(q))) * x


@operation
def transport(x, y, v, kappa):
    """Parallel transport of v from x to y along their geodesic; keeps every product.

    Equal to `v + kappa (Y o V)/(1 - kappa X o Y) (x + y)`, which cancels when v is far larger than
    the result; computed as the transport x -> o -> y with the rotation that the detour leaves out.
    """
    return _from_origin(y, holonomy(x, y, _to_origin(x, v, kappa), kappa), kappa)


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
    def total(values):
        return jnp.sum(weights * values, axis=-2, keepdims=True)

    s, xt = jnp.sqrt(kappa), scaled_time(x, kappa)
    m = total(x)
    # -M o M in the light-cone coordinates s (x_t +- u.x) of a unit vector u near m/|m|; any u gives
    # the same. Then the null rotation that makes the mean of `across` vanish leaves a sum of
    # positive terms: equal points far out, where rounding u moves them all, stay equal.
    unit = jax.lax.stop_gradient(divide(m, safe_norm(m, keepdims=True)))
    scale = binary_scale(x, (-1, -2))
    along = dot(unit, x)
    across = scale * product_difference(jnp.ones_like(x), x / scale, along / scale, unit)
    across = across - unit * dot(unit, across)
    ahead, along = along >= 0, s * along
    larger = xt + jnp.where(ahead, along, -along)
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(xt))
    plus = jnp.where(ahead, larger, floor * (floor / larger))
    mean_plus = total(plus)
    around = across - plus * divide(total(across), mean_plus)
    reach = hypot(s * safe_norm(around, keepdims=True), jnp.ones_like(xt))
    size = jnp.sqrt(mean_plus) * jnp.sqrt(total(reach * (reach / plus)))
    return divide(m, jnp.maximum(size, total(jnp.ones_like(xt))))
