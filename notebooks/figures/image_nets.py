"""Networks that make one point of D dimensions of an image, and the classifiers on that point.

Every arm is a residual network of the package, and has that network's own layers at the end too:
a linear layer of its geometry takes the centroid of the pixels to D dimensions, and on this point
stand the geometry's classifiers, one for each level of a hierarchy of labels.

| arm | convolutions, norms | centroid of the pixels | to D dimensions | classifiers |
|---|---|---|---|---|
| euclidean | `EuclideanResNet` | mean | `nnx.Linear` | `EuclideanHead` |
| fgg | `LorentzResNet` | centroid | `LorentzLinear` | `LorentzMLR` |
| hcnn | `HCNNResNet` | centroid | `ChenLinear` | `BdeirMLR` |
| poincare | `PoincareResNet` | mean tangent vector | `PoincareLinear` | `PoincareMLR` |

"fgg, outside" is "fgg" with the scale of its distances outside of asinh: a gain for each unit of
the linear layer, and classifiers with `scale="outside"`, as HCNN and Poincare have them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import geometry, nn
from lorentz_jax.bench.convergence import check_name
from lorentz_jax.models import (
    RESNETS,
    BdeirMLR,
    ChenLinear,
    EuclideanHead,
    ModelName,
    PoincareLinear,
    PoincareMLR,
    ResNet,
    euclidean,
    hcnn,
    poincare,
)
from lorentz_jax.nn.modules import call

__all__ = ["ARMS", "Arm", "Outputs", "PointHead", "build", "centroid", "distances", "radius"]


class Outputs(NamedTuple):
    """Points `(N, D)`, and logits `(N, classes)` for each level of the labels."""

    points: Any
    logits: tuple[Any, ...]


class PointHead(nnx.Module):
    """A linear layer to `dim` dimensions and, on its points, a classifier for each level."""

    def __init__(
        self, linear: Callable, classifier: Callable, features: int, dim: int,
        levels: Sequence[int], rngs: nnx.Rngs,
    ):  # fmt: skip
        self.linear: Any = linear(features, dim, rngs=rngs)
        self.classifiers = nnx.List([classifier(dim, count, rngs=rngs) for count in levels])

    def __call__(self, x: Array, kappa: Any = None) -> Outputs:
        """Map points `(N, features)` to points of `dim` dimensions and to logits."""
        points = call(self.linear, x, kappa)
        return Outputs(points, tuple(call(c, points, kappa) for c in self.classifiers))


@dataclass(frozen=True)
class Arm:
    """A geometry and its layers.

    Attributes:
      label: its name in tables.
      model: name of the residual network, a key of `models.RESNETS`.
      kappa: minus the curvature; None for flat space.
      linear, classifier: factories of layers, without kappa.
      pool: pixels `(N, H, W, D)` to one point of each image.
    """

    label: str
    model: ModelName
    kappa: float | None
    linear: Callable
    classifier: Callable
    pool: Callable[[Array, Any], Array]


_FGG = partial(Arm, model="lorentz", linear=nn.LorentzLinear, classifier=nn.LorentzMLR)
ARMS: dict[str, Arm] = {
    "euclidean": Arm("Euclidean", "euclidean", None, nnx.Linear, EuclideanHead, euclidean.pool),
    "fgg": _FGG("FGG", kappa=0.1, pool=hcnn.pool),
    "fgg, kappa 1": _FGG("FGG, kappa 1", kappa=1.0, pool=hcnn.pool),
    "fgg, outside": _FGG(
        "FGG, scale outside", kappa=0.1, pool=hcnn.pool,
        linear=partial(nn.LorentzLinear, distance_gain=True),
        classifier=partial(nn.LorentzMLR, scale="outside"),
    ),
    "hcnn": Arm("HCNN", "hcnn", 0.1, ChenLinear, BdeirMLR, hcnn.pool),
    "poincare": Arm("Poincaré", "poincare", 0.1, PoincareLinear, PoincareMLR, poincare.pool),
}  # fmt: skip


def build(
    arm: str, dim: int, levels: Sequence[int], width: int, stages: Sequence[int], rngs: nnx.Rngs
) -> ResNet:
    """Build the network of an arm: grey images `(N, H, W, 1)` to `Outputs`.

    Args:
      arm: a key of `ARMS`.
      dim: D, dimensions of the point of an image.
      levels: number of classes at each level of the labels.
      width: channels of the first stage; each further stage doubles them.
      stages: number of blocks in each stage.
      rngs: the stream `params` draws the kernels.

    Raises:
      ValueError: there is no such arm, or a size is below 1.

    >>> net = build("fgg", 2, (10, 4), 4, (1,), nnx.Rngs(0))
    >>> [logits.shape for logits in net(jnp.zeros((3, 8, 8, 1))).logits]
    [(3, 10), (3, 4)]
    """
    check_name(arm, ARMS, "arm")
    of = ARMS[arm]
    curved: Any = {} if of.kappa is None else {"kappa": of.kappa}
    make: Any = RESNETS[of.model]
    net = make(stages, width, levels[0], 1, rngs=rngs, **curved)
    linear, classifier = partial(of.linear, **curved), partial(of.classifier, **curved)
    features = width * 2 ** (len(stages) - 1)
    net.head, net.pool = PointHead(linear, classifier, features, dim, levels, rngs), of.pool
    return net


def centroid(points: Array, kappa: float | None) -> Array:
    """Return the centroid `(..., D)` of points `(..., n, D)`: the mean in flat space."""
    return jnp.mean(points, axis=-2) if kappa is None else geometry.centroid(points, kappa)


def distances(x: Array, y: Array, kappa: float | None) -> Array:
    """Return the distances `(..., B, C)` of points `(..., B, D)` from points `(..., C, D)`."""
    x, y = x[..., :, None, :], y[..., None, :, :]
    return jnp.linalg.norm(x - y, axis=-1) if kappa is None else geometry.dist(x, y, kappa)


def radius(points: Array, kappa: float | None) -> Array:
    """Return the distances `(...)` of points `(..., D)` from the origin."""
    return jnp.linalg.norm(points, axis=-1) if kappa is None else geometry.dist0(points, kappa)
