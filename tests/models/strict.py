"""One call of every function and every layer, for the strict settings that they are traced under.

Each is a function of arrays, of which those of a batch come first, and how many these are.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lorentz_jax import distributions, functional, geometry, hyperplane, losses, nn
from tests.samples import KINDS

KAPPA = 0.7
X, V = np.random.default_rng(0).normal(size=(2, 8, 4, 3)).astype(np.float32) / 2
IMAGES = np.random.default_rng(1).normal(size=(8, 4, 4, 6)).astype(np.float32)
B = np.linspace(-1, 1, 4, dtype=np.float32)
W, KERNEL, BETA = X[0, :3, :1] * B, IMAGES[:3, :3, 0, :, None] * B, X[0, 0]


def _units(w, b):
    return hyperplane.normals(w, b, KAPPA)


def _weighted(x):
    return jnp.square(x[..., 0]) + 0.5


def _mean_norm(x):
    return distributions.WrappedNormal(x, jnp.ones(3, jnp.float32), KAPPA)


def _functions():
    for name, kinds in KINDS.items():
        call = functools.partial(lambda *a, f: f(*a, KAPPA), f=getattr(geometry, name))
        yield name, call, [X, V][: len(kinds)] + [X] * (len(kinds) - 2), len(kinds)
    few = X[:, 0]
    yield "drop", lambda x: geometry.drop(geometry.lift(x, KAPPA), KAPPA), [X], 1
    yield "centroid", lambda x: geometry.centroid(x, KAPPA, _weighted(x)), [X], 1
    for method in ("exact", "product"):
        pairs = functools.partial(geometry.pairwise_dist, kappa=KAPPA, method=method)
        yield f"pairwise_dist {method}", pairs, [X, V], 2
    yield "weights", lambda w, b: hyperplane.weights(_units(w, b), KAPPA), [W, B], 0
    yield "factored", lambda w, b: hyperplane.factored_normals(w, b, b, KAPPA), [KERNEL, B], 0
    yield "point_from_distances", lambda x: hyperplane.point_from_distances(x, KAPPA), [X], 1
    for scale in ("inside", "outside", None):
        logits = functools.partial(
            lambda x, w, b, s: functional.mlr(x, _units(w, b), KAPPA, s), s=scale
        )
        yield f"mlr {scale}", logits, [X, W, B], 1
    yield "linear", lambda x, w, b: functional.linear(x, _units(w, b), KAPPA), [X, W, B], 1
    for name in ("conv", "conv_transpose"):
        conv = functools.partial(
            lambda x, w, b, f: f(x, _units(w, b), KAPPA), f=getattr(functional, name)
        )
        yield name, conv, [IMAGES, KERNEL, B], 1
    both = lambda x, w, b: functional.conv_center(x, _units(w, b), 0 * b, KAPPA)[0]  # noqa: E731
    yield "conv_center", both, [IMAGES, KERNEL, B], 1
    yield "batch_mean", lambda x: functional.batch_mean(x, KAPPA), [X], 1
    yield "center", lambda x, m, b: functional.center(x, m, b, KAPPA), [X, BETA, BETA], 1
    yield "center_batch", lambda x, b: functional.center_batch(x, b, KAPPA)[0], [X, BETA], 1
    groups = lambda x, b: functional.center_groups(x, b, KAPPA, 2)[0]  # noqa: E731
    yield "center_groups", groups, [IMAGES, np.zeros(6, np.float32)], 1
    yield "weight_norm", functional.weight_norm, [W, B], 0
    yield "lorentzian", lambda x: functional.lorentzian(jnp.tanh)(x, KAPPA), [X], 1
    yield "avg_pool", lambda x: functional.avg_pool(x, (2, 2), KAPPA), [IMAGES], 1
    yield "max_pool", lambda x: functional.max_pool(x, (2, 2)), [IMAGES], 1
    yield "residual", lambda x, y: functional.weighted_residual(x, y, 0.5, KAPPA), [X, V], 2
    ids, senders = np.array([0, 1, 1, 2, 3]), np.array([3, 2, 1, 0, 0])
    for center in ("middle", "origin"):
        options = {"kappa": KAPPA, "center": center}
        total = functools.partial(functional.aggregate, **options)
        yield f"aggregate {center}", lambda x, f=total: f(x, _weighted(x)[:, None]), [X], 1
        yield (
            f"aggregate {center}, one matrix",
            lambda x, w, f=total: f(x, w),
            [X, np.eye(4, dtype=np.float32)],
            1,
        )
        edges = functools.partial(
            functional.segment_aggregate,
            segment_ids=ids,
            num_segments=4,
            senders=senders,
            **options,
        )
        yield (
            f"segments {center}",
            lambda x, w, f=edges: f(x, weights=w),
            [X, np.ones(5, np.float32)],
            1,
        )
        for score in functional.SCORES:
            attend = functools.partial(
                functional.attention,
                score=score,
                causal=True,
                mask=np.ones((4, 4), bool),
                **options,
            )
            yield f"attention {center}, {score}", lambda q, k, f=attend: f(q, k, k), [X, V], 2
    yield "exterior_angle", lambda x, y: losses.exterior_angle(x, y, KAPPA), [X, V], 2
    yield "entailment", lambda x, y: losses.entailment(x, y, KAPPA), [X, V], 2
    yield "contrastive", lambda x, y: losses.contrastive(x, y, 0.5, KAPPA), [few, few + 0.1], 2
    yield "log_prob", lambda x, m: _mean_norm(m).log_prob(x), [X, BETA], 1
    yield "log_prob of means", lambda x, m: _mean_norm(m).log_prob(x), [X, V], 2
    yield "log_sinhc", distributions.log_sinhc, [X], 1
    sample = lambda m: _mean_norm(m).sample_and_log_prob(jax.random.key(0))  # noqa: E731
    yield "sample", sample, [X], 1


class _Residual(nnx.Module):
    def __init__(self, **options):
        self.add = nn.LorentzResidual(**options)

    def __call__(self, x):
        return self.add(x, 0.5 * x)


class _Edges(nnx.Module):
    def __init__(self, **options):
        self.conv = nn.LorentzGraphConv(3, 4, **options)

    def __call__(self, x):
        senders = np.array([3, 2, 1, 0])
        return self.conv(x, senders=senders, receivers=senders[::-1].copy())


class _Matrix(_Edges):
    def __call__(self, x):
        return self.conv(x, adjacency=jnp.eye(4))


class _Cross(nnx.Module):
    def __init__(self, **options):
        self.attention = nn.LorentzAttention(2, 4, **options)

    def __call__(self, x):
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 1)))
        return self.attention(x, key=x, mask=jnp.ones((4, 4), bool))


class _Embedded(nnx.Module):
    def __init__(self, **options):
        self.table = nn.LorentzEmbedding(5, 3, **options)

    def __call__(self, x):
        return x + self.table(jnp.array([[0, 1, 2, 3]]))


LAYERS = {
    "LorentzLinear": (functools.partial(nn.LorentzLinear, 3, 4), X),
    "LorentzMLR": (functools.partial(nn.LorentzMLR, 3, 4), X),
    "LorentzConv": (functools.partial(nn.LorentzConv, 6, 4), IMAGES),
    "LorentzConvTranspose": (functools.partial(nn.LorentzConvTranspose, 6, 4), IMAGES),
    "LorentzBatchNorm": (functools.partial(nn.LorentzBatchNorm, 6), IMAGES),
    "LorentzGroupNorm": (functools.partial(nn.LorentzGroupNorm, 6, groups=2), IMAGES),
    "LorentzAttention": (functools.partial(nn.LorentzAttention, 2, 6), IMAGES),
    "attention across": (_Cross, X),
    "LorentzGraphConv": (_Matrix, X),
    "graph of edges": (_Edges, X),
    "LorentzEmbedding": (_Embedded, X),
    "LorentzResidual": (_Residual, X),
}


def _layers():
    for name, (make, x) in LAYERS.items():
        module = nnx.eval_shape(lambda make=make: make(kappa=KAPPA, rngs=nnx.Rngs(0)))
        graphdef, params, rest = nnx.split(module, nnx.Param, ...)
        rest = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), rest)

        def call(x, params, graphdef=graphdef, rest=rest):
            return nnx.merge(graphdef, params, jax.tree.map(jnp.asarray, rest), copy=True)(x)

        yield name, call, [x, params], 1


CASES = {
    name: (call, arguments, batched)
    for name, call, arguments, batched in [*_functions(), *_layers()]
}


def trace(name, place=lambda array, batched: array):
    """Trace value and gradient of a case; `place` makes a type of each array."""
    call, arguments, batched = CASES[name]
    arguments = [
        jax.tree.map(lambda a, i=i: place(jax.ShapeDtypeStruct(a.shape, a.dtype), i < batched), a)
        for i, a in enumerate(arguments)
    ]

    def both(*arguments):
        out, pull = jax.vjp(call, *arguments)
        return pull(out)

    jax.eval_shape(both, *arguments)
