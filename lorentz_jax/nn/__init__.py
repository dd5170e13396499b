"""Flax NNX layers: they create parameters and make one call into `functional`.

Every layer takes points `(..., D)` by their space part, and an optional `kappa` that overrides its
own: a network can pass one curvature to all its layers. Parameter names: `kernel` (the weight-norm
direction, or the weights where there is no weight norm), `gain` (raw; the column norm is its
softplus), `bias`, `beta`, `points` (of an embedding), and `raw` (of a learned kappa). The only
other state is the `nnx.BatchStat` `mean` of a batch norm.

To write a layer of your own, start from `HyperplaneLayer` (it has weights and biases) or
`HyperbolicModule` (it has a kappa).
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.nn", "nn", "flax")

from lorentz_jax.nn import compiling, initializers
from lorentz_jax.nn.attention import LorentzAttention, LorentzLayerNorm
from lorentz_jax.nn.embedding import LorentzEmbedding
from lorentz_jax.nn.graph import LorentzGraphConv
from lorentz_jax.nn.layers import (
    LorentzBatchNorm,
    LorentzConv,
    LorentzLinear,
    LorentzMLR,
    conv_norm,
)
from lorentz_jax.nn.modules import (
    NORMALS,
    Activation,
    HyperbolicModule,
    HyperplaneLayer,
    Kappa,
    normal_arrays,
    resolve_kappa,
)
from lorentz_jax.nn.spatial import LorentzConvTranspose, LorentzGroupNorm, LorentzResidual

__all__ = [
    "NORMALS",
    "Activation",
    "HyperbolicModule",
    "HyperplaneLayer",
    "Kappa",
    "LorentzAttention",
    "LorentzBatchNorm",
    "LorentzConv",
    "LorentzConvTranspose",
    "LorentzEmbedding",
    "LorentzGraphConv",
    "LorentzGroupNorm",
    "LorentzLayerNorm",
    "LorentzLinear",
    "LorentzMLR",
    "LorentzResidual",
    "compiling",
    "conv_norm",
    "initializers",
    "normal_arrays",
    "resolve_kappa",
]
