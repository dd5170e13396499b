"""Embed a relation "is a kind of", and count how well distances find it.

The protocol of Nickel and Kiela, "Poincaré Embeddings for Learning Hierarchical Representations"
(NeurIPS 2017, https://arxiv.org/abs/1705.08039). For a pair (u, v), u a kind of v, the loss is

    -log( e^(-d(u, v)) / (e^(-d(u, v)) + sum over the negatives w of e^(-d(u, w))) ),

where negatives are nodes that u is not known to be a kind of. A step draws `nodes` nodes u, takes
all known pairs of each, and `negatives` nodes that the pairs of one u share; among these u itself
and what it is a kind of do not count. The loss is the mean over the pairs.

The rate is a tenth for the first twentieth of the steps (their "burn-in"), and falls to 0 along a
cosine after it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax import geometry

from .trees import Layer

__all__ = ["Batches", "Found", "Ranking", "Split", "distances", "listed", "ranking", "split",
           "trainer"]  # fmt: skip

_BURN_IN, _SLOW = 0.05, 0.1
_NEVER = -1e30


class Split(NamedTuple):
    """A relation in three parts, each bool `(N, N)`."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split(related: Any, rng: np.random.Generator, share: float) -> Split:
    """Hold out pairs at random for validation and test, a share of all pairs each.

    Every node that is a kind of something keeps a pair to learn from.

    Args:
      related: `[i, j]` tells whether i is a kind of j, `(N, N)`.
      rng: decides which pairs, and which pair a node keeps.
      share: of the pairs, for each of the two.

    Raises:
      ValueError: there are fewer pairs to hold out than asked for.
    """
    related = np.asarray(related, bool)
    pairs = rng.permutation(np.argwhere(related))
    _, first = np.unique(pairs[:, 0], return_index=True)
    free = np.delete(pairs, first, axis=0)
    count = round(share * len(pairs))
    if not 1 <= count <= len(free) // 2:
        raise ValueError(
            f"expected two parts of at least a pair each among {len(free)} that can be held out,"
            f" got {count} pairs each, {share} of {len(pairs)}"
        )
    # The order of the pairs is random, but the first ones of the nodes are no longer in it.
    validation, test = (np.zeros_like(related) for _ in range(2))
    validation[tuple(free[:count].T)] = True
    test[tuple(free[count : 2 * count].T)] = True
    return Split(related & ~validation & ~test, validation, test)


def listed(related: Any, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """List what each node is a kind of: nodes and whether they count, `(N, width)` both."""
    related = np.asarray(related, bool)
    width = int(related.sum(1).max()) if width is None else width
    order = np.argsort(~related, axis=1, kind="stable")[:, :width]
    return order, np.take_along_axis(related, order, axis=1)


class Ranking(NamedTuple):
    """How well distances find the wanted pairs.

    Attributes:
      precision: mean average precision, over the nodes that have a wanted pair.
      rank: mean rank of a wanted pair (u, v): one, and the nodes nearer to u than v or as near
        that u is not a kind of.
    """

    precision: float
    rank: float


def ranking(apart: Any, wanted: Any, known: Any = None) -> Ranking:
    """Rank the wanted nodes among those that are unrelated.

    For one pair `precision` counts the wanted nodes among all that are as near, as
    `metrics.mean_average_precision` does, and known pairs are in neither count ("filtered").
    Nodes as far as the wanted one count as nearer. Both numbers are NaN where a distance is.

    Args:
      apart: distances, `(N, N)`.
      wanted: `[u, v]` tells whether v is to be found near u, `(N, N)`.
      known: pairs that are left out, `(N, N)`; none by default.

    >>> near = np.array([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    >>> ranking(near, np.array([[0, 0, 1], [0, 0, 0], [0, 1, 0]], bool))
    Ranking(precision=0.75, rank=1.5)
    """
    wanted, left_out = np.asarray(wanted, bool), np.eye(len(wanted), dtype=bool)
    left_out |= wanted if known is None else wanted | np.asarray(known, bool)
    places, counted = listed(wanted)
    if not counted.any():
        raise ValueError(f"expected wanted pairs, there are none among {wanted.shape}")
    if np.isnan(apart).any():
        return Ranking(float("nan"), float("nan"))
    with jax.enable_x64(True):
        nearer, hits = map(np.asarray, _counts(jnp.asarray(apart), left_out, places, counted))
    precision = np.where(counted, hits / np.maximum(hits + nearer, 1), 0).sum(1)
    number = counted.sum(1)
    has = number > 0
    mean = np.mean(precision[has] / number[has])
    return Ranking(float(mean), float(1 + nearer[counted].mean()))


@jax.jit
def _counts(apart: Array, left_out: Array, places: Array, counted: Array) -> tuple[Array, Array]:
    """Count the unrelated and the wanted nodes that are as near, `(N, width)` both."""
    to = jnp.take_along_axis(apart, places, axis=1)
    others = jnp.where(left_out, jnp.inf, apart)
    nearer = jnp.sum(others[:, None, :] <= to[:, :, None], axis=-1)
    hits = (to[:, None, :] <= to[:, :, None]) & counted[:, None, :]
    return nearer, jnp.sum(hits, axis=-1)


def distances(layer: Layer, points: Any, kappa: float) -> np.ndarray:
    """Return the distances between any two points, a layer's own, `(N, N)`."""

    def all_rows(x: Array) -> Array:
        return jax.lax.map(lambda row: layer.dist(row, x, kappa), x)

    hyperbolic = layer.dist is geometry.dist
    with jax.enable_x64(True):
        x = jnp.asarray(points)
        return np.asarray(geometry.pairwise_dist(x, x, kappa) if hyperbolic else all_rows(x))


@dataclass(frozen=True)
class Batches:
    """What a run sees.

    Attributes:
      steps: of the optimiser.
      nodes: nodes u in a step.
      negatives: nodes drawn for each u.
      dtype: of all numbers, "float32" or "float64", whatever JAX's default is. In low dimensions
        float32 is not enough: free points in the plane come so far out within some thousand steps
        that they are no longer numbers.
    """

    steps: int
    nodes: int
    negatives: int
    dtype: str = "float64"

    def __post_init__(self):
        if min(self.steps, self.nodes, self.negatives) < 1:
            raise ValueError(f"expected at least one of each, got {self}")


class Found(NamedTuple):
    """A trained embedding: points `(N, D)`, and the loss of each step, `(steps,)`."""

    points: np.ndarray
    losses: np.ndarray


def trainer(
    layer: Layer, x: Any, kappa: float, batches: Batches
) -> Callable[[Mapping[str, Any], int, float, np.ndarray, int], Found]:
    """Return a function that trains, `(start, seed, rate, related, width)`.

    It compiles at its first call, and again only for other shapes. `start` are the layer's
    parameters, `seed` decides the batches, `rate` is the largest learning rate, `related` the
    known pairs `(N, N)`, `width` at least the most that a node is a kind of.

    Args:
      layer: the parameters are those of its `init`, the points those of `embed(params, x, kappa)`.
      x: its inputs.
      kappa: curvature -kappa.
      batches: how many there are, and how large.
    """

    def course(rate: Any) -> optax.Schedule:
        def at(count: Any) -> Array:
            part = count / batches.steps
            late = jnp.cos(jnp.pi / 2 * part) ** 2
            return rate * jnp.where(part < _BURN_IN, _SLOW, late)

        return at

    def loss(params, u, drawn, above, counted, related):
        points = layer.embed(params, x, kappa)
        others = jnp.concatenate([above[u], drawn], axis=1)
        apart = layer.dist(points[u][:, None], points[others], kappa)
        near, far = jnp.split(apart, [above.shape[1]], axis=1)
        allowed = ~related[u[:, None], drawn] & (drawn != u[:, None])
        total = jax.nn.logsumexp(jnp.where(allowed, -far, _NEVER), axis=1, keepdims=True)
        each = near + jnp.logaddexp(-near, total)
        return jnp.sum(jnp.where(counted[u], each, 0)) / jnp.sum(counted[u])

    @jax.jit
    def run(start, key, rate, sources, above, counted, related):
        rule = (layer.optimiser or optax.adam)(course(rate))

        def step(state, count):
            params, memory = state
            first, second = jax.random.split(jax.random.fold_in(key, count))
            u = jax.random.choice(first, sources, (batches.nodes,))
            shape = batches.nodes, batches.negatives
            drawn = jax.random.randint(second, shape, 0, len(related))
            value, slope = jax.value_and_grad(loss)(params, u, drawn, above, counted, related)
            updates, memory = rule.update(slope, memory, params)
            moved: Any = optax.apply_updates(params, updates)
            return (moved, memory), value

        state = start, rule.init(start)
        (params, _), losses = jax.lax.scan(step, state, jnp.arange(batches.steps))
        return layer.embed(params, x, kappa), losses

    def train(start, seed, rate, related, width) -> Found:
        above, counted = listed(related, width)
        sources = np.flatnonzero(counted.any(1))
        # Optax's Adam mixes floats and integers, which strict promotion refuses.
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            start = jax.tree.map(lambda p: jnp.asarray(p, batches.dtype), dict(start))
            key, rate = jax.random.key(seed), jnp.asarray(rate, batches.dtype)
            out = run(start, key, rate, sources, above, counted, np.asarray(related))
        return Found(*map(np.asarray, out))

    return train
