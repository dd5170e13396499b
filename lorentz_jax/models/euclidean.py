"""The Euclidean twin of `LorentzResNet`: the same skeleton, kernels without bias, flax's norm."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.conv import window_arguments
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.nn.compiling import Frozen, check_mode, definer


class Conv(nnx.Module):
    """Convolution of NHWC images without a bias, padded (k - 1)//2 on every side.

    The kernel starts in N(0, 2/fan_in), He et al.'s values.
    """

    def __init__(self, in_features, out_features, kernel_size, strides, param_dtype, rngs):
        shape = (*kernel_size, in_features, out_features)
        # Drawn flat: the same numbers, but a shape of four axes takes XLA seconds to compile.
        kernel = jax.random.normal(rngs.params(), (math.prod(shape),), param_dtype).reshape(shape)
        deviation = math.sqrt(2 / math.prod(shape[:-1]))
        self.kernel = nnx.Param(kernel * jnp.asarray(deviation, param_dtype))
        self.strides = strides

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Images `(N, H, W, in)` to `(N, H', W', out)`."""
        kernel = self.kernel[...].astype(x.dtype)
        strides, pads = window_arguments(self.strides, None, kernel.shape[:2])
        folded = self.frozen is not None and self.frozen.folded
        out = lax.conv_general_dilated(
            x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=compute_dtype(x.dtype) if folded else None,
        )  # fmt: skip
        return (out + self.bias[...].astype(out.dtype)).astype(x.dtype) if folded else out

    compiles, constant_names = True, ("kernel", "bias")
    frozen: Frozen | None = None

    def constants(self, kappa: Any) -> dict[str, Array]:
        """The kernel."""
        return {"kernel": self.kernel[...]}

    def fold(self, norm: nnx.Module, kappa: Any) -> dict[str, Array] | None:
        """The kernel and a bias that stand for the convolution and the batch norm after it."""
        if definer(norm) is not BatchNorm:
            return None
        mean, var = (np.asarray(stat[...], np.float64) for stat in (norm.mean, norm.var))
        gamma, beta = (np.asarray(param[...], np.float64) for param in (norm.scale, norm.bias))
        scale = gamma / np.sqrt(var + norm.epsilon)
        arrays = {"kernel": np.asarray(self.kernel[...], np.float64) * scale}
        arrays["bias"] = beta - mean * scale
        return {name: jnp.asarray(a, self.kernel.dtype) for name, a in arrays.items()}


class BatchNorm(nnx.BatchNorm):
    """Flax's batch norm, called like ours; an empty batch passes through and changes nothing."""

    def __call__(self, x: Array, kappa: Any = None, use_running_average: Any = None) -> Array:
        """Images to images of the same shape and dtype."""
        if self.frozen is not None:  # it is folded into the convolution before it
            check_mode(self.frozen, use_running_average)
            return x
        running = True if x.size == 0 else use_running_average
        return super().__call__(x, use_running_average=running).astype(x.dtype)

    compiles = True
    frozen: Frozen | None = None


class Head(nnx.Module):
    """Logits of pooled features; the kernel starts as in torch, in U(-1/sqrt(in), 1/sqrt(in))."""

    def __init__(self, in_features, num_classes, param_dtype, rngs):
        bound = 1 / math.sqrt(in_features)
        shape = (in_features, num_classes)
        kernel = jax.random.uniform(rngs.params(), shape, param_dtype, -bound, bound)
        self.kernel = nnx.Param(kernel)
        self.bias = nnx.Param(jnp.zeros((num_classes,), param_dtype))

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Features `(N, in)` to logits `(N, classes)`."""
        return x @ self.kernel[...].astype(x.dtype) + self.bias[...].astype(x.dtype)


def _mean(x: Array, kappa: Any) -> Array:
    return jnp.mean(x, axis=(1, 2))


class EuclideanResNet(ResNet):
    """Ordinary ResNet in the layout of `LorentzResNet`, whose kappa it ignores.

    It pools before it classifies, which is the same for a linear classifier.

    Args:
      stages, width, num_classes, in_channels: see `ResNet`.
      momentum: of the running statistics, in the sense of this package: the share of the batch.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, momentum: float = 0.1, param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        def conv(in_features, out_features, size, strides, rngs):
            return Conv(in_features, out_features, size, strides, param_dtype, rngs)

        def norm(features, rngs):
            return BatchNorm(features, momentum=1 - momentum, param_dtype=param_dtype, rngs=rngs)

        def head(in_features, classes, rngs):
            return Head(in_features, classes, param_dtype, rngs)

        layers = Layers(conv, norm, head, pool=_mean)
        super().__init__(layers, stages, width, num_classes, in_channels, None, rngs, {})
