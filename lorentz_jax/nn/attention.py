"""Layers of transformers: attention between points, and the norm of every point."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, hyperplane
from lorentz_jax._src.arguments import check_sizes, compute_dtype, row
from lorentz_jax._src.attention import check_temperature
from lorentz_jax._src.centred import check_center
from lorentz_jax._src.scalars import safe_norm
from lorentz_jax.hyperplane import Normals
from lorentz_jax.nn.layers import LorentzLinear
from lorentz_jax.nn.modules import HyperbolicModule, call, normal_arrays, set_length

__all__ = ["LorentzAttention", "LorentzLayerNorm"]


class LorentzAttention(HyperbolicModule):
    """Multi-head attention between points, `functional.attention` between linear layers.

    One linear layer makes queries, keys and values of all heads. Its output is cut into heads, each
    of them a point; their centroids are put together again, and a linear layer mixes them. In
    the flat limit it is attention by distances, which is that by dot products for keys of equal
    lengths.

    Args:
        num_heads: number of heads.
        in_features: D_in, space coordinates of the input.
        qkv_features: space coordinates of all heads together. Default: D_in.
        out_features: D_out, space coordinates of the output. Default: D_in.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernels.
        learn_kappa: make kappa a parameter, see `Kappa`.
        score: "distance" or "product", see `functional.attention`.
        temperature: of the softmax, one number or `(num_heads,)`. An `nnx.Param` of it is learned.
            Default: the root of the space coordinates of a head.
        causal: let every point see those up to itself alone.
        center: "origin", or "middle" for points far out, see `functional.attention`.
        param_dtype: dtype of the parameters; the output has the dtype of the input.
        linear: options of both linear layers, `weight_norm`, `use_bias` and `init`, as of
            `LorentzLinear`; but with the preset "fast" the weights of a unit have the length 1.

    Raises:
        ValueError: `num_heads` does not divide `qkv_features`, `kappa` is not positive (or not in
            the bounds of `Kappa`), `temperature` is not positive, no such `init` or `score`, or a
            size below 1.

    Example:
        >>> layer = LorentzAttention(4, 8, kappa=1.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 8))).shape
        (2, 5, 8)
    """

    passes_kappa = True

    def __init__(
        self, num_heads: int, in_features: int, qkv_features: int | None = None,
        out_features: int | None = None, *, kappa: float, rngs: nnx.Rngs, learn_kappa: bool = False,
        score: str = "distance", temperature: Any = None, causal: bool = False,
        center: str = "origin", param_dtype: Any = jnp.float32, **linear: Any,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        qkv = in_features if qkv_features is None else qkv_features
        check_sizes(num_heads=num_heads, qkv_features=qkv)
        if qkv % num_heads:
            raise ValueError(f"num_heads must divide qkv_features {qkv}, got {num_heads}")
        if score not in functional.SCORES:
            raise ValueError(f"score must be one of {functional.SCORES}, got {score!r}")
        if temperature is not None:
            check_temperature(temperature, (num_heads,))
        make = partial(LorentzLinear, kappa=kappa, param_dtype=param_dtype, rngs=rngs, **linear)
        self.qkv = make(in_features, 3 * qkv)
        self.out = make(qkv, in_features if out_features is None else out_features)
        if linear.get("init", "fast") == "fast":  # no ReLU follows, which would halve the squares
            for layer in (self.qkv, self.out):
                set_length(layer, 1.0)
        self.num_heads, self.score, self.causal = num_heads, score, causal
        self.center = check_center(center)
        self.temperature = temperature

    def __call__(
        self, x: Array, kappa: Any = None, key: Array | None = None, value: Array | None = None,
        mask: Array | None = None,
    ) -> Array:  # fmt: skip
        """Map points `(..., M, D_in)` to points `(..., M, D_out)`.

        Args:
            x: what the queries are made of.
            kappa: overrides the layer's own.
            key: what the keys are made of, `(..., N, D_in)`. Default: x.
            value: what the values are made of, `(..., N, D_in)`. Default: `key`.
            mask: booleans that broadcast to `(..., heads, M, N)`, see `functional.attention`.
        """
        kappa = self.resolve_kappa(kappa)
        before, after = joint_linears((self.qkv, self.out), kappa)
        if key is None and value is None:
            parts = jnp.split(before(x), 3, axis=-1)
        else:
            key = x if key is None else key
            inputs = (x, key, key if value is None else value)
            parts = [self._part(i, points, kappa) for i, points in enumerate(inputs)]
        query, key, value = (self._heads(part) for part in parts)
        temperature: Any = self.temperature
        if isinstance(temperature, nnx.Variable):
            temperature = temperature.get_value()
        options = mask, self.score, temperature, self.causal, self.center
        y = functional.attention(query, key, value, kappa, *options)
        y = jnp.swapaxes(y, -2, -3)
        y = y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])
        return after(y)

    def _part(self, index: int, x: Array, kappa: Any) -> Array:
        """Queries, keys or values alone."""
        normals = self.qkv.normals(kappa)
        width = normals.space.shape[-1] // 3
        mine = slice(index * width, (index + 1) * width)
        y = functional.linear(x, _units(normals, mine), kappa)
        y, activation = self.qkv.apply_gain(y, kappa, mine), self.qkv.activation
        return y if activation is None else activation(y)

    def _heads(self, x: Array) -> Array:
        """Cut `(..., N, heads D)` into `(..., heads, N, D)`."""
        width = x.shape[-1] // self.num_heads
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.num_heads, width), -2, -3)


class LorentzLayerNorm(nnx.Module):
    """Norm of every point by itself, `functional.layer_norm` with the parameters scale and bias.

    It has no kappa, and it is `nnx.LayerNorm` of the space part, but keeps the dtype of its input
    and loses no digit of points with a large mean.

    Args:
        features: D, space coordinates of the input.
        kappa: not used, as rngs; every factory of a layer takes them.
        rngs: not used.
        epsilon: what is added to the variance.
        use_scale: with a factor of every coordinate, 1 at the start.
        use_bias: with a bias, 0 at the start.
        param_dtype: dtype of the parameters.

    Raises:
        ValueError: no feature, or `epsilon` is not positive.

    Example:
        >>> print(LorentzLayerNorm(2)(jnp.array([[3.0, 1.0]])).round(3))
        [[ 1. -1.]]
    """

    def __init__(
        self, features: int, *, kappa: Any = None, rngs: nnx.Rngs | None = None,
        epsilon: float = 1e-6, use_scale: bool = True, use_bias: bool = True,
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        check_sizes(features=features)
        if not epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {epsilon}")
        self.scale = nnx.Param(jnp.ones((features,), param_dtype)) if use_scale else None
        self.bias = nnx.Param(jnp.zeros((features,), param_dtype)) if use_bias else None
        self.epsilon = epsilon

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map points `(..., D)` to points `(..., D)`."""
        scale, bias = (None if p is None else p[...] for p in (self.scale, self.bias))
        return functional.layer_norm(x, scale, bias, self.epsilon)


def joint_linears(layers: Sequence[Any], kappa: Any) -> list[Callable[[Array], Array]]:
    """Return linear layers as functions of points, their normals made by one computation.

    It compiles faster than one for each layer. Where they are no plain layers with weight norm and
    a bias, or have a distance gain, each is called by itself.
    """
    alone = [partial(call, layer, kappa=kappa) for layer in layers]
    if any(type(layer) is not LorentzLinear or layer.frozen is not None for layer in layers):
        return alone
    if any(layer.gain is None or layer.bias is None for layer in layers):
        return alone
    if any(layer.distance_gain is not None for layer in layers):
        return alone
    kernels = [layer.kernel[...].astype(compute_dtype(layer.kernel.dtype)) for layer in layers]
    gain = jax.nn.softplus(jnp.concatenate([layer.gain[...] for layer in layers]))
    bias = jnp.concatenate([layer.biases(layer.resolve_kappa(kappa)) for layer in layers])
    gain, bias = gain.astype(kernels[0].dtype), bias.astype(kernels[0].dtype)
    # All but the lengths of its units is one computation, for which a length is a unit's direction.
    if len({kernel.shape[0] for kernel in kernels}) == 1:
        lengths = safe_norm(jnp.concatenate(kernels, axis=1), (0,))
    else:
        lengths = jnp.concatenate([safe_norm(kernel, (0,)) for kernel in kernels])
    normals, unit_scale = hyperplane.factored_normals(lengths[None], gain, bias, kappa)
    ends = [0, *accumulate(kernel.shape[1] for kernel in kernels)]
    calls = []
    for kernel, layer, (start, end) in zip(kernels, layers, pairwise(ends), strict=True):
        mine = _units(normals, slice(start, end))
        mine = replace(mine, space=kernel * row(unit_scale[start:end], kernel))
        calls.append(partial(_linear, mine, kappa, layer.activation))
    return calls


def _linear(normals: Normals, kappa: Any, activation: Any, x: Array) -> Array:
    return functional.linear(x, normals, kappa, activation)


def _units(normals: Normals, mine: slice) -> Normals:
    """The normals of some of the units."""
    arrays: Any = {name: a[..., mine] for name, a in normal_arrays(normals).items()}
    return replace(normals, **arrays)
