"""One ResNet skeleton, which the layers of a geometry fill, and the Lorentz network on it.

The layout is the reference's: a 3x3 stem; stages of basic blocks whose width doubles and whose
image halves from the second stage on, the stride on the second convolution of a block; a 1x1
shortcut with norm where shape changes; a classifier at every pixel, then the mean of its logits.
A baseline may put the stride first, leave the norm out of the shortcut, or pool before it
classifies.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src import forms, fused
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax.models.network import Network, check_stages
from lorentz_jax.models.variance import VarianceBatchNorm
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import call, first_value, own_kappa, set_length

__all__ = ["BasicBlock", "ConvNorm", "Layers", "LorentzResNet", "ResNet", "relu", "residual"]


def relu(x: Array, kappa: Any = None) -> Array:
    """Apply ReLU to space parts: the Lorentzian activation between two layers of one curvature."""
    return forms.relu(x)


def _relu_before_bias(x: Array, kappa: Any = None) -> Array:
    return forms.relu_before_time(x)


def residual(y: Array, x: Array, kappa: Any = None) -> Array:
    """Add two points by their space parts; the sum is a point again."""
    return y + x


@dataclass(frozen=True)
class Layers:
    """The layers that fill the skeleton `ResNet`: factories of modules, and functions between them.

    `functools.partial` of a layer class makes a factory. A network with other layers than those of
    this package is a subclass of `ResNet` that passes its own `Layers` to `ResNet.__init__`.

    Attributes:
        conv: `(in_features, out_features, kernel_size, strides=, rngs=) -> module`; the module is
            called `(x, kappa)`.
        norm: `(features, rngs=) -> module`, called `(x, kappa, use_running_average)`, None for the
            mode that `train()` or `eval()` set.
        head: `(in_features, num_classes, rngs=) -> module`, called `(x, kappa)` for logits.
        conv_norm: `(conv, norm, x, kappa, use_running_average) -> y`, faster than calling the two
            modules one after the other; None to do that.
        relu: `(x, kappa) -> y`, the activation.
        residual: `(y, x, kappa) -> z`, the sum of a block's branch and its shortcut.
        entry: `(pixels, kappa) -> points`; None where pixels are space parts of points.
        pool: `(x, kappa)`, images `(N, H, W, D)` to the points `(N, D)` to classify; None for the
            mean of the logits of all pixels.
        kappa: `() -> nn.Kappa`, the curvature that a convolution and its norm share; None where
            they take that of the network.
        stride_first: the stride of a block is on its first convolution, not on its second.
        shortcut_norm: a norm follows the convolution of a shortcut.
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

    folds = (("conv", "norm"),)  # a compiled model applies both at once, see `nn.compiling`
    passes_kappa = True

    def __init__(self, layers: Layers, in_features, out_features, size, strides, rngs, normed=True):
        window = (size, size)
        self.conv: Any = layers.conv(in_features, out_features, window, strides=strides, rngs=rngs)
        self.norm: Any = layers.norm(out_features, rngs=rngs) if normed else None
        self.kappa = None if layers.kappa is None else layers.kappa()
        self.call = layers.conv_norm

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """Return `kappa` where it is given, else its own; None where it has none."""
        return nn.resolve_kappa(self.kappa, kappa)

    def __call__(self, x: Array, kappa: Any, use_running_average: bool | None) -> Array:
        """Map points `(N, H, W, D)` to points of the new width."""
        kappa = self.resolve_kappa(kappa)
        if self.norm is None:
            return self.conv(x, kappa)
        if self.call is not None:
            return self.call(self.conv, self.norm, x, kappa, use_running_average)
        return self.norm(self.conv(x, kappa), kappa, use_running_average)

    def then(
        self, relu_: Callable, x: Array, kappa: Any, running: bool | None, add: Any = None,
        other: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return `relu_(add(self(x), other))`; in one step if kernels that take both in are chosen.

        That step does not call this module, and `nnx.capture` sees nothing of it.
        """
        usual = relu_ is relu and (other is None or add is residual)
        if usual and fused.wanted() and self.call is nn.conv_norm and self.norm is not None:
            layers = self.conv, self.norm, x, self.resolve_kappa(kappa), running
            return nn.conv_norm(*layers, relu=True, residual=other)
        y = self(x, kappa, running)
        return relu_(y if other is None else add(y, other, kappa), kappa)


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

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """Return the kappa of the block's output, which is that of its branch."""
        return self.second.resolve_kappa(kappa)

    def __call__(self, x: Array, kappa: Any, use_running_average: bool | None) -> Array:
        """Map points `(N, H, W, D)` to points of the new width."""
        running = use_running_average
        y = self.first.then(self.relu, x, kappa, running)
        x = x if self.shortcut is None else self.shortcut(x, kappa, running)
        return self.second.then(self.relu, y, kappa, running, self.residual, x)


class ResNet(Network):
    """Skeleton of every network: images `(N, H, W, C)` to logits `(N, num_classes)`.

    Args:
        layers: what fills it.
        stages: number of blocks in each stage.
        width: channels of the first stage; each further stage doubles them.
        num_classes: number of logits.
        in_channels: C, channels of the images.
        options: keyword arguments of the subclass, as JSON has them, for `description`.
        kappa: what the network passes to its layers where a call gives none: a fixed number, a
            `nn.Kappa`, or None where they have their own or need none.
        rngs: the stream `params` draws the kernels.

    Attributes:
        description: how to build the network again: class and keyword arguments, as JSON.

    Raises:
        ValueError: a size is below 1, or a stage has no block.
    """

    def __init__(
        self, layers: Layers, stages: Sequence[int], width: int, num_classes: int, in_channels: int,
        kappa: float | nn.Kappa | None, rngs: nnx.Rngs, options: Mapping[str, Any],
    ):  # fmt: skip
        sizes = {"width": width, "num_classes": num_classes, "in_channels": in_channels}
        check_sizes(**sizes)
        stages = check_stages(stages)
        super().__init__({"stages": list(stages), **sizes, **options}, kappa)
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
        self.head: Any = layers.head(features, num_classes, rngs=rngs)

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """Return the kappa that a call with this `kappa` passes to the layers.

        It is None in a flat network, and where each layer has its own and none is given.
        """
        flat = self.kappa is None and self.stem.kappa is None
        return None if flat else nn.resolve_kappa(self.kappa, kappa)

    def kappa_at(self, path: str, kappa: Any = None) -> Any:
        """Return the kappa of the hyperboloid that the output of a module lies on.

        Args:
            path: of the stem, a block, or a part of them, such as `"stages/0/1/first"`.
            kappa: what the network is called with.
        """
        owner: Any = self
        parent: Any = self
        for part in path.split("/"):
            child = parent = parent[int(part)] if part.isdigit() else getattr(parent, part)
            owner = child if isinstance(child, ConvNorm | BasicBlock) else owner
        return owner.resolve_kappa(self.resolve_kappa(kappa))

    def __call__(
        self, x: Array, train: bool | None = None, kappa: Any = None, dtype: Any = None
    ) -> Array:
        """Return logits in the dtype of the images.

        Args:
            x: images `(N, H, W, C)`.
            train: overrides the mode that `train()` or `eval()` set; training is the first mode.
                A part that was set to evaluation by itself, as by `model.stem.eval()`, stays so in
                training.
            kappa: overrides the network's own, and that of every layer.
            dtype: what the blocks compute in; None for that of the images. Pooling and classifier
                keep to the latter.

        Raises:
            ValueError: x has another shape.
            TypeError: x is not floating-point.
        """
        x = self.check_images(x)
        # None leaves every norm to its own mode, which is not the network's where it was frozen.
        running = None if train is None or train > self.use_running_average else not train
        kappa, outer = self.resolve_kappa(kappa), x.dtype
        x = x.astype(outer if dtype is None else dtype)
        x = x if self.entry is None else self.entry(x, kappa)
        x = self.stem.then(self.relu, x, kappa, running)
        for blocks in self.stages:
            for block in blocks:
                x = block(x, kappa, running)
        x = x.astype(outer)
        if self.pool is not None:
            return call(self.head, self.pool(x, kappa), kappa)
        return jnp.mean(call(self.head, x, kappa), axis=(1, 2))


class LorentzResNet(ResNet):
    """ResNet of Lorentz convolutions, batch norms and a Lorentz MLR.

    Pixels enter as space parts of points. ResNet-18 is `stages=(2, 2, 2, 2), width=64`.

    Args:
        stages: number of blocks in each stage.
        width: channels of the first stage; each further stage doubles them.
        num_classes: number of logits.
        in_channels: channels of the images.
        kappa: curvature parameter of the whole network; the curvature is -kappa. A number, a 0-d
            array, an `nnx.Param` that holds it, or a `nn.Kappa`.
        learn_kappa: make kappa a parameter.
        kappa_per_layer: learn one for each convolution with its norm, and one for the head. Points
            pass between two curvatures by their space parts.
        init: preset of `nn.initializers`; "fast" learns quickly, "paper" is the reference's.
        momentum: weight of the new batch in the running means.
        scale: of the logits, see `hyperplane.signed_distance`.
        norm: "centering", or "variance" for `VarianceBatchNorm`.
        weight_norm: of the convolutions, see `nn.LorentzConv`.
        use_bias: of the convolutions. None leaves b out where a centring norm follows and `init` is
            "fast": the norm takes away what b adds, see `docs/networks.md`.
        distance_gain: of the convolutions, see `nn.LorentzConv`.
        param_dtype: dtype of parameters and statistics.
        rngs: the stream `params` draws the kernels.

    Raises:
        ValueError: a size is below 1, there is no such `norm` or `init`, `kappa_per_layer` without
            `learn_kappa`, or a bad `kappa` or `momentum`.

    Example:
        >>> model = LorentzResNet((1,), 4, in_channels=1, kappa=1.0, rngs=nnx.Rngs(0))
        >>> model.eval()
        >>> jax.eval_shape(model, jnp.zeros((2, 8, 8, 1))).shape
        (2, 10)
    """

    def __init__(
        self, stages: Sequence[int] = (2, 2, 2, 2), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 0.1, learn_kappa: bool = False,
        kappa_per_layer: bool = False, init: str = "fast", momentum: float = 0.1,
        scale: str | None = "inside", norm: str = "centering", weight_norm: bool = True,
        use_bias: bool | None = None, distance_gain: bool = False,
        param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        if norm not in ("centering", "variance"):
            raise ValueError(f'norm must be "centering" or "variance", got {norm!r}')
        if kappa_per_layer and not learn_kappa:
            raise ValueError("kappa_per_layer goes with learn_kappa=True, got False")
        if kappa_per_layer and isinstance(kappa, nn.Kappa | nnx.Variable):
            raise ValueError("kappa_per_layer takes a number, from which each layer's kappa starts")
        shared = own_kappa(kappa, learn_kappa and not kappa_per_layer, param_dtype)
        kappa = first_value(kappa)
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}
        centering = norm == "centering"
        if use_bias is None:
            use_bias = init != "fast" or not centering
        batch_norm = nn.LorentzBatchNorm if centering else VarianceBatchNorm
        learned = partial(nn.Kappa, kappa, param_dtype)
        layers = Layers(
            conv=partial(
                nn.LorentzConv,
                weight_norm=weight_norm,
                use_bias=use_bias,
                distance_gain=distance_gain,
                **common,
            ),
            norm=partial(batch_norm, momentum=momentum, **common),
            head=partial(nn.LorentzMLR, learn_kappa=kappa_per_layer, scale=scale, **common),
            conv_norm=nn.conv_norm if centering else None,
            relu=_relu_before_bias if use_bias else relu,
            kappa=learned if kappa_per_layer else None,
        )
        options = {
            "kappa": kappa,
            "learn_kappa": kappa_per_layer or isinstance(shared, nn.Kappa),
            "kappa_per_layer": kappa_per_layer,
            "init": init,
            "scale": scale,
            "norm": norm,
            "weight_norm": weight_norm,
            "use_bias": use_bias,
            "distance_gain": distance_gain,
        }
        shared = None if kappa_per_layer else shared
        super().__init__(layers, stages, width, num_classes, in_channels, shared, rngs, options)
        if init == "fast":
            _damp_branches([block.second.conv for blocks in self.stages for block in blocks])


def _damp_branches(convolutions: list[Any]) -> None:
    """Start the last convolution of every branch as `initializers.branch_share` says."""
    share = initializers.branch_share(len(convolutions))
    for conv in convolutions:
        set_length(conv, math.sqrt(2) * share)
