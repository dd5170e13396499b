"""Flax NNX layers: they create parameters and make one call into `functional`."""

from lorentz_jax.nn import compiling, initializers
from lorentz_jax.nn.modules import (
    NORMALS,
    Activation,
    HyperbolicModule,
    HyperplaneLayer,
    Kappa,
    LorentzBatchNorm,
    LorentzConv,
    LorentzLinear,
    LorentzMLR,
    conv_norm,
    normal_arrays,
    resolve_kappa,
)

__all__ = [
    "NORMALS",
    "Activation",
    "HyperbolicModule",
    "HyperplaneLayer",
    "Kappa",
    "LorentzBatchNorm",
    "LorentzConv",
    "LorentzLinear",
    "LorentzMLR",
    "compiling",
    "conv_norm",
    "initializers",
    "normal_arrays",
    "resolve_kappa",
]
