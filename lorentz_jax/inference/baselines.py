"""The baselines, compiled so that the Lorentz network can be compared with them fairly.

Their statistics, normals and gains become constants, and the Euclidean batch norm is folded into
its convolution. What is hyperbolic in their layers stays: they have nothing like a cached V.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.conv import window_arguments
from lorentz_jax.hyperplane import Normals
from lorentz_jax.inference.ops import (
    CompiledLayer,
    activation_name,
    activation_named,
    as_json,
    normal_arrays,
)
from lorentz_jax.models import chen, euclidean, hcnn, poincare, variance

# --- Euclidean ------------------------------------------------------------------------------


def euclidean_conv(x, arrays, *, strides):
    """Return `conv(x) + bias`, without a bias where there is none."""
    kernel = arrays["kernel"].astype(x.dtype)
    strides, pads = window_arguments(strides, None, kernel.shape[:2])
    out = lax.conv_general_dilated(
        x,
        kernel,
        strides,
        pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=compute_dtype(x.dtype),
    )
    bias = arrays.get("bias")
    return (out if bias is None else out + bias.astype(out.dtype)).astype(x.dtype)


def scale_shift(x, arrays):
    """Apply a batch norm that is not folded."""
    dtype = compute_dtype(x.dtype)
    scale, shift = arrays["scale"].astype(dtype), arrays["shift"].astype(dtype)
    return (x.astype(dtype) * scale + shift).astype(x.dtype)


def euclidean_head(x, arrays):
    """Return linear logits, float32 at least."""
    x = x.astype(compute_dtype(x.dtype))
    return x @ arrays["kernel"].astype(x.dtype) + arrays["bias"].astype(x.dtype)


def _euclidean_conv(layer: euclidean.Conv, kappa: Any) -> CompiledLayer:
    options = {"op": "euclidean_conv", "strides": as_json(layer.strides)}
    return CompiledLayer(options, {"kernel": layer.kernel[...]})


def _scale_shift(layer: Any, kappa: Any) -> CompiledLayer:
    mean, var = (np.asarray(stat[...], np.float64) for stat in (layer.mean, layer.var))
    gamma, beta = (np.asarray(param[...], np.float64) for param in (layer.scale, layer.bias))
    scale = gamma / np.sqrt(var + layer.epsilon)
    arrays = {"scale": scale, "shift": beta - mean * scale}
    dtype = layer.scale[...].dtype  # flax keeps statistics in float32
    return CompiledLayer({"op": "scale_shift"}, {key: a.astype(dtype) for key, a in arrays.items()})


def _euclidean_head(layer: euclidean.Head, kappa: Any) -> CompiledLayer:
    arrays = {"kernel": layer.kernel[...], "bias": layer.bias[...]}
    return CompiledLayer({"op": "euclidean_head"}, arrays)


def fold_scale_shift(layer: CompiledLayer, norm: CompiledLayer) -> CompiledLayer | None:
    """Fold a batch norm into its convolution, which gets a bias."""
    if "bias" in layer.arrays:
        return None
    kernel, scale = layer.arrays["kernel"], norm.arrays["scale"]
    folded = np.asarray(kernel, np.float64) * np.asarray(scale, np.float64)
    return CompiledLayer(
        layer.description, {"kernel": folded.astype(kernel.dtype), "bias": norm.arrays["shift"]}
    )


# --- HCNN, and the network with variance norm ------------------------------------------------


def chen_linear(x, arrays, *, kappa, activation):
    """Apply `chen.linear`."""
    return chen.linear(x, kappa=kappa, activation=activation_named(activation), **arrays)


def chen_conv(x, arrays, *, kappa, strides, padding, activation):
    """Apply `chen.conv`."""
    h = activation_named(activation)
    return chen.conv(x, kappa=kappa, strides=strides, padding=padding, activation=h, **arrays)


def variance_norm(x, arrays, *, kappa, deviation, limits):
    """Apply `variance.variance_norm` with constant statistics."""
    options = {"deviation": deviation, "limits": limits}
    return variance.variance_norm(x, kappa=kappa, **options, **arrays)[0]


def _chen(layer: chen.ChenLinear | chen.ChenConv, kappa: Any, **options: Any) -> CompiledLayer:
    names = ("kernel", "time", "bias", "log_scale")
    arrays = {name: getattr(layer, name)[...] for name in names if getattr(layer, name) is not None}
    options["activation"] = activation_name(layer.activation)
    return CompiledLayer(options | {"kappa": float(layer.resolve_kappa(kappa))}, arrays)


def _chen_linear(layer: chen.ChenLinear, kappa: Any) -> CompiledLayer:
    return _chen(layer, kappa, op="chen_linear")


def _chen_conv(layer: chen.ChenConv, kappa: Any) -> CompiledLayer:
    sizes = {"strides": as_json(layer.strides), "padding": as_json(layer.padding)}
    return _chen(layer, kappa, op="chen_conv", **sizes)


def _variance_norm(layer: variance.VarianceBatchNorm, kappa: Any) -> CompiledLayer:
    limits = None if layer.limits is None else [float(limit) for limit in layer.limits]
    options = {"op": "variance_norm", "deviation": layer.deviation, "limits": limits}
    return CompiledLayer(
        options | {"kappa": float(layer.resolve_kappa(kappa))}, _statistics(layer, kappa)
    )


def _statistics(layer: variance.VarianceBatchNorm, kappa: Any) -> dict[str, Array]:
    return {
        "mean": layer.running_mean(layer.resolve_kappa(kappa)),
        "beta": layer.beta_point(kappa),
        "gamma": layer.gamma[...],
        "variance": layer.var[...],
    }


def _bdeir_mlr(layer: hcnn.BdeirMLR, kappa: Any) -> CompiledLayer:
    kappa = layer.resolve_kappa(kappa)
    normals = hcnn.plane_normals(layer.kernel[...], layer.bias[...], kappa)
    return CompiledLayer(
        {"op": "mlr", "scale": "outside", "kappa": float(kappa)}, normal_arrays(normals)
    )


# --- Poincare -------------------------------------------------------------------------------


def poincare_conv(x, arrays, *, kappa, strides, padding):
    """Apply `poincare.conv` with cached normals."""
    return poincare.conv(x, Normals(**arrays), kappa, strides, padding)


def poincare_linear(x, arrays, *, kappa):
    """Apply `poincare.linear` with cached normals."""
    return poincare.linear(x, Normals(**arrays), kappa)


def poincare_mlr(x, arrays, *, kappa):
    """Apply `poincare.mlr` with cached normals, float32 at least."""
    return poincare.mlr(x.astype(compute_dtype(x.dtype)), Normals(**arrays), kappa)


def poincare_head(x, arrays, *, kappa):
    """Return the tangent vector of a linear layer's output, float32 at least."""
    return poincare.to_tangent(
        poincare_linear(x.astype(compute_dtype(x.dtype)), arrays, kappa=kappa), kappa
    )


def midpoint_norm(x, arrays, *, kappa):
    """Apply `poincare.midpoint_norm` with constant statistics."""
    return poincare.midpoint_norm(x, kappa=kappa, **arrays)[0]


def _poincare(op: str, *sizes: str) -> Callable[[Any, Any], CompiledLayer]:
    def make(layer: Any, kappa: Any) -> CompiledLayer:
        kappa = layer.resolve_kappa(kappa)
        options = {"op": op, "kappa": float(kappa)} | {s: as_json(getattr(layer, s)) for s in sizes}
        return CompiledLayer(options, normal_arrays(layer.planes(kappa)))

    return make


def _midpoint_norm(layer: poincare.PoincareBatchNorm, kappa: Any) -> CompiledLayer:
    options = {"op": "midpoint_norm", "kappa": float(layer.resolve_kappa(kappa))}
    return CompiledLayer(options, _statistics(layer, kappa))


# --- tables ---------------------------------------------------------------------------------

OPS: dict[str, Callable[..., Array]] = {
    "chen_conv": chen_conv,
    "chen_linear": chen_linear,
    "euclidean_conv": euclidean_conv,
    "euclidean_head": euclidean_head,
    "midpoint_norm": midpoint_norm,
    "poincare_conv": poincare_conv,
    "poincare_head": poincare_head,
    "poincare_linear": poincare_linear,
    "poincare_mlr": poincare_mlr,
    "scale_shift": scale_shift,
    "variance_norm": variance_norm,
}

COMPILERS: dict[type, Callable[[Any, Any], CompiledLayer]] = {
    chen.ChenConv: _chen_conv,
    chen.ChenLinear: _chen_linear,
    euclidean.BatchNorm: _scale_shift,
    euclidean.Conv: _euclidean_conv,
    euclidean.Head: _euclidean_head,
    hcnn.BdeirMLR: _bdeir_mlr,
    hcnn.HCNNBatchNorm: _variance_norm,
    poincare.PoincareBatchNorm: _midpoint_norm,
    poincare.PoincareConv: _poincare("poincare_conv", "strides", "padding"),
    poincare.PoincareLinear: _poincare("poincare_linear"),
    poincare.PoincareMLR: _poincare("poincare_mlr"),
    poincare._Head: _poincare("poincare_head"),
    variance.VarianceBatchNorm: _variance_norm,
}

FOLDS: dict[tuple[str, str], Callable[[CompiledLayer, CompiledLayer], CompiledLayer | None]] = {
    ("euclidean_conv", "scale_shift"): fold_scale_shift,
}

# What the networks do between their layers: functions of (..., kappa).
BETWEEN: dict[str, Callable[..., Array]] = {
    "centroid": hcnn.pool,
    "from_tangent": poincare.from_tangent,
    "mean": euclidean._mean,
    "moebius_sum": poincare.add,
    "tangent_mean": poincare.pool,
    "tangent_relu": poincare.relu,
}
