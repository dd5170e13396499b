"""Values, derivatives and conditioning of a function in mpmath, for `bench.numerics`."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lorentz_jax.bench.numerics.truth import mp

# A number of more digits than float64 has: the nearest float64, and the rest.
Pair = tuple[float, float]


def nested(x: np.ndarray) -> Any:
    """An array as nested lists of `mpf`, without rounding."""
    return mp.mpf(float(x)) if x.ndim == 0 else [nested(entry) for entry in x]


def flattened(x: Any) -> list:
    """The entries of nested lists."""
    return [entry for part in x for entry in flattened(part)] if isinstance(x, list) else [x]


def _like(template: Any, entries: Iterator) -> Any:
    if isinstance(template, list):
        return [_like(part, entries) for part in template]
    return next(entries)


def pair(x: Any) -> Pair:
    """The nearest float64 and what it leaves; (inf, 0) beyond its range."""
    high = float(x)
    return (high, float(x - high)) if math.isfinite(high) else (high, 0.0)


def exact(
    function: Callable[..., Any], arguments: Sequence[np.ndarray], cotangent: np.ndarray
) -> dict[str, Any]:
    """Value and gradient of `function` at `arguments`, and how far rounding these moves them.

    The gradient is that of the product of the value with `cotangent`. "moves" is the norm of
    `sum_j |df_i/dx_j| |x_j|` over the entries i: what changes of a relative eps in every input
    entry can do, over eps; for a gradient those of the cotangent too. "floors" are the norm of the
    value over the size of each argument, the scale of a derivative that is 0. Derivatives are
    one-sided differences with a step so small that 20 digits are right.
    """
    sizes = np.concatenate([np.abs(np.asarray(a, np.float64)).ravel() for a in arguments])
    logs = np.log10(sizes[sizes > 0])
    reach, depth = max(0.0, logs.max(initial=0)), max(0.0, -logs.min(initial=0))
    step = 25 + int(2 * (reach + min(depth, 20)))
    with mp.workdps(30 + 2 * step + int(4 * reach + 3 * depth)):
        return _exact(function, [nested(a) for a in arguments], flattened(nested(cotangent)), step)


def _exact(function, arguments, cotangent, digits):
    flat, owner, steps = [], [], []
    for number, argument in enumerate(arguments):
        entries = flattened(argument)
        size = max(abs(entry) for entry in entries) or mp.mpf(1)
        flat += entries
        owner += [number] * len(entries)
        steps += [size * mp.mpf(10) ** -digits] * len(entries)

    def at(*moved):
        entries = list(flat)
        for i in moved:
            entries[i] += steps[i]
        iterator = iter(entries)
        return flattened(function(*(_like(argument, iterator) for argument in arguments)))

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
        places = [i for i in range(count) if owner[i] == number]
        size = max(steps[i] for i in places) * mp.mpf(10) ** digits
        live = mp.norm([gradient[i] for i in places]) * size > noise
        gradients.append([pair(gradient[i] if live else mp.mpf(0)) for i in places])
        gradient_moves.append(float(mp.norm([moves[i] for i in places])))
        floors.append(float(mp.norm(value) / size))
    return {
        "value": [pair(f) for f in value],
        "moves": float(mp.norm(reached)),
        "gradients": gradients,
        "gradient_moves": gradient_moves,
        "floors": floors,
    }
