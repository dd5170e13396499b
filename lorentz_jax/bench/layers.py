"""Time a linear layer (the paper's Table 2) and a convolution against their Euclidean twins."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax import functional, geometry
from lorentz_jax.bench import external
from lorentz_jax.bench.timing import Arm, Row, compile_arm, interleave
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


def linear_inference(
    width: int, batch: int = 512, seconds: float = 5.0, kappa: float = 1.0, peers: bool = False
) -> list[Row]:
    """Time the inference of one layer of `width` inputs and outputs, all arms interleaved.

    `peers` adds the layer of `bench.external`; `ValueError` where its package is missing.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (batch, width)) / width**0.5
    w = jax.random.normal(keys[1], (width, width)) / width**0.5
    b = 0.1 * jax.random.normal(keys[2], (width,))
    arms = {
        name: compile_arm(layer, x, *jax.jit(make)(w, b))
        for name, (make, layer) in linear_arms(kappa).items()
    }
    if peers:
        layer, arguments = external.linear(x, width, kappa)
        arms[external.NAME] = compile_arm(layer, *arguments)
    return interleave(arms, BASE, seconds)


def convolution_step(
    width: int, batch: int, seconds: float = 5.0, kappa: float = 0.1, peers: bool = False
) -> list[Row]:
    """Time the forward and backward pass, all gradients, of one 3x3 convolution; 32x32 images."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (batch, 32, 32, width))
    w = jax.random.normal(keys[1], (3, 3, width, width)) * (2 / (9 * width)) ** 0.5
    b = 0.1 * jax.random.normal(keys[2], (width,))
    cotangent = jax.random.normal(keys[3], x.shape)

    def euclidean(x: Array, w: Array, b: Array) -> Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout) + b

    def fgg(x: Array, w: Array, b: Array) -> Array:
        return functional.conv(x, normals(w, b, kappa), kappa)

    def arm(layer: Callable[..., Array], cotangent: Array, *arguments: Any) -> Arm:
        def loss(cotangent, *arguments):
            return jnp.sum(layer(*arguments) * cotangent)

        numbers = tuple(range(1, 1 + len(arguments)))
        return compile_arm(jax.value_and_grad(loss, numbers), cotangent, *arguments)

    arms = {BASE: arm(euclidean, cotangent, x, w, b), "fgg": arm(fgg, cotangent, x, w, b)}
    if peers:
        layer, arguments = external.convolution(x, width, kappa)
        arms[external.NAME] = arm(layer, geometry.lift(cotangent, kappa), *arguments)
    return interleave(arms, BASE, seconds)
