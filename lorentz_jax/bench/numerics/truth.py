"""The truth in mpmath: textbook formulas, and the derivatives and conditioning of a function.

Vectors are lists of `mpf`, and capital letters ambient ones, time first. No formula here shares a
form with the package: distances are arccosh of the Minkowski product, translations are exp of
transport of log, planes are transported normals. All of it cancels; the precision is chosen so
that 50 digits remain. The tests use these formulas, too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mpmath as mp
import numpy as np

Vector = list[Any]
Pair = tuple[float, float]
"""A number of more digits than float64 has: the nearest float64, and the rest."""


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


def _nested(x: np.ndarray) -> Any:
    """Convert an array to nested lists of `mpf`, without rounding."""
    return mp.mpf(float(x)) if x.ndim == 0 else [_nested(entry) for entry in x]


def _flattened(x: Any) -> list:
    """List the entries of nested lists."""
    return [entry for part in x for entry in _flattened(part)] if isinstance(x, list) else [x]


def _like(template: Any, entries: Iterator) -> Any:
    if isinstance(template, list):
        return [_like(part, entries) for part in template]
    return next(entries)


def _pair(x: Any) -> Pair:
    """Return the nearest float64 and what it leaves; (inf, 0) beyond its range."""
    high = float(x)
    return (high, float(x - high)) if math.isfinite(high) else (high, 0.0)


def exact(
    function: Callable[..., Any], arguments: Sequence[np.ndarray], cotangent: np.ndarray
) -> dict[str, Any]:
    """Return value and gradient of `function` at `arguments`, and how far rounding moves them.

    The gradient is that of the product of the value with `cotangent`. "moves" is the norm of
    `sum_j |df_i/dx_j| |x_j|` over the entries i. Times eps it is what a relative change of eps in
    every input entry can do to the value. "gradient_moves" are the same of each gradient; there the
    cotangent changes, too. "floors" are the norm of the value over the size of each argument, the
    scale of a derivative that is 0. Derivatives are one-sided differences with a step so small that
    20 digits are right.
    """
    sizes = np.concatenate([np.abs(np.asarray(a, np.float64)).ravel() for a in arguments])
    logs = np.log10(sizes[sizes > 0])
    reach, depth = max(0.0, logs.max(initial=0)), max(0.0, -logs.min(initial=0))
    step = 25 + int(2 * (reach + min(depth, 20)))
    with mp.workdps(30 + 2 * step + int(4 * reach + 3 * depth)):
        return _exact(
            function, [_nested(a) for a in arguments], _flattened(_nested(cotangent)), step
        )


def _exact(function, arguments, cotangent, digits):
    flat, owner, steps = [], [], []
    for number, argument in enumerate(arguments):
        entries = _flattened(argument)
        size = max(abs(entry) for entry in entries) or mp.mpf(1)
        flat += entries
        owner += [number] * len(entries)
        steps += [size * mp.mpf(10) ** -digits] * len(entries)

    def at(*moved):
        entries = list(flat)
        for i in moved:
            entries[i] += steps[i]
        iterator = iter(entries)
        return _flattened(function(*(_like(argument, iterator) for argument in arguments)))

    count, value = len(flat), at()
    shifted = [at(i) for i in range(count)]
    jacobian = [
        [(f - f0) / steps[i] for f, f0 in zip(shifted[i], value, strict=True)] for i in range(count)
    ]
    total = mp.fdot(cotangent, value)
    totals = [mp.fdot(cotangent, f) for f in shifted]
    gradient = [mp.fdot(cotangent, row) for row in jacobian]
    moves = [mp.fdot(map(abs, cotangent), map(abs, row)) for row in jacobian]
    for i in range(count):
        for j in range(i, count):
            if flat[i] or flat[j]:
                twice = mp.fdot(cotangent, at(i, j)) - totals[i] - totals[j] + total
                second = abs(twice / (steps[i] * steps[j]))
                moves[i] += second * abs(flat[j])
                if i != j:
                    moves[j] += second * abs(flat[i])
    reached = [mp.fdot(map(abs, column), map(abs, flat)) for column in zip(*jacobian, strict=True)]
    noise = mp.norm(value) * mp.mpf(10) ** (8 - digits)  # a zero derivative comes out below it
    gradients, gradient_moves, floors = [], [], []
    for number in range(len(arguments)):
        entries = [i for i in range(count) if owner[i] == number]
        size = max(steps[i] for i in entries) * mp.mpf(10) ** digits
        live = mp.norm([gradient[i] for i in entries]) * size > noise
        gradients.append([_pair(gradient[i] if live else mp.mpf(0)) for i in entries])
        gradient_moves.append(float(mp.norm([moves[i] for i in entries])))
        floors.append(float(mp.norm(value) / size))
    return {
        "value": [_pair(f) for f in value],
        "moves": float(mp.norm(reached)),
        "gradients": gradients,
        "gradient_moves": gradient_moves,
        "floors": floors,
    }
