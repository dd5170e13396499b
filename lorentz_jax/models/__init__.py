"""Networks: a ResNet and a vision transformer, filled with the layers of a geometry or a paper.

`LorentzResNet` is the paper's network. The others are baselines, networks of another geometry or
paper to compare it with; `EuclideanResNet` is its twin, of the same layout. `LorentzViT` is a
vision transformer, and `EuclideanViT` its twin. The layers of all of them are public, and take and
give points as those of `nn` do.
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.models", "nn", "flax")

from collections.abc import Sequence
from typing import Any, Literal

from flax import nnx

from lorentz_jax.models.chen import ChenConv, ChenLinear
from lorentz_jax.models.euclidean import (
    EuclideanBatchNorm,
    EuclideanConv,
    EuclideanHead,
    EuclideanResNet,
)
from lorentz_jax.models.hcnn import BdeirMLR, HCNNPaperResNet, HCNNResNet
from lorentz_jax.models.network import Network
from lorentz_jax.models.poincare import (
    PoincareConv,
    PoincareHead,
    PoincareLinear,
    PoincareMLR,
    PoincareResNet,
)
from lorentz_jax.models.reference import load_reference
from lorentz_jax.models.resnet import Layers, LorentzResNet, ResNet
from lorentz_jax.models.variance import HCNNBatchNorm, PoincareBatchNorm, VarianceBatchNorm
from lorentz_jax.models.vit import (
    EuclideanLayerNorm,
    EuclideanTransformerBlock,
    EuclideanViT,
    LorentzTransformerBlock,
    LorentzViT,
    Parts,
    TransformerBlock,
    ViT,
)

__all__ = [
    "FLAT",
    "MODELS",
    "RESNETS",
    "TRANSFORMERS",
    "BdeirMLR",
    "ChenConv",
    "ChenLinear",
    "EuclideanBatchNorm",
    "EuclideanConv",
    "EuclideanHead",
    "EuclideanLayerNorm",
    "EuclideanResNet",
    "EuclideanTransformerBlock",
    "EuclideanViT",
    "HCNNBatchNorm",
    "HCNNPaperResNet",
    "HCNNResNet",
    "Layers",
    "LorentzResNet",
    "LorentzTransformerBlock",
    "LorentzViT",
    "ModelName",
    "Network",
    "Parts",
    "PoincareBatchNorm",
    "PoincareConv",
    "PoincareHead",
    "PoincareLinear",
    "PoincareMLR",
    "PoincareResNet",
    "ResNet",
    "TransformerBlock",
    "VarianceBatchNorm",
    "ViT",
    "build_model",
    "has_extra_logit",
    "load_reference",
]

ModelName = Literal[
    "lorentz", "euclidean", "hcnn", "poincare", "hcnn-paper", "lorentz-vit", "euclidean-vit"
]
"""Name of a network."""
RESNETS: dict[str, type[ResNet]] = {
    "lorentz": LorentzResNet,
    "euclidean": EuclideanResNet,
    "hcnn": HCNNResNet,
    "poincare": PoincareResNet,
    "hcnn-paper": HCNNPaperResNet,
}
"""The residual networks by name."""
TRANSFORMERS: dict[str, type[ViT]] = {"lorentz-vit": LorentzViT, "euclidean-vit": EuclideanViT}
"""The vision transformers by name."""
MODELS: dict[str, type[Network]] = {**RESNETS, **TRANSFORMERS}
"""All networks by name."""
FLAT = frozenset({"euclidean", "euclidean-vit"})
"""Names of those without a kappa."""


def has_extra_logit(model: str | None, init: str | None) -> bool:
    """Return whether the network has one more logit than classes, which no label names."""
    return (model, init) == ("hcnn-paper", "paper")


def build_model(
    config: Any, num_classes: int, in_channels: int, rngs: nnx.Rngs,
    image_size: Sequence[int] | None = None,
) -> Network:  # fmt: skip
    """Build the network that a `training.TrainConfig` names.

    Args:
        config: its `model`, `stages`, `width`, `kappa`, `learn_kappa`, `kappa_per_layer`,
            `distance_gain` and `init` are used; of a vision transformer `patch_size` and `heads`,
            too. The Euclidean networks have neither kappa nor presets.
        num_classes: number of classes; see `has_extra_logit` for the logits.
        in_channels: channels of the images.
        rngs: the stream `params` draws the kernels.
        image_size: height and width of the images, which a vision transformer must know.

    Raises:
        ValueError: there is no such `model`, or options do not fit it.
    """
    if config.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {config.model!r}")
    flat, options = config.model in FLAT, {}
    if flat and config.learn_kappa:
        raise ValueError("the Euclidean network has no kappa to learn")
    if not flat:
        options = {name: getattr(config, name) for name in ("kappa", "learn_kappa", "init")}
    if config.model == "lorentz":
        options |= {name: getattr(config, name) for name in ("kappa_per_layer", "distance_gain")}
    if has_extra_logit(config.model, config.init):
        options["extra_logit"] = True
    if config.model in TRANSFORMERS:
        if image_size is None:
            raise ValueError(f"{config.model} needs the image_size")
        options |= {"image_size": tuple(image_size)}
        options |= {name: getattr(config, name) for name in ("patch_size", "heads")}
    make: Any = MODELS[config.model]
    return make(config.stages, config.width, num_classes, in_channels, rngs=rngs, **options)
