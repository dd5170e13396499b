"""The truth in mpmath: textbook formulas.

Vectors are lists of `mpf`, and capital letters ambient ones, time first. No formula here shares a
form with the package: distances are arccosh of the Minkowski product, translations are exp of
transport of log, planes are transported normals. All of it cancels; the precision is chosen so
that 50 digits remain. The tests use these formulas, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp

Vector = list[Any]


def dot(x: Sequence[Any], y: Sequence[Any]) -> Any:
    """Return the Euclidean product."""
    return mp.fdot(x, y)


def minkowski(X: Vector, Y: Vector) -> Any:
    """Return `-X_t Y_t + x.y`."""
    return mp.fdot([-X[0], *X[1:]], Y)


def combine(a: Any, X: Vector, b: Any, Y: Vector) -> Vector:
    """Return `a X + b Y`."""
    return [a * x + b * y for x, y in zip(X, Y, strict=True)]


def length(x: Sequence[Any]) -> Any:
    """Return the Euclidean norm."""
    return mp.sqrt(mp.fdot(x, x))


def lorentz_norm(V: Vector) -> Any:
    """Return `sqrt(V o V)` of a spacelike vector."""
    return mp.sqrt(max(minkowski(V, V), mp.mpf(0)))


def time(x: Vector, kappa: Any) -> Any:
    """Return `sqrt(1/kappa + |x|^2)`."""
    return mp.sqrt(1 / kappa + dot(x, x))


def point(x: Vector, kappa: Any) -> Vector:
    """Return the ambient point of a space part."""
    return [time(x, kappa), *x]


def tangent(x: Vector, v: Vector, kappa: Any) -> Vector:
    """Return the ambient tangent vector at x of a space part."""
    return [dot(x, v) / time(x, kappa), *v]


def origin(like: Vector, kappa: Any) -> Vector:
    """Return the origin, in the dimension of `like`."""
    return [1 / mp.sqrt(kappa)] + [mp.mpf(0)] * len(like)


def distance(X: Vector, Y: Vector, kappa: Any) -> Any:
    """Return `arccosh(-kappa X o Y)/s`, exactly 0 for equal points."""
    if X == Y:
        return mp.mpf(0)
    return mp.acosh(max(-kappa * minkowski(X, Y), mp.mpf(1))) / mp.sqrt(kappa)


def exponential(X: Vector, V: Vector, kappa: Any) -> Vector:
    """Return `cosh(s|V|) X + sinh(s|V|)/(s|V|) V`."""
    scaled = mp.sqrt(kappa) * lorentz_norm(V)
    if scaled == 0:
        return list(X)
    grown = mp.exp(scaled)
    return combine((grown + 1 / grown) / 2, X, (grown - 1 / grown) / (2 * scaled), V)


def logarithm(X: Vector, Y: Vector, kappa: Any) -> Vector:
    """Return `s d/sinh(s d) (Y - cosh(s d) X)`."""
    cosh = max(-kappa * minkowski(X, Y), mp.mpf(1))
    if cosh == 1:
        return [mp.mpf(0)] * len(X)
    factor = mp.acosh(cosh) / mp.sqrt((cosh - 1) * (cosh + 1))
    return combine(factor, Y, -factor * cosh, X)


def transported(X: Vector, Y: Vector, V: Vector, kappa: Any) -> Vector:
    """Return `V + kappa (Y o V)/(1 - kappa X o Y) (X + Y)`."""
    factor = kappa * minkowski(Y, V) / (1 - kappa * minkowski(X, Y))
    return combine(1, V, factor, combine(1, X, 1, Y))


def translated(P: Vector, X: Vector, kappa: Any) -> Vector:
    """Return exp at P of the logarithm of X at the origin, transported to P."""
    o = origin(P[1:], kappa)
    return exponential(P, transported(o, P, logarithm(o, X, kappa), kappa), kappa)


def centre(points: Sequence[Vector], weights: Sequence[Any], kappa: Any) -> Vector:
    """Return the Lorentzian centroid of ambient points."""
    total = [dot(weights, column) for column in zip(*points, strict=True)]
    size = mp.sqrt(-kappa * minkowski(total, total))
    return [t / size for t in total]


def ball(x: Vector, kappa: Any, share: Any) -> Vector:
    """Return the point in the direction of x at radius `tanh(share s r)/s`.

    A share of 1/2 is the Poincare ball, 1 the Klein ball.
    """
    size, s = length(x), mp.sqrt(kappa)
    return [a / size * mp.tanh(share * mp.asinh(s * size)) / s for a in x] if size else list(x)


def from_ball(y: Vector, kappa: Any, share: Any) -> Vector:
    """Invert `ball`."""
    size, s = length(y), mp.sqrt(kappa)
    return [a / size * mp.sinh(mp.atanh(s * size) / share) / s for a in y] if size else list(y)


def normal(w: Vector, b: Any, kappa: Any) -> Vector:
    """Transport the normal (0, w) to the point at signed distance -b/|w| along w."""
    o, square = origin(w, kappa), dot(w, w)
    P = exponential(o, [mp.mpf(0), *(-b * a / square for a in w)], kappa)
    return transported(o, P, [mp.mpf(0), *w], kappa)


def plane_distance(x: Vector, V: Vector, norm: Any, kappa: Any, scale: str | None) -> Any:
    """Return the signed distance, in the three scalings of `hyperplane.signed_distance`."""
    s, z = mp.sqrt(kappa), minkowski(point(x, kappa), V)
    if scale == "inside":
        return mp.asinh(s * z) / s
    return mp.asinh(s * z / norm) / s * (norm if scale == "outside" else 1)


def convolved(image: list, kernel: list, v_time: Any, kappa: Any) -> list:
    """Convolve one channel, one unit, 3x3, padding 1: `X o v` of each patch's points together."""
    rows, columns, products = len(image), len(image[0]), []
    for i in range(rows):
        for j in range(columns):
            patch = [
                (image[i + k - 1][j + n - 1], kernel[k][n])
                for k in range(3)
                for n in range(3)
                if 0 <= i + k - 1 < rows and 0 <= j + n - 1 < columns
            ]
            pixels, weights = [p for p, _ in patch], [w for _, w in patch]
            products.append(dot(pixels, weights) - time(pixels, kappa) * v_time)
    return products


def activated(h: Callable[[Any], Any], x: Any, kappa: Any) -> Any:
    """Return the Lorentzian activation of a signed distance."""
    s = mp.sqrt(kappa)
    return mp.asinh(s * h(mp.sinh(s * x) / s)) / s


def centred(x: Vector, mean: Vector, beta: Vector, kappa: Any) -> Vector:
    """Take the log at the mean, transport it to the origin and to beta, take exp at beta."""
    X, M, B = (point(a, kappa) for a in (x, mean, beta))
    o = origin(x, kappa)
    V = transported(M, o, logarithm(M, X, kappa), kappa)
    return exponential(B, transported(o, B, V, kappa), kappa)
