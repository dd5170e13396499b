"""The compiled form: arrays by name, what to do with them as JSON, and a pure function."""

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
from lorentz_jax.inference.networks import NETWORKS, join
from lorentz_jax.models import has_extra_logit

Shapes = dict[str, tuple[int, ...]]

HALF = ("bfloat16", "float16")

OPS: dict[str, Callable[..., Array]] = ops.OPS | baselines.OPS


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A network for inference. It is no module and holds nothing that could be trained.

    Attributes:
      params: flat `{"stages/0/1/first/space": array}`: the name of a layer and of its array.
      layers: by name, `{"op": name in ops.OPS, "kappa": number, ...}`, the options of the layer.
      network: how the layers are joined, `{"kind": name in NETWORKS, ...}`.
      dtype: half precision that activations are kept in ("bfloat16", "float16"), or None for that
        of the input.
      info: whatever else belongs to the model, as JSON: dataset, accuracy, class names.

    Raises:
      ValueError: a description that is not consistent in itself or with the arrays.
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
        """The arrays of one layer, by their own names."""
        params = self.params if params is None else params
        return {short: params[key] for key, short in _keys(params, name).items()}

    def apply(self, params: Mapping[str, Array], x: Array) -> Array:
        """Pure: the network's output for `x`, in the dtype of `x`. Jit it: `jax.jit(c.apply)`.

        Raises `ValueError`, at trace time, for arrays or an `x` of other shapes than the model's.
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
        """`apply` with the model's own arrays, compiled once for each shape of `x`."""
        return self._jitted(self.params, jnp.asarray(x))

    @functools.cached_property
    def _jitted(self) -> Callable:
        return jax.jit(self.apply)


def mismatch(got: Mapping[str, Any], expected: Mapping[str, Any], limit: int = 4) -> str:
    """What differs between two flat dicts of shapes (or of anything), in words; "" for nothing."""
    notes = [f"{key} is missing" for key in expected if key not in got]
    notes += [f"{key} is unknown" for key in got if key not in expected]
    notes += [
        f"{key}: expected {expected[key]}, got {got[key]}"
        for key in expected
        if key in got and got[key] != expected[key]
    ]
    more = f"; and {len(notes) - limit} more" if len(notes) > limit else ""
    return "; ".join(notes[:limit]) + more


def _keys(params: Mapping[str, Any], name: str) -> dict[str, str]:
    """Full and own names of the arrays of the layer `name`."""
    prefix = join(name, "x")[:-1]
    own = {key: key[len(prefix) :] for key in params if key.startswith(prefix)}
    return {key: short for key, short in own.items() if "/" not in short}


def _options(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "op"}


def _check_options(name: str, layer: Mapping[str, Any]) -> None:
    """The options are those that the op takes."""
    try:
        inspect.signature(OPS[layer["op"]]).bind("x", "arrays", **_options(layer))
    except TypeError as error:
        raise ValueError(f"layer {name!r}, op {layer['op']}: {error}") from None


def _check_shapes(name: str, shapes: Shapes) -> None:
    """The arrays of one layer fit each other: all have the width of its output."""
    widths = {key: shape[-1] for key, shape in shapes.items() if shape}
    if len(set(widths.values())) > 1 or max(map(len, shapes.values()), default=0) == 0 < len(
        shapes
    ):
        raise ValueError(f"layer {name!r}: its arrays do not fit each other, got shapes {shapes}")


def evaluate(compiled: Compiled, dataset: Dataset, batch_size: int = 256) -> dict[str, Any]:
    """`loss`, `accuracy`, `count` and `class_accuracy` on the test set, exact for any batch size.

    Images are normalised as in training, by the dataset's mean and deviation. Raises `ValueError`
    for images or classes that the model is not made for.
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
