"""The compiled form of a network: arrays by name, a description in JSON, and a pure function."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax import metrics
from lorentz_jax._src.arguments import as_array, as_kappa
from lorentz_jax.data import Dataset, normalise
from lorentz_jax.inference import baselines, ops
from lorentz_jax.models import has_extra_logit
from lorentz_jax.models.resnet import Layers

Shapes = dict[str, tuple[int, ...]]

HALF = ("bfloat16", "float16")

OPS: dict[str, Callable[..., Array]] = ops.OPS | baselines.OPS


def join(*names: str) -> str:
    """Return the path of a layer or array; the only layer of a model is called ""."""
    return "/".join(name for name in names if name)


def mismatch(got: Mapping[str, Any], expected: Mapping[str, Any], limit: int = 4) -> str:
    """Say what differs between two flat dicts of shapes (or of anything); "" for nothing."""
    notes = [f"{key} is missing" for key in expected if key not in got]
    notes += [f"{key} is unknown" for key in got if key not in expected]
    notes += [
        f"{key}: expected {expected[key]}, got {got[key]}"
        for key in expected
        if key in got and got[key] != expected[key]
    ]
    more = f"; and {len(notes) - limit} more" if len(notes) > limit else ""
    return "; ".join(notes[:limit]) + more


# --- networks: how layers are joined, in evaluation mode -------------------------------------

RunLayer = Callable[[str, Array], Array]
"""`(name, x)`: runs a layer."""

# What a ResNet does between its layers; the baselines' functions take kappa too.
BETWEEN: dict[str, Callable[..., Array]] = {
    "relu": Layers.relu,
    "add": Layers.residual,
} | baselines.BETWEEN


def chain(
    layer: RunLayer, layers: Mapping[str, Any], network: Mapping[str, Any], x: Array
) -> Array:
    """Run layers one after the other: `{"kind": "chain", "steps": [name, ...]}`."""
    for name in network["steps"]:
        x = layer(name, x)
    return x


def resnet(
    layer: RunLayer, layers: Mapping[str, Any], network: Mapping[str, Any], x: Array
) -> Array:
    """Run a `models.ResNet`.

    `{"kind": "resnet", "stages": [blocks, ...], "in_channels": C, "kappa": number or null}`, and
    the names in `BETWEEN` of its `entry`, `relu`, `residual` and `pool`, null for none.
    """
    channels, kappa = network["in_channels"], network["kappa"]
    if x.ndim != 4 or x.shape[-1] != channels:
        raise ValueError(f"expected images (N, H, W, {channels}), got shape {x.shape}")

    def between(role: str, *x: Array) -> Array:
        name = network[role]
        return x[0] if name is None else BETWEEN[name](*x, kappa)

    def unit(name: str, x: Array) -> Array:
        # A norm that is not folded is a layer after its convolution.
        for part in (name, join(name, "conv"), join(name, "norm")):
            if part in layers:
                x = layer(part, x)
        return x

    x = between("relu", unit("stem", between("entry", x)))
    for stage, blocks in enumerate(network["stages"]):
        for block in range(blocks):
            name = f"stages/{stage}/{block}"
            y = unit(f"{name}/second", between("relu", unit(f"{name}/first", x)))
            x = between("relu", between("residual", y, unit(f"{name}/shortcut", x)))
    if network["pool"] is not None:
        return layer("head", between("pool", x))
    return jnp.mean(layer("head", x), axis=(1, 2))


NETWORKS: dict[str, Callable[[RunLayer, Mapping, Mapping, Array], Array]] = {
    "chain": chain,
    "resnet": resnet,
}


# --- the compiled form ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A network for inference. It is no module and holds nothing that could be trained.

    Calling it runs it: `compiled(x)`, compiled once for each shape of `x`.

    Attributes:
        params: flat `{"stages/0/1/first/space": array}`: the name of a layer and of its array.
        layers: by name, `{"op": name in ops.OPS, "kappa": number, ...}`, the options of the layer.
        network: how the layers are joined, `{"kind": name in NETWORKS, ...}`.
        dtype: half precision that activations are kept in ("bfloat16", "float16"), or None for
            that of the input.
        info: whatever else belongs to the model, as JSON: dataset, accuracy, class names.

    Raises:
        ValueError: the description is not consistent in itself or with the arrays.
    """

    params: Mapping[str, Array]
    layers: Mapping[str, Mapping[str, Any]]
    network: Mapping[str, Any]
    dtype: str | None = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype not in (None, *HALF):
            raise ValueError(f"dtype must be None or one of {HALF}, got {self.dtype!r}")
        if self.network.get("kind") not in NETWORKS:
            raise ValueError(
                f"unknown kind of network {self.network.get('kind')!r}; known: {list(NETWORKS)}"
            )
        for name, layer in self.layers.items():
            if layer.get("op") not in OPS:
                raise ValueError(f"layer {name!r} has unknown op {layer.get('op')!r}")
            _check_options(name, layer)
            if "kappa" in layer:
                as_kappa(layer["kappa"], np.float32)
            _check_shapes(name, {k: np.shape(v) for k, v in self.arrays(name).items()})
        known = {key for name in self.layers for key in _keys(self.params, name)}
        if known != set(self.params):
            raise ValueError(f"arrays of no layer: {sorted(set(self.params) - known)}")

    @property
    def kappa(self) -> float | None:
        """The kappa of all layers; None where they differ or have none."""
        values = {layer["kappa"] for layer in self.layers.values() if "kappa" in layer}
        return values.pop() if len(values) == 1 else None

    @property
    def shapes(self) -> Shapes:
        """Shape of every array."""
        return {key: tuple(np.shape(value)) for key, value in self.params.items()}

    def arrays(self, name: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the arrays of one layer, by their own names."""
        params = self.params if params is None else params
        return {short: params[key] for key, short in _keys(params, name).items()}

    def apply(self, params: Mapping[str, Array], x: Array) -> Array:
        """Return the network's output in the dtype of `x`: a pure function to jit.

        Args:
            params: the model's own arrays, `self.params`.
            x: images `(N, H, W, C)`, or points of a model without convolutions.

        Raises:
            ValueError: at trace time, arrays or an `x` of other shapes than the model's.
        """
        difference = mismatch(
            {key: tuple(np.shape(value)) for key, value in params.items()}, self.shapes
        )
        if difference:
            raise ValueError(f"these are not the arrays of this model: {difference}")
        x = as_array("x", x)

        def layer(name: str, x: Array) -> Array:
            description = self.layers[name]
            return OPS[description["op"]](x, self.arrays(name, params), **_options(description))

        start = x if self.dtype is None else x.astype(self.dtype)
        run = NETWORKS[self.network["kind"]]
        return run(layer, self.layers, self.network, start).astype(x.dtype)

    def __call__(self, x: Any) -> Array:
        """Run `apply` with the model's own arrays, compiled once for each shape of `x`."""
        return self._jitted(self.params, jnp.asarray(x))

    @functools.cached_property
    def _jitted(self) -> Callable:
        return jax.jit(self.apply)


def _keys(params: Mapping[str, Any], name: str) -> dict[str, str]:
    """Full and own names of the arrays of the layer `name`."""
    prefix = join(name, "x")[:-1]
    names = {key: key[len(prefix) :] for key in params if key.startswith(prefix)}
    return {key: short for key, short in names.items() if "/" not in short}


def _options(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "op"}


def _check_options(name: str, layer: Mapping[str, Any]) -> None:
    """Raise unless the options are those that the op takes."""
    try:
        inspect.signature(OPS[layer["op"]]).bind("x", "arrays", **_options(layer))
    except TypeError as error:
        raise ValueError(f"layer {name!r}, op {layer['op']}: {error}") from None


def _check_shapes(name: str, shapes: Shapes) -> None:
    """Raise unless the arrays of one layer fit each other: all have the width of its output."""
    widths = {shape[-1] for shape in shapes.values() if shape}
    if len(widths) > 1 or (shapes and not widths):
        raise ValueError(f"layer {name!r}: its arrays do not fit each other, got shapes {shapes}")


# --- evaluation -----------------------------------------------------------------------------


def evaluate(compiled: Compiled, dataset: Dataset, batch_size: int = 256) -> dict[str, Any]:
    """Evaluate a compiled model on the test set of a dataset, exactly for any batch size.

    Images are normalised as in training, by the dataset's mean and deviation.

    Args:
        compiled: the model.
        dataset: as `data.load` gives it.
        batch_size: images a step.

    Returns:
        `loss`, `accuracy`, `count`, `class_accuracy` and `confusion`.

    Raises:
        ValueError: images or classes that the model is not made for.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    classes, config = dataset.num_classes, compiled.info.get("config", {})
    outputs = classes + has_extra_logit(config.get("model"), config.get("init"))

    def count(params, images, labels, indices, mask):
        batch = normalise(images[indices], dataset.mean, dataset.std)
        logits = compiled.apply(params, batch)
        if logits.shape != (*indices.shape, outputs):
            raise ValueError(
                f"{dataset.name} has {classes} classes, the model's output is {logits.shape[1:]}"
            )
        return metrics.count_batch(logits, labels[indices], mask, classes)

    images, labels = jnp.asarray(dataset.test_images), jnp.asarray(dataset.test_labels)
    step = jax.jit(count)
    return metrics.evaluate(
        lambda indices, mask: step(compiled.params, images, labels, indices, mask),
        len(dataset.test_labels),
        batch_size,
    )
