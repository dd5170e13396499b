"""Compile a trained NNX model, and restore weights and biases from the compiled form."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax.hyperplane import Normals, weights
from lorentz_jax.inference import baselines
from lorentz_jax.inference.compiled import BETWEEN, HALF, Compiled, join
from lorentz_jax.inference.ops import (
    CompiledLayer,
    activation_name,
    as_json,
    name_in,
    normal_arrays,
)
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
    model: Any,
    fold: bool = True,
    *,
    dtype: Any = None,
    lengths: bool = True,
    info: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a trained model for inference; the model itself is not touched.

    V, the weight norm in it and a learned kappa become constants, and the result computes what the
    model does in evaluation mode. It is a snapshot: later changes of the model do not reach it.

    Args:
        model: a `models.ResNet`, a single layer of `nn`, or an `nnx.Sequential` of these layers
            and activations.
        fold: fold every centring batch norm (running mean and beta) into the layer before it: one
            kernel, one time row and one boost. `fold=False` keeps them apart, so that `restore`
            works.
        dtype: "bfloat16" or "float16" stores kernels and activations in half precision; time,
            reductions, boosts and logits stay in float32.
        lengths: carry |w| of each unit, without which float32 cannot restore units with
            |theta| > 5.
        info: JSON to keep with the model.

    Raises:
        TypeError: a model or layer that has no compiled form.
        ValueError: an activation without a name, or values that are not finite (in `dtype`).

    >>> layer = nn.LorentzLinear(3, 2, kappa=1.0, rngs=nnx.Rngs(0))
    >>> compiled = compile_cached_v(layer)
    >>> sorted(compiled.params)
    ['excess', 'length', 'space', 'time']
    >>> compiled(jnp.ones((5, 3))).shape
    (5, 2)
    """
    dtype = None if dtype is None else jnp.dtype(dtype).name
    if dtype not in (None, *HALF):
        raise ValueError(f"dtype must be None or one of {HALF}, got {dtype!r}")
    network, layers = _walk(model, fold)
    params = {}
    for name, layer in layers.items():
        for short, value in layer.arrays.items():
            if short == "length" and not (lengths or _needs_length(layer.description)):
                continue
            array = jnp.asarray(value)
            if dtype is not None:
                kernel = array.ndim > 1 and layer.description["op"] not in HEADS
                array = array.astype(dtype if kernel else jnp.float32)
            if not np.isfinite(np.asarray(array, np.float64)).all():
                raise ValueError(f"{join(name, short)} is not finite in {array.dtype}")
            params[join(name, short)] = array
    descriptions = {name: dict(layer.description) for name, layer in layers.items()}
    return Compiled(params, descriptions, network, dtype, dict(info or {}))


def restore(compiled: Compiled, layers: Sequence[str] | None = None) -> dict[str, Weights]:
    """Return weights and biases of the layers with hyperplanes: the inverse of the cached V.

    The weights have their norm applied, `w = softplus(g) a/|a|`. What batch norms need, `mean` and
    `beta`, is in `compiled.params` as it was.

    Args:
        compiled: a model compiled with `fold=False`, so that all its layers can be restored.
        layers: names of the layers to restore, by default all.

    Returns:
        `Weights` by the name of the layer.

    Raises:
        ValueError: a batch norm was folded into a layer, which mixes its units for good; or the
            layer has no lengths and its float precision has lost them (see `hyperplane.weights`).
    """
    known = [name for name in compiled.layers if _has(compiled, name, "space")]
    layers = known if layers is None else list(layers)
    unknown = [name for name in layers if name not in known]
    if unknown:
        raise ValueError(f"no layers with hyperplanes: {unknown}; there are {known}")
    folded = [name for name in known if _has(compiled, name, "push")]
    if set(folded) & set(layers):
        raise ValueError(
            f"batch norm is folded into {', '.join(n for n in layers if n in folded)}: its "
            "rotation mixes the units, so w and b are gone. What can be restored is "
            f"layers={[name for name in known if name not in folded]}; to restore all, compile "
            "with fold=False"
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


def _walk(model: Any, fold: bool) -> tuple[dict[str, Any], dict[str, CompiledLayer]]:
    """How the layers of a model are joined, and the layers."""
    if isinstance(model, ResNet):
        return _walk_resnet(model, fold)
    modules = [("", model)]
    if isinstance(model, nnx.Sequential):
        modules = [(str(index), layer) for index, layer in enumerate(model.layers)]
    layers = _compile_chain(modules, fold, None)
    return {"kind": "chain", "steps": list(layers)}, layers


def _walk_resnet(model: ResNet, fold: bool) -> tuple[dict[str, Any], dict[str, CompiledLayer]]:
    kappa = nn.resolve_kappa(model.kappa)
    layers: dict[str, CompiledLayer] = {}

    def add(name: str, unit: ConvNorm) -> None:
        modules = [(join(name, "conv"), unit.conv)]
        if unit.norm is not None:
            modules.append((join(name, "norm"), unit.norm))
        chain = _compile_chain(modules, fold, unit.resolve_kappa(kappa))
        if len(chain) == 1:  # the layer takes the name of the pair
            chain = {name: chain.popitem()[1]}
        layers.update(chain)

    add("stem", model.stem)
    for stage, blocks in enumerate(model.stages):
        for index, block in enumerate(blocks):
            for part in ("first", "second", "shortcut"):
                if getattr(block, part) is not None:
                    add(f"stages/{stage}/{index}/{part}", getattr(block, part))
    layers["head"] = compile_layer(model.head, kappa)
    network = {
        "kind": "resnet",
        "stages": [len(blocks) for blocks in model.stages],
        "in_channels": model.in_channels,
        "kappa": None if kappa is None else float(kappa),
        "entry": _between_name(model.entry),
        "relu": _between_name(model.relu),
        "residual": _between_name(model.stages[0][0].residual),
        "pool": _between_name(model.pool),
    }
    return network, layers


def _between_name(function: Callable | None) -> str | None:
    """The name of a function in `BETWEEN`."""
    name = name_in(BETWEEN, function)
    if name is None and function is not None:
        raise TypeError(f"{function!r} between the layers of a ResNet has no compiled form")
    return name


def _compile_chain(
    modules: Sequence[tuple[str, Any]], fold: bool, kappa: Any
) -> dict[str, CompiledLayer]:
    """Consecutive layers, each norm folded into the layer before it where that is possible."""
    layers: dict[str, CompiledLayer] = {}
    for name, module in modules:
        layer = compile_layer(module, kappa)
        if fold and layers:
            last, before = layers.popitem()
            fold_into = FOLDS.get((before.description["op"], layer.description["op"]))
            folded = None if fold_into is None else fold_into(before, layer)
            layers[last] = folded or before
            if folded:
                continue
        layers[name] = layer
    return layers


def compile_layer(layer: Any, kappa: Any) -> CompiledLayer:
    """Compile one layer, unfolded; `kappa` overrides its own, as in a call."""
    make = COMPILERS.get(type(layer))
    if make is not None:
        return make(layer, kappa)
    if callable(layer) and not isinstance(layer, nnx.Module):
        return CompiledLayer({"op": "activate", "activation": activation_name(layer)}, {})
    raise TypeError(
        f"{type(layer).__name__} has no compiled form; there is one for every network of "
        f"lorentz_jax.models, nnx.Sequential and {', '.join(t.__name__ for t in COMPILERS)}"
    )


def _with_normals(layer: Any, kappa: Any, **options: Any) -> CompiledLayer:
    arrays = normal_arrays(layer.normals(kappa))
    return CompiledLayer(options | {"kappa": float(layer.resolve_kappa(kappa))}, arrays)


def _linear(layer: nn.LorentzLinear, kappa: Any) -> CompiledLayer:
    return _with_normals(layer, kappa, op="linear", activation=activation_name(layer.activation))


def _conv(layer: nn.LorentzConv, kappa: Any) -> CompiledLayer:
    sizes = {"strides": as_json(layer.strides), "padding": as_json(layer.padding)}
    activation = activation_name(layer.activation)
    return _with_normals(layer, kappa, op="conv", activation=activation, **sizes)


def _mlr(layer: nn.LorentzMLR, kappa: Any) -> CompiledLayer:
    return _with_normals(layer, kappa, op="mlr", scale=layer.scale)


def _center(layer: nn.LorentzBatchNorm, kappa: Any) -> CompiledLayer:
    arrays = {"mean": layer.mean[...], "beta": layer.beta_point(kappa)}
    return CompiledLayer({"op": "center", "kappa": float(layer.resolve_kappa(kappa))}, arrays)


def fold_center(layer: CompiledLayer, norm: CompiledLayer) -> CompiledLayer | None:
    """Fold a centring norm into the linear or convolution layer before it, which gets a boost.

    The rotation R of the norm's polar form goes into the normals: `R (x o v) = x o (R v)`, where R
    acts on the output axis. None where an activation stands between them, where their curvatures
    differ, or where a norm is folded in already.
    """
    kappa = norm.description["kappa"]
    free = layer.description["activation"] is None and "push" not in layer.arrays
    if not free or layer.description["kappa"] != kappa:
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
    return CompiledLayer(
        layer.description, {key: value.astype(dtype) for key, value in arrays.items()}
    )


COMPILERS: dict[type, Callable[[Any, Any], CompiledLayer]] = {
    nn.LorentzLinear: _linear,
    nn.LorentzConv: _conv,
    nn.LorentzMLR: _mlr,
    nn.LorentzBatchNorm: _center,
} | baselines.COMPILERS

FOLDS: dict[tuple[str, str], Callable[[CompiledLayer, CompiledLayer], CompiledLayer | None]] = {
    ("linear", "center"): fold_center,
    ("conv", "center"): fold_center,
} | baselines.FOLDS
