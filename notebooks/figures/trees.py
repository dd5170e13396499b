"""Embed trees by training one layer, and count the steps that a depth costs.

Each node has a fixed input: a one-hot vector, all at one distance from the origin. One layer sends
them to points. Adam moves the layer's weights to reduce the mean of `(d/(edge D) - 1)^2`, with d
the distance of two points and D that of their nodes in the tree. So every layer has the same
inputs, loss, optimiser and dimension, and one free row of weights for each node; only what the
layer makes of its weights differs. Everything is float64, whatever the default.

All pairs count in each step where there are at most `pairs` of them. In larger trees the nodes are
dealt into random groups and the pairs inside groups count, for the loss and for the distortion
that ends a run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax import functional, geometry
from lorentz_jax._src.scalars import safe_norm
from lorentz_jax.bench.convergence import check_name, run_compiled
from lorentz_jax.hyperplane import normals

from . import growth
from .tree_shapes import distortion, mean_average_precision, tree_distances

__all__ = [
    "DEFAULTS",
    "LABELS",
    "LAYERS",
    "Course",
    "Layer",
    "Quality",
    "Settings",
    "apart",
    "check_edges",
    "quality",
    "train",
]

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """A layer that embeds.

    Attributes:
      init: NumPy parameters from a generator, the number of nodes and the dimension.
      embed: `(params, x, kappa)`, inputs `(nodes, nodes)` to points `(nodes, dim)`.
      dist: of points, `(x, y, kappa)`.
      optimiser: made from a rate; None for Adam.
    """

    init: Callable[[np.random.Generator, int, int], Params]
    embed: Callable[[Params, Any, Any], Array]
    dist: Callable[[Any, Any, Any], Array] = geometry.dist
    optimiser: Callable[[Any], optax.GradientTransformation] | None = None


def _small(rng: np.random.Generator, nodes: int, dim: int) -> Params:
    return {"kernel": rng.normal(0, 0.02, (nodes, dim)), "bias": np.zeros(dim)}


def _published(rng: np.random.Generator, nodes: int, dim: int) -> Params:
    kernel = rng.normal(0, 0.3, (nodes, dim))
    return {"kernel": kernel, "gain": np.ones(dim), "bias": np.full(dim, -0.5)}


def _normed(p: Params, x: Any, kappa: Any) -> Array:
    kernel = functional.weight_norm(p["kernel"], jax.nn.softplus(p["gain"]))
    return functional.linear(x, normals(kernel, p["bias"], kappa), kappa)


def _euclidean(p: Params, x: Any, kappa: Any) -> Array:
    return x @ p["kernel"] + p["bias"]


LAYERS = {
    "fgg": Layer(_small, growth.LAYERS["fgg"]),
    # The published start, b = -0.5 among it.
    "fgg, weight norm": Layer(_published, _normed),
    "chen": Layer(_small, growth.LAYERS["chen"]),
    "poincare": Layer(_small, growth.LAYERS["poincare"]),
    "euclidean": Layer(_small, _euclidean, lambda x, y, kappa: safe_norm(x - y)),
}
LABELS = growth.LABELS | {
    "fgg, weight norm": "FGG, weight norm",
    "euclidean": "Euclidean (control)",
}


@dataclass(frozen=True)
class Settings:
    """The experiment.

    Attributes:
      dim: coordinates of the embedding.
      edge: distance wanted between a node and its parent.
      kappa: curvature -kappa of input and output.
      radius: distance of the inputs from the origin.
      rates: learning rates of Adam, each in a run of its own.
      seeds: runs for each rate, which differ in start and order of pairs.
      target: average distortion at which a run ends.
      cap: steps after which it is given up.
      pairs: about how many pairs, in both orders, a step looks at.
      ramp: steps in which the edge that the loss wants grows by 1, evenly, up to `edge`; it wants
        all of it from the start if this is 0. The target is about the whole edge.
    """

    dim: int = 10
    edge: float = 0.5
    kappa: float = 1.0
    radius: float = 1.0
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    seeds: int = 1
    target: float = 0.12
    cap: int = 1500
    pairs: int = 4096
    ramp: float = 0.0

    def __post_init__(self):
        counts = self.dim, self.cap, self.pairs, self.seeds, len(self.rates)
        if min(counts) < 1:
            raise ValueError(f"dim, cap, pairs, seeds, rates must be at least one, got {counts}")
        sizes = self.edge, self.kappa, self.radius, *self.rates
        if not min(sizes) > 0:
            raise ValueError(f"edge, kappa, radius, rates must be positive, got {sizes}")
        if not 0 <= self.ramp < math.inf:
            raise ValueError(f"ramp must be finite and at least 0, got {self.ramp}")


DEFAULTS = Settings()


@dataclass(frozen=True)
class Course:
    """The course of training; R rates, S seeds, M marks.

    Attributes:
      steps: how often the points were looked at until the target was met, or the cap, `(R, S)`.
      reached: whether it was, `(R, S)`.
      history: average distortion of each step's pairs, `(R, S, cap)`; NaN after the last one.
      points: at the marks, `(R, S, M, nodes, dim)`; zero at those that a run did not see.
    """

    steps: np.ndarray
    reached: np.ndarray
    history: np.ndarray
    points: np.ndarray


def train(
    layer: str | Layer, edges: Any, settings: Settings = DEFAULTS, marks: Sequence[int] = ()
) -> Course:
    """Embed nodes, given the numbers of edges between them `(nodes, nodes)`.

    One compiled program holds all rates and seeds. With `marks`, the points before these numbers of
    steps are kept. A target of 0 is never met. A distortion that is not a number ends a run.
    """
    if isinstance(layer, str):
        check_name(layer, LAYERS, "layer")
        layer = LAYERS[layer]
    edges, init = check_edges(edges), layer.init
    rngs = [np.random.default_rng(seed) for seed in range(settings.seeds)]
    starts = [init(rng, len(edges), settings.dim) for rng in rngs]
    starts = jax.tree.map(lambda *p: np.stack(p), *starts)
    # Optax's Adam mixes floats and integers, which strict promotion refuses.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        program = _program(layer, settings, edges, np.array(marks, int))
        effort = 0 if len(edges) < 100 else 1
        outputs = run_compiled(program, starts, np.array(settings.rates), effort=effort)
    count, met, history, points = map(np.array, outputs)
    history[np.arange(settings.cap) >= count[..., None]] = np.nan
    return Course(count, met, history, points)


def check_edges(edges: Any) -> np.ndarray:
    """Return the matrix as floats; `ValueError` unless square and 0 on the diagonal alone."""
    edges = np.asarray(edges, float)
    if edges.ndim != 2 or len(edges) < 2 or edges.shape[0] != edges.shape[1]:
        raise ValueError(f"expected a square matrix of two nodes or more, got shape {edges.shape}")
    if np.any((edges > 0) == np.eye(len(edges), dtype=bool)) or not np.all(edges >= 0):
        raise ValueError("expected edges between nodes to be positive, and 0 from a node to itself")
    return edges


def _program(layer: Layer, settings: Settings, edges: np.ndarray, marks: np.ndarray) -> Any:
    """Return all runs as one function of starts `(S, ...)` and rates `(R,)`."""
    kappa, s, nodes = settings.kappa, math.sqrt(settings.kappa), len(edges)
    x = math.sinh(s * settings.radius) / s * np.eye(nodes)
    size = min(nodes, max(2, settings.pairs // nodes))
    groups = -(-nodes // size)

    def deal(key):
        """Return groups of nodes; the last is filled up from the beginning."""
        order = jnp.arange(nodes) if groups == 1 else jax.random.permutation(key, nodes)
        return jnp.resize(order, (groups, size))

    def share(count):
        """Return how much of the edge the loss wants: it begins with half a unit."""
        steps = settings.ramp * settings.edge
        return jnp.minimum(1.0, (count + settings.ramp / 2) / steps) if steps else 1.0

    def loss(params, members, count):
        points = layer.embed(params, jnp.asarray(x), kappa)
        dealt = points[members]
        wanted = settings.edge * jnp.asarray(edges)[members[:, :, None], members[:, None]]
        counts = wanted > 0  # a node is no pair with itself
        distances = layer.dist(dealt[:, :, None], dealt[:, None], kappa)
        ratios, number = distances / jnp.where(counts, wanted, 1), jnp.sum(counts)

        def off(share):
            return jnp.where(counts, ratios / share - 1, 0)

        distortion = jnp.sum(jnp.abs(off(1.0))) / number
        return jnp.sum(jnp.square(off(share(count)))) / number, (distortion, points)

    def run(seed, start, rate):
        # Adam's steps are proportional to the rate, so that one Adam serves all rates.
        optimiser = layer.optimiser(rate) if layer.optimiser else optax.adam(1.0)
        size = 1.0 if layer.optimiser else rate

        def body(state):
            count, params, moments, _, history, kept = state
            members = deal(jax.random.fold_in(jax.random.key(seed), count))
            gradient, (off, points) = jax.grad(loss, has_aux=True)(params, members, count)
            updates, moments = optimiser.update(gradient, moments, params)
            params = jax.tree.map(lambda p, u: p + size * u, params, updates)
            kept = jnp.where((count == marks)[:, None, None], points, kept)
            return count + 1, params, moments, off, history.at[count].set(off), kept

        def goes_on(state):
            return (state[0] < settings.cap) & (state[3] >= settings.target)

        kept = jnp.zeros((len(marks), nodes, settings.dim))
        state = jnp.zeros((), int), start, optimiser.init(start), jnp.full((), jnp.inf)
        state = *state, jnp.zeros(settings.cap), kept
        count, _, _, off, history, kept = jax.lax.while_loop(goes_on, body, state)
        return count, off < settings.target, history, kept

    def every(starts, rates):
        # One after the other, not vmap: each ends where it ends, and most end early.
        seeds = jnp.arange(settings.seeds)

        def all_seeds(rate):
            return jax.lax.map(lambda a: run(a[0], a[1], rate), (seeds, starts))

        return jax.lax.map(all_seeds, rates)

    return every


@dataclass(frozen=True)
class Quality:
    """The quality of an embedding on the way; M numbers of steps.

    Attributes:
      steps: `(M,)`.
      average, worst: distortions over all pairs, `(M,)`.
      precision: mean average precision of neighbours, `(M,)`.
      points: `(M, nodes, dim)`.
    """

    steps: np.ndarray
    average: np.ndarray
    worst: np.ndarray
    precision: np.ndarray
    points: np.ndarray


def quality(
    layer: str, parents: Any, rate: float, marks: Sequence[int], settings: Settings = DEFAULTS
) -> Quality:
    """Train one layer with one rate, as far as the last of the marks, and measure at each."""
    edges = tree_distances(parents)
    if not len(marks) or min(marks) < 0:
        raise ValueError(f"expected numbers of steps to measure at, got {marks}")
    settings = replace(settings, rates=(rate,), seeds=1, target=0.0, cap=max(marks) + 1)
    points = train(layer, edges, settings, marks).points[0, 0]
    distances, wanted = apart(layer, points, settings.kappa), settings.edge * edges
    average, worst = np.array([distortion(d, wanted) for d in distances]).T
    precision = np.array([mean_average_precision(d, edges) for d in distances])
    return Quality(np.array(marks), average, worst, precision, points)


def apart(layer: str, points: Any, kappa: float) -> np.ndarray:
    """Return the distances between any two outputs of a layer, `(..., nodes, nodes)`."""
    with jax.enable_x64(True):
        x = jnp.asarray(points)
        return np.asarray(LAYERS[layer].dist(x[..., :, None, :], x[..., None, :, :], kappa))
