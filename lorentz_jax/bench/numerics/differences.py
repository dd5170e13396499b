"""Derivatives and conditioning of a function in mpmath, by differences."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mpmath as mp
import numpy as np

Pair = tuple[float, float]
"""A number of more digits than float64 has: the nearest float64, and the rest."""


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
    function: Callable[..., Any],
    arguments: Sequence[np.ndarray],
    cotangent: np.ndarray,
    second: bool = False,
) -> dict[str, Any]:
    """Return value and gradient of `function` at `arguments`, and how far rounding moves them.

    The gradient is that of the product of the value with `cotangent`. "moves" is the norm of
    `sum_j |df_i/dx_j| |x_j|` over the entries i. Times eps it is what a relative change of eps in
    every input entry can do to the value. "gradient_moves" are the same of each gradient; there the
    cotangent changes, too. "floors" are the norm of the value over the size of each argument, the
    scale of a derivative that is 0. With `second` there are "hessian", the entries by pairs of
    inputs, and "hessian_moves", what rounding can do to each. Derivatives are one-sided differences
    with a step so small that 20 digits are right.
    """
    sizes = np.concatenate([np.abs(np.asarray(a, np.float64)).ravel() for a in arguments])
    logs = np.log10(sizes[sizes > 0])
    reach, depth = max(0.0, logs.max(initial=0)), max(0.0, -logs.min(initial=0))
    step = 25 + int(2 * (reach + min(depth, 20)))
    with mp.workdps(30 + (3 if second else 2) * step + int(4 * reach + 3 * depth)):
        found = _Differences(
            function, [_nested(a) for a in arguments], _flattened(_nested(cotangent)), step
        )
        return found.first() | (found.second() if second else {})


class _Differences:
    """Differences of a function in each of its entries, in two, and in three of them at once."""

    def __init__(self, function, arguments, cotangent, digits):
        self.flat, self.owner, self.steps = [], [], []
        for number, argument in enumerate(arguments):
            entries = _flattened(argument)
            size = max(abs(entry) for entry in entries) or mp.mpf(1)
            self.flat += entries
            self.owner += [number] * len(entries)
            self.steps += [size * mp.mpf(10) ** -digits] * len(entries)
        self.function, self.arguments, self.cotangent = function, arguments, cotangent
        self.digits, self.kept = digits, {}

    def at(self, *moved):
        """The entries of the value after a step in these entries of the arguments."""
        if moved not in self.kept:
            entries = list(self.flat)
            for i in moved:
                entries[i] += self.steps[i]
            iterator = iter(entries)
            value = self.function(*(_like(argument, iterator) for argument in self.arguments))
            self.kept[moved] = _flattened(value)
        return self.kept[moved]

    def total(self, *moved):
        """The product of the value with the cotangent."""
        return mp.fdot(self.cotangent, self.at(*moved))

    def first(self):
        count, value, steps, flat = len(self.flat), self.at(), self.steps, self.flat
        jacobian = [
            [(f - f0) / steps[i] for f, f0 in zip(self.at(i), value, strict=True)]
            for i in range(count)
        ]
        gradient = [mp.fdot(self.cotangent, row) for row in jacobian]
        moves = [mp.fdot(map(abs, self.cotangent), map(abs, row)) for row in jacobian]
        for i in range(count):
            for j in range(i, count):
                if flat[i] or flat[j]:
                    second = abs(self.twice(i, j))
                    moves[i] += second * abs(flat[j])
                    if i != j:
                        moves[j] += second * abs(flat[i])
        columns = zip(*jacobian, strict=True)
        reached = [mp.fdot(map(abs, column), map(abs, flat)) for column in columns]
        noise = mp.norm(value) * mp.mpf(10) ** (8 - self.digits)  # a derivative below it is 0
        gradients, gradient_moves, floors = [], [], []
        for number in range(len(self.arguments)):
            entries = [i for i in range(count) if self.owner[i] == number]
            size = max(steps[i] for i in entries) * mp.mpf(10) ** self.digits
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

    def twice(self, i, j):
        """The second derivative of the product."""
        total = self.total(i, j) - self.total(i) - self.total(j) + self.total()
        return total / (self.steps[i] * self.steps[j])

    def second(self):
        """Return the Hessian, and how far rounding moves its entries by the third derivatives."""
        count, steps, flat = len(self.flat), self.steps, self.flat
        size = [step * mp.mpf(10) ** self.digits for step in steps]
        hessian = {(i, j): self.twice(i, j) for i in range(count) for j in range(i, count)}
        moves, reach = dict.fromkeys(hessian, mp.mpf(0)), dict.fromkeys(hessian, mp.mpf(0))
        for i, j in hessian:
            values = (self.at(i, j), self.at(i), self.at(j), self.at())
            parts = zip(self.cotangent, *values, strict=True)
            apart = mp.fsum(abs(c * (a - b - d + e)) for c, a, b, d, e in parts)
            moves[i, j] += apart / (steps[i] * steps[j])
            for k in range(j, count):
                third = abs(self._thrice(i, j, k))
                for pair, rest in {(i, j): k, (i, k): j, (j, k): i}.items():
                    moves[pair] += third * abs(flat[rest])
                    reach[pair] += third * size[rest]
        # What one-sided differences leave of an entry that is 0.
        small = mp.mpf(10) ** (3 - self.digits)
        hessian = {
            pair: entry if abs(entry) > small * reach[pair] else mp.mpf(0)
            for pair, entry in hessian.items()
        }

        def full(entries, convert):
            pairs = [[(min(i, j), max(i, j)) for j in range(count)] for i in range(count)]
            return [[convert(entries[pair]) for pair in row] for row in pairs]

        return {"hessian": full(hessian, _pair), "hessian_moves": full(moves, float)}

    def _thrice(self, i, j, k):
        pairs = self.total(i, j) + self.total(i, k) + self.total(j, k)
        ones = self.total(i) + self.total(j) + self.total(k)
        total = self.total(i, j, k) - pairs + ones - self.total()
        return total / (self.steps[i] * self.steps[j] * self.steps[k])
