"""Measure a network layer by layer: how far out it works, and how fast training turns it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, geometry
from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax.metrics import cross_entropy
from lorentz_jax.models import Network
from lorentz_jax.nn import resolve_kappa
from lorentz_jax.optim import leaf_name
from lorentz_jax.training.state import flatten, merge
from lorentz_jax.training.step import Prepare, Step, pick

Choice = Callable[[Sequence[str]], bool]
"""Tells by the parts of its path whether to look at a layer."""


def without_convolutions(layer: Sequence[str]) -> bool:
    """Accept the stem, the blocks and their branches: a convolution only after its norm."""
    return layer[-1] not in ("conv", "norm", "head")


def with_convolutions(layer: Sequence[str]) -> bool:
    """Accept what `without_convolutions` does, and every convolution before its norm."""
    # Flax captures no method that a class inherits, such as the call of HCNN's norm.
    return layer[-1] not in ("norm", "head")


def has_relu(layer: Sequence[str]) -> bool:
    """Tell whether a ReLU comes next, or was the last operation, as in a block of a ResNet."""
    return layer[-1] in ("stem", "first") or (layer[-1].isdigit() and layer[0] == "stages")


def make_radius_step(
    graphdef: Any,
    prepare: Prepare,
    dtype: Any = None,
    out_sharding: Any = None,
    layers: Choice = without_convolutions,
) -> Step:
    """Build `step(params, stats, images, indices, kappa=None) -> {"stages/0/0/first": radius}`.

    A radius is the distance of a layer's outputs to the origin in evaluation mode, the mean over
    the images `indices` and their pixels. In a flat network it is the Euclidean norm, the limit for
    kappa to 0 of `asinh(s|x|)/s`. The step raises `TypeError` for a network without an attribute
    `kappa`.

    Args:
        graphdef: of the network, from `state.split`.
        prepare: of the images; gets no key.
        dtype: what the network computes in.
        out_sharding: how the results lie on several devices.
        layers: accepts the layers to measure.
    """

    def radii(params, stats, images, indices, kappa=None):
        model, batch = merge(graphdef, params, stats), prepare(None, pick(images, indices))
        kappa = _network_kappa(model, kappa)
        _, outputs = _capture(model, batch, kappa, layers, dtype, train=False)
        return {
            layer: _radius(points, _kappa_at(model, layer, kappa))
            for layer, points in outputs.items()
        }

    return Step(radii, out_sharding)


def make_diagnostic_step(
    graphdef: Any, prepare: Prepare, dtype: Any = None, out_sharding: Any = None
) -> Step:
    """Build `step(params, stats, images, labels, indices, key, kappa=None) -> {"stem/scale": ...}`.

    It measures the network on the images `indices` in training mode, and updates nothing, not even
    the running statistics. A name is a path and a measure:

    - of the stem, blocks and their branches: `radius` as in `make_radius_step`, and `scale`, the
      root mean square of the output's (space) coordinates;
    - of those that a ReLU (or GELU) follows or ends: `active`, the share of coordinates above 0;
    - of a parameter: `gradient`, the norm of the gradient of the mean cross-entropy;
    - of a kernel a: `speed`, the root mean square over its units of |∇a|/|a|. So fast a step of SGD
      turns a weight-normalised direction, per learning rate, before `max_turn` limits the units one
      by one. a = 0 counts as 0.

    The step raises `TypeError` for a network without an attribute `kappa`.

    Args:
        graphdef: of the network, from `state.split`.
        prepare: gets the step's `key` to augment by, None for not at all.
        dtype: what the network computes in.
        out_sharding: how the results lie on several devices.
    """

    def diagnose(params, stats, images, labels, indices, key, kappa=None):
        batch, targets = prepare(key, pick(images, indices)), pick(labels, indices)

        def loss_fn(params):
            model = merge(graphdef, params, stats)
            network_kappa = _network_kappa(model, kappa)
            logits, outputs = _capture(
                model, batch, network_kappa, without_convolutions, dtype, train=True
            )
            measures = _measure(outputs, lambda layer: _kappa_at(model, layer, network_kappa))
            return cross_entropy(logits, targets).mean(), measures

        gradients, measures = jax.grad(loss_fn, has_aux=True)(params)
        for path, gradient in gradients.items():
            measures[f"{path}/gradient"] = jnp.linalg.norm(gradient)
            if leaf_name(path) == "kernel":
                measures[f"{path}/speed"] = _speed(params[path], gradient)
        return measures

    return Step(diagnose, out_sharding)


def _network_kappa(model: Any, kappa: Any) -> Any:
    """The kappa to pass to the network; None if it is flat or its layers own theirs."""
    if not hasattr(model, "kappa"):
        raise TypeError(
            f"expected a network with an attribute kappa (None for a flat one), got "
            f"{type(model).__name__}"
        )
    if isinstance(model, Network):
        return model.resolve_kappa(kappa)
    return None if model.kappa is None else resolve_kappa(model.kappa, kappa)


def _kappa_at(model: Any, layer: str, kappa: Any) -> Any:
    """The kappa of the hyperboloid that a layer's output lies on; `kappa` unless it owns one."""
    return model.kappa_at(layer, kappa) if isinstance(model, Network) else kappa


def _drop_copies(model: nnx.Module) -> None:
    """Take methods of `nnx.Module` out of the classes that `nnx.tabulate` has put them into.

    `nnx.capture` would take `sow` for a method of the class then, and record it by itself.
    """
    for cls in {type(module) for _, module in nnx.iter_modules(model)} - {nnx.Module}:
        for name, method in vars(nnx.Module).items():
            if callable(method) and vars(cls).get(name) is method:
                delattr(cls, name)


def _capture(
    model: Any, batch: Array, kappa: Any, layers: Choice, dtype: Any, train: bool
) -> tuple[Array, dict[str, Array]]:
    """The logits, and the outputs of the accepted layers by path."""
    options = {} if dtype is None else {"dtype": dtype}
    _drop_copies(model)
    run = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)
    with functional.kernels("xla"):  # others take a layer into the next operation
        logits, captured = run(batch, train=train, kappa=kappa, **options)
    outputs = {}
    for path, values in flatten(captured).items():
        *layer, method = path.split("/")
        # A `Kappa` module is called too, and is no layer.
        if method == "__call__" and layer and layer[-1] != "kappa" and layers(layer):
            points = values[-1]
            outputs["/".join(layer)] = points.astype(compute_dtype(points.dtype))
    return logits, outputs


def _measure(outputs: dict[str, Array], kappa_at: Callable[[str], Any]) -> dict[str, Array]:
    measures = {}
    for layer, points in jax.lax.stop_gradient(outputs).items():
        measures[f"{layer}/radius"] = _radius(points, jax.lax.stop_gradient(kappa_at(layer)))
        measures[f"{layer}/scale"] = jnp.sqrt(jnp.mean(points**2))
        if has_relu(layer.split("/")):
            measures[f"{layer}/active"] = jnp.mean(points > 0, dtype=points.dtype)
    return measures


def _radius(points: Array, kappa: Any) -> Array:
    distances = jnp.linalg.norm(points, axis=-1) if kappa is None else geometry.dist0(points, kappa)
    return jnp.mean(distances)


def _speed(kernel: Array, gradient: Array) -> Array:
    length, slope = (
        jnp.linalg.norm(a.reshape(-1, a.shape[-1]), axis=0) for a in (kernel, gradient)
    )
    live = length > 0
    return jnp.sqrt(jnp.mean(jnp.where(live, slope / jnp.where(live, length, 1), 0) ** 2))
