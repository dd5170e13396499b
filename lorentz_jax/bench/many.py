"""Time what is between many points against its Euclidean twin: centroids, pairs, attention, graphs.

Everything runs forward and backward, with the gradients of all arguments. Compile times are those
of the processor, tracing included: many programs are small, and what else the machine does would
be most of the rest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, geometry, nn
from lorentz_jax.bench import external
from lorentz_jax.bench.timing import Arm, Row, compile_arm, interleave
from lorentz_jax.hyperplane import normals

BASE = "euclidean"
CENTERS = ("middle", "origin")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the inputs.

    Attributes:
        nodes: of the graph, with as many weights as pairs of them.
        features: coordinates of a node.
        pairs: points of each of the two sets, and their coordinates.
        sequences: batch, length and coordinates of the sequences for attention.
        heads: of the attention.
    """

    nodes: int = 2708
    features: int = 16
    pairs: tuple[int, int] = (1024, 128)
    sequences: tuple[int, int, int] = (8, 256, 64)
    heads: int = 4


def _normal(seed: int, *shape: int, deviation: float = 0.3) -> Array:
    return deviation * jax.random.normal(jax.random.key(seed), shape)


def _arm(function: Callable[..., Array], arguments: Sequence[Any], *constants: Any) -> Arm:
    """The value of a fixed loss and its gradients by `arguments`; `constants` come after them."""
    shape = jax.eval_shape(function, *arguments, *constants).shape
    cotangent = _normal(7, *shape)

    def loss(cotangent, *arguments):
        return jnp.sum(function(*arguments) * cotangent)

    numbers = tuple(range(1, 1 + len(arguments)))
    jax.clear_caches()  # of what another arm has traced
    start = time.process_time()
    arm = compile_arm(jax.value_and_grad(loss, numbers), cotangent, *arguments, *constants)
    return replace(arm, compile_seconds=time.process_time() - start)


def centroids(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """Weighted centroids with a dense matrix of weights."""
    x = _normal(0, sizes.nodes, sizes.features)
    w = jax.random.uniform(jax.random.key(1), (sizes.nodes, sizes.nodes)) / sizes.nodes
    arms = {BASE: _arm(lambda x, w: w @ x, (x, w))}
    for center in CENTERS:
        call = partial(functional.aggregate, kappa=kappa, center=center)
        arms[center] = _arm(lambda x, w, c=call: c(x, w), (x, w))
    return f"centroids N={sizes.nodes} D={sizes.features}", arms


def segments(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """Centroids of the neighbours of every node, four edges a node."""
    x, edges = _normal(0, sizes.nodes, sizes.features), 4 * sizes.nodes
    keys = jax.random.split(jax.random.key(2), 3)
    senders, receivers = (jax.random.randint(k, (edges,), 0, sizes.nodes) for k in keys[:2])
    w = jax.random.uniform(keys[2], (edges,))

    def sums(x, w, senders, receivers):
        return jax.ops.segment_sum(x[senders] * w[:, None], receivers, sizes.nodes)

    def ours(x, w, senders, receivers, center):
        count = sizes.nodes
        return functional.segment_aggregate(x, receivers, count, kappa, w, senders, center)

    arms = {BASE: _arm(sums, (x, w), senders, receivers)}
    for center in CENTERS:
        arms[center] = _arm(partial(ours, center=center), (x, w), senders, receivers)
    return f"segments N={sizes.nodes} D={sizes.features} E={edges}", arms


def pairs(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """Distances of all pairs of two sets."""
    count, dim = sizes.pairs
    x, y = _normal(0, count, dim, deviation=0.1), _normal(1, count, dim, deviation=0.1)

    def flat(x, y):
        squares = jnp.sum(x * x, -1)[:, None] + jnp.sum(y * y, -1) - 2 * x @ y.T
        return jnp.sqrt(jnp.maximum(squares, 1e-12))

    arms = {BASE: _arm(flat, (x, y))}
    for method in ("product", "exact"):
        call = partial(geometry.pairwise_dist, kappa=kappa, method=method)
        arms[method] = _arm(lambda x, y, c=call: c(x, y), (x, y))
    return f"pairs N={count} D={dim}", arms


def _layer(module: nnx.Module, x: Any, *graph: Any) -> Arm:
    graphdef, state = nnx.split(module)

    def call(x, state, *graph):
        return nnx.merge(graphdef, state)(x, *graph)

    return _arm(call, (x, state), *graph)


def attention_layer(sizes: Sizes, kappa: float, peers: bool) -> tuple[str, dict[str, Arm]]:
    """`nn.LorentzAttention` beside `nnx.MultiHeadAttention`."""
    x = _normal(0, *sizes.sequences)
    heads, width = sizes.heads, x.shape[-1]
    flat = nnx.MultiHeadAttention(heads, width, decode=False, keep_rngs=False, rngs=nnx.Rngs(0))
    arms = {BASE: _layer(flat, x)}
    make = partial(nn.LorentzAttention, heads, width, kappa=kappa)
    for name, options in {
        "distance": {}, "distance, middle": {"center": "middle"},
        "distance, no bias": {"use_bias": False}, "product": {"score": "product"},
    }.items():  # fmt: skip
        arms[name] = _layer(make(**options, rngs=nnx.Rngs(0)), x)
    if peers:
        call, arguments = external.attention(x, heads, kappa)
        arms["hyperbolix"] = _arm(call, arguments)
    return f"attention layer N={x.shape[-2]} D={width} heads={heads}", arms


class _GraphLinear(nnx.Module):
    """The Euclidean twin of `nn.LorentzGraphConv`."""

    def __init__(self, features: int):
        self.linear = nnx.Linear(features, features, rngs=nnx.Rngs(0))

    def __call__(self, x: Array, adjacency: Array) -> Array:
        return adjacency @ self.linear(x)


def graph_layer(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """`nn.LorentzGraphConv` beside a linear layer and a product with the adjacency matrix."""
    x, dim = _normal(0, sizes.nodes, sizes.features), sizes.features
    w = jax.random.uniform(jax.random.key(1), (sizes.nodes, sizes.nodes)) / sizes.nodes
    arms = {BASE: _layer(_GraphLinear(dim), x, w)}
    for name, options in {
        "lorentz": {}, "lorentz, middle": {"center": "middle"},
        "lorentz, no bias": {"use_bias": False},
    }.items():  # fmt: skip
        layer = nn.LorentzGraphConv(dim, dim, kappa=kappa, rngs=nnx.Rngs(0), **options)
        arms[name] = _layer(layer, x, None, w)
    return f"graph layer N={sizes.nodes} D={dim}", arms


def _linear(x: Array, weights: tuple[Array, ...], kappa: float) -> Array:
    """A linear layer with a bias, or without one."""
    w, *b = weights
    return functional.linear(x, normals(w, b[0] if b else None, kappa), kappa)


def two_graph_layers(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """Two graph convolutions written with functions."""
    x, dim = _normal(0, sizes.nodes, sizes.features), sizes.features
    graph = jax.random.uniform(jax.random.key(1), (sizes.nodes, sizes.nodes)) / sizes.nodes
    layers = [(_normal(i, dim, dim), jnp.zeros(dim)) for i in range(2)]
    bare = [(w,) for w, _ in layers]

    def flat(x, layers, graph):
        for w, b in layers:
            x = jax.nn.relu(graph @ (x @ w + b))
        return x

    def ours(x, layers, graph, center):
        for weights in layers:
            y = _linear(x, weights, kappa)
            x = jax.nn.relu(functional.aggregate(y, graph, kappa, center))
        return x

    arms = {BASE: _arm(flat, (x, layers), graph)}
    for name, weights, center in (
        ("origin, no bias", bare, "origin"), ("origin", layers, "origin"),
        ("middle, no bias", bare, "middle"), ("middle", layers, "middle"),
    ):  # fmt: skip
        arms[name] = _arm(partial(ours, center=center), (x, weights), graph)
    return f"two graph convolutions N={sizes.nodes} D={dim}", arms


def two_attention_blocks(sizes: Sizes, kappa: float) -> tuple[str, dict[str, Arm]]:
    """Two blocks of attention written with functions: projections, heads, output and a sum."""
    x, heads = _normal(0, *sizes.sequences), sizes.heads
    dim = x.shape[-1]
    shapes = (3 * dim, dim)
    layers = [[(_normal(i, dim, n), jnp.zeros(n)) for n in shapes] for i in range(2)]
    bare = [[(w,) for w, _ in layer] for layer in layers]

    def block(x, layer, linear, attend):
        parts = jnp.split(linear(x, layer[0]), 3, axis=-1)
        cut = (p.reshape(*p.shape[:-1], heads, -1).swapaxes(-2, -3) for p in parts)
        y = attend(*cut).swapaxes(-2, -3)
        return x + linear(y.reshape(x.shape), layer[1])

    def flat_attention(q, k, v):
        scores = jnp.einsum("...md,...nd->...mn", q, k) / q.shape[-1] ** 0.5
        return jax.nn.softmax(scores) @ v

    def run(x, layers, linear, attend):
        for layer in layers:
            x = block(x, layer, linear, attend)
        return x

    flat = partial(run, linear=lambda x, wb: x @ wb[0] + wb[1], attend=flat_attention)
    arms = {BASE: _arm(flat, (x, layers))}
    linear = partial(_linear, kappa=kappa)
    for name, weights, center in (
        ("origin, no bias", bare, "origin"), ("origin", layers, "origin"),
        ("middle", layers, "middle"),
    ):  # fmt: skip
        attend = partial(functional.attention, kappa=kappa, center=center)
        arms[name] = _arm(partial(run, linear=linear, attend=attend), (x, weights))
    return f"two attention blocks N={x.shape[-2]} D={dim} heads={heads}", arms


CASES: dict[str, Callable[..., tuple[str, dict[str, Arm]]]] = {
    "centroids": centroids,
    "segments": segments,
    "pairs": pairs,
    "attention": attention_layer,
    "graph": graph_layer,
    "two-graphs": two_graph_layers,
    "two-attentions": two_attention_blocks,
}
"""The comparisons by name."""


def tables(
    names: Sequence[str], sizes: Sizes, seconds: float, kappa: float, peers: bool
) -> Iterator[tuple[str, list[Row]]]:
    """Yield the title and the rows of each comparison of these names."""
    for name in names:
        options = {"peers": peers} if name == "attention" else {}
        title, arms = CASES[name](sizes, kappa, **options)
        yield title, interleave(arms, BASE, seconds)


def describe(results: dict[str, Any]) -> str:
    """Format what the tables do not show: temporary memory, and ratios of compile times."""
    lines = [f"{'':58}{'temporary MB':>13}{'compile':>9}"]
    for title, rows in results["tables"].items():
        for row in rows:
            ratio = row["compile_seconds"] / rows[0]["compile_seconds"]
            name = f"{title}, {row['name']}"
            lines.append(f"{name:58}{row['temporary_bytes'] / 1e6:13.2f}{ratio:9.2f}")
    return "\n".join(lines)
