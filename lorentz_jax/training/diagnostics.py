"""What a network does, layer by layer: how far out it works, and in training how fast it turns."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import geometry
from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax.metrics import cross_entropy
from lorentz_jax.models import ResNet
from lorentz_jax.nn import resolve_kappa
from lorentz_jax.optim import leaf_name
from lorentz_jax.training.state import flatten, merge
from lorentz_jax.training.step import Prepare, Step

Choice = Callable[[Sequence[str]], bool]
"""Whether to look at a layer, by the parts of its path."""


def whole(layer: Sequence[str]) -> bool:
    """The stem, blocks and their branches: a convolution together with its norm."""
    return layer[-1] not in ("conv", "norm", "head")


def with_convolutions(layer: Sequence[str]) -> bool:
    """`whole`, and every convolution before its norm."""
    # Flax captures no method that a class inherits, such as the call of HCNN's norm.
    return layer[-1] not in ("norm", "head")


def rectified(layer: Sequence[str]) -> bool:
    """Whether a ReLU comes next, or was the last operation, as in a block."""
    return layer[-1] in ("stem", "first") or layer[-1].isdigit()


def make_radius_step(
    graphdef: Any,
    prepare: Prepare,
    dtype: Any = None,
    out_sharding: Any = None,
    layers: Choice = whole,
) -> Step:
    """Build `step(params, stats, images, indices, kappa=None) -> {"stages/0/0/first": radius}`.

    Of the images `indices`, in evaluation mode: the mean over images and pixels of the distance of
    the outputs to the origin, for the layers whose path `layers` accepts. Where the network has no
    curvature that is the Euclidean norm, the limit for kappa to 0 of `asinh(s|x|)/s`.

    The step raises `TypeError` for a network without an attribute `kappa`.
    """

    def radii(params, stats, images, indices, kappa):
        model, batch = merge(graphdef, params, stats), prepare(None, images[indices])
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

    Of the images `indices`, in training mode; nothing is updated, the running statistics neither.
    The key is what `prepare` augments by, None for not at all. A name is a path and a measure:

    - of the stem, blocks and their branches: `radius` as in `make_radius_step`, and `scale`, the
      root mean square of the output's (space) coordinates;
    - of those that a ReLU follows or ends: `active`, the share of coordinates above 0;
    - of a parameter: `gradient`, the norm of the gradient of the mean cross entropy;
    - of a kernel a: `speed`, the root mean square over its units of |∇a|/|a|, which is how far a
      step of SGD turns a weight-normalised direction, per learning rate, before `max_turn` limits
      the units one by one. a = 0 counts as 0.

    The step raises `TypeError` for a network without an attribute `kappa`.
    """

    def diagnose(params, stats, images, labels, indices, key, kappa):
        batch, targets = prepare(key, images[indices]), labels[indices]

        def loss_fn(params):
            model = merge(graphdef, params, stats)
            own = _network_kappa(model, kappa)
            curvature = functools.partial(_kappa_at, model, kappa=own)
            logits, outputs = _capture(model, batch, own, whole, dtype, train=True)
            return cross_entropy(logits, targets).mean(), _measure(outputs, curvature)

        gradients, found = jax.grad(loss_fn, has_aux=True)(params)
        for path, gradient in gradients.items():
            found[f"{path}/gradient"] = jnp.linalg.norm(gradient)
            if leaf_name(path) == "kernel":
                found[f"{path}/speed"] = _speed(params[path], gradient)
        return found

    return Step(diagnose, out_sharding)


def _network_kappa(model: Any, kappa: Any) -> Any:
    """What the network is called with; None in a flat one, and where each layer has its own."""
    if not hasattr(model, "kappa"):
        raise TypeError(
            f"expected a network with an attribute kappa (None for a flat one), got "
            f"{type(model).__name__}"
        )
    if isinstance(model, ResNet):
        return model.resolve_kappa(kappa)
    return None if model.kappa is None else resolve_kappa(model.kappa, kappa)


def _kappa_at(model: Any, layer: str, kappa: Any) -> Any:
    """What an output is a point of: `kappa`, or the layer's own (of a block, its branch's)."""
    return model.kappa_at(layer, kappa) if isinstance(model, ResNet) else kappa


def _capture(
    model: Any, batch: Array, kappa: Any, layers: Choice, dtype: Any, train: bool
) -> tuple[Array, dict[str, Array]]:
    """Logits, and what the layers give out on the way, by path.

    Where the network or a layer calls a kappa of its own, that is no layer.
    """
    options = {} if dtype is None else {"dtype": dtype}
    run = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)
    logits, captured = run(batch, train=train, kappa=kappa, **options)
    found = {}
    for path, values in flatten(captured).items():
        *layer, method = path.split("/")
        if method == "__call__" and layer and layer[-1] != "kappa" and layers(layer):
            points = values[-1]
            found["/".join(layer)] = points.astype(compute_dtype(points.dtype))
    return logits, found


def _measure(outputs: dict[str, Array], curvature: Callable[[str], Any]) -> dict[str, Array]:
    found = {}
    for layer, points in jax.lax.stop_gradient(outputs).items():
        found[f"{layer}/radius"] = _radius(points, jax.lax.stop_gradient(curvature(layer)))
        found[f"{layer}/scale"] = jnp.sqrt(jnp.mean(points**2))
        if rectified(layer.split("/")):
            found[f"{layer}/active"] = jnp.mean(points > 0, dtype=points.dtype)
    return found


def _radius(points: Array, kappa: Any) -> Array:
    norm = jnp.linalg.norm(points, axis=-1) if kappa is None else geometry.dist0(points, kappa)
    return jnp.mean(norm)


def _speed(kernel: Array, gradient: Array) -> Array:
    length, slope = (
        jnp.linalg.norm(a.reshape(-1, a.shape[-1]), axis=0) for a in (kernel, gradient)
    )
    live = length > 0
    return jnp.sqrt(jnp.mean(jnp.where(live, slope / jnp.where(live, length, 1), 0) ** 2))
