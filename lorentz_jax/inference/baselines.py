"""The siblings of the Lorentz network, compiled so that they can be compared with it fairly.

Their statistics, planes and gains become constants, and the Euclidean batch norm is folded into its
convolution. What is hyperbolic in their layers stays: they have nothing like a cached V.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.conv import window_arguments
from lorentz_jax.hyperplane import Normals
from lorentz_jax.inference.ops import Piece, activation_name, activation_named, normal_arrays, plain
from lorentz_jax.models import chen, euclidean, hcnn, poincare, variance

# --- Euclidean ------------------------------------------------------------------------------


def euclidean_conv(x, arrays, *, strides):
    """`conv(x) + bias`, without a bias where there is none."""
    kernel = arrays["kernel"].astype(x.dtype)
    strides, pads = window_arguments(strides, None, kernel.shape[:2])
    out = lax.conv_general_dilated(
        x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=compute_dtype(x.dtype),
    )  # fmt: skip
    bias = arrays.get("bias")
    return (out if bias is None else out + bias.astype(out.dtype)).astype(x.dtype)


def scale_shift(x, arrays):
    """A batch norm that is not folded."""
    dtype = compute_dtype(x.dtype)
    scale, shift = arrays["scale"].astype(dtype), arrays["shift"].astype(dtype)
    return (x.astype(dtype) * scale + shift).astype(x.dtype)


def euclidean_head(x, arrays):
    """Linear logits, float32 at least."""
    x = x.astype(compute_dtype(x.dtype))
    return x @ arrays["kernel"].astype(x.dtype) + arrays["bias"].astype(x.dtype)


def _euclidean_conv(layer: euclidean.EuclideanConv, kappa: Any) -> Piece:
    options = {"op": "euclidean_conv", "strides": plain(layer.strides)}
    return Piece(options, {"kernel": layer.kernel[...]})


def _scale_shift(layer: Any, kappa: Any) -> Piece:
    mean, var = (np.asarray(stat[...], np.float64) for stat in (layer.mean, layer.var))
    gamma, beta = (np.asarray(param[...], np.float64) for param in (layer.scale, layer.bias))
    scale = gamma / np.sqrt(var + layer.epsilon)
    arrays = {"scale": scale, "shift": beta - mean * scale}
    dtype = layer.scale[...].dtype  # flax keeps statistics in float32
    return Piece({"op": "scale_shift"}, {key: a.astype(dtype) for key, a in arrays.items()})


def _euclidean_head(layer: euclidean.EuclideanHead, kappa: Any) -> Piece:
    arrays = {"kernel": layer.kernel[...], "bias": layer.bias[...]}
    return Piece({"op": "euclidean_head"}, arrays)


def fold_scale_shift(layer: Piece, norm: Piece) -> Piece | None:
    """A convolution and its batch norm as one convolution with a bias."""
    if "bias" in layer.arrays:
        return None
    kernel, scale = layer.arrays["kernel"], norm.arrays["scale"]
    folded = np.asarray(kernel, np.float64) * np.asarray(scale, np.float64)
    return Piece(layer.layer, {"kernel": folded.astype(kernel.dtype), "bias": norm.arrays["shift"]})


# --- HCNN and the "normal" networks ----------------------------------------------------------


def chen_linear(x, arrays, *, kappa, activation):
    """`chen.linear`."""
    return chen.linear(x, kappa=kappa, activation=activation_named(activation), **arrays)


def chen_conv(x, arrays, *, kappa, strides, padding, activation):
    """`chen.conv`."""
    h = activation_named(activation)
    return chen.conv(x, kappa=kappa, strides=strides, padding=padding, activation=h, **arrays)


def variance_norm(x, arrays, *, kappa, deviation, limits):
    """`variance.variance_norm` with constant statistics."""
    options = {"deviation": deviation, "limits": limits}
    return variance.variance_norm(x, kappa=kappa, **options, **arrays)[0]


def _chen(layer: chen.ChenLinear | chen.ChenConv, kappa: Any, **options: Any) -> Piece:
    names = ("kernel", "time", "bias", "log_scale")
    arrays = {name: getattr(layer, name)[...] for name in names if getattr(layer, name) is not None}
    options["activation"] = activation_name(layer.activation)
    return Piece(options | {"kappa": float(layer.resolve_kappa(kappa))}, arrays)


def _chen_linear(layer: chen.ChenLinear, kappa: Any) -> Piece:
    return _chen(layer, kappa, op="chen_linear")


def _chen_conv(layer: chen.ChenConv, kappa: Any) -> Piece:
    sizes = {"strides": plain(layer.strides), "padding": plain(layer.padding)}
    return _chen(layer, kappa, op="chen_conv", **sizes)


def _variance_norm(layer: variance.VarianceBatchNorm, kappa: Any) -> Piece:
    limits = None if layer.limits is None else [float(limit) for limit in layer.limits]
    options = {"op": "variance_norm", "deviation": layer.deviation, "limits": limits}
    return Piece(options | {"kappa": float(layer.resolve_kappa(kappa))}, _statistics(layer, kappa))


def _statistics(layer: variance.VarianceBatchNorm, kappa: Any) -> dict[str, Array]:
    return {
        "mean": layer.running_mean(layer.resolve_kappa(kappa)),
        "beta": layer.beta_point(kappa),
        "gamma": layer.gamma[...],
        "variance": layer.var[...],
    }


def _bdeir_mlr(layer: hcnn.BdeirMLR, kappa: Any) -> Piece:
    kappa = layer.resolve_kappa(kappa)
    normals = hcnn.plane_normals(layer.kernel[...], layer.bias[...], kappa)
    return Piece({"op": "mlr", "scale": "outside", "kappa": float(kappa)}, normal_arrays(normals))


# --- Poincare -------------------------------------------------------------------------------


def poincare_conv(x, arrays, *, kappa, strides, padding):
    """`poincare.conv` with cached planes."""
    return poincare.conv(x, Normals(**arrays), kappa, strides, padding)


def poincare_linear(x, arrays, *, kappa):
    """`poincare.linear` with cached planes."""
    return poincare.linear(x, Normals(**arrays), kappa)


def poincare_mlr(x, arrays, *, kappa):
    """`poincare.mlr` with cached planes, float32 at least."""
    return poincare.mlr(x.astype(compute_dtype(x.dtype)), Normals(**arrays), kappa)


def poincare_head(x, arrays, *, kappa):
    """The tangent vector of a linear layer's output, float32 at least."""
    return poincare.to_tangent(
        poincare_linear(x.astype(compute_dtype(x.dtype)), arrays, kappa=kappa), kappa
    )


def midpoint_norm(x, arrays, *, kappa):
    """`variance.midpoint_norm` with constant statistics."""
    return variance.midpoint_norm(x, kappa=kappa, **arrays)[0]


def _poincare(op: str, *sizes: str) -> Callable[[Any, Any], Piece]:
    def make(layer: Any, kappa: Any) -> Piece:
        kappa = layer.resolve_kappa(kappa)
        options = {"op": op, "kappa": float(kappa)} | {s: plain(getattr(layer, s)) for s in sizes}
        return Piece(options, normal_arrays(layer.normals(kappa)))

    return make


def _midpoint_norm(layer: variance.PoincareBatchNorm, kappa: Any) -> Piece:
    options = {"op": "midpoint_norm", "kappa": float(layer.resolve_kappa(kappa))}
    return Piece(options, _statistics(layer, kappa))


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

PIECES: dict[type, Callable[[Any, Any], Piece]] = {
    chen.ChenConv: _chen_conv,
    chen.ChenLinear: _chen_linear,
    euclidean.EuclideanBatchNorm: _scale_shift,
    euclidean.EuclideanConv: _euclidean_conv,
    euclidean.EuclideanHead: _euclidean_head,
    hcnn.BdeirMLR: _bdeir_mlr,
    variance.HCNNBatchNorm: _variance_norm,
    variance.PoincareBatchNorm: _midpoint_norm,
    poincare.PoincareConv: _poincare("poincare_conv", "strides", "padding"),
    poincare.PoincareLinear: _poincare("poincare_linear"),
    poincare.PoincareMLR: _poincare("poincare_mlr"),
    poincare.PoincareHead: _poincare("poincare_head"),
    variance.VarianceBatchNorm: _variance_norm,
}

FUSIONS: dict[tuple[str, str], Callable[[Piece, Piece], Piece | None]] = {
    ("euclidean_conv", "scale_shift"): fold_scale_shift,
}

# What the networks do between their layers, by name: functions of (..., kappa).
JOINTS: dict[str, Callable[..., Array]] = {
    "centroid": hcnn.pool,
    "from_tangent": poincare.from_tangent,
    "mean": euclidean.pool,
    "moebius_sum": poincare.add,
    "tangent_mean": poincare.pool,
    "tangent_relu": poincare.relu,
}
