"""How far from the origin a network works: the mean hyperbolic radius of every layer's output."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.nn import Kappa
from lorentz_jax.training.state import flatten, merge
from lorentz_jax.training.step import Prepare, Step


def whole(layer: Sequence[str]) -> bool:
    """The stem, blocks and their branches: a convolution together with its norm."""
    return layer[-1] not in ("conv", "norm", "head")


def with_convolutions(layer: Sequence[str]) -> bool:
    """`whole`, and every convolution before its norm."""
    # Flax captures no method that a class inherits, such as the call of HCNN's norm.
    return layer[-1] not in ("norm", "head")


def make_radius_step(
    graphdef: Any,
    prepare: Prepare,
    dtype: Any = None,
    out_sharding: Any = None,
    layers: Callable[[Sequence[str]], bool] = whole,
) -> Step:
    """Build `step(params, stats, images, indices) -> {"stages/0/0/first": mean radius}`.

    Of the images `indices`, in evaluation mode: the mean over images and pixels of the distance of
    the outputs to the origin, for the layers whose path `layers` accepts. Where the network has no
    curvature that is the Euclidean norm, the limit for kappa to 0 of `asinh(s|x|)/s`.
    """
    options = {} if dtype is None else {"dtype": dtype}

    def radii(params, stats, images, indices, kappa):
        model = merge(graphdef, params, stats)
        if kappa is None:
            kappa = model.kappa() if isinstance(model.kappa, Kappa) else model.kappa
        run = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)
        _, outputs = run(prepare(None, images[indices]), train=False, kappa=kappa, **options)
        found = {}
        for path, values in flatten(outputs).items():
            *layer, method = path.split("/")
            if method == "__call__" and layer and layers(layer):
                points = values[-1].astype(jnp.float32)
                found["/".join(layer)] = jnp.mean(_radius(points, kappa))
        return found

    return Step(radii, **({} if out_sharding is None else {"out_shardings": out_sharding}))


def _radius(points: Any, kappa: Any) -> Any:
    return jnp.linalg.norm(points, axis=-1) if kappa is None else geometry.norm(points, kappa)
