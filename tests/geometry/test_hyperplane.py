"""Hyperplanes against mpmath and golden data: normals, their inverse, signed distances.

Most tests run compiled and take all scales at once: compiling is what costs time here.
"""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax.functional import weight_norm
from lorentz_jax.hyperplane import (
    Normals,
    factored_normals,
    normals,
    point_from_distances,
    signed_distance,
    weights,
)
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

SCALES = (None, "inside", "outside")
EPS = {np.float32: 2e-6, np.float64: 1e-13}


def at_every_scale(x, v, kappa):
    return jnp.stack([signed_distance(x, v, kappa, scale) for scale in SCALES])


def to_planes(x, w, b, kappa):
    return at_every_scale(x, normals(w, b, kappa), kappa)


distances, plane_distances = quick_jit(at_every_scale), quick_jit(to_planes)
plane_jacobians = quick_jit(jax.jacrev(to_planes, (0, 1, 2)))


def mp_distances(x, w, b, kappa):
    """To the plane (w, (b,)), at every scale."""
    X = oracle.mp_lift(x, kappa)
    return [oracle.mp_signed_distance(X, w, b[0], kappa, scale) for scale in SCALES]


def true_distances(x, w, b, kappa):
    """Distances `(scale, N, out)` of points `(N, D)` to planes `(D, out)`, in 50 digits."""
    planes = np.asarray(w, np.float64).T[None], np.asarray(b, np.float64)[None, :, None]
    found = oracle.evaluate(mp_distances, np.asarray(x)[:, None], *planes, kappa=kappa)
    return np.moveaxis(found, -1, 0)


def sample(dtype=np.float64, points=5, dimension=3, units=4, radius=1.5, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((points, dimension), (dimension, units), (units,))
    x, w, b = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    x[0], w[:, 1], w[:, 3], b[3] = 0, w[:, 1] * 1e-2, w[:, 3] * 1e3, b[3] * 1e3
    return radius * x, w, b


# --- normals --------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_normals_are_the_papers(kappa):
    data = golden("layers")
    for dimension in ("d0", "d2"):
        prefix = f"fc/k{kappa:g}/{dimension}/U/"
        got = normals(data[prefix + "U"], -data[prefix + "a"][0], kappa)
        V = np.concatenate([got.time[None], got.space])
        assert_close(V, data[prefix + "V_paper"], 1e-13, axis=0)
        assert_close(got.length, np.linalg.norm(data[prefix + "U"], axis=0), 1e-14)


@pytest.mark.usefixtures("x64")
def test_normals_of_a_worked_example():
    v = normals(np.array([[1, 0.5], [2, -1.0]]), np.array([0.125, -0.25]), 0.25)
    want = [-0.062508138338730685, 1.0003906504319774, 2.0007813008639548]
    assert_close(np.array([v.time[0], *v.space[:, 0]]), want, 1e-15, axis=None)


@pytest.mark.usefixtures("x64")
def test_factored_normals_are_those_of_the_weight_norm(kappa):
    rng = np.random.default_rng(2)
    a, g, b = (rng.normal(size=shape) for shape in ((3, 2, 4, 6), (6,), (6,)))
    # No direction, no weight, a direction turned round, an angle beyond sinh.
    a[..., 1], g[2], g[3], b[4] = 0, 0, -2, 1e3
    want = normals(weight_norm(a, g), b, kappa)
    got, scale = factored_normals(a, g, b, kappa)
    np.testing.assert_array_equal(got.space, a)
    np.testing.assert_allclose(got.space * scale, want.space, rtol=1e-14)
    for name in ("time", "length", "excess"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12)


def test_factored_normals_without_a_direction_have_finite_gradients():
    def total(a, g, b):
        planes, scale = factored_normals(a, g, b, 0.5)
        return jnp.sum(planes.space * scale) + jnp.sum(planes.time)

    gradients = jax.grad(total, (0, 1, 2))(jnp.zeros((3, 2)), jnp.array([1.0, 0.0]), jnp.ones(2))
    assert not np.asarray(gradients[0]).any()
    np.testing.assert_allclose(gradients[2], -np.sqrt([0.5, 0.5]), rtol=1e-6)  # time = -s b


def test_factored_normals_name_what_does_not_fit():
    a = jnp.ones((3, 2))
    with pytest.raises(ValueError, match=r"gain must have shape \(2,\)"):
        factored_normals(a, jnp.ones(3), jnp.ones(2), 1.0)
    with pytest.raises(ValueError, match=r"b must have shape \(2,\)"):
        factored_normals(a, jnp.ones(2), jnp.ones(3), 1.0)


@pytest.mark.parametrize("theta", [1e-6, 1e-3, 0.3, 0.999, 1.001, 20.0, -5.0])
def test_the_time_of_a_normal_keeps_its_derivative_in_the_size(theta):
    """`sinh theta - theta cosh theta`: near 0 float32 keeps nothing of it if it is subtracted."""
    size, kappa = np.float32(1.5), np.float32(0.3)
    b = np.float32(-theta * size / np.sqrt(kappa))

    def time(size, b):
        return normals(size[None, None], b[None], kappa).time[0]

    by_size, by_b = jax.grad(time, (0, 1))(size, b)
    with mp.workdps(50):
        s, exact_size, exact_b = (
            mp.sqrt(mp.mpf(float(kappa))),
            mp.mpf(float(size)),
            mp.mpf(float(b)),
        )
        q = -s * exact_b / exact_size
        want = mp.sinh(q) - q * mp.cosh(q), -s * mp.cosh(q)
    assert_close(by_size, float(want[0]), 4e-5)  # eps theta of q itself
    assert_close(by_b, float(want[1]), 4e-5)


def test_beyond_its_limit_the_time_grows_with_the_size_alone():
    grad = jax.grad(lambda size, b: normals(size[None, None], b[None], 1.0).time[0], (0, 1))
    by_size, by_b = grad(np.float32(1), np.float32(-90))
    np.testing.assert_allclose(by_size, np.sinh(80.0), rtol=1e-5)
    assert by_b == 0


def test_a_kernel_is_its_flattened_matrix(kappa):
    rng = np.random.default_rng(1)
    w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 2, 4, 5), (5,)))
    kernel, matrix = normals(w, b, kappa), normals(w.reshape(24, 5), b, kappa)
    np.testing.assert_allclose(kernel.space.reshape(24, 5), matrix.space, rtol=1e-6)
    for name in ("time", "length", "excess"):
        np.testing.assert_allclose(getattr(kernel, name), getattr(matrix, name), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_weights_give_float32_normals(dtype):
    w, b = jnp.asarray([[1.0, 0.5], [2, -1]], dtype), jnp.asarray([0.125, -0.25], dtype)
    got = normals(w, b, 0.25)
    want = normals(w.astype(jnp.float32), b.astype(jnp.float32), 0.25)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype(jnp.float32)}
    jax.tree.map(np.testing.assert_array_equal, got, want)


W, B = np.ones((3, 2), np.float32), np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((W.astype(np.int32), B, 1.0), TypeError, "w must be a floating-point array"),
        ((W, B.astype(np.int32), 1.0), TypeError, "b must be a floating-point array"),
        ((W, B[:1], 1.0), ValueError, r"b must have shape \(2,\) to go with w \(3, 2\), got \(1,"),
        ((W[0], B, 1.0), ValueError, "w must have at least 2 axes"),
        ((W, B, -1.0), ValueError, "curvature is -kappa"),
        ((W, B, 0), ValueError, "curvature is -kappa"),
        ((W, B, float("nan")), ValueError, "curvature is -kappa"),
        ((W, B, np.ones(2, np.float32)), ValueError, r"kappa of shape \(2,\)"),
    ],
)
def test_arguments_of_normals(arguments, error, text):
    with pytest.raises(error, match=text):
        normals(*arguments)


# --- weights, the inverse -------------------------------------------------------------------

restore = quick_jit(weights)


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 200), (np.float64, 2000)])
def test_weights_invert_normals(x64, kappa, dtype, largest):
    rng = np.random.default_rng(2)
    theta = np.concatenate([[0, 1e-6, -1, 8, -20, 79, -largest], rng.normal(size=2)])
    w = rng.normal(size=(2, 3, len(theta)))
    w[..., -1] = 0
    size = np.where(np.arange(len(theta)) < len(theta) - 1, np.linalg.norm(w, axis=(0, 1)), 1)
    w, b = w.astype(dtype), (-size * theta / np.sqrt(kappa)).astype(dtype)
    back_w, back_b = restore(normals(w, b, kappa), kappa)
    tolerance = {np.float32: 1e-6, np.float64: 1e-14}[dtype]
    assert_close(back_w, w, tolerance, axis=(0, 1))
    assert_close(back_b, b, tolerance, axis=None)
    assert back_w.dtype == back_b.dtype == dtype


def bare(v):
    return Normals(v.time, v.space)


@pytest.mark.usefixtures("x64")
def test_a_bare_pair_gives_the_weights_back():
    w, b = np.array([[1.2, 0.3], [1.6, -2]]), np.array([1.0, -0.2])
    for kappa in (0.25, 1.0, 4.0):  # the printed formula misses |w| = 2: b = 0.25
        back_w, back_b = restore(bare(normals(w, b, kappa)), kappa)
        assert_close(back_w, w, 1e-14)
        assert_close(back_b, b, 1e-13)
    assert_close(normals(w, b, 0.25).time[:1], [-0.505224633616337], 1e-14)


@pytest.mark.parametrize("theta", [0.5, 1, 2, 2.9, 3, 3.5, 4, 5, 6, 7, 8, 9, 10, 11, 20])
def test_a_bare_float32_pair_is_right_or_refused(theta):
    w, b = np.float32([[0.6, 0.3], [0.8, 0]]), np.float32([-theta, 0.1])
    pair = bare(normals(w, b, 1.0))
    with jax.debug_nans(False):
        back_w, back_b = map(np.asarray, restore(pair, 1.0))
    if np.isnan(back_b[0]):
        assert theta > 3
        assert np.isnan(back_w[:, 0]).all()
        with pytest.raises(ValueError, match=r"units \[0\] are lost to float32 rounding"):
            weights(pair, 1.0)
    else:
        assert theta < 8
        np.testing.assert_allclose(back_w, w, rtol=2e-3)
        np.testing.assert_allclose(back_b, b, rtol=2e-3)
    np.testing.assert_allclose(back_b[1], 0.1, rtol=1e-5)


# --- signed distances -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signed_distance(x64, kappa, dtype):
    x, w, b = sample(dtype)
    got = plane_distances(x, w, b, kappa)
    assert got.dtype == dtype
    assert_close(got, true_distances(x, w, b, kappa), EPS[dtype], axis=1)
    if dtype == np.float64:
        few = [0, 2, 3]  # with theta of order 1, where a bare pair still tells its norm
        pair = bare(normals(w[:, few], b[few], kappa))
        assert_close(distances(x, pair, kappa), got[..., few], 1e-12, axis=1)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_distances(kappa, dtype):
    x, w, b = sample(np.float32)
    x = jnp.asarray(x, dtype)
    got, want = plane_distances(x, w, b, kappa), plane_distances(np.float32(x), w, b, kappa)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.usefixtures("x64")
def test_gradients_of_signed_distance():
    x, w, b = sample(points=6, units=6)
    w, b, kappas = w.T, b[:, None], np.array([0.1, 0.1, 1, 1, 2.5, 2.5])

    def single(x, w, b, kappa):
        return to_planes(x, w[:, None], b, kappa)[:, 0]

    got = quick_jit(jax.vmap(jax.jacrev(single, range(4))))(x, w, b, kappas)
    for i in range(len(SCALES)):
        want = oracle.gradients(lambda *a, i=i: mp_distances(*a)[i], x, w, b, kappa=kappas)
        for name, g, h in zip("xwbk", got, want, strict=True):
            # Row 0 is the origin, where some derivatives vanish and only their size is compared.
            assert_close(g[1:, i], h[1:], 1e-12, axis=tuple(range(1, h.ndim)), what=name)
            assert_close(g[:, i], h, 1e-12, axis=tuple(range(h.ndim)), what=name)


def test_gradients_on_the_plane_are_the_normal(kappa):
    w, b = np.float32([[0.6, 0], [0.8, 1]]), np.zeros(2, np.float32)
    by_x, _, _ = plane_jacobians(np.zeros(2, np.float32), w, b, kappa)
    np.testing.assert_allclose(by_x, np.stack([w.T] * 3), rtol=1e-6)


def test_zero_weights(kappa):
    x, w, b = np.float32([0.5, -0.25]), np.zeros((2, 2), np.float32), np.float32([0, 0.5])
    time = np.sqrt(1 / kappa + 0.3125)
    inside = [0, np.arcsinh(kappa * 0.5 * time) / np.sqrt(kappa)]
    np.testing.assert_allclose(plane_distances(x, w, b, kappa), [[0, 0], inside, [0, 0]], rtol=1e-6)
    _, by_w, by_b = plane_jacobians(x, w, b, kappa)
    assert np.isfinite(by_w).all()
    assert np.isfinite(by_b).all()
    np.testing.assert_allclose(by_w[1, 0, :, 0], x)
    np.testing.assert_allclose(by_b[1, 0, 0], np.sqrt(kappa) * time, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "w", "want", "tolerance"),
    [(np.float32, 0.01, 95.8760438519, 1e-6), (np.float64, 0.001, 993.573456546, 1e-12)],
)
def test_a_plane_beyond_the_range_of_sinh(x64, dtype, w, want, tolerance):
    x, w, b = dtype([0.5, 0]), dtype([[w, w], [0, 0]]), dtype([1, -1])
    _, inside, _ = plane_distances(x, w, b, 1.0)
    assert_close(inside[:1], [want], tolerance)
    if dtype == np.float64:
        return
    gradients = plane_jacobians(x, w, b, 1.0)
    true = oracle.gradients(lambda *a: mp_distances(*a)[1], x, w[:, 0], b[:1], kappa=1.0)
    for got, h in zip((gradients[0][1, 0], gradients[1][1, 0, :, 0]), true[:2], strict=True):
        assert_close(got, h, 50 * tolerance)
    assert_close(gradients[2][1, 0, :1], true[2], 50 * tolerance)


@pytest.mark.parametrize(("dtype", "reach"), [(np.float32, 85), (np.float64, 700)])
def test_far_points_and_far_planes(x64, kappa, dtype, reach):
    """Nothing overflows; nothing is lost, except on the side where x.v and x_t v_t cancel."""
    s = np.sqrt(kappa)
    rho = np.array([0, 1e-3, 1, 40, reach])
    direction = np.array([[0.6, 0.8], [-0.96, 0.28], [-0.6, -0.8], [0.28, 0.96]])
    x = (np.sinh(rho)[:, None, None] / s * direction).reshape(-1, 2).astype(dtype)
    theta = np.array([0, 3, reach / 2, reach, 3 * reach, -3, -reach, -5 * reach])
    size = np.array([1, 0.3, 2, 1e-3, 5, 1, 1e-2, 0.7])
    w = (size * np.array([[0.6], [0.8]])).astype(dtype)
    b = (-theta * np.linalg.norm(w.astype(np.float64), axis=0) / s).astype(dtype)
    got = np.asarray(plane_distances(x, w, b, kappa), np.float64)
    assert np.isfinite(got).all()
    want = true_distances(x, w, b, kappa)
    lost = np.arcsinh(s * x @ np.array([0.6, 0.8]))[:, None] * np.sign(theta) > 1
    error = np.abs(got - want) / np.maximum(np.abs(want), 1)
    assert np.where(lost, 0, error).max() < 20 * EPS[dtype]


def test_batches_and_one_kappa_per_sample():
    x, w, b = sample(np.float32, points=6)
    v, kappas = normals(w, b, 1.0), np.arange(1, 7, dtype=np.float32)
    want = np.stack([distances(row, v, k) for row, k in zip(x, kappas, strict=True)], axis=1)
    cube, square = x.reshape(2, 3, 3), kappas.reshape(2, 3)
    np.testing.assert_allclose(distances(cube, v, square), want.reshape(3, 2, 3, 4), rtol=1e-6)
    mapped = quick_jit(jax.vmap(at_every_scale, (0, None, 0), 1))(x, v, kappas)
    np.testing.assert_allclose(mapped, want, rtol=1e-6)
    assert distances(x[:0], v, 1.0).shape == (3, 0, 4)


V = Normals(B, W)


@pytest.mark.parametrize(
    ("x", "kappa", "scale", "error", "text"),
    [
        (np.zeros((8, 4), np.float32), 1.0, None, ValueError, r"D_in = 3 .* shape \(8, 4\)"),
        (np.zeros((8, 2), np.float32), 1.0, None, ValueError, r"D_in = 3 .* shape \(8, 2\)"),
        (np.zeros((8, 0), np.float32), 1.0, None, ValueError, "no coordinate"),
        (np.zeros((8, 3), np.int32), 1.0, None, TypeError, "x must be a floating-point array"),
        (np.zeros((8, 3), np.float32), -1.0, None, ValueError, "curvature is -kappa"),
        (np.zeros((3, 3), np.float32), np.ones((3, 1), np.float32), None, ValueError, "kappa of s"),
        (np.zeros((8, 3), np.float32), 1.0, "d2", ValueError, 'scale must be "inside"'),
    ],
)
def test_arguments_of_signed_distance(x, kappa, scale, error, text):
    with pytest.raises(error, match=text):
        signed_distance(x, V, kappa, scale)
    if text != "curvature is -kappa":  # a traced kappa has no value to look at
        with pytest.raises(error, match=text):
            jax.jit(signed_distance, static_argnames="scale")(x, V, kappa, scale=scale)


def test_points_from_distances(x64, kappa):
    d = np.array([1.0, -2, 0, 1e-8])
    with mp.workdps(50):
        s = mp.sqrt(mp.mpf(kappa))
        want = [float(mp.sinh(s * mp.mpf(v)) / s) for v in d]
    assert_close(point_from_distances(d, kappa), want, 1e-15, axis=None)
    assert_close(point_from_distances(np.array([1.0]), 4.0), [1.8134302039], 1e-10)
