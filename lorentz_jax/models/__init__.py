"""Networks: one ResNet skeleton, filled by families of layers."""

from typing import Any

from flax import nnx

from lorentz_jax.models.resnet import LorentzResNet, ResNet

__all__ = ["LorentzResNet", "ResNet", "build_model"]


def build_model(config: Any, num_classes: int, in_channels: int, rngs: nnx.Rngs) -> ResNet:
    """The network that a `training.TrainConfig` names."""
    if config.model != "lorentz":
        raise ValueError(f'model must be "lorentz", got {config.model!r}')
    return LorentzResNet(
        config.stages, config.width, num_classes, in_channels,
        kappa=config.kappa, learn_kappa=config.learn_kappa, init=config.init, rngs=rngs,
    )  # fmt: skip
