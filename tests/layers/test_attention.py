"""Attention: mpmath, masks, boosts and the flat limit; the layers of it, and graph convolution."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import sparse

from lorentz_jax import functional, geometry, inference, nn
from lorentz_jax.functional import SCORES, aggregate, attention
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import assert_close

F32, F64 = np.float32, np.float64
KAPPAS = (0.1, 1.0, 2.5)


# --- the function ---------------------------------------------------------------------------


@pytest.mark.parametrize("center", ["origin", "middle"])
def test_a_key_that_causality_or_a_mask_hides_may_hold_anything(center):
    x = np.random.default_rng(1).normal(size=(3, 2)).astype(F32)
    bad = np.where(np.arange(3)[:, None] == 2, F32(np.nan), x)
    mask = jnp.array([[True, True, False], [True, True, True]])
    for options in ({"causal": True}, {"causal": True, "mask": mask}, {"mask": mask[:1]}):
        with jax.debug_nans(False):
            got = attention(x[:2], bad, bad, 1.0, center=center, **options)
        assert_close(got, attention(x[:2], x, x, 1.0, center=center, **options), 1e-6)


def truth(q, k, v, kappa, mask, score, temperature):
    """Rows of `mpf`s, by textbook formulas on ambient vectors."""
    mp = oracle.mp
    queries, keys, values = ([oracle.mp_lift(row, kappa) for row in x] for x in (q, k, v))

    def penalty(a, b):
        if score == "product":
            return -(oracle.minkowski(a, b) + 1 / kappa) / temperature
        return oracle.mp_dist(a, b, kappa) ** 2 / (2 * temperature)

    rows = []
    for query, seen in zip(queries, mask, strict=True):
        weights = [mp.exp(-penalty(query, key)) * int(s) for key, s in zip(keys, seen, strict=True)]
        rows.append(oracle.mp_centroid(values, kappa, weights)[1:])
    return rows


MASK = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
G = np.random.default_rng(9).normal(size=(3, 2))


@partial(quick_jit, static_argnames=("score", "center"))
def derivatives(arguments, step, score, center):
    """Value, slope along a step, second derivative: forward or reverse over reverse."""

    def f(*arguments):
        return attention(*arguments, MASK, score, 0.8, center=center)

    def gradient(*a):
        return jax.grad(lambda *a: jnp.sum(G * f(*a)), (0, 1, 2, 3))(*a)

    def dot(a):
        return sum(jnp.sum(g * d) for g, d in zip(a, step, strict=True))

    if center == "origin":
        second = jax.grad(lambda *a: dot(gradient(*a)), (0, 1, 2, 3))(*arguments)
    else:
        second = jax.jvp(gradient, arguments, step)[1]
    return f(*arguments), dot(gradient(*arguments)), dot(second)


@pytest.mark.parametrize("score", SCORES)
def test_against_mpmath(x64, score):
    """Masks, near and equal points among queries and keys; first and second derivatives."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2)) + 1
    k[0], k[2], q[1] = q[0], q[1] + 1e-7, 3 * q[1]
    mp = oracle.mp
    for kappa in KAPPAS:
        arguments = (q, k, v, kappa)
        step = (*(rng.normal(size=a.shape) for a in arguments[:3]), 0.3 * kappa)
        with mp.workdps(60):
            start, move = ([oracle.exactly(a) for a in b] for b in (arguments, step))

            def at(t, start=start, move=move):
                points = (
                    [[x + t * d for x, d in zip(*r, strict=True)] for r in zip(a, b, strict=True)]
                    for a, b in zip(start[:3], move[:3], strict=True)
                )
                kappa = start[3] + t * move[3]
                return truth(*points, kappa, MASK, score, oracle.exactly(0.8))

            def total(t, at=at):
                rows = zip(G.tolist(), at(t), strict=True)
                return sum(g * c for a, b in rows for g, c in zip(a, b, strict=True))

            value = np.array([[float(c) for c in row] for row in at(mp.mpf(0))])
            slope, second = (np.array(float(mp.diff(total, 0, n))) for n in (1, 2))
        for center in ("middle", "origin"):
            got = derivatives(arguments, step, score, center)
            assert_close(got[0], value, 1e-13, what=center)
            for g, want in zip(got[1:], (slope, second), strict=True):
                assert_close(g, want, 2e-11, what=f"{kappa} {center}")


@pytest.mark.parametrize("score", SCORES)
def test_masks(score):
    """None seen: the origin. Causal. A masked key that is far nearer than all that are seen."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 5, 3)).astype(F32)
    call = partial(attention, score=score)
    lower = np.tril(np.ones((5, 5), bool))
    causal = call(x, x, x, 1.0, causal=True)
    np.testing.assert_allclose(causal, call(x, x, x, 1.0, mask=lower), rtol=1e-6)
    np.testing.assert_allclose(causal[:, 0], x[:, 0], rtol=1e-5)
    mask = lower.copy()
    mask[2] = False
    both = call(x, x, x, 1.0, mask=mask, causal=True)
    np.testing.assert_array_equal(both[:, 2], 0)
    np.testing.assert_allclose(both[:, 3:], causal[:, 3:], rtol=1e-6)

    def row(x, kappa):
        return jnp.sum(call(x, x, x, kappa, mask=mask)[:, 2])

    for gradient in jax.grad(row, (0, 1))(x, jnp.float32(1)):
        np.testing.assert_array_equal(gradient, 0 * gradient)
    far = np.array([[0.0, 0, 0], [0, 0, 0], [3e4, 0, 0]], F32)
    seen = np.array([[False, False, True]])
    out, pull = jax.vjp(lambda k: call(far[:1], k, far, 1.0, mask=seen, temperature=1e-3), far)
    np.testing.assert_allclose(out, far[2:], rtol=1e-5)
    assert np.isfinite(pull(jnp.ones((1, 3)))[0]).all()


@pytest.mark.parametrize("center", ["middle", "origin"])
def test_a_boost_of_all_points_moves_the_result(x64, center):
    rng = np.random.default_rng(2)
    q, k, v = rng.normal(size=(3, 4, 3))
    w, p = rng.uniform(size=(5, 4)), np.array([0.7, -1.2, 0.4])
    for kappa in KAPPAS:
        move = partial(geometry.translate, p, kappa=kappa)
        for score in SCORES:
            out = attention(q, k, v, kappa, score=score, center=center)
            moved = attention(move(q), move(k), move(v), kappa, score=score, center=center)
            assert_close(moved, move(out), 1e-12)
        assert_close(
            aggregate(move(v), w, kappa, center), move(aggregate(v, w, kappa, center)), 1e-12
        )


@pytest.mark.parametrize("score", SCORES)
def test_the_flat_limit(x64, score):
    """Euclidean attention by squared distances, and a weighted mean; values and gradients."""
    rng = np.random.default_rng(3)
    q, k, v, g = rng.normal(size=(4, 5, 3))

    def flat(q, k, v):
        squares = jnp.sum(jnp.square(q[:, None] - k), -1)
        return jax.nn.softmax(-squares / (2 * 3**0.5)) @ v

    def both(f):
        return jax.value_and_grad(lambda *a: jnp.sum(g * f(*a)), (0, 1, 2))(q, k, v)

    for kappa, rtol in ((1e-6, 1e-4), (1e-9, 1e-7)):
        curved = partial(attention, kappa=kappa, score=score)
        for a, b in zip(*(jax.tree.leaves(both(f)) for f in (curved, flat)), strict=True):
            assert_close(a, b, rtol)


def test_heads_are_batches():
    """Each with its temperature and kappa; vmap agrees."""
    rng = np.random.default_rng(4)
    q, k = rng.normal(size=(2, 3, 4, 2)).astype(F32), rng.normal(size=(3, 5, 2)).astype(F32)
    v, kappa = rng.normal(size=(5, 6)).astype(F32), np.array(KAPPAS, F32)
    temperature = np.array([0.5, 1, 2], F32)
    got = attention(q, k, v, kappa, temperature=temperature)
    assert got.shape == (2, 3, 4, 6)
    for i, j in itertools.product(range(2), range(3)):
        want = attention(q[i, j], k[j], v, kappa[j], temperature=temperature[j])
        np.testing.assert_allclose(got[i, j], want, rtol=2e-5, atol=1e-6)
    mapped = jax.vmap(lambda q, k, kappa, t: attention(q, k, v, kappa, temperature=t))
    np.testing.assert_allclose(mapped(q[0], k, kappa, temperature), got[0], rtol=2e-5, atol=1e-6)


def test_arguments():
    x = np.ones((2, 4, 3), F32)
    call = partial(attention, x, x, x, 1.0)
    for options, error, message in [
        ({"score": "dot"}, ValueError, r"score must be one of .*got 'dot'"),
        ({"center": "mean"}, ValueError, r"center must be one of .*got 'mean'"),
        ({"temperature": 0.0}, ValueError, "temperature must be positive"),
        ({"temperature": np.ones(3, F32)}, ValueError, r"temperature of shape \(3,\)"),
        ({"mask": np.ones((4, 4), F32)}, TypeError, "mask must be boolean"),
        ({"mask": np.ones((3, 4), bool)}, ValueError, r"mask must broadcast to \(2, 4, 4\)"),
    ]:
        with pytest.raises(error, match=message):
            call(**options)
    with pytest.raises(ValueError, match=r"agree in their last axis.*query .* and key"):
        attention(x, x[..., :2], x, 1.0)
    with pytest.raises(ValueError, match="value must be points"):
        attention(x, x, x[:, :3], 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        attention(x, x, x, -1.0)
    for dtype in (jnp.bfloat16, jnp.float16):
        half = jax.ShapeDtypeStruct((4, 3), dtype)
        assert jax.eval_shape(lambda x: attention(x, x, x, 1.0), half).dtype == dtype


# --- the layers -----------------------------------------------------------------------------


def points(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def make(**options):
    return nn.LorentzAttention(2, 6, 4, 5, rngs=nnx.Rngs(0), **{"kappa": 0.7, **options})


def heads(x):
    return np.swapaxes(x.reshape(*x.shape[:-1], 2, -1), -2, -3)


@pytest.mark.parametrize("options", [{}, {"score": "product", "causal": True, "center": "middle"}])
def test_the_attention_layer_is_its_functions(options):
    layer, x, kappa = make(**options), points(3, 5, 6), 0.3
    layer.qkv.bias[...] = points(12, seed=1)
    q, k, v = np.split(np.asarray(layer.qkv(x, kappa)), 3, axis=-1)
    y = attention(heads(q), heads(k), heads(v), kappa, **options)
    y = np.swapaxes(y, -2, -3).reshape(3, 5, 4)
    got = layer(x, kappa)
    np.testing.assert_allclose(got, layer.out(y, kappa), rtol=1e-5, atol=1e-5)
    assert got.shape == (3, 5, 5)
    np.testing.assert_allclose(layer(x, kappa, key=x), got, rtol=1e-4, atol=1e-5)
    if not options:
        other = points(3, 7, 6, seed=2)
        mask = np.arange(7) < 5
        cross = layer(x, kappa, key=other, mask=mask)
        shorter = layer(x, kappa, key=other[:, :5], value=other[:, :5])
        np.testing.assert_allclose(cross, shorter, rtol=1e-4, atol=1e-5)
        flipped = layer(x, kappa, value=x[:, ::-1])
        swapped = attention(heads(q), heads(k), heads(v[:, ::-1]), kappa)
        swapped = np.swapaxes(swapped, -2, -3).reshape(3, 5, 4)
        np.testing.assert_allclose(flipped, layer.out(swapped, kappa), rtol=1e-4, atol=1e-5)


GRAPH = (np.array([0, 1, 2, 3, 3]), np.array([1, 0, 0, 2, 3]), F32([1, 2, 0.5, 1, 3]))


def adjacency():
    senders, receivers, weights = GRAPH
    dense = np.zeros((4, 4), F32)
    dense[receivers, senders] = weights
    return dense


def test_the_graph_layer_is_its_functions():
    layer = nn.LorentzGraphConv(3, 5, kappa=0.7, activation=jax.nn.relu, rngs=nnx.Rngs(0))
    layer.bias[...] = points(5, seed=1)
    x, dense = points(4, 3), adjacency()
    y = functional.linear(x, layer.normals(), 0.7)
    want = jax.nn.relu(aggregate(y, dense, 0.7))
    np.testing.assert_allclose(layer(x, adjacency=dense), want, rtol=1e-5, atol=1e-6)
    bcoo = sparse.BCOO.fromdense(dense)
    np.testing.assert_allclose(layer(x, adjacency=bcoo), want, rtol=1e-5, atol=1e-6)
    edges = dict(zip(("senders", "receivers", "weights"), GRAPH, strict=True))
    np.testing.assert_allclose(layer(x, **edges), want, rtol=1e-5, atol=1e-6)
    assert layer(x, num_segments=6, **edges).shape == (6, 5)
    for arguments, graph, message in [
        ((), {}, "got neither$"),
        ((dense,), {}, "got neither; the second argument is kappa, so write adjacency="),
        ((), {"senders": GRAPH[0]}, "receivers are missing"),
        ((), {"adjacency": dense, **edges}, "an adjacency and senders and receivers and weights"),
        ((), {"adjacency": dense, "weights": GRAPH[2]}, "got an adjacency and weights"),
        ((), {"adjacency": bcoo, "num_segments": 4}, "got an adjacency and num_segments"),
        ((), {"adjacency": dense.astype(int)}, "adjacency must hold floating-point.*got dtype int"),
        ((), {"adjacency": (dense > 0).tolist()}, "floating-point weights, got dtype bool"),
        ((), {"adjacency": sparse.BCOO.fromdense(dense.astype(int))}, "weights, got dtype int"),
    ]:
        with pytest.raises(TypeError, match=message):
            layer(x, *arguments, **graph)
    with pytest.raises(TypeError, match="unexpected keyword argument 'activations'"):
        nn.LorentzGraphConv(3, 5, kappa=1.0, rngs=nnx.Rngs(0), activations=None)
    sequence = nnx.Sequential(layer, nn.LorentzBatchNorm(5, kappa=0.7))
    assert layer.fold(sequence.layers[1], 0.7) is None, "its activation and centroids come between"


def test_layers_tend_to_their_euclidean_twins(x64):
    """At kappa 1e-9, by values and by the gradients of every parameter."""
    options = {"kappa": 1.0, "param_dtype": F64, "rngs": nnx.Rngs(0), "init": "paper"}
    rng, mask, dense = np.random.default_rng(5), np.tri(4, dtype=bool), np.float64(adjacency())
    layers = nn.LorentzAttention(2, 6, **options), nn.LorentzGraphConv(6, 6, **options)
    x, g = rng.normal(size=(2, 4, 6))

    def dense_layer(layer, x):
        w, b = layer.weights(1e-9)
        return x @ w + b

    def flat_attention(layer, x):
        q, k, v = (
            jnp.moveaxis(a.reshape(4, 2, 3), 1, 0)
            for a in jnp.split(dense_layer(layer.qkv, x), 3, -1)
        )
        squares = jnp.sum(jnp.square(q[:, :, None] - k[:, None]), -1)
        scores = jnp.where(mask, -squares / (2 * 3**0.5), -jnp.inf)
        y = jnp.moveaxis(jax.nn.softmax(scores) @ v, 0, 1)
        return dense_layer(layer.out, y.reshape(4, 6))

    def flat_graph(layer, x):
        return dense @ dense_layer(layer, x) / dense.sum(-1, keepdims=True)

    calls = (
        (lambda layer, x: layer(x, 1e-9, mask=mask), flat_attention),
        (lambda layer, x: layer(x, 1e-9, dense), flat_graph),
    )
    for layer, pair in zip(layers, calls, strict=True):
        graphdef, state = nnx.split(layer)

        def run(call, graphdef=graphdef, state=state):
            loss = lambda state, x: jnp.sum(g * call(nnx.merge(graphdef, state), x))  # noqa: E731
            return jax.tree.leaves(quick_jit(jax.value_and_grad(loss, (0, 1)))(state, x))

        for a, b in zip(*map(run, pair), strict=True):
            assert_close(a, b, 1e-6, axis=None if np.ndim(a) == 0 else -1)


def test_states_are_parameters():
    for layer in (make(learn_kappa=True), nn.LorentzGraphConv(3, 4, kappa=1.0, learn_kappa=True,
                                                              rngs=nnx.Rngs(0))):  # fmt: skip
        _, params, rest = nnx.split(layer, nnx.Param, ...)
        assert not jax.tree.leaves(rest)
        assert any("raw" in path for path, _ in nnx.to_flat_state(params))
    with pytest.raises(ValueError, match="num_heads must divide qkv_features 6, got 4"):
        nn.LorentzAttention(4, 6, kappa=1.0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="score must be one of"):
        make(score="dot")
    with pytest.raises(ValueError, match="center must be one of"):
        make(center="mean")
    with pytest.raises(ValueError, match="center must be one of"):
        nn.LorentzGraphConv(3, 4, kappa=1.0, center="mean", rngs=nnx.Rngs(0))


def test_inference_form_and_export(tmp_path):
    """V is cached; a file and StableHLO give the same numbers; half precision."""
    x, dense = points(4, 6), jnp.asarray(adjacency())
    graph = nn.LorentzGraphConv(6, 3, kappa=0.7, learn_kappa=True, rngs=nnx.Rngs(0))
    graph.bias[...] = points(3, seed=1)
    for layer, arguments in (make(), (x,)), (graph, (x, None, dense)):
        want = layer(*arguments)
        compiled = inference.compile_cached_v(layer)
        assert {path.split("/")[-1] for path in compiled.params} == {
            "space",
            "time",
            "length",
            "excess",
        }
        np.testing.assert_allclose(compiled(*arguments), want, rtol=1e-5, atol=1e-6)
        half = inference.compile_cached_v(layer, dtype="bfloat16")
        np.testing.assert_allclose(half(*arguments), want, rtol=0.1, atol=0.1)
        file = tmp_path / "layer.stablehlo"
        if len(arguments) == 1:
            inference.export(compiled, (4, 6), file)
            got = inference.load_exported(file).call(x[None])[0]
        else:
            function = jax.jit(lambda x, a, c=compiled: c.apply(c.params, x, None, a))
            got = jax.export.export(function)(x, dense).call(x, dense)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
