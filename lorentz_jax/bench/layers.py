"""Cost of single layers against their Euclidean twins (the paper's Table 2, and a convolution)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax import functional, geometry
from lorentz_jax.bench import external as other_packages
from lorentz_jax.bench.timing import Arm, Row, compile_arm, interleave
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import chen, poincare

BASE = "euclidean"


def _euclidean(x, w, b):
    return jax.nn.relu(x @ w + b)


def linear_arms(kappa: float) -> dict[str, tuple[Callable, Callable]]:
    """By name: what is made of weights once (the cache), and the layer `(x, *made)` that is timed.

    Every layer ends with a ReLU, of the kind its geometry has.
    """

    def fgg(x, planes):
        return functional.linear(x, planes, kappa, jax.nn.relu)

    def gates(w, b):
        return jnp.pad(w, ((0, 0), (1, 0))), jnp.pad(b, (1, 0))

    return {
        BASE: (lambda w, b: (w, b), _euclidean),
        "fgg cached": (lambda w, b: (normals(w, b, kappa),), fgg),
        "fgg": (lambda w, b: (w, b), lambda x, w, b: fgg(x, normals(w, b, kappa))),
        "chen": (
            lambda w, b: (w, b),
            lambda x, w, b: chen.linear(x, w, b, kappa, activation=jax.nn.relu),
        ),
        "chen normalised": (
            gates,
            lambda x, w, b: chen.linear(
                x, w, b, kappa, log_scale=jnp.zeros((), x.dtype), activation=jax.nn.relu
            ),
        ),
        "poincare": (
            lambda w, b: (w, b),
            lambda x, w, b: poincare.relu(
                poincare.linear(x, poincare.plane_normals(w, b, kappa), kappa), kappa
            ),
        ),
    }


def linear_inference(
    width: int, batch: int = 512, seconds: float = 5.0, kappa: float = 1.0, peers: bool = False
) -> list[Row]:
    """Inference of one layer of `width` inputs and outputs, all kinds interleaved.

    `peers` adds the layers of `bench.external`; `ValueError` where their package is missing.
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
        layer, arguments = other_packages.linear(x, width, kappa)
        arms[other_packages.NAME] = compile_arm(layer, *arguments)
    return interleave(arms, BASE, seconds)


def convolution_step(
    width: int, batch: int, size: int = 32, seconds: float = 5.0, kappa: float = 0.1,
    peers: bool = False,
) -> list[Row]:  # fmt: skip
    """Forward and backward pass of one 3x3 convolution, all gradients; `peers` as above."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (batch, size, size, width))
    w = jax.random.normal(keys[1], (3, 3, width, width)) * (2 / (9 * width)) ** 0.5
    b = 0.1 * jax.random.normal(keys[2], (width,))
    cotangent = jax.random.normal(keys[3], x.shape)

    def euclidean(x: Array, w: Array, b: Array) -> Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers) + b

    def lorentz(x: Array, w: Array, b: Array) -> Array:
        return functional.conv(x, normals(w, b, kappa), kappa)

    def arm(layer: Callable[..., Array], cotangent: Array, *arguments: Any) -> Arm:
        def loss(cotangent, *arguments):
            return jnp.sum(layer(*arguments) * cotangent)

        places = tuple(range(1, 1 + len(arguments)))
        return compile_arm(jax.value_and_grad(loss, places), cotangent, *arguments)

    arms = {
        BASE: arm(euclidean, cotangent, x, w, b),
        "fgg": arm(lorentz, cotangent, x, w, b),
    }
    if peers:
        layer, arguments = other_packages.convolution(x, width, kappa)
        arms[other_packages.NAME] = arm(layer, geometry.lift(cotangent, kappa), *arguments)
    return interleave(arms, BASE, seconds)


def has_patches(width: int, batch: int, size: int = 32, kappa: float = 0.1) -> bool:
    """Whether the compiled convolution holds an array as large as all its patches."""
    x = jnp.zeros((batch, size, size, width))
    w, b = jnp.zeros((3, 3, width, width)), jnp.zeros((width,))
    layer = jax.jit(lambda x, w, b: functional.conv(x, normals(w, b, kappa), kappa))
    text = layer.lower(x, w, b).compile().as_text() or ""
    patches: Sequence[str] = (f"{size},{size},{9 * width}]", f"{9 * width},{size},{size}]")
    return any(shape in text for shape in patches)
