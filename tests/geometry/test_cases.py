"""Faults that hyperbolic libraries are known for, at every kappa, dtype, shape and direction.

The tests of each module have one case of each; here it is moved about, with mpmath as the truth of
the rounded inputs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, geometry, hyperplane
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import SPACE, assert_close, evaluate
from tests.samples import call, run

F32, F64 = np.float32, np.float64
KAPPAS = (1e-6, 0.01, 0.5, 1.0, 4.0, 100.0)
# Directions of the plane, among them the axes and nearly the axes.
DIRECTIONS = ((1, 0), (0, -1), (0.6, 0.8), (-1, 1e-6), (1e-3, 1), (-0.5, -0.5))


def around(radii, dtype):
    """Points `(N, 2)` in every direction at every s-scaled radius, and kappa `(N,)`."""
    rows = [
        (np.sinh(r) / np.sqrt(k) * np.array(d) / np.hypot(*d), k)
        for r in radii for d, k in zip(DIRECTIONS, KAPPAS, strict=True)
    ]  # fmt: skip
    return np.array([x for x, _ in rows], dtype), np.array([k for _, k in rows], dtype)


both = pytest.mark.parametrize(("dtype", "rtol"), [(F32, 2e-6), (F64, 1e-14)])
usual = pytest.mark.usefixtures("x64")


@usual
@both
def test_small_distances_do_not_collapse(dtype, rtol):
    far = (46, 60, 80) if dtype == F32 else (60, 300, 690)
    x, kappa = around((1e-12, 1e-9, 1e-4, 1, *far), dtype)
    want = evaluate(SPACE["dist0"], x, kappa=kappa)
    for got in (call("dist", (0 * x, x), kappa), call("dist", (x, 0 * x), kappa)):
        assert got.dtype == dtype
        assert_close(got, want, rtol, axis=None)
    assert_close(call("dist0", (x,), kappa), want, rtol, axis=None)


@usual
@both
def test_coincident_points_have_finite_gradients(dtype, rtol):
    x, kappa = around((0, 1e-12, 1e-3, 1, 10, 40, 80), dtype)
    value, gradients = run("dist", (x, x), kappa)
    assert not value.any()
    assert not any(g.any() for g in gradients)
    # One coincident pair does not touch the rows beside it.
    y = x.copy()
    y[::2] *= 2
    _, mixed = run("dist", (x, y), kappa)
    _, alone = run("dist", (x[::2], y[::2]), kappa[::2])
    for some, few in zip(mixed, alone, strict=True):
        assert np.isfinite(some).all()
        np.testing.assert_array_equal(some[::2], few)


@usual
@both
def test_tiny_tangents_keep_their_direction(dtype, rtol):
    smallest = 1e-30 if dtype == F32 else 1e-250
    sizes = np.array([0, smallest, 1e-25, 1e-8, 0.5, 3], dtype)
    v, kappa = around([1], dtype)
    v = sizes[:, None] * v / np.hypot(*v.T)[:, None]
    assert_close(call("exp0", (v,), kappa), evaluate(SPACE["exp0"], v, kappa=kappa), 4 * rtol)
    x = around([0.7], dtype)[0]
    want = evaluate(SPACE["exp"], x, v, kappa=kappa)
    assert_close(call("exp", (x, v), kappa), want, 4 * rtol)
    for name, arguments in (("exp0", (0 * v,)), ("exp", (x, 0 * v))):
        for cotangent in np.eye(2, dtype=dtype):
            _, gradients = run(name, arguments, kappa, np.broadcast_to(cotangent, v.shape))
            assert_close(gradients[-2], np.broadcast_to(cotangent, v.shape), 2 * rtol)


@usual
@both
def test_transport_and_logarithm_at_any_kappa(dtype, rtol):
    x, kappa = around((0.3, 1.2), dtype)
    y, v = x[::-1].copy(), np.roll(x, 1, axis=0)
    y, v = y * np.sqrt(kappa[::-1] / kappa)[:, None], v / np.hypot(*v.T)[:, None]
    want = evaluate(SPACE["transport"], x, y, v, kappa=kappa)
    moved = call("transport", (x, y, v), kappa)
    assert_close(moved, want, 20 * rtol)
    lengths = [call("tangent_norm", pair, kappa) for pair in ((x, v), (y, moved))]
    assert_close(*lengths, 20 * rtol, axis=None)
    length = call("tangent_norm", (x, call("log", (x, y), kappa)), kappa)
    assert_close(length, call("dist", (x, y), kappa), 20 * rtol, axis=None)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_one_kappa_a_point(shape):  # whatever the batch, and where D + 1 equals it
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, *shape, 2)).astype(F32)
    kappa = rng.uniform(0.5, 2, shape).astype(F32)
    got = geometry.dist(x, y, kappa)
    assert got.shape == shape
    for index in np.ndindex(shape):
        np.testing.assert_allclose(
            got[index], geometry.dist(x[index], y[index], kappa[index]), 1e-6
        )
    with pytest.raises(ValueError, match="does not broadcast"):
        geometry.dist(x, y, np.ones((5, *shape), F32))


centroid = quick_jit(geometry.centroid)


@usual
@both
def test_centroids_of_far_points(dtype, rtol):
    radii = (1e-6, 1, 20, 60) if dtype == F32 else (1e-6, 1, 60, 300)
    x, kappa = around(radii, dtype)
    assert_close(centroid(np.stack([x, x, x], 1), kappa), x, 2 * rtol)
    assert_close(centroid(np.stack([x], 1), kappa), x, 2 * rtol)
    middle = centroid(np.stack([x, -x], 1), kappa)
    assert np.max(np.abs(middle) * np.sqrt(kappa)[:, None]) < 1e-6


kappa_slope = jax.jit(jax.grad(lambda k, x, y: geometry.dist(x, y, k)))


@usual
@pytest.mark.parametrize("kappa", KAPPAS)
def test_gradient_in_kappa(kappa):  # also under jit, of a dtype of its own, at coincidence
    x = np.array([0.75, 0], F64) / np.sqrt(kappa)
    want = (0.6 - np.log(2)) / (2 * kappa * np.sqrt(kappa))
    np.testing.assert_allclose(kappa_slope(kappa, 0 * x, x), want, rtol=1e-13)
    assert kappa_slope(kappa, x, x) == 0


def a_unit(x, w, b, kappa):
    planes = hyperplane.normals(w[:, None], b[None], kappa)
    return functional.linear(x, planes, kappa)[0], functional.mlr(x, planes, kappa)[0]


unit = quick_jit(a_unit)
slopes = quick_jit(jax.jacrev(lambda *a: jnp.stack(a_unit(*a)), (0, 1, 2)))


@usual
@both
@pytest.mark.parametrize("kappa", [0.25, 1.0, 4.0])
def test_a_unit_without_weights(dtype, rtol, kappa):
    x, kappa = np.array([0.5, -0.25], dtype), dtype(kappa)
    by_x, by_w, by_b = slopes(x, np.zeros(2, dtype), dtype(0), kappa)
    time = np.sqrt(1 / kappa + 0.3125)
    for row in range(2):
        assert_close(by_w[row], x, rtol)
        np.testing.assert_allclose(by_b[row], np.sqrt(kappa) * time, rtol=rtol)
    assert not by_x.any()
    for bias in (0.5, -3.0, 1e4):
        values = unit(x, np.zeros(2, dtype), dtype(bias), kappa)
        found = [*values, *slopes(x, np.zeros(2, dtype), dtype(bias), kappa)]
        assert all(np.isfinite(a).all() for a in found)


@usual
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kappa", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("w", [(0.01, 0), (0, -0.001), (3e-3, 4e-3)])
def test_planes_beyond_the_range_of_sinh(dtype, kappa, w):
    x, w, kappa = np.array([0.5, 0.2], dtype), np.array(w, dtype), dtype(kappa)
    for bias in (1.0, -1.0):
        z, logit = unit(x, w, dtype(bias), kappa)
        assert np.isfinite(z)
        want = evaluate(
            lambda x, w, b, k: oracle.mp_signed_distance(oracle.mp_lift(x, k), w, b[0], k),
            x, w, np.array([bias], dtype), kappa=kappa,
        )  # fmt: skip
        np.testing.assert_allclose(logit, want, rtol=2e-6 if dtype == F32 else 1e-13)
        assert all(np.isfinite(g).all() for g in slopes(x, w, dtype(bias), kappa))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_distances_are_rounded_once(dtype):
    x, kappa = around((0.1, 1, 3), F32)
    x, y = (jnp.asarray(a, dtype) for a in (x, 1.5 * x))
    kappa = np.minimum(kappa, 1)
    wide = geometry.dist(x.astype(jnp.float32), y.astype(jnp.float32), kappa)
    np.testing.assert_array_equal(geometry.dist(x, y, kappa), wide.astype(dtype))
