"""Layers of decoders and of tiny batches: transposed convolution, group norm, weighted residual."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax._src.conv import per_axis
from lorentz_jax._src.pooling import transposed_padding
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import (
    NORMALS,
    Activation,
    HyperbolicModule,
    HyperplaneLayer,
    window_shape,
)

__all__ = ["LorentzConvTranspose", "LorentzGroupNorm", "LorentzResidual"]


class LorentzConvTranspose(HyperplaneLayer):
    """Transposed Lorentz convolution, `functional.conv_transpose` with parameters.

    An output pixel sees one in `prod(strides)` of the window's pixels, so the gain of the preset
    `fast` starts larger by the root of that.

    Args:
        in_features: D_in, space coordinates of a pixel.
        out_features: D_out, space coordinates of a pixel of the output.
        kernel_size: as of `LorentzConv`.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        strides: one number, or one for each axis, by which the image grows.
        padding: "SAME", "VALID", or pairs as `lax.conv_transpose` takes them.
        learn_kappa: make kappa a parameter, see `Kappa`.
        activation: elementwise on space parts, None for none.
        weight_norm: `w = softplus(g) a/|a|`, with the length |a| over window and channels.
        use_bias: with b.
        init: preset of `initializers`.
        param_dtype: dtype of the parameters; the output has the dtype of the input.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or a
            size below 1.

    Example:
        >>> layer = LorentzConvTranspose(3, 8, 2, strides=2, kappa=1.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 6, 6, 3))).shape
        (2, 12, 12, 8)
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: int | Sequence[int] = 3, *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: str | Sequence[tuple[int, int]] = "SAME", learn_kappa: bool = False,
        activation: Activation | None = None, weight_norm: bool = True, use_bias: bool = True,
        init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        size = window_shape(kernel_size, (1, 2, 3))
        self.strides = per_axis("strides", strides, len(size))
        self.padding = transposed_padding(padding, len(size))
        shape = (*size, in_features, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        if init == "fast" and weight_norm:
            gain = initializers.raw_gain(math.sqrt(2 * math.prod(self.strides)))
            values = values._replace(gain=jnp.full((out_features,), gain, param_dtype))
        super().__init__(values, kappa, learn_kappa, activation, init, use_bias)

    compiles, constant_names = True, NORMALS

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.conv_transpose(
            x, normals, kappa, self.strides, self.padding, self.activation
        )


class LorentzGroupNorm(HyperbolicModule):
    """Centring group norm, `functional.center_groups` with the parameter beta.

    For batches too small for `LorentzBatchNorm`: every example is centred by itself, in training
    and in evaluation alike.

    Args:
        features: D, space coordinates of a pixel.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        groups: into how many points the channels are split.
        rngs: not used; every factory of a layer takes it.
        learn_kappa: make kappa a parameter, see `Kappa`.
        init: "fast" stores `beta sqrt(1 + kappa D)`, "paper" the space part of beta itself.
        param_dtype: dtype of beta.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or
            groups do not divide the features.

    Example:
        >>> LorentzGroupNorm(4, kappa=1.0, groups=2)(jnp.ones((2, 6, 6, 4))).shape
        (2, 6, 6, 4)
    """

    def __init__(
        self, features: int, *, kappa: float, groups: int = 1, rngs: nnx.Rngs | None = None,
        learn_kappa: bool = False, init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        check_sizes(features=features, groups=groups)
        if features % groups:
            raise ValueError(f"groups must divide the features, got {groups} of {features}")
        self.beta, self.groups = nnx.Param(jnp.zeros((features,), param_dtype)), groups
        self.scaled = initializers.check_preset(init) == "fast"

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map examples `(N, ..., D)` to examples `(N, ..., D)`."""
        kappa = self.resolve_kappa(kappa)
        beta = self.unscale(self.beta[...], self.beta.shape[0] // self.groups, kappa)
        return functional.center_groups(x, beta, kappa, self.groups)[0]


class LorentzResidual(HyperbolicModule):
    """Weighted residual sum, `functional.weighted_residual` with a learned weight.

    The parameter is `scale`, whose softplus is the weight of the branch y beside the 1 of x.

    Args:
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        weight: first value, positive.
        rngs: not used; every factory of a layer takes it.
        learn_kappa: make kappa a parameter, see `Kappa`.
        param_dtype: dtype of the parameter.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), or `weight` is not.

    Example:
        >>> print(LorentzResidual(kappa=1.0)(jnp.array([0.75, 0.0]), jnp.zeros(2)))
        [0.3535534 0.       ]
    """

    def __init__(
        self, *, kappa: float, weight: float = 1.0, rngs: nnx.Rngs | None = None,
        learn_kappa: bool = False, param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight must be finite and > 0, got {weight}")
        self.scale = nnx.Param(jnp.asarray(initializers.raw_gain(weight), param_dtype))

    def __call__(self, x: Array, y: Array, kappa: Any = None) -> Array:
        """Return the residual sum of points x and y, both `(..., D)`."""
        weight = jax.nn.softplus(self.scale[...])
        return functional.weighted_residual(x, y, weight, self.resolve_kappa(kappa))
