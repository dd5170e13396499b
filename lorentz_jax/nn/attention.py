"""Attention between points, with linear layers before and after it."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax._src.centred import check_center
from lorentz_jax.nn import initializers
from lorentz_jax.nn.layers import LorentzLinear
from lorentz_jax.nn.modules import HyperbolicModule, normal_arrays

__all__ = ["LorentzAttention"]


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
        temperature: of the softmax. Default: the root of the space coordinates of a head.
        causal: let every point see those up to itself alone.
        center: "origin", or "middle" for points far out, see `functional.attention`.
        weight_norm: of the linear layers, see `LorentzLinear`.
        use_bias: of the linear layers.
        init: preset of `initializers`; with "fast" the weights of a unit have the length 1.
        param_dtype: dtype of the parameters; the output has the dtype of the input.

    Raises:
        ValueError: `num_heads` does not divide `qkv_features`, `kappa` is not positive (or not in
            the bounds of `Kappa`), no such `init` or `score`, or a size below 1.

    Example:
        >>> layer = LorentzAttention(4, 8, kappa=1.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 8))).shape
        (2, 5, 8)
    """

    passes_kappa = True

    def __init__(
        self, num_heads: int, in_features: int, qkv_features: int | None = None,
        out_features: int | None = None, *, kappa: float, rngs: nnx.Rngs, learn_kappa: bool = False,
        score: str = "distance", temperature: float | None = None, causal: bool = False,
        center: str = "origin", weight_norm: bool = True, use_bias: bool = True, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        qkv = in_features if qkv_features is None else qkv_features
        check_sizes(num_heads=num_heads, qkv_features=qkv)
        if qkv % num_heads:
            raise ValueError(f"num_heads must divide qkv_features {qkv}, got {num_heads}")
        if score not in functional.SCORES:
            raise ValueError(f"score must be one of {functional.SCORES}, got {score!r}")
        make = partial(
            LorentzLinear, kappa=kappa, weight_norm=weight_norm, use_bias=use_bias, init=init,
            param_dtype=param_dtype, rngs=rngs,
        )  # fmt: skip
        self.qkv = make(in_features, 3 * qkv)
        self.out = make(qkv, in_features if out_features is None else out_features)
        if init == "fast":  # no ReLU follows, which would halve the squares
            for layer in (self.qkv, self.out):
                _set_length(layer, 1.0)
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
        if key is None and value is None:
            parts = jnp.split(self.qkv(x, kappa), 3, axis=-1)
        else:
            key = x if key is None else key
            inputs = (x, key, key if value is None else value)
            parts = [self._part(i, points, kappa) for i, points in enumerate(inputs)]
        query, key, value = (self._heads(part) for part in parts)
        options = mask, self.score, self.temperature, self.causal, self.center
        y = functional.attention(query, key, value, kappa, *options)
        y = jnp.swapaxes(y, -2, -3)
        return self.out(y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1]), kappa)

    def _part(self, index: int, x: Array, kappa: Any) -> Array:
        """Queries, keys or values alone."""
        normals = self.qkv.normals(kappa)
        width = normals.space.shape[-1] // 3
        mine = slice(index * width, (index + 1) * width)
        arrays: Any = {name: a[..., mine] for name, a in normal_arrays(normals).items()}
        return functional.linear(x, replace(normals, **arrays), kappa)

    def _heads(self, x: Array) -> Array:
        """Cut `(..., N, heads D)` into `(..., heads, N, D)`."""
        width = x.shape[-1] // self.num_heads
        return jnp.swapaxes(x.reshape(*x.shape[:-1], self.num_heads, width), -2, -3)


def _set_length(layer: LorentzLinear, length: float) -> None:
    """Scale the initial weights of every unit from the preset's length, root 2, to this one."""
    if layer.gain is None:
        layer.kernel[...] = layer.kernel[...] * (length / 2**0.5)
    else:
        layer.gain[...] = jnp.full_like(layer.gain[...], initializers.raw_gain(length))
