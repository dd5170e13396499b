"""Weighted centroids as products: values and derivatives against mpmath, far and tight clusters."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from lorentz_jax import geometry
from lorentz_jax.functional import aggregate, segment_aggregate
from tests import oracle
from tests.compiled import enable_x64, quick_jit
from tests.oracle import assert_close

F32, F64 = np.float32, np.float64
KAPPAS = np.array([0.1, 1.0, 2.5])
G = np.array([[0.7, -0.4], [0.3, 1.1]])
"""Cotangents of two centroids in the plane."""


def truth(x, weights, kappa):
    """Centroids by mpmath, of `mpf`s; rows of weights."""
    points = [oracle.mp_lift(row, kappa) for row in x]
    return [oracle.mp_centroid(points, kappa, row)[1:] for row in weights]


def exact(x, weights, kappa):
    with oracle.mp.workdps(120):
        arguments = (oracle.exactly(a) for a in (x, weights, kappa))
        return np.array([[float(v) for v in row] for row in truth(*arguments)])


def along_line(x, weights, kappa, step, order):
    """Derivative of `sum(G c)` along a step in (x, weights, kappa), by mpmath."""
    with oracle.mp.workdps(80):
        start = [oracle.exactly(a) for a in (x, weights, kappa)]
        moves = [oracle.exactly(a) for a in step]

        def scalar(t):
            x, w = (
                [[a + t * d for a, d in zip(*rows, strict=True)] for rows in zip(s, m, strict=True)]
                for s, m in zip(start[:2], moves[:2], strict=True)
            )
            rows = truth(x, w, start[2] + t * moves[2])
            return sum(
                g * c for a, b in zip(G, rows, strict=True) for g, c in zip(a, b, strict=True)
            )

        return float(oracle.mp.diff(scalar, 0, order))


def clouds():
    """Four points in the plane: spread, all at the origin, all equal, one far, tight and far."""
    rng = np.random.default_rng(0)
    spread, tight = rng.normal(size=(2, 4, 2))
    far = np.array([0.6, -0.8]) * np.sinh(4.0)
    return np.stack([
        spread, 0 * spread, 0 * spread + [0.4, -1.3], spread * [[1], [0], [1], [9]],
        far + 1e-3 * tight,
    ])  # fmt: skip


W = np.array([[0.2, 1.0, 0.5, 0.3], [1.0, 0.0, 0.3, 0.0]])


@partial(quick_jit, static_argnames="center")
def derivatives(x, w, kappa, step, center):
    """Value, slope in two ways, second derivative: forward or reverse over reverse."""
    arguments = (x, w, kappa)

    def scalar(x, w, kappa):
        return jnp.sum(G * aggregate(x, w, kappa, center))

    def gradient(*a):
        return jax.grad(scalar, (0, 1, 2))(*a)

    def dot(a):
        return sum(jnp.sum(g * d) for g, d in zip(a, step, strict=True))

    if center == "origin":
        second = jax.grad(lambda *a: dot(gradient(*a)), (0, 1, 2))(*arguments)
    else:
        second = jax.jvp(gradient, arguments, step)[1]
    slopes = jax.jvp(scalar, arguments, step)[1], dot(gradient(*arguments))
    return aggregate(*arguments, center), *slopes, dot(second)


def test_derivatives_against_mpmath(x64):
    """Along random steps in points, weights and kappa; forward, reverse and both orders."""
    rng = np.random.default_rng(1)
    for (i, x), kappa in itertools.product(enumerate(clouds()), KAPPAS):
        step = (rng.normal(size=x.shape), rng.normal(size=W.shape), rng.normal() * kappa)
        want = exact(x, W, kappa)
        slopes = [along_line(x, W, kappa, step, order) for order in (1, 2)]
        for center in ("middle", "origin"):
            value, *got = derivatives(x, W, kappa, step, center)
            tolerance = 1e-8 if (i, center) == (4, "origin") else 2e-12  # cosh(4)^2 eps/1e-3
            assert_close(value, want, tolerance / 50, what=f"cloud {i} {center}")
            for g, slope in zip(got, (slopes[0], *slopes), strict=True):
                assert_close(g, np.array(slope), tolerance, what=f"cloud {i} {kappa} {center}")


def cloud(radius, spread, kappa, count=50, seed=0):
    """Float32 points about one at `s r = radius`, at scaled distances of about `spread`."""
    rng = np.random.default_rng(seed)
    with enable_x64(True):
        middle = np.array([0.6, 0.0, 0.8]) * np.sinh(radius) / np.sqrt(kappa)
        around = geometry.exp0(rng.normal(size=(count, 3)) * spread / np.sqrt(3 * kappa), kappa)
        points = np.asarray(geometry.translate(np.broadcast_to(middle, (count, 3)), around, kappa))
    return points.astype(F32), rng.uniform(size=(4, count)).astype(F32)


def test_tight_far_clusters_keep_their_digits():
    """Float32 at `s r = 15`, where the plain product has lost all."""
    for kappa in KAPPAS.astype(F32):
        x, w = cloud(15, 0.3, kappa)
        want = exact(x, w, kappa)
        assert_close(aggregate(x, w, kappa), want, 5e-7)
        time = np.sqrt(1 / kappa + np.sum(x * x, -1, dtype=F32))
        m, t = w @ x, w @ time
        plain = (
            m / np.sqrt(np.maximum(kappa * (t * t - np.sum(m * m, -1)), w.sum(-1) ** 2))[:, None]
        )
        assert oracle.error(plain, want) > 0.1


def test_the_error_law():
    """`eps cosh(s r)^2` about the centre, in float32; points at one distance in all directions."""
    rng = np.random.default_rng(2)
    u = rng.normal(size=(40, 3))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    w = np.eye(40, dtype=F32)[:6] + 1e-3
    for radius in (1.0, 3.0, 5.0):
        x = (u * np.sinh(radius)).astype(F32)
        gap = oracle.error(aggregate(x, w, 1.0), exact(x, w, 1.0))
        assert gap < 20 * np.finfo(F32).eps * np.cosh(radius) ** 2, (radius, gap)


def edges():
    """A graph with a repeated edge, a node without edges, and its dense form."""
    senders, receivers = np.array([0, 1, 2, 2, 0, 4, 4]), np.array([1, 1, 0, 3, 3, 3, 3])
    values = np.array([0.5, 1.0, 2.0, 0.3, 0.7, 0.2, 0.4], F32)
    dense = np.zeros((5, 5), F32)
    np.add.at(dense, (receivers, senders), values)
    return senders, receivers, values, dense


def test_sparse_weights_are_dense_ones():
    """Segments and BCOO, with entries outside; gradients by points and weights."""
    senders, receivers, values, dense = edges()
    x, g = np.random.default_rng(3).normal(size=(2, 5, 3)).astype(F32)
    # Padding: ids outside, as BCOO has them.
    padded = [np.append(a, 5) for a in (senders, receivers)]

    def segments(x, v):
        return segment_aggregate(x, padded[1], 5, 0.7, v, padded[0])

    def bcoo(x, v):
        indices = jnp.asarray(np.stack(padded[::-1], -1))
        return aggregate(x, sparse.BCOO((v, indices), shape=(5, 5)), 0.7)

    def matrix(x, v):
        return aggregate(x, jnp.zeros((5, 5)).at[receivers, senders].add(v[:-1]), 0.7)

    def both(f):
        return jax.jit(jax.value_and_grad(lambda x, v: jnp.sum(g * f(x, v)), (0, 1)))

    v = np.append(values, F32(3))
    want = jax.tree.leaves(both(matrix)(x, v))
    np.testing.assert_array_equal(matrix(x, v)[jnp.array([2, 4])], 0)
    for f in (segments, bcoo):
        np.testing.assert_allclose(f(x, v), matrix(x, v), rtol=1e-5, atol=1e-6)
        for got, wanted in zip(jax.tree.leaves(both(f)(x, v)), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(aggregate(x, dense, 0.7), matrix(x, v), rtol=1e-6)
    # Equal weights of the points themselves, a batch of sets, each with its kappa.
    sets, ids = np.stack([x, 2 * x]), np.array([0, 2, 2, 0, 2])
    got = segment_aggregate(sets, ids, 3, np.array([0.7, 1.5], F32))
    for points, kappa, centroids in zip(sets, (0.7, 1.5), got, strict=True):
        np.testing.assert_array_equal(centroids[1], 0)
        want = geometry.centroid(points[[1, 2, 4]], kappa)
        np.testing.assert_allclose(centroids[2], want, rtol=1e-5)


def test_rows_without_weight_are_the_origin():
    x = np.random.default_rng(4).normal(size=(3, 2)).astype(F32)
    w = np.array([[1, 2, 0], [0, 0, 0]], F32)
    out, pull = jax.vjp(lambda x, w, k: aggregate(x, w, k), x, w, F32(0.5))
    np.testing.assert_array_equal(out[1], 0)
    by_x, by_w, by_kappa = pull(jnp.array([[0.0, 0], [1, 1]]))
    for gradient in (by_x, by_w, by_kappa):
        np.testing.assert_array_equal(gradient, 0 * gradient)
    tiny = aggregate(x, np.float32(1e-30) * w[:1], 0.5)  # whose squares underflow
    np.testing.assert_allclose(tiny, out[:1], rtol=1e-6)
    assert aggregate(x[:0], np.zeros((2, 0), F32), 1.0).tolist() == [[0, 0], [0, 0]]


def test_the_centre_does_not_matter():
    """Neither to values nor to gradients, kappa's included."""
    x, w, g = np.random.default_rng(5).uniform(0.1, 1, size=(3, 6, 6)).astype(F32)

    @quick_jit
    def run(point):
        def derivatives(center):
            loss = lambda x, w, k: jnp.sum(g * aggregate(x, w, k, center))  # noqa: E731
            return jax.tree.leaves(jax.value_and_grad(loss, (0, 1, 2))(x, w, jnp.float32(2.5)))

        return [derivatives(center) for center in (point, "middle", "origin")]

    by_kappa = jax.grad(lambda k: jnp.sum(g * aggregate(x, w, k)))(jnp.float32(2.5))  # alone
    first, *others = run(x[0])
    np.testing.assert_allclose(by_kappa, first[-1], rtol=2e-5, atol=2e-5)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_batches_of_heads():
    """`(..., heads, M, N)` weights; one kappa a batch; vmap and a mesh of devices agree."""
    rng = np.random.default_rng(6)
    x, w = rng.normal(size=(2, 3, 5, 4)).astype(F32), rng.uniform(size=(2, 3, 6, 5)).astype(F32)
    kappa = np.array([[0.1, 1, 2.5], [1, 1, 1]], F32)
    got = aggregate(x, w, kappa)
    assert got.shape == (2, 3, 6, 4)
    for i, j in np.ndindex(2, 3):
        np.testing.assert_allclose(got[i, j], aggregate(x[i, j], w[i, j], kappa[i, j]), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.vmap(aggregate))(x, w, kappa), got, rtol=1e-5)
    shared = aggregate(x[0, 0], w, 0.7)  # one set of points for all weights
    np.testing.assert_allclose(shared[1, 2], aggregate(x[0, 0], w[1, 2], 0.7), rtol=1e-5)


def test_a_gradient_on_a_mesh():
    x, w = np.random.default_rng(7).uniform(0.1, 1, size=(2, 4, 4)).astype(F32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = jax.sharding.PartitionSpec

    def loss(x, w):
        return jnp.sum(aggregate(x, w, 0.5) ** 2)

    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        pytest.skip("this JAX has no jax.shard_map")
    gradient = jax.grad(loss, (0, 1))
    sharded = shard_map(
        gradient, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=(spec(), spec("data"))
    )
    for a, b in zip(jax.jit(sharded)(x, w), gradient(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, F32])
def test_output_has_the_dtype_of_the_input(dtype):
    x, w = jnp.ones((3, 2), dtype), jnp.ones((4, 3), dtype)
    ids = jnp.array([0, 0, 1])
    assert jax.eval_shape(lambda x, w: aggregate(x, w, 0.5), x, w).dtype == dtype
    assert jax.eval_shape(lambda x: segment_aggregate(x, ids, 2, 0.5), x).dtype == dtype


def test_temporary_memory_is_that_of_points():
    """2,708 nodes, value and gradients: 10 MB where the weights have 29."""
    x, w = jax.ShapeDtypeStruct((2708, 16), F32), jax.ShapeDtypeStruct((2708, 2708), F32)
    f = jax.value_and_grad(lambda x, w: jnp.sum(jnp.square(aggregate(x, w, 1.0))), (0, 1))
    memory = quick_jit(f).lower(x, w).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 10e6


def test_arguments():
    x, w = np.ones((3, 2), F32), np.ones((4, 3), F32)
    with pytest.raises(ValueError, match=r"weights must be >= 0, got -1"):
        aggregate(x, -w, 1.0)
    with pytest.raises(ValueError, match=r"shape \(..., M, 3\).*got \(3, 4\)"):
        aggregate(x, w.T, 1.0)
    with pytest.raises(ValueError, match=r"batch shapes of x .* do not broadcast"):
        aggregate(np.ones((2, 3, 2), F32), np.ones((5, 4, 3), F32), 1.0)
    with pytest.raises(ValueError, match=r"center must be one of .*middle.*got 'mean'"):
        aggregate(x, w, 1.0, "mean")
    with pytest.raises(ValueError, match=r"center must be points \(2,\)"):
        aggregate(x, w, 1.0, np.zeros(3, F32))
    with pytest.raises(TypeError, match="x must be a floating-point array"):
        aggregate(x.astype(int), w, 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        aggregate(x, w, -1.0)
    with pytest.raises(ValueError, match="without batch or dense axes"):
        aggregate(x, sparse.BCOO.fromdense(w[None], n_batch=1), 1.0)
    with pytest.raises(ValueError, match=r"weights must have shape \(M, 3\)"):
        aggregate(x, sparse.BCOO.fromdense(w.T), 1.0)
    ids = np.array([0, 1, 1])
    for arguments, error, message in [
        ((x, ids.astype(F32), 2, 1.0), TypeError, "segment_ids must be integers"),
        ((x, ids[:2], 2, 1.0), ValueError, r"segment_ids must have shape \(3,\)"),
        ((x, ids, 0, 1.0), ValueError, "num_segments must be at least 1"),
        ((x, ids, 2, 1.0, np.ones(2, F32)), ValueError, r"weights must have shape \(3,\)"),
        ((x, ids, 2, 1.0, np.float32([1, -2, 1])), ValueError, "weights must be >= 0, got -2"),
        ((x, ids, 2, 1.0, None, ids[:1]), ValueError, r"senders must have shape \(3,\)"),
    ]:
        with pytest.raises(error, match=message):
            segment_aggregate(*arguments)
