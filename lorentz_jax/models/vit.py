"""Vision transformers: one skeleton, filled with Lorentz layers or with Flax's.

Patches of an image become points, a learned position is added to each, and blocks of attention and
a two-layer perceptron follow, each with a norm before it and a residual sum after it. Pooled points
are classified. (Dosovitskiy et al., https://arxiv.org/abs/2010.11929, with a mean in the place of
the class token.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import as_kappa, check_sizes, compute_dtype, row
from lorentz_jax._src.plain import mean_point
from lorentz_jax.models.euclidean import EuclideanHead
from lorentz_jax.models.network import Network, check_stages
from lorentz_jax.nn.attention import joint_linears
from lorentz_jax.nn.initializers import draw_normal
from lorentz_jax.nn.modules import call, first_value, own_kappa, set_length

__all__ = [
    "EuclideanLayerNorm",
    "EuclideanTransformerBlock",
    "EuclideanViT",
    "LorentzTransformerBlock",
    "LorentzViT",
    "Parts",
    "TransformerBlock",
    "ViT",
]


class TransformerBlock(nnx.Module):
    """Skeleton of a block: `y = x + attention(norm(x))`, and `y + second(gelu(first(norm(y))))`.

    Sums and GELU act on space parts. The norms stand before the layers, so nothing limits the sums
    themselves. Dropout acts on the space part of what is added.

    Args:
        attention: module `(x, mask=)`, or `(x, kappa, mask=)` as every layer of ours.
        norms: two modules, before the attention and before the perceptron.
        first: linear layer from D to the hidden coordinates.
        second: linear layer back.
        kappa: what is passed to the layers where a call gives none, see `ViT`.
        dropout: share of the coordinates to drop, in [0, 1).
        rngs: the stream `dropout` draws them; not used without dropout.
    """

    passes_kappa = True

    def __init__(
        self, attention: nnx.Module, norms: Sequence[nnx.Module], first: nnx.Module,
        second: nnx.Module, kappa: Any, dropout: float, rngs: nnx.Rngs,
    ):  # fmt: skip
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.norm_attention, self.norm_perceptron = norms
        self.attention, self.first, self.second = attention, first, second
        self.kappa = kappa
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, x: Array, kappa: Any = None, mask: Array | None = None) -> Array:
        """Map points `(..., N, D)` to points `(..., N, D)`.

        Args:
            x: points.
            kappa: overrides the block's own.
            mask: booleans that broadcast to `(..., heads, N, N)`: which points a point sees.
        """
        kappa = nn.resolve_kappa(self.kappa, kappa)
        y = call(self.norm_attention, x, kappa)
        x = x + self._dropped(call(self.attention, y, kappa, mask=mask))
        first, second = self._perceptron(kappa)
        y = jax.nn.gelu(first(call(self.norm_perceptron, x, kappa)))
        return x + self._dropped(second(y))

    def _perceptron(self, kappa: Any) -> Sequence[Callable[[Array], Array]]:
        """The two linear layers as functions of points."""
        return [partial(call, layer, kappa=kappa) for layer in (self.first, self.second)]

    def _dropped(self, x: Array) -> Array:
        return x if self.dropout is None else self.dropout(x)


class LorentzTransformerBlock(TransformerBlock):
    """Pre-norm transformer block of `nn.LorentzAttention`, `LorentzLinear` and `LorentzLayerNorm`.

    Args:
        width: D, space coordinates of a point.
        heads: of the attention.
        hidden: coordinates between the two linear layers. Default: 4 D.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernels, `dropout` what is dropped.
        learn_kappa: make kappa a parameter, see `nn.Kappa`.
        dropout: share of the coordinates to drop in training; `eval()` ends it.
        init: preset of `nn.initializers`; with "fast" the weights of every unit have the length 1.
        param_dtype: dtype of the parameters.
        weight_norm: of all linear layers, see `nn.LorentzLinear`.
        use_bias: of the same.
        score: of the attention, as `temperature`, `causal` and `center`; see `nn.LorentzAttention`.

    Raises:
        ValueError: the heads do not divide the width, a bad `kappa` or option, or a size below 1.

    Example:
        >>> block = LorentzTransformerBlock(8, 2, kappa=1.0, rngs=nnx.Rngs(0))
        >>> block(jnp.ones((3, 5, 8))).shape
        (3, 5, 8)
    """

    def __init__(
        self, width: int, heads: int, hidden: int | None = None, *, kappa: Any, rngs: nnx.Rngs,
        learn_kappa: bool = False, dropout: float = 0.0, init: str = "fast",
        param_dtype: Any = jnp.float32, weight_norm: bool = True, use_bias: bool = True,
        score: str = "distance", temperature: Any = None, causal: bool = False,
        center: str = "origin",
    ):  # fmt: skip
        check_heads(width, heads)
        shared = own_kappa(kappa, learn_kappa, param_dtype)
        common: Any = {"kappa": first_value(kappa), "param_dtype": param_dtype, "rngs": rngs}
        common |= {"init": init, "weight_norm": weight_norm, "use_bias": use_bias}
        options = {"score": score, "temperature": temperature, "causal": causal, "center": center}
        hidden = 4 * width if hidden is None else hidden
        norms = [nn.LorentzLayerNorm(width, param_dtype=param_dtype) for _ in range(2)]
        attention = nn.LorentzAttention(heads, width, **options, **common)
        first = nn.LorentzLinear(width, hidden, **common)
        second = nn.LorentzLinear(hidden, width, **common)
        if init == "fast":
            for layer in (first, second):
                set_length(layer, 1.0)
        super().__init__(attention, norms, first, second, shared, dropout, rngs)

    def _perceptron(self, kappa: Any) -> Sequence[Callable[[Array], Array]]:
        layers: Any = self.first, self.second
        return joint_linears(layers, kappa)


def keep_dtype(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    """Bring parameters to the dtype of the input, as layers of ours do; Flax's own rule differs."""
    return tuple(None if a is None else a.astype(arrays[0].dtype) for a in arrays)


def attend(*arguments: Any, **options: Any) -> Array:
    """Flax's attention, which mixes dtypes within, whatever the settings."""
    with jax.numpy_dtype_promotion("standard"):
        return nnx.dot_product_attention(*arguments, **options)


class EuclideanLayerNorm(nnx.LayerNorm):
    """Flax's layer norm, which mixes dtypes within; the output has the dtype of the input."""

    def __call__(self, x: Array) -> Array:
        """Map vectors `(..., D)` to vectors `(..., D)`."""
        with jax.numpy_dtype_promotion("standard"):
            return super().__call__(x.astype(compute_dtype(x.dtype))).astype(x.dtype)


class EuclideanTransformerBlock(TransformerBlock):
    """The twin of `LorentzTransformerBlock`: Flax's attention, linear layers and layer norm.

    Arguments as there, without those of a geometry.
    """

    def __init__(
        self, width: int, heads: int, hidden: int | None = None, *, rngs: nnx.Rngs,
        dropout: float = 0.0, param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        check_heads(width, heads)
        common: Any = {"param_dtype": param_dtype, "rngs": rngs}
        hidden = 4 * width if hidden is None else hidden
        norms = [EuclideanLayerNorm(width, **common) for _ in range(2)]
        attention = nnx.MultiHeadAttention(
            heads, width, decode=False, keep_rngs=False, qkv_promote_dtype=keep_dtype,
            out_promote_dtype=keep_dtype, attention_fn=attend, **common,
        )  # fmt: skip
        first = nnx.Linear(width, hidden, promote_dtype=keep_dtype, **common)
        second = nnx.Linear(hidden, width, promote_dtype=keep_dtype, **common)
        super().__init__(attention, norms, first, second, None, dropout, rngs)


@dataclass(frozen=True)
class Parts:
    """The layers that fill the skeleton `ViT`: factories of modules, and one function.

    Attributes:
        patches: `(in_features, out_features, kernel_size, strides=, padding=, rngs=) -> module`,
            the convolution that makes a point of a patch.
        block: `(width, heads, rngs=) -> module`, called `(x, kappa)`.
        norm: `(width, rngs=) -> module`, after the last block.
        head: `(in_features, num_classes, rngs=) -> module`, called `(x, kappa)` for logits.
        pool: `(x, kappa)`, points `(N, tokens, D)` to the points `(N, D)` to classify.
    """

    patches: Callable[..., nnx.Module]
    block: Callable[..., nnx.Module]
    norm: Callable[..., nnx.Module]
    head: Callable[..., nnx.Module]
    pool: Callable[[Array, Any], Array]


class ViT(Network):
    """Skeleton of the vision transformers: images `(N, H, W, C)` to logits `(N, num_classes)`.

    Args:
        parts: what fills it.
        stages: numbers of blocks, which are added up: all blocks are alike.
        width: D, coordinates of a point.
        num_classes: number of logits.
        in_channels: C, channels of the images.
        image_size: H and W, or one number for both.
        patch_size: side of a patch, which must divide both.
        heads: of the attention, which must divide the width.
        options: keyword arguments of the subclass, as JSON has them, for `description`.
        kappa: as of `Network`.
        rngs: the stream `params` draws the initial values.
        param_dtype: dtype of the positions.

    Raises:
        ValueError: a size is below 1 or does not divide another.
    """

    def __init__(
        self, parts: Parts, stages: Sequence[int], width: int, num_classes: int, in_channels: int,
        image_size: int | Sequence[int], patch_size: int, heads: int, options: Mapping[str, Any],
        kappa: float | nn.Kappa | None, rngs: nnx.Rngs, param_dtype: Any,
    ):  # fmt: skip
        size = (image_size,) * 2 if isinstance(image_size, int) else tuple(image_size)
        sizes = {"width": width, "num_classes": num_classes, "in_channels": in_channels}
        check_sizes(**sizes, patch_size=patch_size)
        stages = check_stages(stages)
        if len(size) != 2 or min(size) < 1 or any(side % patch_size for side in size):
            raise ValueError(
                f"patch_size must divide height and width of the images, got {patch_size} and "
                f"image_size {size}"
            )
        check_heads(width, heads)
        shape = {"image_size": list(size), "patch_size": patch_size, "heads": heads}
        super().__init__({"stages": list(stages), **sizes, **shape, **options}, kappa)
        self.image_size, self.pool = size, parts.pool
        window = (patch_size, patch_size)
        self.patches: Any = parts.patches(
            in_channels, width, window, strides=window, padding="VALID", rngs=rngs
        )
        tokens = math.prod(side // patch_size for side in size)
        # As large as patches of normalised pixels: small ones take many epochs to be seen.
        positions = draw_normal(rngs.params(), (tokens, width), 1.0, param_dtype)
        self.positions = nnx.Param(positions)
        self.blocks = nnx.List([parts.block(width, heads, rngs=rngs) for _ in range(sum(stages))])
        self.norm: Any = parts.norm(width, rngs=rngs)
        self.head: Any = parts.head(width, num_classes, rngs=rngs)

    def __call__(
        self, x: Array, train: bool | None = None, kappa: Any = None, dtype: Any = None
    ) -> Array:
        """Return logits in the dtype of the images.

        Args:
            x: images `(N, H, W, C)`.
            train: not used: no layer needs statistics of its batch. Dropout follows `train()` and
                `eval()`.
            kappa: overrides the network's own, and that of every layer.
            dtype: what the blocks compute in; None for that of the images. Pooling and classifier
                keep to the latter.

        Raises:
            ValueError: x has another shape.
            TypeError: x is not floating-point.
        """
        x = self.check_images(x)
        if x.shape[1:3] != self.image_size:
            raise ValueError(f"expected images of {self.image_size} pixels, got shape {x.shape}")
        kappa, outer = self.resolve_kappa(kappa), x.dtype
        x = call(self.patches, x.astype(outer if dtype is None else dtype), kappa)
        x = x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
        x = x + row(self.positions[...].astype(x.dtype), x)
        for block in self.blocks:
            x = block(x, kappa)
        x = call(self.norm, x, kappa).astype(outer)
        return call(self.head, self.pool(x, kappa), kappa)


def check_heads(width: int, heads: int) -> None:
    """Raise `ValueError` unless the heads divide the width."""
    check_sizes(width=width, heads=heads)
    if width % heads:
        raise ValueError(f"heads must divide the width {width}, got {heads}")


def pool_tokens(x: Array, kappa: Any) -> Array:
    """Return the centroid of the points of each image, `(N, tokens, D)` to `(N, D)`."""
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    return mean_point(x.astype(kappa.dtype), kappa, (1,)).astype(x.dtype)


def mean_tokens(x: Array, kappa: Any = None) -> Array:
    """Return the mean of the vectors of each image, `(N, tokens, D)` to `(N, D)`."""
    return jnp.mean(x, axis=1)


class LorentzViT(ViT):
    """Vision transformer of Lorentz layers: patches, attention, perceptrons, centroid and MLR.

    Pixels enter as space parts of points.

    Args:
        stages: numbers of blocks, which are added up.
        width: space coordinates of a point.
        num_classes: number of logits.
        in_channels: channels of the images.
        image_size: height and width of the images, or one number for both.
        patch_size: side of a patch, which must divide both.
        heads: of the attention, which must divide the width.
        kappa: curvature parameter of the whole network; the curvature is -kappa. A number, a 0-d
            array, an `nnx.Param` that holds it, or a `nn.Kappa`.
        learn_kappa: make kappa a parameter.
        init: preset of `nn.initializers`; with "fast" the weights of every unit have the length 1.
        weight_norm: of the linear layers and of the convolution, see `nn.LorentzLinear`.
        use_bias: of the same. Without, these layers need no time of their points and cost less.
        score: of the attention, see `functional.attention`.
        dropout: share of the coordinates that blocks drop in training.
        param_dtype: dtype of the parameters.
        rngs: the stream `params` draws the initial values, `dropout` what is dropped.

    Raises:
        ValueError: a size is below 1 or does not divide another, or a bad `kappa`, `init`, `score`.

    Example:
        >>> model = LorentzViT((1,), 8, in_channels=1, image_size=8, kappa=1.0, rngs=nnx.Rngs(0))
        >>> jax.eval_shape(model, jnp.zeros((2, 8, 8, 1))).shape
        (2, 10)
    """

    def __init__(
        self, stages: Sequence[int] = (6,), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, image_size: int | Sequence[int] = 32, patch_size: int = 4,
        heads: int = 4, kappa: Any = 0.1, learn_kappa: bool = False, init: str = "fast",
        weight_norm: bool = True, use_bias: bool = True, score: str = "distance",
        dropout: float = 0.0, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        shared = own_kappa(kappa, learn_kappa, param_dtype)
        kappa = first_value(kappa)
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}
        linear = {"weight_norm": weight_norm, "use_bias": use_bias}
        block = partial(LorentzTransformerBlock, score=score, dropout=dropout, **linear)
        parts = Parts(
            patches=partial(nn.LorentzConv, **linear, **common),
            block=partial(block, **common),
            norm=partial(nn.LorentzLayerNorm, param_dtype=param_dtype),
            head=partial(nn.LorentzMLR, **common),
            pool=pool_tokens,
        )
        options = {"kappa": kappa, "learn_kappa": isinstance(shared, nn.Kappa), "init": init}
        options |= {**linear, "score": score, "dropout": dropout}
        sizes = stages, width, num_classes, in_channels, image_size, patch_size, heads
        super().__init__(parts, *sizes, options, shared, rngs, param_dtype)
        if init == "fast":
            set_length(self.patches, 1.0)


class EuclideanViT(ViT):
    """The twin of `LorentzViT`: the same skeleton with layers of Flax, and the mean of the points.

    Arguments as there, without those of a geometry; a kappa in the call is ignored.
    """

    def __init__(
        self, stages: Sequence[int] = (6,), width: int = 64, num_classes: int = 10,
        in_channels: int = 3, *, image_size: int | Sequence[int] = 32, patch_size: int = 4,
        heads: int = 4, dropout: float = 0.0, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: Any = {"param_dtype": param_dtype}
        parts = Parts(
            patches=partial(nnx.Conv, promote_dtype=keep_dtype, **common),
            block=partial(EuclideanTransformerBlock, dropout=dropout, **common),
            norm=partial(EuclideanLayerNorm, **common),
            head=partial(EuclideanHead, **common),
            pool=mean_tokens,
        )
        sizes = stages, width, num_classes, in_channels, image_size, patch_size, heads
        super().__init__(parts, *sizes, {"dropout": dropout}, None, rngs, param_dtype)
