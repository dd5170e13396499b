"""Initial values of the layers: the preset `fast` (default) and `paper` (the reference code's).

| | `fast` | `paper` |
|---|---|---|
| direction a (weight norm) | N(0, 2/fan_in), columns of norm about sqrt 2 | N(0, 2/out) |
| gain g, columns of w of norm softplus(g) | softplus(g) = sqrt 2 | g = 1/sqrt(in + out) |
| the same of the last convolution of a residual branch | sqrt 2 `branch_share(blocks)` | as above |
| bias b | 0, stored as b sqrt(1 + kappa in) | -1/2 |
| weights without weight norm | N(0, 2/fan_in) | N(0, 1/(in + out)) |
| head | random directions of norm 1, b = 0 | as above |
| batch-norm bias | 0, stored as beta sqrt(1 + kappa D) | the origin, a point |

Why `fast`: with weight norm a direction turns at the learning rate over |a|^2; centring without
variance never restores the scale that a small |w| takes away; and an output moves
sqrt(1 + kappa |x|^2) as fast as b or the norm's beta, which the stored factors make up for. A
branch of |w| = sqrt 2 doubles the variance of a residual sum, and nothing takes it back: 24 blocks
would send points 4096 times as far out.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

PRESETS = ("fast", "paper")


class Affine(NamedTuple):
    """Initial kernel `(..., out)`, raw gain `(out,)` (None without weight norm), bias `(out,)`."""

    kernel: Array
    gain: Array | None
    bias: Array


def check_preset(init: str) -> str:
    """`init` itself, or `ValueError` with the names that there are."""
    if init not in PRESETS:
        raise ValueError(f"init must be one of {PRESETS}, got {init!r}")
    return init


def raw_gain(norm: float) -> float:
    """The g whose softplus is this column norm."""
    return math.log(math.expm1(norm))


def affine(key: Array, shape: tuple[int, ...], init: str, weight_norm: bool, dtype) -> Affine:
    """Kernel of `shape`, whose last axis is output, with its gain and bias."""
    fan_in, out = math.prod(shape[:-1]), shape[-1]
    fast = check_preset(init) == "fast"
    paper = 2 / out if weight_norm else 1 / (fan_in + out)
    variance = 2 / fan_in if fast else paper
    # Drawn flat: the same numbers, but a shape of four axes takes XLA seconds to compile.
    kernel = jax.random.normal(key, (fan_in * out,), dtype).reshape(shape)
    kernel = kernel * jnp.asarray(math.sqrt(variance), dtype)
    gain = None
    if weight_norm:
        raw = raw_gain(math.sqrt(2)) if fast else 1 / math.sqrt(fan_in + out)
        gain = jnp.full((out,), raw, dtype)
    return Affine(kernel, gain, jnp.full((out,), 0.0 if fast else -0.5, dtype))


def branch_share(blocks: int) -> float:
    """What to multiply the last gain of a residual branch by: `sqrt(min(1, 64^(1/blocks) - 1))`.

    A branch of share g multiplies the variance of its residual sum by `1 + g^2`, so all blocks
    together send points at most 8 times as far out.
    """
    return math.sqrt(min(1.0, 64 ** (1 / blocks) - 1))


def head(key: Array, shape: tuple[int, int], init: str, dtype) -> Affine:
    """Kernel `(in, classes)` and bias of the classifier, which has no weight norm."""
    values = affine(key, shape, init, False, dtype)
    if init == "fast":
        kernel = values.kernel / jnp.linalg.norm(values.kernel, axis=0)
        values = values._replace(kernel=kernel)
    return values
