"""From NNX layers to layers of the compiled form, by their exact type.

A subclass may compute something else, so it has an entry of its own or none. A family joins by
entries in `PIECES` and `ops.OPS`; where its norm folds into the layer before it, in `FUSIONS`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx

from lorentz_jax import nn
from lorentz_jax.inference import siblings
from lorentz_jax.inference.ops import Piece, activation_name, normal_arrays, plain
from lorentz_jax.inference.polar import polar


def piece(layer: Any, kappa: Any) -> Piece:
    """The compiled form of one layer, unfolded; `kappa` overrides its own, as in a call."""
    make = PIECES.get(type(layer))
    if make is not None:
        return make(layer, kappa)
    if callable(layer) and not isinstance(layer, nnx.Module):
        name = "relu" if layer is nn.relu else activation_name(layer)
        return Piece({"op": "activate", "activation": name}, {})
    raise TypeError(
        f"{type(layer).__name__} has no compiled form; there is one for every network of "
        f"lorentz_jax.models, nnx.Sequential and {', '.join(kind.__name__ for kind in PIECES)}"
    )


def _planes(layer, kappa, **options) -> Piece:
    arrays = normal_arrays(layer.normals(kappa))
    return Piece(options | {"kappa": float(layer.curvature(kappa))}, arrays)


def _linear(layer: nn.LorentzLinear, kappa: Any) -> Piece:
    return _planes(layer, kappa, op="linear", activation=activation_name(layer.activation))


def _conv(layer: nn.LorentzConv, kappa: Any) -> Piece:
    return _planes(
        layer, kappa, op="conv", strides=plain(layer.strides), padding=plain(layer.padding),
        activation=activation_name(layer.activation),
    )  # fmt: skip


def _mlr(layer: nn.LorentzMLR, kappa: Any) -> Piece:
    return _planes(layer, kappa, op="mlr", scale=layer.scale)


def _center(layer: nn.LorentzBatchNorm, kappa: Any) -> Piece:
    arrays = {"mean": layer.mean[...], "beta": layer.bias_point(kappa)}
    return Piece({"op": "center", "kappa": float(layer.curvature(kappa))}, arrays)


def fold_center(layer: Piece, norm: Piece) -> Piece | None:
    """A linear or convolution layer and its centring norm as one layer that ends with a boost.

    The rotation R of the norm's polar form goes into the normals: `R (x o v) = x o (R v)`, where R
    acts on the output axis. None where an activation stands between them, where their curvatures
    differ, or where a norm is folded in already.
    """
    kappa = norm.layer["kappa"]
    free = layer.layer["activation"] is None and "push" not in layer.arrays
    if not free or layer.layer["kappa"] != kappa:
        return None
    mean, beta = (np.asarray(norm.arrays[key], np.float64) for key in ("mean", "beta"))
    rotation, point = polar(beta, mean, kappa)
    push = np.sqrt(kappa) * point
    arrays = {
        "space": np.asarray(layer.arrays["space"], np.float64) @ rotation.T,
        "time": np.asarray(layer.arrays["time"], np.float64) @ rotation.T,
        "push": push,
        "pull": push / (1 + np.sqrt(1 + push @ push)),
    }
    dtype = layer.arrays["space"].dtype
    return Piece(layer.layer, {key: value.astype(dtype) for key, value in arrays.items()})


PIECES: dict[type, Callable[[Any, Any], Piece]] = {
    nn.LorentzLinear: _linear,
    nn.LorentzConv: _conv,
    nn.LorentzMLR: _mlr,
    nn.LorentzBatchNorm: _center,
} | siblings.PIECES

FUSIONS: dict[tuple[str, str], Callable[[Piece, Piece], Piece | None]] = {
    ("linear", "center"): fold_center,
    ("conv", "center"): fold_center,
} | siblings.FUSIONS
