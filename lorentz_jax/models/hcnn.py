"""HCNN, and the network that the paper's authors compare with in its place, on the one skeleton."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from lorentz_jax.baselines.chen import ChenConv
from lorentz_jax.baselines.hcnn import BdeirMLR, HCNNBatchNorm, pool
from lorentz_jax.baselines.variance import VarianceBatchNorm
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.nn import Kappa


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
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs)


class TheirsResNet(ResNet):
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
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs)
