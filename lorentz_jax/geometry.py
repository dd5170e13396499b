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
from jax import Array

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
    time,
    time_column,
    to_klein,
    to_poincare,
)
from lorentz_jax.numerics import asinhc, binary_scale, divide, hypot, safe_norm, sinhc

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


def _dot(x: Array, y: Array) -> Array:
    return jnp.sum(x * y, axis=-1, keepdims=True)


@jax.custom_jvp
def _half_chord(x: Array, y: Array, kappa: Array) -> Array:
    """`p = sinh(s d / 2) / s`, which becomes `|x - y| / 2` as kappa -> 0; shape `(..., 1)`."""
    return _half_chord_parts(x, y, kappa)[0]


def _half_chord_parts(x, y, kappa):
    """Half chord p, and what its derivative needs; a sum of squares, so nothing cancels.

    `p^2 = sinh^2((r_x - r_y)/2)/kappa + |x||y||u_x - u_y|^2/4` with r = asinh(s|x|), u = x/|x|.
    Both `|x| - |y|` and `u_x - u_y` are taken from `x - y`, which is exact for near points.
    """
    a, b = safe_norm(x, keepdims=True), safe_norm(y, keepdims=True)
    ta, tb = time_column(x, kappa), time_column(y, kappa)
    ux, uy = divide(x, a), divide(y, b)
    gap = _dot(x - y, divide(x + y, a + b))  # |x| - |y|
    turn = divide(2 * (x - y) - gap * (ux + uy), a + b)  # u_x - u_y
    root = jnp.sqrt(a + ta) * jnp.sqrt(b + tb)  # e^((r_x + r_y)/2) / s
    radial = gap * (1 + (a + b) / (ta + tb)) / (2 * jnp.sqrt(kappa) * root)
    angular = jnp.sqrt(a) * jnp.sqrt(b) * safe_norm(turn, keepdims=True) / 2
    return hypot(radial, angular), (a, b, ta, tb, ux, uy, turn, root, radial)


@_half_chord.defjvp
def _half_chord_jvp(primals, tangents):
    # Closed forms: autodiff would meet sqrt(|x|) and x/|x| at the origin, and cancel far out.
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    p, (a, b, ta, tb, ux, uy, turn, root, radial) = _half_chord_parts(x, y, kappa)
    s = jnp.sqrt(kappa)
    share = divide(radial, p)
    slope = share * hypot(s * radial, jnp.ones_like(radial)) / (2 * s)
    wrt_x = ux * (slope / ta) + turn * divide(b, 4 * p)
    wrt_y = -uy * (slope / tb) - turn * divide(a, 4 * p)
    spread = (a + b) / (ta + tb) * (root + 1 / (kappa * root)) / (2 * jnp.sqrt(ta) * jnp.sqrt(tb))
    wrt_kappa = -share * radial * spread**2 / (2 * kappa)
    return p, _dot(wrt_x, dx) + _dot(wrt_y, dy) + wrt_kappa * dkappa


@operation
def dist(x, y, kappa):
    """Geodesic distance `d = (2/s) asinh(s p)`, `p = sinh(s d/2)/s` by a haversine; shape `(...)`.

    Equal to the paper's `arccosh(-kappa X o Y)/s`, without its cancellation. At coincident points
    the value is 0 and the gradient 0 by convention (that of `dist**2` is then exact).
    """
    p = _half_chord(x, y, kappa)
    return (2 * p * asinhc(jnp.sqrt(kappa) * p))[..., 0]


@operation
def norm(x, kappa):
    """Distance to the origin `asinh(s |x|)/s`, shape `(...)`; gradient 0 at the origin."""
    size = safe_norm(x)
    return size * asinhc(jnp.sqrt(kappa[..., 0] if kappa.ndim else kappa) * size)


@operation
def inner(x, y, kappa):
    """Minkowski product of two points, `-x_t y_t + x.y = -1/kappa - 2 p^2`, shape `(...)`."""
    p = _half_chord(x, y, kappa)
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
    a, pt, xt = safe_norm(p, keepdims=True), time_column(p, kappa), time_column(x, kappa)
    u = divide(p, a)
    along = _dot(u, x)
    across = x - u * along
    # Light-cone coordinates x_t +- along: a boost multiplies them by e^(+-r). The smaller one is
    # (1/kappa + |across|^2) over the larger one, since their difference would cancel.
    floor = hypot(safe_norm(across, keepdims=True), 1 / s)
    ahead = along >= 0
    larger = xt + jnp.where(ahead, along, -along)
    smaller = floor * (floor / larger)
    plus, minus = jnp.where(ahead, larger, smaller), jnp.where(ahead, smaller, larger)
    stretch = s * (a + pt)  # e^r
    rate = s + s * (s * a) / (1 + s * pt)  # (e^r - 1)/|p|, regular at p = 0
    near = x + p * (rate * (plus + minus / stretch) / 2)
    far = across + u * ((stretch * plus - minus / stretch) / 2)
    # `near` is exact through the origin; `far` when x and p are far out and may cancel.
    return jnp.where((s * a < 1) | (s * jnp.abs(along) < 1), near, far)


@operation
def translate(p, x, kappa):
    """The isometry (boost) that takes the origin to p along their geodesic, applied to x.

    `T_p(x) = x + p (s x_t + kappa p.x / (1 + s p_t))`; its inverse is `translate(-p, x, kappa)`.
    Evaluated in light-cone coordinates, so it does not cancel when x returns towards the origin.
    """
    return _translate(p, x, kappa)


def _to_origin(x, v, kappa):
    s = jnp.sqrt(kappa)
    a, scaled = safe_norm(x, keepdims=True), s * time_column(x, kappa)
    near = s * a < 1
    close = jnp.where(near, x, jnp.zeros_like(x))
    smooth = v - close * (kappa * _dot(close, v) / ((1 + scaled) * scaled))
    u = divide(x, a)
    radial = _dot(u, v)  # far out the radial part shrinks by 1/(s x_t): subtracting would cancel
    return jnp.where(near, smooth, (v - u * radial) + u * (radial / scaled))


def _from_origin(y, v, kappa):
    s = jnp.sqrt(kappa)
    a, scaled = safe_norm(y, keepdims=True), s * time_column(y, kappa)
    return v + y * (s * _dot(divide(y, a), v) * (s * a / (1 + scaled)))


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
    return _dot(_to_origin(x, u, kappa), _to_origin(x, v, kappa))[..., 0]


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
    q = s * _half_chord(x, y, kappa)
    ratio = asinhc(q) / hypot(q, jnp.ones_like(q))
    return ratio * (y - x) - (2 * q * (q * ratio)) * x


@operation
def transport(x, y, v, kappa):
    """Parallel transport of v from x to y along their geodesic; keeps every product.

    `v + kappa (Y o V)/(1 - kappa X o Y) (x + y)` with `1 - kappa X o Y = 2 + 2 sinh^2(s d/2)`.
    """
    s = jnp.sqrt(kappa)
    xt, yt = time_column(x, kappa), time_column(y, kappa)
    back = x - y
    # Y o V = v.(y - x y_t/x_t): from the difference where the points are near, direct elsewhere.
    near = _dot(v, x * (_dot(back, (x + y) / (xt + yt)) / xt) - back)
    direct = _dot(v, y) - yt * (_dot(x, v) / xt)
    apart = safe_norm(y, keepdims=True) < safe_norm(back, keepdims=True)
    root = hypot(s * _half_chord(x, y, kappa), jnp.ones_like(xt))
    product = jnp.where(apart, direct, near)
    return v + (kappa * product / root) * ((x + y) / (2 * root))


def centroid(x, kappa, weights=None, axis: int = -2):
    """Lorentzian centroid of points along `axis`: `M / (s sqrt(-M o M))`, `M = sum_i w_i X_i`.

    `weights` (default: equal) are >= 0, aligned with `x.shape[:-1]`, and need not sum to 1;
    concrete ones that are negative or sum to 0 raise `ValueError` (traced: the origin). kappa
    broadcasts against the batch shape without `axis`. `-M o M >= (sum w)^2/kappa` is used as a
    floor, and far clusters do not cancel: `M_t - |M| = sum w (1/kappa + |x_perp|^2)/(x_t + u.x)`.
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
    batch = np.broadcast_shapes(weights.shape[:-1], x.shape[:-2])
    kappa = along_batch(as_kappa(kappa, inner_dtype, batch))
    return _centroid(x, along_batch(kappa), weights[..., None])[..., 0, :].astype(dtype)


@jax.jit
def _centroid(x, kappa, weights):
    def total(values):
        return jnp.sum(weights * values, axis=-2, keepdims=True)

    xt = time_column(x, kappa)
    m, mt = total(x), total(xt)
    # Projecting on m scaled by a power of two, not on m/|m|: for equal points the ratio is exact.
    unit = m / binary_scale(m)
    ratio = divide(_dot(unit, x), _dot(unit, unit))
    along = ratio * safe_norm(unit, keepdims=True)
    floor = hypot(safe_norm(x - ratio * unit, keepdims=True), 1 / jnp.sqrt(kappa))
    ahead = along >= 0
    larger = xt + jnp.where(ahead, along, -along)
    low = total(jnp.where(ahead, floor * (floor / larger), larger))  # M_t - |M|
    size = jnp.sqrt(low) * jnp.sqrt(mt + safe_norm(m, keepdims=True))
    size = jnp.maximum(size, total(jnp.ones_like(xt)) / jnp.sqrt(kappa))
    return divide(m, jnp.sqrt(kappa) * size)
