"""Networks: one ResNet skeleton, filled by families of layers."""

from typing import Any

from flax import nnx

from lorentz_jax.models.euclidean import EuclideanResNet
from lorentz_jax.models.hcnn import HCNNPaperResNet, HCNNResNet
from lorentz_jax.models.poincare import PoincareResNet
from lorentz_jax.models.reference import load_reference
from lorentz_jax.models.resnet import LorentzResNet, ResNet

__all__ = [
    "MODELS",
    "EuclideanResNet",
    "HCNNPaperResNet",
    "HCNNResNet",
    "LorentzResNet",
    "PoincareResNet",
    "ResNet",
    "build_model",
    "has_extra_logit",
    "load_reference",
]

MODELS: dict[str, type[ResNet]] = {
    "lorentz": LorentzResNet,
    "euclidean": EuclideanResNet,
    "hcnn": HCNNResNet,
    "poincare": PoincareResNet,
    "hcnn-paper": HCNNPaperResNet,
}


def has_extra_logit(model: str | None, init: str | None) -> bool:
    """Whether the network has one logit more than there are classes, which no label names."""
    return (model, init) == ("hcnn-paper", "paper")


def build_model(config: Any, num_classes: int, in_channels: int, rngs: nnx.Rngs) -> ResNet:
    """The network that a `training.TrainConfig` names.

    The Euclidean one has neither kappa nor presets. With `init="paper"` "hcnn-paper" has the extra
    logit of the reference, see `has_extra_logit`.
    """
    if config.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {config.model!r}")
    sizes = (config.stages, config.width, num_classes, in_channels)
    if config.model == "euclidean":
        if config.learn_kappa:
            raise ValueError("the Euclidean network has no kappa to learn")
        return EuclideanResNet(*sizes, rngs=rngs)
    options: dict[str, Any] = {
        "kappa": config.kappa, "learn_kappa": config.learn_kappa, "init": config.init,
    }  # fmt: skip
    if config.model == "lorentz":
        options["kappa_per_layer"] = config.kappa_per_layer
    if has_extra_logit(config.model, config.init):
        options["extra_logit"] = True
    return MODELS[config.model](*sizes, rngs=rngs, **options)
