"""The Euclidean twin of `LorentzResNet`: the same skeleton, kernels without bias, Flax's norm."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax._src.arguments import check_pixels, check_sizes, row
from lorentz_jax._src.conv import conv_images, window_arguments
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.nn.compiling import Frozen, check_mode, definer
from lorentz_jax.nn.initializers import check_kernel, draw_normal, draw_uniform
from lorentz_jax.nn.modules import freeze_window, window_shape

__all__ = ["EuclideanBatchNorm", "EuclideanConv", "EuclideanHead", "EuclideanResNet", "pool"]


class EuclideanConv(nnx.Module):
    """Convolution of NHWC images without a bias, padded (k - 1)//2 on every side.

    The kernel starts in N(0, 2/fan_in) (He et al., https://arxiv.org/abs/1502.01852). Arguments
    as in `nn.LorentzConv`; `kappa` in the call is ignored.
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: int | Sequence[int] = 3, *,
        rngs: nnx.Rngs, strides: int | Sequence[int] = 1, param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = check_kernel((*window_shape(kernel_size), in_features, out_features))
        deviation = math.sqrt(2 / math.prod(shape[:-1]))
        self.kernel = nnx.Param(draw_normal(rngs.params(), shape, deviation, param_dtype))
        self.strides = freeze_window(strides, None)[0]

    compiles, constant_names = True, ("kernel", "bias")
    frozen: Frozen | None = None
    bias: Any = None  # of a norm that was folded in

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map images `(N, H, W, in)` to `(N, H', W', out)`."""
        check_pixels(x.shape)
        kernel = self.kernel[...].astype(x.dtype)
        window = window_arguments(self.strides, None, kernel.shape[:2])
        folded = self.frozen is not None and self.frozen.folded
        out = conv_images(x, kernel, window)
        # In the dtype of the images: a GPU's library adds a bias and applies ReLU as it convolves.
        return out + row(self.bias[...].astype(out.dtype), out) if folded else out

    def constants(self, kappa: Any) -> dict[str, Array]:
        """Return the kernel."""
        return {"kernel": self.kernel[...]}

    def fold(self, norm: Any, kappa: Any) -> dict[str, Array] | None:
        """Return the kernel and bias that stand for the convolution and the batch norm after it."""
        if definer(norm) is not EuclideanBatchNorm:
            return None
        mean, var = (np.asarray(stat[...], np.float64) for stat in (norm.mean, norm.var))
        gamma, beta = (np.asarray(param[...], np.float64) for param in (norm.scale, norm.bias))
        scale = gamma / np.sqrt(var + norm.epsilon)
        arrays = {"kernel": np.asarray(self.kernel[...], np.float64) * scale}
        arrays["bias"] = beta - mean * scale
        return {name: jnp.asarray(a, self.kernel.dtype) for name, a in arrays.items()}


class EuclideanBatchNorm(nnx.BatchNorm):
    """Flax's batch norm, called like ours; an empty batch passes through and changes nothing."""

    compiles = True
    frozen: Frozen | None = None

    def __init__(self, num_features: int, **options: Any):
        check_sizes(num_features=num_features)
        super().__init__(num_features, **options)

    def __call__(self, x: Array, kappa: Any = None, use_running_average: Any = None) -> Array:
        """Map images to images of the same shape and dtype."""
        if self.frozen is not None:  # it is folded into the convolution before it
            check_mode(self.frozen, use_running_average)
            return x
        running = True if x.size == 0 else use_running_average
        return super().__call__(x, use_running_average=running).astype(x.dtype)


class EuclideanHead(nnx.Module):
    """Linear classifier; the kernel starts in U(-1/sqrt(in), 1/sqrt(in)), as in torch.

    The bias starts at 0. Arguments as in `nn.LorentzMLR`; `kappa` in the call is ignored.
    """

    def __init__(
        self, in_features: int, num_classes: int, *, rngs: nnx.Rngs, param_dtype: Any = jnp.float32
    ):
        shape = check_kernel((in_features, num_classes))
        bound = 1 / math.sqrt(in_features)
        self.kernel = nnx.Param(draw_uniform(rngs.params(), shape, bound, param_dtype))
        self.bias = nnx.Param(jnp.zeros((num_classes,), param_dtype))

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map features `(N, in)` to logits `(N, classes)`."""
        out = x @ self.kernel[...].astype(x.dtype)
        return out + row(self.bias[...].astype(x.dtype), out)


def pool(x: Array, kappa: Any = None) -> Array:
    """Return the mean of the pixels of each image, `(N, H, W, D)` to `(N, D)`."""
    return jnp.mean(x, axis=(1, 2))


class EuclideanResNet(ResNet):
    """Ordinary ResNet in the layout of `LorentzResNet`; a kappa in the call is ignored.

    It pools before it classifies, which is the same for a linear classifier.

    Args:
        stages: number of blocks in each stage.
        width: channels of the first stage; each further stage doubles them.
        num_classes: number of logits.
        in_channels: channels of the images.
        momentum: weight of the new batch in the running statistics (1 minus Flax's).
        param_dtype: dtype of the parameters.
        rngs: the stream `params` draws the kernels.

    Raises:
        ValueError: a size is below 1.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, momentum: float = 0.1, param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        layers = Layers(
            conv=partial(EuclideanConv, param_dtype=param_dtype),
            norm=partial(EuclideanBatchNorm, momentum=1 - momentum, param_dtype=param_dtype),
            head=partial(EuclideanHead, param_dtype=param_dtype),
            pool=pool,
        )
        super().__init__(layers, stages, width, num_classes, in_channels, None, rngs, {})
