"""HCNN: Bdeir et al., "Fully Hyperbolic CNNs for Computer Vision" (ICLR 2024).

https://arxiv.org/abs/2303.15919, code https://github.com/kschwethelm/HyperbolicCV.

Its convolution is `chen.conv`; its activation and residual sum are those of `models.resnet`. Its
norm, its pooling and its classifier differ from those that the FGG paper's authors compare with
under its name (https://github.com/robertdvdk/hyperbolic-fully-connected):

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
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype, row
from lorentz_jax._src.plain import mean_point, root
from lorentz_jax._src.scalars import theta_limit
from lorentz_jax.hyperplane import Normals
from lorentz_jax.models.chen import ChenConv, check_units
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.models.variance import HCNNBatchNorm, VarianceBatchNorm
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import first_value, own_kappa

__all__ = ["BdeirMLR", "HCNNPaperResNet", "HCNNResNet", "mlr", "plane_normals", "pool"]


def plane_normals(kernel: Any, offset: Any, kappa: Any) -> Normals:
    """Return normals of hyperplanes given by directions and distances, as Bdeir et al. have them.

    The plane of a unit passes through the point at signed distance a from the origin along z, so
    it is that of `hyperplane.normals` with `w = z`, `b = -a |z|`, with `theta = s a` at hand.

    Args:
        kernel: directions z `(..., out)`.
        offset: distances a `(out,)`.
        kappa: a scalar; the curvature is -kappa.

    Raises:
        ValueError: shapes do not fit each other.

    Example:
        >>> plane_normals(jnp.array([[3.0], [4.0]]), jnp.zeros(1), 1.0).length
        Array([5.], dtype=float32)
    """
    kernel, offset = as_array("kernel", kernel, min_ndim=2), as_array("offset", offset)
    check_units(kernel, "offset", offset)
    dtype = compute_dtype(jnp.result_type(kernel, offset))
    kernel, angle = kernel.astype(dtype), jnp.sqrt(as_kappa(kappa, dtype)) * offset.astype(dtype)
    limit = theta_limit(dtype)
    inputs = tuple(range(kernel.ndim - 1))
    theta, size = jnp.clip(angle, -limit, limit), root(jnp.sum(kernel * kernel, inputs))
    excess = jnp.maximum(jnp.abs(angle) - limit, 0)
    space = kernel * row(jnp.cosh(theta), kernel)
    return Normals(size * jnp.sinh(theta), space, size, excess)


def mlr(x: Any, kernel: Any, offset: Any, kappa: Any) -> Array:
    """Return logits `(..., classes)` of points, Bdeir et al.'s `|z| asinh(s X o v/|z|)/s`.

    They are signed distances in the "outside" scaling, to `plane_normals(kernel, offset)`.
    """
    return functional.mlr(x, plane_normals(kernel, offset, kappa), kappa, scale="outside")


def pool(x: Any, kappa: Any) -> Array:
    """Return the centroid of the pixels of each image, `(..., H, W, D)` to `(..., D)`.

    kappa is a scalar.
    """
    x = as_array("x", x, min_ndim=3)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    return mean_point(x.astype(kappa.dtype), kappa, (-3, -2)).astype(x.dtype)


class BdeirMLR(nn.HyperbolicModule):
    """Bdeir et al.'s classifier, `mlr` with parameters: `kernel` (z) and `bias` (a).

    Arguments as in `nn.LorentzMLR`, without `scale`. With `init="paper"` both parameters start in
    U(-1/sqrt(D), 1/sqrt(D)), as published; with "fast" as `initializers.head` says.
    """

    def __init__(
        self, in_features: int, num_classes: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        shape = (in_features, num_classes)
        initializers.check_kernel(shape)
        if initializers.check_preset(init) == "fast":
            kernel, _, bias = initializers.head(rngs.params(), shape, init, param_dtype)
        else:
            bound = 1 / math.sqrt(in_features)
            kernel, bias = (
                initializers.draw_uniform(rngs.params(), size, bound, param_dtype)
                for size in (shape, shape[1:])
            )
        self.kernel, self.bias = nnx.Param(kernel), nnx.Param(bias)

    compiles, constant_names, half = True, nn.NORMALS, False
    needs_length = True

    def normals(self, kappa: Any = None) -> Normals:
        """Return the normals of the classes."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        return plane_normals(self.kernel[...], self.bias[...], self.resolve_kappa(kappa))

    def constants(self, kappa: Any) -> dict[str, Array]:
        """Return the normals, which stand for kernel and bias in a compiled model."""
        return nn.normal_arrays(self.normals(kappa))

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Return logits `(..., classes)` of points `(..., D)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.mlr(x, normals, kappa, scale="outside")


class HCNNResNet(ResNet):
    """The ResNet of Bdeir et al.: their convolution, norm, pooling and classifier.

    The stride of a block is on its first convolution, convolutions have a bias, and the centroid
    of the pixels is classified. Published with kappa = 1. Arguments as in `LorentzResNet`;
    `init="paper"` has the published values, "fast" changes only those of the classifier.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 1.0, learn_kappa: bool = False, init: str = "fast",
        momentum: float = 0.1, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        shared = own_kappa(kappa, learn_kappa, param_dtype)
        kappa = first_value(kappa)
        common: Any = {"kappa": kappa, "param_dtype": param_dtype}
        layers = Layers(
            conv=partial(ChenConv, **common),
            norm=partial(HCNNBatchNorm, momentum=momentum, init=init, **common),
            head=partial(BdeirMLR, init=init, **common),
            pool=pool,
            stride_first=True,
        )
        options = {"kappa": kappa, "learn_kappa": isinstance(shared, nn.Kappa), "init": init}
        super().__init__(layers, stages, width, num_classes, in_channels, shared, rngs, options)


class HCNNPaperResNet(ResNet):
    """The network that the FGG paper's authors train as HCNN, called "theirs" in their code.

    Convolutions without bias, batch norm by the mean squared distance, the classifier at every
    pixel and the mean of its logits. Right at every kappa; their code is so at kappa = 1 only.
    Arguments as in `LorentzResNet`; `init="paper"` has the reference's values, "fast" those of
    `HCNNResNet`. `extra_logit` adds one logit to the classes, as the reference does by mistake.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 1.0, learn_kappa: bool = False, init: str = "fast",
        momentum: float = 0.1, extra_logit: bool = False, param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        shared = own_kappa(kappa, learn_kappa, param_dtype)
        kappa = first_value(kappa)
        common: Any = {"kappa": kappa, "param_dtype": param_dtype}
        values = "chen" if init == "paper" else "hcnn"
        layers = Layers(
            conv=partial(ChenConv, use_bias=False, init=values, **common),
            norm=partial(VarianceBatchNorm, momentum=momentum, init=init, **common),
            head=partial(BdeirMLR, init=init, **common),
        )
        logits = num_classes + extra_logit
        options = {"kappa": kappa, "learn_kappa": isinstance(shared, nn.Kappa), "init": init}
        options |= {"num_classes": num_classes, "extra_logit": extra_logit}
        super().__init__(layers, stages, width, logits, in_channels, shared, rngs, options)
