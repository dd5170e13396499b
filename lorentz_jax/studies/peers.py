"""Layers of other packages as arms of a benchmark, where those packages are installed."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array

from lorentz_jax import geometry

NAME = "hyperbolix fgg"


def _hyperbolix() -> Any:
    try:
        modules = ("hyperbolix.manifolds", "hyperbolix.nn_layers")
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise ValueError(
            f"--peers needs the package hyperbolix (Python 3.12 or later; pip install hyperbolix): "
            f"{error}"
        ) from error


def _arm(layer: nnx.Module, kappa: float) -> tuple[Callable, Any]:
    graphdef, state = nnx.split(layer)
    return lambda x, state: nnx.merge(graphdef, state)(x, kappa), state


def linear(x: Array, width: int, kappa: float) -> tuple[Callable, tuple]:
    """`(layer, arguments)` of hyperbolix' FGG linear layer with ReLU, on the lifted points."""
    layers = _hyperbolix()[1]
    layer = layers.FGGLinear(x.shape[-1] + 1, width + 1, rngs=nnx.Rngs(0), activation=jax.nn.relu)
    call, state = _arm(layer, kappa)
    return call, (geometry.lift(x, kappa), state)


def convolution(x: Array, width: int, kappa: float) -> tuple[Callable, tuple]:
    """`(layer, arguments)` of hyperbolix' 3x3 FGG convolution, on the lifted images."""
    manifolds, layers = _hyperbolix()
    manifold = manifolds.Hyperboloid(dtype=x.dtype)
    layer = layers.FGGConv2D(manifold, x.shape[-1] + 1, width + 1, 3, rngs=nnx.Rngs(0))
    call, state = _arm(layer, kappa)
    return call, (geometry.lift(x, kappa), state)
