"""Flax NNX layers: they create parameters and make one call into `functional`."""

from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import (
    Activation,
    HyperbolicModule,
    HyperplaneLayer,
    Kappa,
    LorentzBatchNorm,
    LorentzConv,
    LorentzLinear,
    LorentzMLR,
    conv_norm,
    resolve_kappa,
)

__all__ = [
    "Activation",
    "HyperbolicModule",
    "HyperplaneLayer",
    "Kappa",
    "LorentzBatchNorm",
    "LorentzConv",
    "LorentzLinear",
    "LorentzMLR",
    "conv_norm",
    "initializers",
    "resolve_kappa",
]
