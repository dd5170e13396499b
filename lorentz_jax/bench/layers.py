"""Time a linear layer (the paper's Table 2) and a convolution against their Euclidean twins."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax import functional, geometry
from lorentz_jax.bench import external
from lorentz_jax.bench.timing import Row, compile_arm, interleave
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import chen, poincare

BASE = "euclidean"


def linear_arms(kappa: float) -> dict[str, tuple[Callable, Callable]]:
    """Return the arms by name: `make(w, b)`, which is not timed, and the layer `(x, *made)`.

    What `make` returns is computed once: the cache, or the weights as the layer wants them. Every
    layer ends with a ReLU, of the kind its geometry has.
    """
    relu = jax.nn.relu

    def plain(w, b):
        return w, b

    def cached(w, b):
        return (normals(w, b, kappa),)

    def with_time_row(w, b):
        return jnp.pad(w, ((0, 0), (1, 0))), jnp.pad(b, (1, 0))

    def euclidean(x, w, b):
        return relu(x @ w + b)

    def fgg_cached(x, planes):
        return functional.linear(x, planes, kappa, relu)

    def fgg(x, w, b):
        return fgg_cached(x, normals(w, b, kappa))

    def chen_plain(x, w, b):
        return chen.linear(x, w, b, kappa, activation=relu)

    def chen_normalised(x, w, b):
        log_scale = jnp.zeros((), x.dtype)
        return chen.linear(x, w, b, kappa, log_scale=log_scale, activation=relu)

    def poincare_plain(x, w, b):
        planes = poincare.plane_normals(w, b, kappa)
        return poincare.relu(poincare.linear(x, planes, kappa), kappa)

    return {
        BASE: (plain, euclidean),
        "fgg cached": (cached, fgg_cached),
        "fgg": (plain, fgg),
        "chen": (plain, chen_plain),
        "chen normalised": (with_time_row, chen_normalised),
        "poincare": (plain, poincare_plain),
    }


def linear_layer(
    name: str, width: int, batch: int, kappa: float = 1.0, dtype: Any = jnp.float32
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the inference of one layer of `width` inputs and outputs, and its arguments.

    Args:
        name: one of `linear_arms`.
        width: inputs, and outputs.
        batch: points.
        kappa: curvature -kappa.
        dtype: of the points, and of weights and the space part of a cache.
    """
    make, layer = linear_arms(kappa)[name]
    x, w, b = _drawn(width, batch)
    made = jax.jit(make)(w, b)
    half = jax.tree.map(lambda a: a.astype(dtype) if a.ndim == 2 or name == BASE else a, made)
    return layer, (x.astype(dtype), *half)


def _drawn(width: int, batch: int) -> tuple[Array, Array, Array]:
    """Points, weights and biases."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (batch, width)) / width**0.5
    w = jax.random.normal(keys[1], (width, width)) / width**0.5
    return x, w, 0.1 * jax.random.normal(keys[2], (width,))


def linear_inference(
    width: int, batch: int = 512, seconds: float = 5.0, kappa: float = 1.0, peers: bool = False
) -> list[Row]:
    """Time the inference of one layer of `width` inputs and outputs, all arms interleaved.

    `peers` adds the layer of `bench.external`; `ValueError` where its package is missing.
    """
    x, w, b = _drawn(width, batch)
    arms = {
        name: compile_arm(layer, x, *jax.jit(make)(w, b))
        for name, (make, layer) in linear_arms(kappa).items()
    }
    if peers:
        layer, arguments = external.linear(x, width, kappa)
        arms[external.NAME] = compile_arm(layer, *arguments)
    return interleave(arms, BASE, seconds)


def convolution(
    name: str, width: int, batch: int, kappa: float = 0.1, dtype: Any = jnp.float32
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the forward and backward pass of one 3x3 convolution, and its arguments.

    All gradients, on 32x32 images.

    Args:
        name: one of `CONVOLUTIONS`; the last is that of `bench.external`.
        width: channels.
        batch: images.
        kappa: curvature -kappa.
        dtype: of the images.

    Raises:
        ValueError: there is no such convolution, or its package is missing.
    """
    if name not in CONVOLUTIONS:
        raise ValueError(f"convolutions are {', '.join(CONVOLUTIONS)}, got {name!r}")
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (batch, 32, 32, width), dtype)
    w = jax.random.normal(keys[1], (3, 3, width, width)) * (2 / (9 * width)) ** 0.5
    b = 0.1 * jax.random.normal(keys[2], (width,))
    cotangent = jax.random.normal(keys[3], x.shape, dtype)

    def euclidean(x: Array, w: Array, b: Array) -> Array:
        layout, w, b = ("NHWC", "HWIO", "NHWC"), w.astype(dtype), b.astype(dtype)
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout) + b

    def fgg(x: Array, w: Array, b: Array) -> Array:
        return functional.conv(x, normals(w, b, kappa), kappa)

    layer, arguments = (euclidean if name == BASE else fgg), (x, w, b)
    if name == external.NAME:
        layer, arguments = external.convolution(x, width, kappa)
        cotangent = geometry.lift(cotangent, kappa)

    def loss(cotangent: Array, *arguments: Any) -> Array:
        return jnp.sum((layer(*arguments) * cotangent).astype(jnp.float32))

    numbers = tuple(range(1, 1 + len(arguments)))
    return jax.value_and_grad(loss, numbers), (cotangent, *arguments)


LAYERS = (BASE, "fgg cached", "fgg")
"""The layers that `bench.py accelerator` compiles."""
CONVOLUTIONS = (BASE, "fgg", external.NAME)
"""Names of the convolutions that there are."""


def convolution_step(
    width: int, batch: int, seconds: float = 5.0, kappa: float = 0.1, peers: bool = False
) -> list[Row]:
    """Time `convolution`, all arms interleaved."""
    arms = {}
    for name in CONVOLUTIONS if peers else CONVOLUTIONS[:2]:
        function, arguments = convolution(name, width, batch, kappa)
        arms[name] = compile_arm(function, *arguments)
    return interleave(arms, BASE, seconds)
