"""Time the other layers on images against their Euclidean twins: values and all gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax import functional
from lorentz_jax._src.conv import dimension_numbers
from lorentz_jax.bench.timing import Row, compile_arm, interleave
from lorentz_jax.hyperplane import normals

BASE = "euclidean"
Layer = Callable[..., Array]


def _convolution(size: tuple[int, ...], **options: Any) -> tuple[Layer, Layer]:
    """A convolution with a bias, ours and its twin; both take images, kernel and bias."""
    dilation, groups = options.get("dilation", 1), options.get("groups", 1)
    axes = len(size)

    def twin(x, w, b, kappa):
        layout = {"dimension_numbers": dimension_numbers(axes), "feature_group_count": groups}
        ones = (1,) * axes
        return lax.conv_general_dilated(
            x, w, ones, "SAME", rhs_dilation=(dilation,) * axes, **layout
        ) + b + 0 * kappa  # fmt: skip

    def ours(x, w, b, kappa):
        return functional.conv(x, normals(w, b, kappa), kappa, padding="SAME", **options)

    return ours, twin


def _transposed() -> tuple[Layer, Layer]:
    def twin(x, w, b, kappa):
        layout = dimension_numbers(2)
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=layout) + b + 0 * kappa

    def ours(x, w, b, kappa):
        return functional.conv_transpose(x, normals(w, b, kappa), kappa, 2)

    return ours, twin


def _pooling() -> tuple[Layer, Layer]:
    def twin(x, kappa):
        sums = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return sums / 4 + 0 * kappa

    return lambda x, kappa: functional.avg_pool(x, (2, 2), kappa), twin


def _group_norm() -> tuple[Layer, Layer]:
    def twin(x, beta, kappa):
        axes = (1, 2)
        mean, square = jnp.mean(x, axes, keepdims=True), jnp.mean(x * x, axes, keepdims=True)
        return (x - mean) * lax.rsqrt(square - mean * mean + 1e-5) + beta + 0 * kappa

    return lambda x, beta, kappa: functional.center_groups(x, beta, kappa)[0], twin


def _residual() -> tuple[Layer, Layer]:
    def twin(x, y, weight, kappa):
        return x + weight * y + 0 * kappa

    return functional.weighted_residual, twin


# By name: the two layers, and the shapes of their arrays.
CASES: dict[str, tuple[tuple[Layer, Layer], list[tuple[int, ...]]]] = {
    "conv 1d": (_convolution((9,)), [(32, 512, 32), (9, 32, 32), (32,)]),
    "conv 3d": (_convolution((3, 3, 3)), [(4, 16, 16, 16, 16), (3, 3, 3, 16, 16), (16,)]),
    "conv dilated": (
        _convolution((3, 3), dilation=2), [(16, 32, 32, 32), (3, 3, 32, 32), (32,)]
    ),
    "conv in 4 groups": (
        _convolution((3, 3), groups=4), [(16, 32, 32, 32), (3, 3, 8, 32), (32,)]
    ),
    "conv transposed": (_transposed(), [(16, 16, 16, 32), (4, 4, 32, 32), (32,)]),
    "average pool": (_pooling(), [(64, 32, 32, 32)]),
    "group norm": (_group_norm(), [(64, 32, 32, 32), (32,)]),
    "weighted residual": (_residual(), [(64, 32, 32, 32), (64, 32, 32, 32), ()]),
}  # fmt: skip


def step(name: str, seconds: float = 5.0, kappa: float = 0.1) -> list[Row]:
    """Time value and gradients, by kappa too, of the layer of this name and of its twin."""
    layers, shapes = CASES[name]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = [jax.random.uniform(k, s, minval=0.1) for k, s in zip(keys, shapes, strict=True)]
    arms = {}
    for arm, layer in zip(("fgg", BASE), layers, strict=True):

        def loss(*arguments: Any, layer: Layer = layer) -> Array:
            out = layer(*arguments)
            return jnp.sum(out * lax.stop_gradient(jnp.cos(out)))

        every = tuple(range(len(arrays) + 1))
        arms[arm] = compile_arm(jax.value_and_grad(loss, every), *arrays, jnp.float32(kappa))
    return interleave({BASE: arms[BASE], "fgg": arms["fgg"]}, BASE, seconds)
