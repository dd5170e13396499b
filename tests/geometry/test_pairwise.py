"""Distances of all pairs: those of `dist`, by blocks in little memory; the product's error law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax._src import pairwise
from lorentz_jax.geometry import pairwise_dist
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import SPACE, assert_close

F32, F64 = np.float32, np.float64
KAPPAS = (0.1, 1.0, 2.5)


def pairs(x, y):
    """All pairs of points, as rows."""
    return np.repeat(x, len(y), axis=0), np.tile(y, (len(x), 1))


def truth(x, y, kappa):
    arrays = pairs(x, y)
    rows = oracle.evaluate(SPACE["dist"], *arrays, kappa=np.full(len(arrays[0]), kappa))
    return rows.reshape(len(x), len(y))


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks in both directions, the last ones filled up."""
    monkeypatch.setattr(pairwise, "_BLOCK", 12)
    pairwise._exact.clear_cache()
    yield
    pairwise._exact.clear_cache()


def test_values_and_gradients_by_blocks(x64, small_blocks):
    """Blocks of 1 x 4 and 1 x 3 of 5 x 7 pairs, near and equal ones among them; mpmath."""
    rng = np.random.default_rng(0)
    x, y, g = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.normal(size=(5, 7))
    y[2], y[3], y[4] = x[1] * (1 + 1e-9), x[2], 0
    x[4] *= 200

    @quick_jit
    def run(x, y, kappa):
        value, pull = jax.vjp(pairwise_dist, x, y, kappa)
        return value, *pull(g)

    for kappa in KAPPAS:
        value, by_x, by_y, by_kappa = run(x, y, kappa)
        assert_close(value, truth(x, y, kappa), 1e-14, axis=None)
        assert value[2, 3] == 0
        arrays, kappas = pairs(x, y), np.full(35, kappa)
        equal = (arrays[0] == arrays[1]).all(-1)
        arrays[1][equal] += 1  # not differentiable there: 0 by convention
        want = oracle.gradients(SPACE["dist"], *arrays, kappa=kappas)
        for got, all_pairs, axis in zip((by_x, by_y), want, (1, 0), strict=False):
            parts = np.where(equal[:, None], 0, all_pairs) * g.reshape(-1, 1)
            assert_close(got, parts.reshape(5, 7, 3).sum(axis), 1e-12)
        parts = np.where(equal, 0, want[2] * g.ravel())
        assert abs(by_kappa - parts.sum()) < 1e-12 * np.abs(parts).sum()


def test_near_pairs_far_out():
    """Float32, `s r = 10`: as accurate as `dist`, where the product has nothing left."""
    rng = np.random.default_rng(1)
    x = (np.array([0.6, 0.8, 0]) * np.sinh(10.0) * (1 + 1e-5 * rng.normal(size=(4, 3)))).astype(F32)
    for kappa in KAPPAS:
        want = truth(x, x, kappa)
        assert_close(pairwise_dist(x, x, kappa), want, 2e-6, axis=None)


def test_the_error_law_of_the_product():
    """Squares of distances to `eps cosh(s r)^2/kappa` about the centre; tight clusters far out."""
    rng = np.random.default_rng(2)
    eps = float(np.finfo(F32).eps)
    u = rng.normal(size=(12, 3))
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    for kappa in KAPPAS:
        for radius in (0.1, 1.0, 3.0, 5.0):
            x = (u * np.sinh(radius) / np.sqrt(kappa)).astype(F32)
            got = np.asarray(pairwise_dist(x, x, kappa, "product"), F64)
            gap = np.abs(got**2 - truth(x, x, kappa) ** 2).max()
            assert gap < 64 * eps * np.cosh(radius) ** 2 / kappa, (kappa, radius, gap)
    far = np.array([0.6, 0.0, 0.8]) * np.sinh(8.0)
    x = (far * (1 + 0.3 * rng.normal(size=(12, 1)))).astype(F32)
    got = pairwise_dist(x, x, 1.0, "product")
    np.testing.assert_allclose(got, truth(x, x, 1.0), rtol=1e-4, atol=2 * eps**0.5)


def test_derivatives_of_the_product(x64):
    """Those of the exact form, by points and kappa, at pairs that are not near."""
    rng = np.random.default_rng(3)
    x, y, g = rng.normal(size=(3, 4, 3))
    y += 3

    def gradients(method):
        def f(x, y, kappa):
            return jnp.sum(g[:, :1] * pairwise_dist(x, y[:3], kappa, method) * g[0])

        return jax.grad(f, (0, 1, 2))(x, y, 0.7)

    for got, want in zip(*map(gradients, ("product", "exact")), strict=True):
        assert_close(got, want, 1e-11)


def test_second_derivatives(x64):
    """Along a step in x and y, and in kappa too by the product; forward over reverse; mpmath."""
    rng = np.random.default_rng(4)
    x, y, dx, dy = rng.normal(size=(4, 2, 3))
    y, dy = np.concatenate([y, y + 1]), np.concatenate([dy, -dy])

    def second(method, *steps):
        def slope(*a):
            gradients = jax.grad(
                lambda *a: jnp.sum(jnp.square(pairwise_dist(*a, *(0.7,)[len(a) - 2 :], method))),
                range(len(a)),
            )(*a)
            return sum(jnp.sum(g * d) for g, d in zip(gradients, steps, strict=True))

        arguments = (x, y, 0.7)[: len(steps)]
        return quick_jit(lambda *a: jax.jvp(slope, a, steps)[1])(*arguments)

    def line(t, start, move):
        return [a + t * d for a, d in zip(start, move, strict=True)]

    with oracle.mp.workdps(60):
        points = [oracle.exactly(a) for a in (x, dx, y, dy)]

        def total(t, rate):
            left = [line(t, *rows) for rows in zip(*points[:2], strict=True)]
            right = [line(t, *rows) for rows in zip(*points[2:], strict=True)]
            kappa = oracle.exactly(0.7) + t * oracle.exactly(rate)
            return sum(SPACE["dist"](p, q, kappa) ** 2 for p in left for q in right)

        want = [float(oracle.mp.diff(lambda t, r=r: total(t, r), 0, 2)) for r in (0.0, 0.3)]
    assert_close(second("exact", dx, dy), np.array(want[0]), 1e-11)
    assert_close(second("product", dx, dy, 0.3), np.array(want[1]), 1e-11)


def test_memory_is_that_of_the_result():
    """Value and gradients of 192 x 160 pairs of 128 coordinates: `dist` needs 180 MB."""
    shapes = [jax.ShapeDtypeStruct((n, 128), F32) for n in (192, 160)]
    for method, arrays in (("exact", 50), ("product", 12)):
        f = jax.grad(lambda *a, m=method: jnp.sum(jnp.square(pairwise_dist(*a, 1.0, m))), (0, 1))
        memory = quick_jit(f).lower(*shapes).compile().memory_analysis()
        assert memory.temp_size_in_bytes < arrays * 192 * 160 * 4, method


def test_batches_and_vmap():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(3, 2, 4)).astype(F32), rng.normal(size=(5, 4)).astype(F32)
    kappa = np.array(KAPPAS, F32)
    for method, rtol in (("exact", 1e-6), ("product", 1e-4)):
        got = pairwise_dist(x, y, kappa, method)
        want = geometry.dist(x[:, :, None], y, kappa[:, None, None])
        np.testing.assert_allclose(got, want, rtol=rtol)
        mapped = jax.vmap(lambda x, k, m=method: pairwise_dist(x, y, k, m))(x, kappa)
        np.testing.assert_allclose(mapped, want, rtol=rtol)
    assert pairwise_dist(x[:, :0], y, 1.0).shape == (3, 0, 5)
    assert pairwise_dist(x, y[:0], 1.0, "product").shape == (3, 2, 0)


def test_a_gradient_on_a_mesh(small_blocks):
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        pytest.skip("this JAX has no jax.shard_map")
    x, y = np.random.default_rng(6).normal(size=(2, 4, 3)).astype(F32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    rows = jax.sharding.PartitionSpec("data")

    def gradient(x, y):
        return jax.grad(lambda x: jnp.sum(pairwise_dist(x, y, 0.5)))(x)

    specs = {"in_specs": (rows, jax.sharding.PartitionSpec()), "out_specs": rows}
    sharded = jax.jit(shard_map(gradient, mesh=mesh, **specs))
    np.testing.assert_allclose(sharded(x, y), gradient(x, y), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, F32])
@pytest.mark.parametrize("method", pairwise.METHODS)
def test_output_has_the_dtype_of_the_input(dtype, method):
    x = jax.ShapeDtypeStruct((3, 2), dtype)
    assert jax.eval_shape(lambda x: pairwise_dist(x, x, 0.5, method), x).dtype == dtype


def test_arguments():
    x = np.ones((3, 2), F32)
    with pytest.raises(ValueError, match=r"method must be one of .*exact.*got 'fast'"):
        pairwise_dist(x, x, 1.0, "fast")
    with pytest.raises(ValueError, match=r"agree in their last axis.*x \(3, 2\) and y \(3, 1\)"):
        pairwise_dist(x, x[:, :1], 1.0)
    with pytest.raises(ValueError, match="batch shapes do not broadcast"):
        pairwise_dist(np.ones((2, 3, 2), F32), np.ones((3, 3, 2), F32), 1.0)
    with pytest.raises(ValueError, match="x must have at least 2 axes"):
        pairwise_dist(x[0], x, 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        pairwise_dist(x, x, 0.0)
    with pytest.raises(ValueError, match="does not broadcast to the batch shape"):
        pairwise_dist(x, x, np.ones(3, F32))
    with pytest.raises(TypeError, match="y must be a floating-point array"):
        pairwise_dist(x, x.astype(int), 1.0)
