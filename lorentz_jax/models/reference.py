"""Weights of the paper's PyTorch code for a `LorentzResNet`: names, signs and shapes.

The code is https://github.com/robertdvdk/hyperbolic-fully-connected.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from lorentz_jax import nn
from lorentz_jax._src.archive import open_archive
from lorentz_jax.models.resnet import LorentzResNet

__all__ = ["load_reference", "reference_name"]

# Our modules and leaves, as the reference names them.
MODULES = {
    "stem/conv": "input_proj.proj.0.fc",
    "stem/norm": "input_proj.proj.1",
    "first/conv": "layer1.fc",
    "first/norm": "bn1",
    "second/conv": "layer2.fc",
    "second/norm": "bn2",
    "shortcut/conv": "proj.0.fc",
    "shortcut/norm": "proj.1",
    "head": "classifier",
}
LEAVES = {"kernel": "v", "gain": "g", "bias": "a", "beta": "beta", "mean": "running_mean"}
# Buffers that follow from the rest.
DERIVED = re.compile(r"(.*\.)?(V_auxiliary|manifold\._k|num_batches_tracked)")
TOLERANCE = 1e-4  # of the time of a point, which float32 stores to 1e-7


def reference_name(path: str) -> str:
    """Return the reference's name for a path of ours.

    Example:
        >>> reference_name("stages/1/0/first/conv/kernel")
        'stage2.0.layer1.fc.v'
    """
    match = re.fullmatch(r"(?:stages/(\d+/\d+)/)?(.+)/(\w+)", path)
    if match is None or match[2] not in MODULES or match[3] not in LEAVES:
        raise ValueError(f"the reference has nothing like {path}")
    stage, module, leaf = match.groups()
    name = f"{MODULES[module]}.{'U' if (module, leaf) == ('head', 'kernel') else LEAVES[leaf]}"
    if stage is None:
        return name
    number, block = stage.split("/")
    return f"stage{int(number) + 1}.{block}.{name}"


def load_reference(model: LorentzResNet, source: Mapping[str, Any] | str | Path) -> LorentzResNet:
    """Give the model the weights of a state dict of the reference code, and return it.

    There a kernel is `(kh kw in, out)`, the stored `a` is minus the bias, and beta and the running
    mean are ambient points, time first. Gains pass through softplus in both. The network must be
    the reference's default: centring norm, weight norm, and the kappa that its points lie on.

    Args:
        model: stages, width, channels, classes and kappa as the reference was built with, and
            `use_bias=True`; any `init`, which only decides how b and beta are stored.
        source: arrays by name (NumPy, or torch tensors on the CPU), or the path of an `.npz` or
            `.safetensors` file of them, written by `numpy.savez` (not compressed) or safetensors.

    Raises:
        TypeError: the model is no `LorentzResNet`, or learns its kappa.
        ValueError: names are missing or left over, shapes differ, numbers are not finite, points
            have another curvature, or the file has another format. The model keeps its weights.
    """
    # Without a kappa of its own the network has one in every layer, learned.
    if not isinstance(model, LorentzResNet) or isinstance(model.kappa, nn.Kappa | None):
        raise TypeError("expected a LorentzResNet with a fixed kappa")
    state = _read(Path(source)) if isinstance(source, str | Path) else source
    arrays = {k: np.asarray(v) for k, v in state.items() if not DERIVED.fullmatch(k)}
    variables: dict[str, Any] = {
        "/".join(map(str, path)): variable
        for path, variable in nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    }
    names = {path: reference_name(path) for path in variables}
    missing = [name for name in names.values() if name not in arrays]
    surplus = sorted(set(arrays) - set(names.values()))
    if missing or surplus:
        biases = bool(surplus) and not missing and all(name.endswith(".a") for name in surplus)
        hint = "; it has biases, build the model with use_bias=True" if biases else ""
        raise ValueError(
            f"this is not the state of such a network: missing {missing[:4] or 'nothing'}, "
            f"left over {surplus[:4] or 'nothing'} (at most four named){hint}"
        )
    kappa, scaled = float(model.kappa), bool(model.stem.norm.scaled)
    values = {}
    for path, variable in variables.items():
        value = _ours(names[path], arrays[names[path]], variable.shape, kappa)
        if scaled and path.endswith("/beta"):
            value = value * np.sqrt(1 + kappa * value.size)
        if scaled and path.endswith("/bias"):
            inputs = np.prod(variables[path.removesuffix("bias") + "kernel"].shape[:-1])
            value = value * np.sqrt(1 + kappa * inputs)
        values[path] = jnp.asarray(value, variable.dtype)
    for path, variable in variables.items():
        variable[...] = values[path]
    nnx.update(model, nnx.from_flat_state({_key(p): v for p, v in variables.items()}))
    return model


def _key(path: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("/"))


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"expected an .npz or .safetensors file of arrays, got {path}")
    with open_archive(path) as archive:
        return {name: archive.array(name) for name in archive.names}


def _ours(name: str, value: np.ndarray, shape: tuple[int, ...], kappa: float) -> np.ndarray:
    """Return one array of the reference in our form."""
    point = name.endswith((".beta", ".running_mean"))
    expected = (shape[-1] + 1,) if point else (int(np.prod(shape[:-1])), shape[-1])
    expected = (shape[-1],) if name.endswith(".g") else expected
    if value.shape != expected:
        raise ValueError(f"{name}: expected shape {expected}, got {value.shape}")
    if not np.isfinite(value).all():
        raise ValueError(f"{name} is not finite")
    if not point:
        return (-value if name.endswith(".a") else value).reshape(shape)
    space, time = value[1:].astype(np.float64), float(value[0])
    on_ours = np.sqrt(1 / kappa + space @ space)
    if abs(time - on_ours) > TOLERANCE * on_ours:
        raise ValueError(
            f"{name} has time {time:.6g}, on the hyperboloid of kappa {kappa:g} it is {on_ours:.6g}"
        )
    return space
