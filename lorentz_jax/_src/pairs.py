"""Two points and the origin: their half chord and the angle defect of the triangle.

Formulas over space parts `(..., D)` and a kappa that broadcasts against them, for `geometry`;
results keep the coordinate axis. Symbols as in `radial`, and `rho_+-` for `(rho_x +- rho_y)/2`,
half the sum and difference of the scaled distances. `(D33)` and so on are equations of
`docs/derivations.md`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.charts import scaled_time, time_column
from lorentz_jax._src.radial import over_time, rejection
from lorentz_jax._src.scalars import (
    asinhc,
    asinhc_pull,
    binary_scale,
    direction,
    divide,
    hypot,
    product_difference,
    safe_norm,
    split,
)


def dot(x: Array, y: Array) -> Array:
    """Euclidean product with the coordinate axis kept at length 1."""
    return jnp.sum(x * y, axis=-1, keepdims=True)


def directions(x, y):
    """Sizes and directions of two points, and the differences of both without cancellation."""
    a, b = safe_norm(x, keepdims=True), safe_norm(y, keepdims=True)
    ux, uy = direction(x, a), direction(y, b)
    gap = dot(x - y, divide(x + y, a + b))  # |x| - |y|, from the exact x - y (D33)
    # u_x - u_y (D34): at distance r its error is worth a distance e^rho times larger. Of
    # |y| x - |x| y, rounding |x| and |y| spoils only the part along u_x + u_y, which is 0.
    # The power of two keeps the lower digits of coordinates 1e-37 times as large as others.
    m, n, large = binary_scale(x), binary_scale(y), 2.0**60
    cross = product_difference(b / n, x / m * large, a / m, y / n * large) / large
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

    `p^2 = sinh^2(rho_-)/kappa + |x||y||u_x - u_y|^2/4` (D35): squares of `radial` and `angular`.
    """
    a, b, ux, uy, gap, turn = directions(x, y)
    ta, tb = time_column(x, kappa), time_column(y, kappa)
    root = jnp.sqrt(a + ta) * jnp.sqrt(b + tb)  # e^rho_+ / s
    radial = gap * (1 + (a + b) / (ta + tb)) / (2 * jnp.sqrt(kappa) * root)  # (D36)
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
    # (D37). turn * b first: far out b / p overflows where the product is of order 1.
    wrt_x = ux * (slope / ta) + divide(turn / 2 * b, p) / 2
    wrt_y = -uy * (slope / tb) - divide(turn / 2 * a, p) / 2
    # (D38); `sinh_plus` is sinh(rho_+) over the root of both scaled times.
    tanh_plus, twice_cosh = (a + b) / (ta + tb), root + 1 / (kappa * root)
    sinh_plus = tanh_plus * twice_cosh / (2 * jnp.sqrt(ta) * jnp.sqrt(tb))
    wrt_kappa = -share * radial * sinh_plus**2 / (2 * kappa)
    return p, dot(wrt_x, dx) + dot(wrt_y, dy) + wrt_kappa * dkappa


def log_factors(q):
    """`log = A (y - x) - B x`: A, B and their derivatives in `q = sinh(s d/2)` times q.

    `A = asinh(q)/(q cosh)`, `B = 2 q asinh(q)/cosh`, `cosh = sqrt(1 + q^2)`. No square of q, which
    may overflow, is formed, and no two terms cancel.
    """
    cosh, ratio = hypot(q, jnp.ones_like(q)), asinhc(q)
    share = (q / cosh) ** 2
    a = ratio / cosh
    b = 2 * (q / cosh) * (q * ratio)  # (D39)
    return a, b, (asinhc_pull(q) - ratio * share) / cosh, 2 * share * (1 + a)  # (D40)


@jax.custom_jvp
def logarithm(x: Array, y: Array, kappa: Array) -> Array:
    """log at x of y."""
    a, b, _, _ = log_factors(jnp.sqrt(kappa) * half_chord(x, y, kappa))
    return a * (y - x) - b * x


@logarithm.defjvp
def _logarithm_jvp(primals, tangents):
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    s = jnp.sqrt(kappa)
    p, dp = jax.jvp(lambda x, y: half_chord(x, y, kappa), (x, y), (dx, dy))
    a, b, slope_a, slope_b = log_factors(s * p)
    by_p = divide(slope_a, p) * (y - x) - divide(slope_b, p) * x
    by_points = a * (dy - dx) - b * dx + by_p * dp  # (D41)
    return logarithm(x, y, kappa), by_points + d_kappa_log(x, y, kappa) * dkappa


def d_kappa_log(x, y, kappa):
    """Derivative in kappa of `log`, which depends on kappa through `z = q^2 = kappa p^2` alone.

    `rate` is `kappa z'/z = (angular/p)^2 + (radial/p)^2 cosh^2(rho_-)/(h_x h_y)` (D42).
    """
    p, (a, b, _, _, _, _, turn, _, radial) = _half_chord_parts(x, y, kappa)
    s, tx, ty = jnp.sqrt(kappa), scaled_time(x, kappa), scaled_time(y, kappa)
    cosh = hypot(s * radial, jnp.ones_like(p))
    angular = jnp.sqrt(a) * jnp.sqrt(b) * safe_norm(turn, keepdims=True) / 2
    rate = divide(angular, p) ** 2 + divide(radial, p) ** 2 * (cosh / tx) * (cosh / ty)
    _, _, slope_a, slope_b = log_factors(s * p)
    return rate / (2 * kappa) * (slope_a * (y - x) - slope_b * x)


def d_kappa_transport(x, y, v, kappa):
    """Derivative in kappa of `transport = v + kappa (Y o V)/(2 H) (x + y)`, `H = 1 + kappa p^2`.

    With X = h_x, Y = h_y, a = |x|, b = |y|, t = |u_x - u_y| and the parts of v, of which the one
    along x has the length `alpha = u_x.v/X` there (D52):
    `(1/X + 1/Y)/(8 H^2) ((X + Y) b u_y.across - alpha K) (x + y)`, where
    `K = (a - b)(a + b)(2 Y/(a Y + b X) - kappa (a + b)/(X (X + Y))) + b t^2 (X Y + (1 - Y/X)/2)`.
    """
    p, (a, b, _, _, ux, _, turn, _, _) = _half_chord_parts(x, y, kappa)
    s, gap = jnp.sqrt(kappa), dot(x - y, divide(x + y, a + b))
    tx, ty = scaled_time(x, kappa), scaled_time(y, kappa)
    radial, across = split(ux, v)
    alpha = over_time(radial, a, kappa)
    shrink = 1 / hypot(s * p, jnp.ones_like(p))  # H^(-1/2), in every product that would overflow
    length = safe_norm(turn, keepdims=True)
    sideways = -dot(turn * (b * shrink), across) * ((2 + tx / ty + ty / tx) * shrink)
    mixed = ((a + b) / tx + (a + b) / ty) * shrink * shrink
    straight = divide(jnp.full_like(a, 2), a / tx + b / ty) - s * (s * (a + b) / (tx + ty))
    bend = (b * length * shrink) * (length * shrink * (tx + ty + (1 / ty - ty / tx / tx) / 2))
    factor = sideways - alpha * (gap / tx * mixed * straight + bend)
    return (factor / 8 * shrink) * (shrink * (x + y))


@jax.custom_jvp
def _spread(x, y):
    """`sqrt(|x||y|) (u_y - u_x)`, which near points far out have of the size of their distance."""
    a, b, _, _, _, turn = directions(x, y)
    return -turn * (jnp.sqrt(a) * jnp.sqrt(b))


@_spread.defjvp
def _spread_jvp(primals, tangents):
    # (D49): the derivative of u_x alone is as small as that of the root is large.
    (x, y), (dx, dy) = primals, tangents
    a, b, ux, uy, _, _ = directions(x, y)
    out, ratio = _spread(x, y), divide(jnp.sqrt(a), jnp.sqrt(b))
    (along_x, across_x), (along_y, across_y) = split(ux, dx), split(uy, dy)
    sizes = divide(out, 2 * a) * along_x + divide(out, 2 * b) * along_y
    return out, across_y * ratio - across_x * divide(jnp.ones_like(ratio), ratio) + sizes


def polar_transport(x, y, v, kappa):
    """Transport of v from x to y by its parts along x, along the way and across both.

    In the orthonormal frames of the directions from the origin it turns by chi with
    `tan(chi/2) = (C/D) tan(psi/2)` (D45), psi the angle between x and y, `C = cosh rho_+`,
    `D = cosh rho_-`. Written with `u_y - u_x` and `u_x + u_y` it is regular at psi = 0 and pi, and
    each part is precise, however much longer the radial one is. For rho >= 1 of both points.
    """
    s = jnp.sqrt(kappa)
    a, b, ux, uy, gap, _ = directions(x, y)
    tx, ty = scaled_time(x, kappa), scaled_time(y, kappa)
    radial, across = dot(ux, over_time(v, a, kappa)), rejection(x, v)
    middle, sizes = ux + uy, s * (jnp.sqrt(a) * jnp.sqrt(b))
    spread = s * _spread(x, y)  # sizes * (u_y - u_x)
    stretch = jnp.sqrt(s * a + tx) * jnp.sqrt(s * b + ty)  # e^rho_+
    c = divide(stretch + divide(jnp.ones_like(stretch), stretch), 2 * sizes)  # C, over the sizes
    sinh = divide(s * gap * (1 + s * (a + b) / (tx + ty)), 2 * stretch)
    d, half_cosine = hypot(sinh, jnp.ones_like(stretch)), safe_norm(middle, keepdims=True) / 2
    length = hypot(c * safe_norm(spread, keepdims=True) / 2, d * half_cosine)
    # (D47): lengths 2 sin, 2 cos (chi/2).
    q, m = divide(spread, length) * c, middle * divide(d, length)
    difference = divide(spread, sizes)
    cosine = (dot(m, m) - dot(q, q)) / 4
    sideways = dot(q, across)
    # (D48)
    turned = q * sideways + m * divide(d * dot(difference, across), length)
    tilted = q * divide(d * half_cosine**2, length) - m * (dot(q, difference) / 4)
    outward = cosine * radial + divide(d * sideways, length)
    return across - turned / 2 - tilted * radial + uy * (outward * ty)


def holonomy(x, y, v, kappa):
    """`v` at the origin, turned in the plane of x and y by the angle defect of (o, x, y).

    With half velocities `p = tanh(rho_x/2) u_x`, `q` alike, `tan(angle/2) = |p ^ q|/(1 - p.q)`
    (D43). For x or y within rho = 1 of the origin; far out sine and cosine cancel.
    """
    s = jnp.sqrt(kappa)
    tx, ty = scaled_time(x, kappa), scaled_time(y, kappa)
    p, q = x * (s / (1 + tx)), y * (s / (1 + ty))
    cosine = 1 - dot(p, q)
    length = jnp.sqrt(1 - 2 * dot(p, q) + dot(p, p) * dot(q, q))
    cosine, n = cosine / length, q / length

    def wedge(z):
        return p * dot(n, z) - n * dot(p, z)

    once = wedge(v)
    return v + 2 * (cosine * once + wedge(once))  # (D44)
