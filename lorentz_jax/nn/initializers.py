"""Initial values of the layers: the presets `fast` (default) and `paper` (the reference code's).

| | `fast` | `paper` |
|---|---|---|
| direction a (weight norm) | N(0, 2/fan_in), columns of norm about sqrt 2 | N(0, 2/out) |
| gain g, columns of w of norm softplus(g) | softplus(g) = sqrt 2 | g = 1/sqrt(in + out) |
| the same of the last convolution of a residual branch | sqrt 2 `branch_share(blocks)` | as above |
| bias b | 0, stored as b sqrt(1 + kappa in) | -1/2 |
| weights without weight norm | N(0, 2/fan_in) | N(0, 1/(in + out)) |
| head | random directions of norm 1, b = 0 | as above |
| batch-norm bias | 0, stored as beta sqrt(1 + kappa D) | the origin, a point |

Why `fast`: with weight norm a direction turns at the learning rate over |a|^2. Centring without
variance never restores the scale that a small |w| takes away. An output moves
sqrt(1 + kappa |x|^2) as fast as b or the norm's beta, which the stored factors make up for. A
branch of |w| = sqrt 2 doubles the variance of a residual sum, and nothing takes it back: 24 blocks
would send points 4096 times as far out.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.arguments import check_sizes

__all__ = [
    "PRESETS",
    "Affine",
    "Preset",
    "affine",
    "branch_share",
    "check_kernel",
    "check_preset",
    "draw_normal",
    "draw_uniform",
    "head",
    "raw_gain",
]

Preset = Literal["fast", "paper"]
"""Name of a preset."""
PRESETS: tuple[str, ...] = get_args(Preset)


class Affine(NamedTuple):
    """Initial kernel `(..., out)`, raw gain `(out,)` (None without weight norm), bias `(out,)`."""

    kernel: Array
    gain: Array | None
    bias: Array


def check_preset(init: str) -> str:
    """Return `init`; raise `ValueError` that lists the presets if it is none of them."""
    if init not in PRESETS:
        raise ValueError(f"init must be one of {PRESETS}, got {init!r}")
    return init


def check_kernel(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a kernel `(..., in, out)`.

    Raises:
        ValueError: a size is below 1.
        TypeError: a size is no whole number.
    """
    names = ("kernel_size",) * (len(shape) - 2) + ("the input features", "the output features")
    for name, size in zip(names, shape, strict=True):
        check_sizes(**{name: size})
    return tuple(shape)


def draw_normal(key: Array, shape: Sequence[int], deviation: float, dtype: Any) -> Array:
    """Draw from N(0, deviation^2) in `shape`."""
    # Drawn flat: the same numbers, but a shape of four axes takes XLA seconds to compile.
    draw = jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)
    return draw * jnp.asarray(deviation, dtype)


def draw_uniform(key: Array, shape: Sequence[int], bound: float, dtype: Any) -> Array:
    """Draw from U(-bound, bound) in `shape`, flat as `draw_normal`."""
    return jax.random.uniform(key, (math.prod(shape),), dtype, -bound, bound).reshape(shape)


def raw_gain(norm: float) -> float:
    """Return the g whose softplus is this column norm."""
    return math.log(math.expm1(norm))


def affine(
    key: Array, shape: Sequence[int], init: str = "fast", weight_norm: bool = True,
    dtype: Any = jnp.float32,
) -> Affine:  # fmt: skip
    """Draw the initial values of a layer with hyperplanes.

    Args:
        key: random key.
        shape: shape of the kernel; the last axis is output, the others are input.
        init: preset.
        weight_norm: make a gain, and take the kernel for directions.
        dtype: of the values.

    Example:
        >>> kernel, gain, bias = affine(jax.random.key(0), (3, 5))
        >>> kernel.shape, gain.shape, bias.shape
        ((3, 5), (5,), (5,))
    """
    fan_in, out = math.prod(check_kernel(shape)[:-1]), shape[-1]
    fast = check_preset(init) == "fast"
    paper = 2 / out if weight_norm else 1 / (fan_in + out)
    kernel = draw_normal(key, shape, math.sqrt(2 / fan_in if fast else paper), dtype)
    gain = None
    if weight_norm:
        raw = raw_gain(math.sqrt(2)) if fast else 1 / math.sqrt(fan_in + out)
        gain = jnp.full((out,), raw, dtype)
    return Affine(kernel, gain, jnp.full((out,), 0.0 if fast else -0.5, dtype))


def branch_share(blocks: int) -> float:
    """Return the factor for the last gain of a residual branch, `sqrt(min(1, 64^(1/blocks) - 1))`.

    A branch of share g multiplies the variance of its residual sum by `1 + g^2`, so all blocks
    together send points at most 8 times as far out.
    """
    check_sizes(blocks=blocks)
    return math.sqrt(min(1.0, 64 ** (1 / blocks) - 1))


def head(key: Array, shape: tuple[int, int], init: str, dtype: Any) -> Affine:
    """Draw kernel `(in, classes)` and bias of a classifier, which has no weight norm."""
    values = affine(key, shape, init, False, dtype)
    if init == "fast":
        kernel = values.kernel / jnp.linalg.norm(values.kernel, axis=0, keepdims=True)
        values = values._replace(kernel=kernel)
    return values
