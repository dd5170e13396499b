"""Layers of other packages as arms of a benchmark, where those packages are installed."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
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


def _hyperboloid(dtype: Any) -> Any:
    return importlib.import_module("hyperbolix.manifolds").Hyperboloid(dtype=dtype)


def _point(x: Array, kappa: Array) -> Array:
    return geometry.lift(x, kappa)


def _tangent(x: Array, v: Array, kappa: Array) -> Array:
    """The ambient tangent vector at x; its time does not overflow."""
    time = jnp.sum(x / geometry.time(x, kappa) * v, keepdims=True)
    return jnp.concatenate([time, v])


def _at_origin(v: Array) -> Array:
    return jnp.concatenate([jnp.zeros((1,), v.dtype), v])


def _calls() -> Iterator[tuple[str, Callable[..., Array]]]:
    """Their functions of the inputs of our rows: lifted before, the space part taken after."""
    h, p, t = _hyperboloid, _point, _tangent
    yield "dist", lambda x, y, k: h(x.dtype).dist(p(x, k), p(y, k), k)
    yield "dist0", lambda x, k: h(x.dtype).dist_0(p(x, k), k)
    yield "inner", lambda x, y, k: h(x.dtype).minkowski_inner(p(x, k), p(y, k))
    yield "exp", lambda x, v, k: h(x.dtype).expmap(t(x, v, k), p(x, k), k)[1:]
    yield "exp0", lambda v, k: h(v.dtype).expmap_0(_at_origin(v), k)[1:]
    yield "log", lambda x, y, k: h(x.dtype).logmap(p(y, k), p(x, k), k)[1:]
    yield "log0", lambda x, k: h(x.dtype).logmap_0(p(x, k), k)[1:]
    yield "transport", lambda x, y, v, k: h(x.dtype).ptransp(t(x, v, k), p(x, k), p(y, k), k)[1:]
    yield (
        "transport_from_origin",
        lambda y, v, k: h(y.dtype).ptransp_0(_at_origin(v), p(y, k), k)[1:],
    )
    yield (
        "tangent_inner",
        lambda x, u, v, k: h(x.dtype).tangent_inner(t(x, u, k), t(x, v, k), p(x, k), k),
    )
    yield "tangent_norm", lambda x, v, k: h(x.dtype).tangent_norm(t(x, v, k), p(x, k), k)
    yield "translate back", lambda x, y, k: (h(x.dtype).lorentz_boost(p(x, k), k) @ p(y, k))[1:]
    yield "linear of (w, b)", _linear


def _linear(x: Array, w: Array, b: Array, kappa: Array) -> Array:
    layers = importlib.import_module("hyperbolix.nn_layers")
    layer = layers.FGGLinear(x.shape[-1] + 1, 2, rngs=nnx.Rngs(0), param_dtype=x.dtype)
    layer.kernel, layer.bias = nnx.Param(w[:, None]), nnx.Param(b[None])
    return layer(_point(x, kappa)[None], kappa)[0, 1]


def peers() -> dict[str, Callable[..., Array]]:
    """Calls by the name of our row; `ValueError` without the package."""
    try:
        _hyperboloid(jnp.float32)
    except ImportError as error:
        raise ValueError(
            f"--peers needs the package hyperbolix (Python 3.12 or later; pip install hyperbolix): "
            f"{error}"
        ) from error
    return dict(_calls())
