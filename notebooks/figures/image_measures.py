"""What is measured on the points of images: mistakes in a tree of labels, prototypes, radii.

Points are `(N, D)`, stored by their space part; kappa None stands for flat space.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

from .image_nets import centroid, distances

__all__ = ["CLASSES", "FASHION", "auroc", "episodes", "few_shot", "heights", "mistakes", "paths"]

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""The classes of Fashion-MNIST by label, in its authors' words."""

FASHION: Mapping[str, Mapping[str, Sequence[str]]] = {
    "clothing": {
        "tops": ("T-shirt/top", "Pullover", "Coat", "Shirt"),
        "long garments": ("Trouser", "Dress"),
    },
    "accessories": {"footwear": ("Sandal", "Sneaker", "Ankle boot"), "bags": ("Bag",)},
}
"""Our tree over them: divisions, groups, classes. Fashion-MNIST itself has none."""


def paths(
    tree: Mapping[str, Mapping[str, Sequence[str]]] = FASHION, classes: Sequence[str] = CLASSES
) -> np.ndarray:
    """Return the numbers of class, group and division of every class, int32 `(3, classes)`.

    Raises:
      ValueError: a class that is not once in the tree.

    >>> paths({"a": {"b": ("x",), "c": ("y",)}, "d": {"e": ("z",)}}, ("z", "x", "y")).tolist()
    [[0, 1, 2], [2, 0, 1], [1, 0, 0]]
    """
    leaves = list(_leaves(tree))
    if sorted(name for name, *_ in leaves) != sorted(classes):
        raise ValueError(f"the tree must have each of {tuple(classes)} once, got {leaves}")
    above = {name: numbers for name, *numbers in leaves}
    rows = [(label, *above[name]) for label, name in enumerate(classes)]
    return np.array(rows, np.int32).T


def _leaves(tree: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[tuple[str, int, int]]:
    """Yield every class with the numbers of its group and its division."""
    groups = [(d, names) for d, division in enumerate(tree.values()) for names in division.values()]
    for group, (division, names) in enumerate(groups):
        for name in names:
            yield name, group, division


def heights(levels: np.ndarray) -> np.ndarray:
    """Return the height of the lowest common ancestor of all pairs of classes.

    It is 0 for equal classes, 1 in one group, 2 in one division, 3 at the root: the number of
    levels at which the two differ.
    """
    return np.sum(levels[:, :, None] != levels[:, None, :], axis=0)


def mistakes(predicted: np.ndarray, labels: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Return the accuracy and the mean height of the ancestor of predicted and true class.

    "height" is the mean over all images, "height of mistakes" over the wrong ones; 0 where there
    is none.
    """
    height = heights(levels)[predicted, labels]
    wrong = height[height > 0]
    return {
        "accuracy": float(np.mean(height == 0)),
        "height": float(height.mean()),
        "height of mistakes": float(wrong.mean()) if len(wrong) else 0.0,
    }


def episodes(
    labels: np.ndarray, classes: Sequence[int], each: int, count: int, seed: int
) -> np.ndarray:
    """Draw images of every class, `(count, classes, each)`, without one twice in an episode.

    Raises:
      ValueError: a class has fewer images.
    """
    rng = np.random.default_rng(seed)
    drawn = []
    for label in classes:
        (of_class,) = np.nonzero(labels == label)
        if len(of_class) < each:
            raise ValueError(f"class {label} needs {each} images, got {len(of_class)}")
        keys = rng.random((count, len(of_class)), np.float32)
        drawn.append(of_class[np.argpartition(keys, each - 1, axis=1)[:, :each]])
    return np.stack(drawn, axis=1)


def few_shot(points: Any, drawn: np.ndarray, shots: int, kappa: float | None) -> float:
    """Return how often a query is nearest to the prototype of its class, over all episodes.

    A prototype is the centroid of the first `shots` images of a class; the others are queries.

    Args:
      points: `(N, D)`.
      drawn: indices of `episodes`, `(count, classes, each)`.
      shots: k, below `each`.
      kappa: minus the curvature, None for flat space.
    """

    @jax.jit
    def one(points: jax.Array, drawn: jax.Array) -> jax.Array:
        own = points[drawn]  # (classes, each, D)
        prototypes = centroid(own[:, :shots], kappa)
        nearest = jnp.argmin(distances(own[:, shots:], prototypes, kappa), axis=-1)
        return jnp.mean((nearest == jnp.arange(len(drawn))[:, None]).astype(points.dtype))

    points = jnp.asarray(points)
    return float(jnp.mean(jax.lax.map(lambda d: one(points, d), jnp.asarray(drawn))))


def auroc(known: np.ndarray, foreign: np.ndarray) -> float:
    """Return how often a foreign image has a lower score than a known one; ties count half."""
    scores = -np.concatenate([known, foreign])
    return float(roc_auc_score(np.repeat([0, 1], [len(known), len(foreign)]), scores))
