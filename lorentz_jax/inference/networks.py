"""How the layers of a compiled network are joined: one function for each kind of network.

Each takes `layer(name, x)`, which runs a layer, the descriptions of all layers, that of the
network, and x. They mirror what the NNX modules do in evaluation mode.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from lorentz_jax.inference import baselines
from lorentz_jax.models.resnet import Layers

Layer = Callable[[str, Array], Array]

# What a ResNet does between its layers; the siblings' functions take kappa too.
JOINTS: dict[str, Callable[..., Array]] = {
    "relu": Layers.relu,
    "add": Layers.residual,
} | baselines.JOINTS


def chain(layer: Layer, layers: Mapping[str, Any], network: Mapping[str, Any], x: Array) -> Array:
    """Layers one after the other: `{"kind": "chain", "steps": [name, ...]}`."""
    for name in network["steps"]:
        x = layer(name, x)
    return x


def resnet(layer: Layer, layers: Mapping[str, Any], network: Mapping[str, Any], x: Array) -> Array:
    """`models.ResNet`.

    `{"kind": "resnet", "stages": [blocks, ...], "in_channels": C, "kappa": number or null}`, and
    the names in `JOINTS` of its `entry`, `relu`, `residual` and `pool`, null for none.
    """
    channels, kappa = network["in_channels"], network["kappa"]
    if x.ndim != 4 or x.shape[-1] != channels:
        raise ValueError(f"expected images (N, H, W, {channels}), got shape {x.shape}")

    def joint(role: str, *x: Array) -> Array:
        name = network[role]
        return x[0] if name is None else JOINTS[name](*x, kappa)

    def unit(name: str, x: Array) -> Array:
        # A norm that is not folded is a layer after its convolution.
        for part in (name, join(name, "conv"), join(name, "norm")):
            if part in layers:
                x = layer(part, x)
        return x

    x = joint("relu", unit("stem", joint("entry", x)))
    for stage, blocks in enumerate(network["stages"]):
        for block in range(blocks):
            name = f"stages/{stage}/{block}"
            y = unit(f"{name}/second", joint("relu", unit(f"{name}/first", x)))
            x = joint("relu", joint("residual", y, unit(f"{name}/shortcut", x)))
    if network["pool"] is not None:
        return layer("head", joint("pool", x))
    return jnp.mean(layer("head", x), axis=(1, 2))


NETWORKS: dict[str, Callable[[Layer, Mapping, Mapping, Array], Array]] = {
    "chain": chain,
    "resnet": resnet,
}


def join(*names: str) -> str:
    """Path of a layer or array; the only layer of a model is called ""."""
    return "/".join(name for name in names if name)
