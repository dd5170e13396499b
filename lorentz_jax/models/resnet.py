"""One ResNet skeleton; a family of layers (Lorentz, and its siblings to compare with) fills it.

The layout is the reference's: a 3x3 stem; stages of basic blocks whose width doubles and whose
image halves from the second stage on, the stride on the second convolution of a block; a 1x1
shortcut with norm where shape changes; a classifier at every pixel, then the mean of its logits.
A family may put the stride first, leave the norm out of the shortcut, or pool before it classifies.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import as_array
from lorentz_jax.models.variance import VarianceBatchNorm
from lorentz_jax.nn import initializers


def relu(x: Array, kappa: Any = None) -> Array:
    """ReLU on space parts: the Lorentzian activation between two layers of one curvature."""
    return jax.nn.relu(x)


def residual(y: Array, x: Array, kappa: Any = None) -> Array:
    """Residual sum of two points: the sum of their space parts, a point again."""
    return y + x


@dataclass(frozen=True)
class Layers:
    """What differs from family to family; each factory of a module takes `rngs` last.

    Attributes:
      conv: `(in, out, kernel_size, strides, rngs) -> module`, called `(x, kappa)`.
      norm: `(features, rngs) -> module`, called `(x, kappa, use_running_average)`.
      head: `(in, classes, rngs) -> module`, called `(x, kappa)`; logits of every pixel.
      conv_norm: `(conv, norm, x, kappa, use_running_average)`, a faster form of calling the two
        modules one after the other.
      relu: `(x, kappa)`.
      residual: `(y, x, kappa)`, of a block's branch and its shortcut.
      entry: `(pixels, kappa) -> points`; None where pixels are points as they are.
      pool: `(x, kappa)`, images `(N, H, W, D)` to what the head then classifies.
      kappa: makes a curvature that a convolution and its norm share, a `nn.Kappa`; None where they
        take the network's.
      stride_first: the stride of a block is on its first convolution, not on the second.
      shortcut_norm: the shortcut's convolution is followed by a norm.
    """

    conv: Callable[..., nnx.Module]
    norm: Callable[..., nnx.Module]
    head: Callable[..., nnx.Module]
    conv_norm: Callable[..., Array] | None = None
    relu: Callable[[Array, Any], Array] = relu
    residual: Callable[[Array, Array, Any], Array] = residual
    entry: Callable[[Array, Any], Array] | None = None
    pool: Callable[[Array, Any], Array] | None = None
    kappa: Callable[[], nn.Kappa] | None = None
    stride_first: bool = False
    shortcut_norm: bool = True


class ConvNorm(nnx.Module):
    """A convolution and its batch norm, which `normed=False` leaves out."""

    folds = (("conv", "norm"),)  # the second is applied to what the first gives
    passes_kappa = True

    def __init__(self, layers: Layers, in_features, out_features, size, strides, rngs, normed=True):
        self.conv = layers.conv(in_features, out_features, (size, size), strides, rngs)
        self.norm = layers.norm(out_features, rngs) if normed else None
        self.kappa = None if layers.kappa is None else layers.kappa()
        self.call = layers.conv_norm

    def resolve_kappa(self, kappa):
        """`kappa` where it is given, else its own; None where it has none."""
        return nn.resolve_kappa(self.kappa, kappa)

    def __call__(self, x, kappa, use_running_average):
        """Points `(N, H, W, D)` to points of the new width."""
        kappa = self.resolve_kappa(kappa)
        if self.norm is None:
            return self.conv(x, kappa)
        if self.call is not None:
            return self.call(self.conv, self.norm, x, kappa, use_running_average)
        return self.norm(self.conv(x, kappa), kappa, use_running_average)


class BasicBlock(nnx.Module):
    """`relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))`."""

    def __init__(self, layers: Layers, in_features, out_features, strides, rngs):
        self.relu, self.residual = layers.relu, layers.residual
        first, second = (strides, 1) if layers.stride_first else (1, strides)
        self.first = ConvNorm(layers, in_features, out_features, 3, first, rngs)
        self.second = ConvNorm(layers, out_features, out_features, 3, second, rngs)
        shortcut, normed = None, layers.shortcut_norm
        if in_features != out_features or strides != 1:
            shortcut = ConvNorm(layers, in_features, out_features, 1, strides, rngs, normed)
        self.shortcut = shortcut

    def __call__(self, x, kappa, use_running_average):
        """Points `(N, H, W, D)` to points of the new width."""
        y = self.relu(self.first(x, kappa, use_running_average), kappa)
        y = self.second(y, kappa, use_running_average)
        if self.shortcut is not None:
            x = self.shortcut(x, kappa, use_running_average)
        return self.relu(self.residual(y, x, kappa), kappa)


class ResNet(nnx.Module):
    """Images `(N, H, W, C)` to logits `(N, classes)`.

    `description` says how to build the network again: the name in `MODELS` and keyword arguments.

    Args:
      layers: the family's layers.
      stages: number of blocks in each stage.
      width: channels of the first stage; each further stage doubles them.
      num_classes, in_channels: sizes of output and input.
      kappa: what the network passes to its layers where a call gives none: a fixed number, a
        `nn.Kappa`, or None where they have their own or need none.
      options: keyword arguments of the subclass, as JSON has them, for `description`.
    """

    passes_kappa = True

    def __init__(
        self, layers: Layers, stages: Sequence[int], width: int, num_classes: int,
        in_channels: int, kappa: float | nn.Kappa | None, rngs: nnx.Rngs,
        options: Mapping[str, Any],
    ):  # fmt: skip
        sizes = {"width": width, "num_classes": num_classes, "in_channels": in_channels}
        for name, value in (sizes | {"the number of stages": len(stages)}).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if min(stages) < 1:
            raise ValueError(f"every stage needs a block, got stages {tuple(stages)}")
        self.kappa, self.in_channels = kappa, in_channels
        built = {"stages": list(stages), **sizes, **options}
        self.description = json.dumps([type(self).__name__, built])  # text, since it is static
        self.use_running_average = False  # set by train() and eval()
        self.entry, self.relu, self.pool = layers.entry, layers.relu, layers.pool
        self.stem = ConvNorm(layers, in_channels, width, 3, 1, rngs)
        self.stages = nnx.List([])
        features = width
        for index, depth in enumerate(stages):
            blocks = nnx.List([])
            for block in range(depth):
                out, strides = width * 2**index, 2 if index > 0 and block == 0 else 1
                blocks.append(BasicBlock(layers, features, out, strides, rngs))
                features = out
            self.stages.append(blocks)
        self.head = layers.head(features, num_classes, rngs)

    def __call__(
        self, x: Array, train: bool | None = None, kappa: Any = None, dtype: Any = None
    ) -> Array:
        """Logits in the dtype of the images.

        `train` overrides the mode that `train()` or `eval()` set. `dtype` is what the blocks
        compute in, the images' dtype by default; pooling and classifier keep to the latter.
        """
        x = as_array("x", x, min_ndim=4)
        if x.ndim != 4 or x.shape[-1] != self.in_channels:
            raise ValueError(f"expected images (N, H, W, {self.in_channels}), got shape {x.shape}")
        running = self.use_running_average if train is None else not train
        kappa = nn.resolve_kappa(self.kappa, kappa)
        outer = x.dtype
        x = x.astype(outer if dtype is None else dtype)
        x = x if self.entry is None else self.entry(x, kappa)
        x = self.relu(self.stem(x, kappa, running), kappa)
        for blocks in self.stages:
            for block in blocks:
                x = block(x, kappa, running)
        x = x.astype(outer)
        if self.pool is not None:
            return self.classify(self.pool(x, kappa), kappa)
        return jnp.mean(self.classify(x, kappa), axis=(1, 2))

    def classify(self, x: Array, kappa: Any) -> Array:
        """The head, which may be any module, such as an `nnx.Linear` put in its place."""
        curved = "kappa" in inspect.signature(type(self.head).__call__).parameters
        return self.head(x, kappa) if curved else self.head(x)


class LorentzResNet(ResNet):
    """ResNet of Lorentz convolutions, batch norms and a Lorentz MLR.

    Pixels enter as space parts of points. ResNet-18 is `stages=(2, 2, 2, 2), width=64`.

    Args:
      stages, width, num_classes, in_channels: see `ResNet`.
      kappa: one curvature for the whole network; `learn_kappa` makes it a parameter, and with
        `kappa_per_layer` one for each convolution with its norm and one for the head. Points pass
        between two curvatures by their space parts.
      init: preset of `initializers`.
      momentum: of the running means.
      scale: of the logits, see `hyperplane.signed_distance`.
      norm: "centering", or "variance" for the norm of `models.variance`.
      weight_norm: of the convolutions.
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 0.1, learn_kappa: bool = False,
        kappa_per_layer: bool = False, init: str = "fast", momentum: float = 0.1,
        scale: str | None = "inside", norm: str = "centering", weight_norm: bool = True,
        param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        if norm not in ("centering", "variance"):
            raise ValueError(f'norm must be "centering" or "variance", got {norm!r}')
        if kappa_per_layer and not learn_kappa:
            raise ValueError("kappa_per_layer goes with learn_kappa=True, got False")
        centering = norm == "centering"
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}

        def conv(in_features, out_features, size, strides, rngs):
            return nn.LorentzConv(
                in_features, out_features, size, strides=strides, weight_norm=weight_norm,
                rngs=rngs, **common,
            )  # fmt: skip

        def batch_norm(features, rngs):
            kind = nn.LorentzBatchNorm if centering else VarianceBatchNorm
            return kind(features, momentum=momentum, rngs=rngs, **common)

        def head(in_features, classes, rngs):
            return nn.LorentzMLR(
                in_features, classes, learn_kappa=kappa_per_layer, scale=scale, rngs=rngs, **common
            )

        def learned():
            return nn.Kappa(kappa, param_dtype)

        own = None if kappa_per_layer else learned() if learn_kappa else kappa
        layers = Layers(
            conv, batch_norm, head, nn.conv_norm if centering else None,
            kappa=learned if kappa_per_layer else None,
        )  # fmt: skip
        super().__init__(
            layers, stages, width, num_classes, in_channels, own, rngs,
            {"kappa": kappa, "learn_kappa": learn_kappa, "kappa_per_layer": kappa_per_layer,
             "init": init, "scale": scale, "norm": norm, "weight_norm": weight_norm},
        )  # fmt: skip
        if init == "fast":
            _damp_branches([block.second.conv for blocks in self.stages for block in blocks])


def _damp_branches(convolutions: list[Any]) -> None:
    """Start the last convolution of every branch as `initializers.branch_share` says."""
    share = initializers.branch_share(len(convolutions))
    for conv in convolutions:
        if conv.gain is None:
            conv.kernel[...] = conv.kernel[...] * share
        else:
            raw = initializers.raw_gain(math.sqrt(2) * share)
            conv.gain[...] = jnp.full_like(conv.gain[...], raw)
