"""Poincare ResNet on the one skeleton."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax.baselines import poincare
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.nn import Kappa


class _Head(poincare.PoincareLinear):
    """A Poincare linear layer; its logits are the tangent vector of the output at the centre."""

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Points `(N, D)` to logits `(N, classes)`."""
        return poincare.to_tangent(super().__call__(x, kappa), self.curvature(kappa))


class PoincareResNet(ResNet):
    """The ResNet of van Spengler et al. (ICCV 2023); their 20 layers are `stages=(3, 3, 3)`.

    Poincare convolutions, midpoint batch norm, ReLU on tangent vectors at the centre, and the
    Moebius sum of branch and shortcut. The stride of a block is on its first convolution, a
    shortcut has no norm, and the mean tangent vector of the pixels is classified. Pixels enter as
    tangent vectors at the centre. Published with kappa = 0.1 and widths 8, 16, 32.

    Unlike the published code this adds over the channels in the residual sum (there: over the
    width of the image, since its channels come first), and has running statistics.

    Args:
      stages, width, num_classes, in_channels, kappa, learn_kappa, momentum: as in `LorentzResNet`.
      init: "paper" for the published normal values.
    """

    def __init__(
        self, stages: Sequence[int] = (3, 3, 3), width: int = 8, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 0.1, learn_kappa: bool = False,
        init: str = "fast", momentum: float = 0.1, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}

        def conv(in_features, out_features, size, strides, rngs):
            return poincare.PoincareConv(
                in_features, out_features, size, strides=strides, rngs=rngs, **common
            )

        def norm(features, rngs):
            return poincare.PoincareBatchNorm(features, momentum=momentum, rngs=rngs, **common)

        def head(in_features, classes, rngs):
            return _Head(in_features, classes, rngs=rngs, **common)

        own = Kappa(kappa, param_dtype) if learn_kappa else kappa
        layers = Layers(
            conv, norm, head, relu=poincare.relu, residual=poincare.add,
            entry=poincare.from_tangent, pool=poincare.pool, stride_first=True,
            shortcut_norm=False,
        )  # fmt: skip
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs)
