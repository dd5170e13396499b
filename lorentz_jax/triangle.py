"""Two points and the origin: their half chord and the angle defect of the triangle.

Formulas over space parts `(..., D)` and a kappa that broadcasts against them, for `geometry`;
results keep the coordinate axis. `s = sqrt(kappa)`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax.charts import scaled_time, time_column
from lorentz_jax.numerics import binary_scale, divide, hypot, product_difference, safe_norm


def dot(x: Array, y: Array) -> Array:
    """Euclidean product with the coordinate axis kept at length 1."""
    return jnp.sum(x * y, axis=-1, keepdims=True)


def _polar(x, y):
    """Sizes and directions of two points, and the differences of both without cancellation."""
    a, b = safe_norm(x, keepdims=True), safe_norm(y, keepdims=True)
    ux, uy = divide(x, a), divide(y, b)
    gap = dot(x - y, divide(x + y, a + b))  # |x| - |y|, from the exact x - y where they are near
    # u_x - u_y: at distance r from the origin its error is worth a distance e^(s r) times larger.
    # Of |y| x - |x| y, rounding |x| and |y| spoils only the part along u_x + u_y, which is 0.
    m, n = binary_scale(x), binary_scale(y)
    cross = product_difference(b / n, x / m, a / m, y / n)
    middle = ux + uy
    cross = cross - middle * divide(dot(middle, cross), dot(middle, middle))
    turn = jnp.where(dot(ux, uy) > 0, divide(cross, (a / m) * (b / n)), ux - uy)
    return a, b, ux, uy, gap, turn


@jax.custom_jvp
def half_chord(x: Array, y: Array, kappa: Array) -> Array:
    """`p = sinh(s d / 2) / s`, which becomes `|x - y| / 2` as kappa -> 0; shape `(..., 1)`."""
    return _half_chord_parts(x, y, kappa)[0]


def _half_chord_parts(x, y, kappa):
    """Half chord p, and what its derivative needs; a sum of squares, so nothing cancels.

    `p^2 = sinh^2((r_x - r_y)/2)/kappa + |x||y||u_x - u_y|^2/4` with r = asinh(s|x|), u = x/|x|.
    """
    a, b, ux, uy, gap, turn = _polar(x, y)
    ta, tb = time_column(x, kappa), time_column(y, kappa)
    root = jnp.sqrt(a + ta) * jnp.sqrt(b + tb)  # e^((r_x + r_y)/2) / s
    radial = gap * (1 + (a + b) / (ta + tb)) / (2 * jnp.sqrt(kappa) * root)
    angular = jnp.sqrt(a) * jnp.sqrt(b) * safe_norm(turn, keepdims=True) / 2
    return hypot(radial, angular), (a, b, ta, tb, ux, uy, turn, root, radial)


@half_chord.defjvp
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
    return p, dot(wrt_x, dx) + dot(wrt_y, dy) + wrt_kappa * dkappa


def holonomy(x, y, v, kappa):
    """`v` at the origin, turned in the plane of x and y by the angle defect of (o, x, y).

    With half velocities `p = tanh(s r_x/2) u_x`, `q` alike: `tan(angle/2) = |p ^ q|/(1 - p.q)`.
    """
    s = jnp.sqrt(kappa)
    a, b, ux, _, _, turn = _polar(x, y)
    tx, ty = scaled_time(x, kappa), scaled_time(y, kappa)
    p, q = x * (s / (1 + tx)), y * (s / (1 + ty))
    # m ^ n = p ^ q. Far out both sine and cosine would cancel: take 1 - |p| and u_x - u_y instead.
    far = (s * a >= 1) & (s * b >= 1)
    edge_x, edge_y = (1 + 1 / (tx + s * a)) / (1 + tx), (1 + 1 / (ty + s * b)) / (1 + ty)
    sizes = (1 - edge_x) * (1 - edge_y)  # |p||q|
    m, n = jnp.where(far, ux, p), jnp.where(far, sizes * (ux * dot(ux, turn) - turn), q)
    far_cosine = edge_x + edge_y - edge_x * edge_y + sizes * dot(turn, turn) / 2
    cosine = jnp.where(far, far_cosine, 1 - dot(p, q))
    square = 1 - 2 * dot(p, q) + dot(p, p) * dot(q, q)
    near_length = jnp.sqrt(jnp.where(far, jnp.ones_like(a), square))
    length = jnp.where(far, hypot(cosine, safe_norm(n, keepdims=True)), near_length)
    cosine, n = cosine / length, n / length

    def wedge(z):
        return m * dot(n, z) - n * dot(m, z)

    once = wedge(v)
    return v + 2 * (cosine * once + wedge(once))
