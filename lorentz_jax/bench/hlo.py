"""Count what the kernels of a compiled program move, from the text of its optimised HLO.

XLA's own `cost_analysis` counts for a GPU what the operations touch, not what the kernels that they
were fused to read and write. Here a kernel is an instruction of the entry computation that does
something, a loop or a branch included, and moves its operands and its results. An operand that a
kernel reads twice counts once.
"""

import re
from typing import NamedTuple

_BYTES = {"pred": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_BYTES |= {f"{sign}{bits}": bits // 8 for sign in "su" for bits in (8, 16, 32, 64)}
_BYTES |= {"s4": 1, "u4": 1, "c64": 8, "c128": 16}
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
_FREE |= {"partition-id", "opt-barrier"}
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]fn|e5m2)?)\[([0-9,]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|[a-z0-9]+\[[^ ]*) ([\w\-]+)\((.*)$")


class Count(NamedTuple):
    """Kernels of a program, and the bytes that they read and write."""

    kernels: int
    bytes: int


def _size(shape: str) -> int:
    """Return the bytes of a shape, such as `(f32[2,3]{1,0}, bf16[4]{0})`."""
    total = 0
    for name, sides in _ARRAY.findall(shape):
        size = _BYTES.get(name, 0)
        for side in sides.split(",") if sides else ():
            size *= int(side)
        total += size
    return total


def _entry(text: str) -> list[str]:
    """Return the lines of the entry computation."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("ENTRY"))
    stop = next(i for i in range(start, len(lines)) if lines[i].startswith("}"))
    return lines[start + 1 : stop]


def _operands(rest: str) -> list[str]:
    """Return the names between an instruction's parentheses, whose opening one was read."""
    depth, end = 1, 0
    while depth and end < len(rest):
        depth += (rest[end] == "(") - (rest[end] == ")")
        end += 1
    inside = re.split(r",(?![^\[{]*[\]}])", rest[: end - 1])
    return [part.split()[-1].lstrip("%") for part in inside if part.strip()]


def count(text: str) -> Count:
    """Count the kernels of optimised HLO, `compiled.as_text()`.

    Example:
        >>> count('''ENTRY main {
        ...   x = f32[8,4]{1,0} parameter(0)
        ...   ROOT y = f32[8]{0} fusion(x), kind=kInput, calls=sum
        ... }''')
        Count(kernels=1, bytes=160)
    """
    sizes: dict[str, int] = {}
    kernels = moved = 0
    for line in _entry(text):
        match = _LINE.match(_COMMENT.sub("", line))
        if match is None:
            continue
        name, shape, operation, rest = match.groups()
        sizes[name] = size = _size(shape)
        if operation in _FREE or operation.endswith("-done"):
            continue
        if operation == "custom-call":  # scratch that a library asks for is no result
            size -= sum(map(int, re.findall(r"\bu8\[([0-9]+)\]", shape)))
        kernels += 1
        moved += size + sum(sizes.get(operand, 0) for operand in set(_operands(rest)))
    return Count(kernels, moved)
