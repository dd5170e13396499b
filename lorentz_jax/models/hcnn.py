"""Layers of HCNN: Bdeir et al., "Fully Hyperbolic CNNs for Computer Vision" (ICLR 2024).

Its convolution is `chen.conv`, its activation and residual sum are those of `nn`. Its norm, its
pooling and its classifier differ from those that the paper's authors compare with under its name:

| | HCNN | the paper's authors |
|---|---|---|
| variance v of a batch | mean d | mean d^2 |
| scale of the geodesics | gamma/(v + eps) | gamma/sqrt(v + eps) |
| mean of the batch | centroid of the images' centroids | centroid of all pixels |
| running mean kept as | tangent vector at the origin | point |
| logits | of the centroid of the pixels | mean of those of the pixels |

d is the distance to the mean. All of it is right here at every kappa; the authors' norm and
classifier are so only at kappa = 1.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax._src.plain import exp_origin, log_origin, mean_point, root
from lorentz_jax._src.scalars import theta_limit
from lorentz_jax.hyperplane import Normals
from lorentz_jax.models.chen import ChenConv
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.models.variance import VarianceBatchNorm, variance_norm
from lorentz_jax.nn import Kappa, initializers

__all__ = [
    "BdeirMLR", "HCNNBatchNorm", "VarianceBatchNorm", "mean_of_means", "mlr", "plane_normals",
    "pool", "variance_norm",
]  # fmt: skip


def plane_normals(kernel: Any, offset: Any, kappa: Any) -> Normals:
    """Hyperplanes orthogonal to the directions z `(..., out)`, at distances a `(out,)`.

    They are the parameters of Bdeir et al.: the plane passes through the point at signed distance
    a from the origin along z, so it is `hyperplane.normals` of `w = z`, `b = -a |z|`, with
    `theta = s a` at hand. kappa is a scalar.
    """
    kernel, offset = as_array("kernel", kernel, min_ndim=2), as_array("offset", offset)
    if offset.shape != kernel.shape[-1:]:
        raise ValueError(
            f"offset must have shape {kernel.shape[-1:]} to go with a kernel {kernel.shape}, "
            f"got {offset.shape}"
        )
    dtype = compute_dtype(jnp.result_type(kernel, offset))
    kernel, angle = kernel.astype(dtype), jnp.sqrt(as_kappa(kappa, dtype)) * offset.astype(dtype)
    limit = theta_limit(dtype)
    inputs = tuple(range(kernel.ndim - 1))
    theta, size = jnp.clip(angle, -limit, limit), root(jnp.sum(kernel * kernel, inputs))
    excess = jnp.maximum(jnp.abs(angle) - limit, 0)
    return Normals(size * jnp.sinh(theta), kernel * jnp.cosh(theta), size, excess)


def mlr(x: Any, kernel: Any, offset: Any, kappa: Any) -> Array:
    """Bdeir et al.'s Lorentz MLR: logits `|z| asinh(s X o v/|z|)/s` of points, `(..., classes)`.

    They are signed distances in the "outside" scaling, to `plane_normals(kernel, offset)`.
    """
    return functional.mlr(x, plane_normals(kernel, offset, kappa), kappa, scale="outside")


def pool(x: Any, kappa: Any) -> Array:
    """Centroid of the pixels of each image, `(..., H, W, D)` to `(..., D)`; kappa is a scalar."""
    x = as_array("x", x, min_ndim=3)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    return mean_point(x.astype(kappa.dtype), kappa, (-3, -2)).astype(x.dtype)


def mean_of_means(x: Any, kappa: Any) -> Array:
    """HCNN's mean of a batch `(N, ..., D)`: the centroid `(D,)` of the centroids of its items.

    kappa is a scalar. Raises `ValueError` for an empty batch.
    """
    x = as_array("x", x, min_ndim=2)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    items = x.astype(kappa.dtype)
    if x.ndim > 2:
        items = mean_point(items, kappa, tuple(range(1, x.ndim - 1)))
    return mean_point(items, kappa, (0,)).astype(x.dtype)


class HCNNBatchNorm(VarianceBatchNorm):
    """HCNN's own batch norm: the left column of the table above; arguments as its parent's."""

    deviation = "mean"

    def batch_mean(self, x: Array, kappa: Any) -> Array:
        """The centroid of the images' centroids."""
        return mean_of_means(x, kappa)

    def running_mean(self, kappa: Any) -> Array:
        """The exponential of the tangent vector that is kept."""
        return exp_origin(self.mean[...], as_kappa(kappa, self.mean.dtype))

    def stored_mean(self, point: Array, kappa: Any) -> Array:
        """Its logarithm at the origin."""
        return log_origin(point, as_kappa(kappa, point.dtype))


class BdeirMLR(nn.HyperbolicModule):
    """`mlr`: logits `(..., classes)` of points `(..., D)`.

    The parameters are `kernel` (z) and `bias` (a). With `init="paper"` both start in
    U(-1/sqrt(D), 1/sqrt(D)), as published; with "fast" as `initializers.head` says.
    """

    def __init__(
        self, in_features: int, num_classes: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        shape = (in_features, num_classes)
        if initializers.check_preset(init) == "fast":
            kernel, _, bias = initializers.head(rngs.params(), shape, init, param_dtype)
        else:
            bound = 1 / math.sqrt(in_features)
            kernel, bias = (
                jax.random.uniform(rngs.params(), size, param_dtype, -bound, bound)
                for size in (shape, shape[1:])
            )
        self.kernel, self.bias = nnx.Param(kernel), nnx.Param(bias)

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Scaled signed distances of each point to the hyperplane of each class."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.mlr(x, normals, kappa, scale="outside")

    compiles, constant_names, half = True, nn.NORMALS, False
    needs_length = True

    def normals(self, kappa: Any = None) -> Normals:
        """The normals of the classes."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        return plane_normals(self.kernel[...], self.bias[...], self.resolve_kappa(kappa))

    def constants(self, kappa: Any) -> dict[str, Array]:
        """The normals, in the place of kernel and bias."""
        return nn.normal_arrays(self.normals(kappa))


class HCNNResNet(ResNet):
    """The ResNet of Bdeir et al. (2024): their convolution, norm, pooling and classifier.

    The stride of a block is on its first convolution, convolutions have a bias, and the centroid
    of the pixels is classified. Published with kappa = 1.

    Args:
      stages, width, num_classes, in_channels, kappa, learn_kappa, momentum: as in `LorentzResNet`.
      init: "paper" for the published values, "fast" for those of the classifier alone being ours.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 1.0, learn_kappa: bool = False,
        init: str = "fast", momentum: float = 0.1, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: Any = {"kappa": kappa, "param_dtype": param_dtype}

        def conv(in_features, out_features, size, strides, rngs):
            return ChenConv(in_features, out_features, size, strides=strides, rngs=rngs, **common)

        def norm(features, rngs):
            return HCNNBatchNorm(features, momentum=momentum, init=init, rngs=rngs, **common)

        def head(in_features, classes, rngs):
            return BdeirMLR(in_features, classes, init=init, rngs=rngs, **common)

        own = Kappa(kappa, param_dtype) if learn_kappa else kappa
        layers = Layers(conv, norm, head, pool=pool, stride_first=True)
        options = {"kappa": kappa, "learn_kappa": learn_kappa, "init": init}
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs, options)


class HCNNPaperResNet(ResNet):
    """What the paper's authors train as HCNN in their repository, where it is called "theirs".

    Convolutions without bias, batch norm by the mean squared distance, the classifier at every
    pixel and the mean of its logits. Right at every kappa, which theirs is at 1 alone.

    Args:
      stages, width, num_classes, in_channels, kappa, learn_kappa, momentum: as in `LorentzResNet`.
      init: "paper" for the reference's values, "fast" for those of `HCNNResNet`.
      extra_logit: one logit more than classes, as the reference has by mistake.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 1.0, learn_kappa: bool = False,
        init: str = "fast", momentum: float = 0.1, extra_logit: bool = False,
        param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: Any = {"kappa": kappa, "param_dtype": param_dtype}

        def conv(in_features, out_features, size, strides, rngs):
            return ChenConv(
                in_features, out_features, size, strides=strides, use_bias=False,
                init="chen" if init == "paper" else "hcnn", rngs=rngs, **common,
            )  # fmt: skip

        def norm(features, rngs):
            return VarianceBatchNorm(features, momentum=momentum, init=init, rngs=rngs, **common)

        def head(in_features, classes, rngs):
            classes += extra_logit
            return BdeirMLR(in_features, classes, init=init, rngs=rngs, **common)

        own = Kappa(kappa, param_dtype) if learn_kappa else kappa
        layers = Layers(conv, norm, head)
        options = {
            "kappa": kappa,
            "learn_kappa": learn_kappa,
            "init": init,
            "extra_logit": extra_logit,
        }
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs, options)
