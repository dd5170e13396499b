"""Networks: one ResNet skeleton, filled with the layers of a geometry or a paper.

`LorentzResNet` is the paper's network. The others are baselines, networks of another geometry or
paper to compare it with; `EuclideanResNet` is its twin, of the same layout. The layers of all of
them are public, and take and give points as those of `nn` do.
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.models", "nn", "flax")

from typing import Any, Literal, get_args

from flax import nnx

from lorentz_jax.models.chen import ChenConv, ChenLinear
from lorentz_jax.models.euclidean import (
    EuclideanBatchNorm,
    EuclideanConv,
    EuclideanHead,
    EuclideanResNet,
)
from lorentz_jax.models.hcnn import BdeirMLR, HCNNPaperResNet, HCNNResNet
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

__all__ = [
    "MODELS",
    "BdeirMLR",
    "ChenConv",
    "ChenLinear",
    "EuclideanBatchNorm",
    "EuclideanConv",
    "EuclideanHead",
    "EuclideanResNet",
    "HCNNBatchNorm",
    "HCNNPaperResNet",
    "HCNNResNet",
    "Layers",
    "LorentzResNet",
    "ModelName",
    "PoincareBatchNorm",
    "PoincareConv",
    "PoincareHead",
    "PoincareLinear",
    "PoincareMLR",
    "PoincareResNet",
    "ResNet",
    "VarianceBatchNorm",
    "build_model",
    "has_extra_logit",
    "load_reference",
]

ModelName = Literal["lorentz", "euclidean", "hcnn", "poincare", "hcnn-paper"]
"""Name of a network."""
_NETWORKS = (LorentzResNet, EuclideanResNet, HCNNResNet, PoincareResNet, HCNNPaperResNet)
MODELS: dict[str, type[ResNet]] = dict(zip(get_args(ModelName), _NETWORKS, strict=True))
"""The networks by name."""


def has_extra_logit(model: str | None, init: str | None) -> bool:
    """Return whether the network has one more logit than classes, which no label names."""
    return (model, init) == ("hcnn-paper", "paper")


def build_model(config: Any, num_classes: int, in_channels: int, rngs: nnx.Rngs) -> ResNet:
    """Build the network that a `training.TrainConfig` names.

    Args:
        config: its `model`, `stages`, `width`, `kappa`, `learn_kappa`, `kappa_per_layer` and `init`
            are used; the Euclidean network has neither kappa nor presets.
        num_classes: number of classes; see `has_extra_logit` for the logits.
        in_channels: channels of the images.
        rngs: the stream `params` draws the kernels.

    Raises:
        ValueError: there is no such `model`, or options do not fit it.
    """
    if config.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {config.model!r}")
    sizes = (config.stages, config.width, num_classes, in_channels)
    if config.model == "euclidean":
        if config.learn_kappa:
            raise ValueError("the Euclidean network has no kappa to learn")
        return EuclideanResNet(*sizes, rngs=rngs)
    options: Any = {name: getattr(config, name) for name in ("kappa", "learn_kappa", "init")}
    if config.model == "lorentz":
        options["kappa_per_layer"] = config.kappa_per_layer
    if has_extra_logit(config.model, config.init):
        options["extra_logit"] = True
    return MODELS[config.model](*sizes, rngs=rngs, **options)
