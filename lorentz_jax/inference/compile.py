"""From a trained NNX model to its compiled form, and from that back to weights and biases."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax.hyperplane import Normals, weights
from lorentz_jax.inference import baselines
from lorentz_jax.inference.compiled import HALF, Compiled
from lorentz_jax.inference.networks import JOINTS, join
from lorentz_jax.inference.ops import Piece, activation_name, normal_arrays, plain
from lorentz_jax.inference.polar import polar
from lorentz_jax.models import ResNet
from lorentz_jax.models.resnet import ConvNorm

# Their kernels stay as they are: logits deserve float32, and cost little.
HEADS = ("mlr", "euclidean_head", "poincare_head", "poincare_mlr")


class Weights(NamedTuple):
    """Weights `(..., out)` and biases `(out,)` of a layer."""

    w: Array
    b: Array


def compile_cached_v(
    model: Any, fold: bool = True, *, dtype: Any = None, lengths: bool = True,
    info: Mapping[str, Any] | None = None,
) -> Compiled:  # fmt: skip
    """The inference form of a model, in evaluation mode; the model itself is not touched.

    V, the weight norm in it and a learned kappa become constants. It is a snapshot: later changes
    of the model do not reach it.

    Args:
      model: a `models.ResNet`, a single layer of `nn`, or an `nnx.Sequential` of these layers and
        activations.
      fold: fold every centring batch norm (running mean and beta) into the layer before it: one
        kernel, one time row and one boost. `fold=False` keeps them apart, so that `restore` works.
      dtype: "bfloat16" or "float16" stores kernels and activations in half precision; time,
        reductions, boosts and logits stay in float32.
      lengths: carry |w| of each unit, without which float32 cannot restore units with |theta| > 5.
      info: JSON to keep with the model.

    Raises:
      TypeError: a model or layer that has no compiled form.
      ValueError: an activation without a name, or values that are not finite (in `dtype`).
    """
    dtype = None if dtype is None else jnp.dtype(dtype).name
    if dtype not in (None, *HALF):
        raise ValueError(f"dtype must be None or one of {HALF}, got {dtype!r}")
    network, found = _walk(model, fold)
    params = {}
    for name, part in found.items():
        for short, value in part.arrays.items():
            if short == "length" and not (lengths or _needs_length(part.layer)):
                continue
            array = jnp.asarray(value)
            if dtype is not None:
                kernel = array.ndim > 1 and part.layer["op"] not in HEADS
                array = array.astype(dtype if kernel else jnp.float32)
            if not np.isfinite(np.asarray(array, np.float64)).all():
                raise ValueError(f"{join(name, short)} is not finite in {array.dtype}")
            params[join(name, short)] = array
    layers = {name: dict(part.layer) for name, part in found.items()}
    return Compiled(params, layers, network, dtype, dict(info or {}))


def restore(compiled: Compiled, layers: Sequence[str] | None = None) -> dict[str, Weights]:
    """Weights and biases of the layers with hyperplanes, by name: the inverse of the cached V.

    The weights have their norm applied, `w = softplus(g) a/|a|`. What batch norms need, `mean` and
    `beta`, is in `compiled.params` as it was. `layers` restricts the work (default: all).

    Raises:
      ValueError: a layer that a batch norm was folded into, where the units are mixed for good; or
        one without lengths whose float precision has lost them (see `hyperplane.weights`).
    """
    planes = [name for name in compiled.layers if _has(compiled, name, "space")]
    layers = planes if layers is None else list(layers)
    unknown = [name for name in layers if name not in planes]
    if unknown:
        raise ValueError(f"no layers with hyperplanes: {unknown}; there are {planes}")
    folded = [name for name in planes if _has(compiled, name, "push")]
    if set(folded) & set(layers):
        whole = [name for name in planes if name not in folded]
        raise ValueError(
            f"batch norm is folded into {', '.join(n for n in layers if n in folded)}: its "
            "rotation mixes the units, so w and b are gone. What can be restored is "
            f"layers={whole}; to restore all, compile with fold=False"
        )
    return {name: _restore(compiled, name) for name in layers}


def _restore(compiled: Compiled, name: str) -> Weights:
    arrays = compiled.arrays(name)
    space = jnp.asarray(arrays["space"]).astype(arrays["time"].dtype)
    normals = Normals(arrays["time"], space, arrays.get("length"), arrays.get("excess"))
    try:
        return Weights(*weights(normals, compiled.layers[name]["kappa"]))
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _has(compiled: Compiled, name: str, short: str) -> bool:
    return join(name, short) in compiled.params


def _needs_length(layer: Mapping[str, Any]) -> bool:
    """Whether the layer itself, not only `restore`, uses |w|."""
    return layer["op"].startswith("poincare") or layer.get("scale", "inside") != "inside"


# --- models ---------------------------------------------------------------------------------


def _walk(model: Any, fold: bool) -> tuple[dict[str, Any], dict[str, Piece]]:
    """How the layers of a model are joined, and the layers."""
    if isinstance(model, ResNet):
        return _walk_resnet(model, fold)
    parts = [("", model)]
    if isinstance(model, nnx.Sequential):
        parts = [(str(index), layer) for index, layer in enumerate(model.layers)]
    found = _sequence(parts, fold, None)
    return {"kind": "chain", "steps": list(found)}, found


def _walk_resnet(model: ResNet, fold: bool) -> tuple[dict[str, Any], dict[str, Piece]]:
    kappa = nn.resolve_kappa(model.kappa)
    found: dict[str, Piece] = {}

    def add(name: str, unit: ConvNorm) -> None:
        parts = [(join(name, "conv"), unit.conv)]
        if unit.norm is not None:
            parts.append((join(name, "norm"), unit.norm))
        sequence = _sequence(parts, fold, unit.resolve_kappa(kappa))
        if len(sequence) == 1:  # the layer takes the name of the pair
            sequence = {name: sequence.popitem()[1]}
        found.update(sequence)

    add("stem", model.stem)
    for stage, blocks in enumerate(model.stages):
        for index, block in enumerate(blocks):
            for part in ("first", "second", "shortcut"):
                if getattr(block, part) is not None:
                    add(f"stages/{stage}/{index}/{part}", getattr(block, part))
    found["head"] = piece(model.head, kappa)
    network = {
        "kind": "resnet",
        "stages": [len(blocks) for blocks in model.stages],
        "in_channels": model.in_channels,
        "kappa": None if kappa is None else float(kappa),
        "entry": _joint(model.entry),
        "relu": _joint(model.relu),
        "residual": _joint(model.stages[0][0].residual),
        "pool": _joint(model.pool),
    }
    return network, found


def _joint(function: Callable | None) -> str | None:
    """The name of a function in `JOINTS`."""
    if function is None:
        return None
    for name, known in JOINTS.items():
        if function is known:
            return name
    raise TypeError(f"{function!r} between the layers of a ResNet has no compiled form")


def _sequence(parts: Sequence[tuple[str, Any]], fold: bool, kappa: Any) -> dict[str, Piece]:
    """Consecutive layers, each norm folded into the layer before it where that is possible."""
    found: dict[str, Piece] = {}
    for name, layer in parts:
        current = piece(layer, kappa)
        if fold and found:
            last, before = found.popitem()
            fuse = FUSIONS.get((before.layer["op"], current.layer["op"]))
            fused = None if fuse is None else fuse(before, current)
            found[last] = fused or before
            if fused:
                continue
        found[name] = current
    return found


def piece(layer: Any, kappa: Any) -> Piece:
    """The compiled form of one layer, unfolded; `kappa` overrides its own, as in a call."""
    make = PIECES.get(type(layer))
    if make is not None:
        return make(layer, kappa)
    if callable(layer) and not isinstance(layer, nnx.Module):
        name = activation_name(layer)
        return Piece({"op": "activate", "activation": name}, {})
    raise TypeError(
        f"{type(layer).__name__} has no compiled form; there is one for every network of "
        f"lorentz_jax.models, nnx.Sequential and {', '.join(kind.__name__ for kind in PIECES)}"
    )


def _planes(layer, kappa, **options) -> Piece:
    arrays = normal_arrays(layer.normals(kappa))
    return Piece(options | {"kappa": float(layer.resolve_kappa(kappa))}, arrays)


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
    arrays = {"mean": layer.mean[...], "beta": layer.beta_point(kappa)}
    return Piece({"op": "center", "kappa": float(layer.resolve_kappa(kappa))}, arrays)


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
} | baselines.PIECES

FUSIONS: dict[tuple[str, str], Callable[[Piece, Piece], Piece | None]] = {
    ("linear", "center"): fold_center,
    ("conv", "center"): fold_center,
} | baselines.FUSIONS
