"""Layers and functions of the peer library hyperbolix, called with our inputs.

It keeps ambient points and our functions space parts: points are lifted before a call, and the
space part of a result is taken after it.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import geometry

NAME = "hyperbolix fgg"


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"hyperbolix.{module}")
    except ImportError as error:
        raise ValueError(
            f"--peers needs the package hyperbolix (Python 3.12 or later; pip install hyperbolix): "
            f"{error}"
        ) from error


def check() -> None:
    """Raise `ValueError` unless the package is installed."""
    _import("manifolds")


def _hyperboloid(dtype: Any) -> Any:
    return _import("manifolds").Hyperboloid(dtype=dtype)


def _arm(layer: nnx.Module, x: Array, kappa: float) -> tuple[Callable, tuple]:
    graphdef, state = nnx.split(layer)
    return lambda x, state: nnx.merge(graphdef, state)(x, kappa), (geometry.lift(x, kappa), state)


def linear(x: Array, width: int, kappa: float) -> tuple[Callable, tuple]:
    """Return `(layer, arguments)` of its FGG linear layer with ReLU, for points `x`."""
    make, options = _import("nn_layers").FGGLinear, {"activation": jax.nn.relu}
    return _arm(make(x.shape[-1] + 1, width + 1, rngs=nnx.Rngs(0), **options), x, kappa)


def convolution(x: Array, width: int, kappa: float) -> tuple[Callable, tuple]:
    """Return `(layer, arguments)` of its 3x3 FGG convolution, for images `x`."""
    make, sizes = _import("nn_layers").FGGConv2D, (x.shape[-1] + 1, width + 1, 3)
    return _arm(make(_hyperboloid(x.dtype), *sizes, rngs=nnx.Rngs(0)), x, kappa)


def attention(x: Array, heads: int, kappa: float) -> tuple[Callable, tuple]:
    """Return `(layer, arguments)` of its full Lorentz attention, for sequences `x`.

    Its heads together have the width of x, as ours; it returns their midpoint, of one head's width.
    """
    make, width = _import("nn_layers").HyperbolicFullAttention, x.shape[-1]
    layer = make(width + 1, width // heads, num_heads=heads, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)

    def call(x: Array, state: Any) -> Array:
        return nnx.merge(graphdef, state)(x, kappa, kappa, kappa)

    return call, (geometry.lift(x, kappa), state)


def _linear_unit(x: Array, w: Array, b: Array, kappa: Array) -> Array:
    make = _import("nn_layers").FGGLinear
    layer = make(x.shape[-1] + 1, 2, rngs=nnx.Rngs(0), param_dtype=x.dtype)
    layer.kernel, layer.bias = nnx.Param(w[:, None]), nnx.Param(b[None])
    return layer(geometry.lift(x, kappa)[None], kappa)[0, 1]


def _tangent(x: Array, v: Array, kappa: Array) -> Array:
    """Return the ambient tangent vector at x; its time does not overflow."""
    time = jnp.sum(x / geometry.time(x, kappa) * v, keepdims=True)
    return jnp.concatenate([time, v])


def _at_origin(v: Array) -> Array:
    return jnp.concatenate([jnp.zeros((1,), v.dtype), v])


def functions() -> dict[str, Callable[..., Array]]:
    """Return its functions by the names of our rows in `bench.numerics`.

    Raises:
      ValueError: the package is not installed.
    """
    _import("manifolds")
    return dict(_functions())


def _functions() -> Iterator[tuple[str, Callable[..., Array]]]:
    h, p, t = _hyperboloid, geometry.lift, _tangent

    def transport_from_origin(y, v, k):
        return h(y.dtype).ptransp_0(_at_origin(v), p(y, k), k)[1:]

    def tangent_inner(x, u, v, k):
        return h(x.dtype).tangent_inner(t(x, u, k), t(x, v, k), p(x, k), k)

    yield "dist", lambda x, y, k: h(x.dtype).dist(p(x, k), p(y, k), k)
    yield "dist0", lambda x, k: h(x.dtype).dist_0(p(x, k), k)
    yield "inner", lambda x, y, k: h(x.dtype).minkowski_inner(p(x, k), p(y, k))
    yield "exp", lambda x, v, k: h(x.dtype).expmap(t(x, v, k), p(x, k), k)[1:]
    yield "exp0", lambda v, k: h(v.dtype).expmap_0(_at_origin(v), k)[1:]
    yield "log", lambda x, y, k: h(x.dtype).logmap(p(y, k), p(x, k), k)[1:]
    yield "log0", lambda x, k: h(x.dtype).logmap_0(p(x, k), k)[1:]
    yield "transport", lambda x, y, v, k: h(x.dtype).ptransp(t(x, v, k), p(x, k), p(y, k), k)[1:]
    yield "transport_from_origin", transport_from_origin
    yield "tangent_inner", tangent_inner
    yield "tangent_norm", lambda x, v, k: h(x.dtype).tangent_norm(t(x, v, k), p(x, k), k)
    yield "translate back", lambda x, y, k: (h(x.dtype).lorentz_boost(p(x, k), k) @ p(y, k))[1:]
    yield "linear of (w, b)", _linear_unit
