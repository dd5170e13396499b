"""What must hold for any points, vectors and curvature, on examples that hypothesis chooses.

All functions run compiled for fixed shapes, so nothing compiles twice.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorentz_jax import functional, geometry
from lorentz_jax.hyperplane import normals
from tests.compiled import enable_x64, quick_jit
from tests.samples import Compiled, run

D = 3
few = settings(derandomize=True, deadline=None, max_examples=30, database=None)
numbers = st.floats(-1, 1, allow_subnormal=False)
vectors = st.lists(numbers, min_size=D, max_size=D)
# Six vectors and their common size, in units of 1/s: from tiny ones to radius 7.
samples = st.tuples(
    st.lists(vectors, min_size=6, max_size=6), st.floats(-9, 0.6), st.floats(-4, 1.3)
)


g = Compiled()


def translated_distance(p, x, y, u, v, q, kappa):
    moved = g.translate(p, x, kappa), g.translate(p, y, kappa)
    return g.dist(*moved, kappa), g.dist(x, y, kappa)


def there_and_back(p, x, y, u, v, q, kappa):
    return g.exp(x, g.log(x, y, kappa), kappa), y


def products(p, x, y, u, v, q, kappa):
    at_x = [g.transport_from_origin(x, a, kappa) for a in (u, v)]
    at_y = [g.transport(x, y, a, kappa) for a in at_x]
    return g.tangent_inner(y, *at_y, kappa), g.tangent_inner(x, *at_x, kappa)


centroid = quick_jit(geometry.centroid)


def moved_centroid(p, x, y, u, v, q, kappa):
    three, weights = np.concatenate([x, y, q]), np.array([0.5, 0.2, 1.0])
    moved = g.translate(np.tile(p, (3, 1)), three, kappa)
    mean = centroid(three, kappa, weights)[None]
    return centroid(moved, kappa, weights), g.translate(p, mean, kappa)[0]


def triangle(p, x, y, u, v, q, kappa):
    return g.dist(x, y, kappa), g.dist(x, p, kappa) + g.dist(p, y, kappa)


@quick_jit
def dense(x, w, b, kappa):
    return functional.linear(x, normals(w, b, kappa), kappa)


center = quick_jit(functional.center)


def reflection(p):
    p = p[0]
    return np.eye(D) - 2 * np.outer(p, p) / (p @ p + 1e-300)


def mirrored_layer(p, x, y, u, v, q, kappa):
    mirror, w = reflection(p), np.concatenate([u, v]).T  # with |theta| up to 2
    b = np.linalg.norm(w, axis=0) * np.array([2.0, -0.3]) / np.sqrt(kappa)
    return dense(x @ mirror, mirror @ w, b, kappa), dense(x, w, b, kappa)


def mirrored_centring(p, x, y, u, v, q, kappa):
    three, mirror = np.concatenate([x, y, q]), reflection(p)
    turned = center(three @ mirror, x[0] @ mirror, q[0] @ mirror, kappa)
    return turned, center(three, x[0], q[0], kappa) @ mirror


def found(sample, relation):
    """Two arrays that must be equal, the larger of its sizes, and what rounding is worth.

    A relation takes points p, x and y, tangent vectors u and v at the origin and a point q, all
    of shape `(1, D)`, and kappa.
    """
    arrays, size, power = sample
    kappa = 10.0**power
    scale = 10.0**size / np.sqrt(kappa)
    p, x, y, u, v, q = np.asarray(arrays)[:, None] * scale
    points = g.exp0(np.concatenate([p, x, y, q]), kappa)
    reach = np.exp(np.sqrt(kappa) * np.max(g.dist0(points, kappa)))
    p, x, y, q = points[:, None]
    with enable_x64(True):
        got, want = map(np.asarray, relation(p, x, y, u, v, q, kappa))
    return got, want, scale, reach


def assert_same(sample, relation):
    """Equal to `2e-14 e^(2 s r)` of the sizes involved."""
    got, want, scale, reach = found(sample, relation)
    tolerance = 2e-14 * reach**2 * max(np.abs(want).max(), scale)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance + 1e-300)


@pytest.mark.parametrize(
    "relation",
    [translated_distance, there_and_back, moved_centroid],
    ids=["isometry", "exp of log", "centroid"],
)
@few
@given(sample=samples)
def test_translations_are_isometries_exp_inverts_log_and_centroids_move_along(relation, sample):
    # A far point is rounded to eps e^(s r) of transverse distance, before and after the move.
    assert_same(sample, relation)


@few
@given(samples)
def test_transport_keeps_products(sample):
    got, want, scale, reach = found(sample, products)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-14 * reach**2 * scale**2 + 1e-300)


@few
@given(samples)
def test_layers_turn_with_their_input(sample):
    got, want, scale, reach = found(sample, mirrored_layer)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * reach**2 * scale * (1 + scale))
    got, want, scale, reach = found(sample, mirrored_centring)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * reach**3 * scale + 1e-300)


@few
@given(samples)
def test_triangle_inequality(sample):
    direct, detour, _, _ = found(sample, triangle)
    assert direct <= detour * (1 + 1e-14)


@few
@given(vectors, vectors, st.floats(-18, 18), st.floats(-18, 18), st.floats(-6, 2))
def test_distance_is_symmetric_bit_for_bit(x, y, size_x, size_y, power):
    x, y = np.float32(10**size_x) * np.float32(x), np.float32(10**size_y) * np.float32(y)
    kappa = np.float32(10**power)
    np.testing.assert_array_equal(g.dist(x[None], y[None], kappa), g.dist(y[None], x[None], kappa))


def _matrix(u, v):
    return jnp.stack([u, v], axis=1) + 2 * np.eye(D, 2)  # |w| of order 1: theta = -s b/|w|


# Functions with a limit at kappa = 0: how many vectors they take, and the limit.
FLAT = {
    "dist": (2, lambda x, y: np.linalg.norm(x - y, axis=-1)),
    "exp": (2, lambda x, v: x + v),
    "log": (2, lambda x, y: y - x),
    "transport": (3, lambda x, y, v: v),
    "translate": (2, lambda p, x: p + x),
}
FLAT_LAYERS = {
    "centroid": (
        lambda x, y, q, k: geometry.centroid(jnp.stack([x, y, q]), k),
        lambda x, y, q: (x + y + q) / 3,
    ),
    "linear": (
        lambda x, u, v, k: functional.linear(x, normals(_matrix(u, v), x[:2], k), k),
        lambda x, u, v: x @ _matrix(u, v) + x[:2],
    ),
}


@functools.partial(quick_jit, static_argnums=0)
def value_and_slope(name, arrays, kappa):
    return jax.jvp(lambda k: FLAT_LAYERS[name][0](*arrays, k), (kappa,), (1.0,))


def flat_gaps(arrays, kappa):
    """`f(kappa) - f(0)` and `kappa f'(kappa)` of every function with a flat limit."""
    gaps = {}
    for name, (count, limit) in FLAT.items():
        # A row for each coordinate of the result, whose gradient in kappa is that of the row.
        some = [np.tile(a, (D, 1)) for a in arrays[:count]]
        value, (*_, slope) = run(name, some, kappa, np.ones(D) if name == "dist" else np.eye(D))
        gap = value - limit(*some)
        gaps[name] = gap if name == "dist" else gap[0], kappa * slope
    for name, (_, limit) in FLAT_LAYERS.items():
        value, slope = value_and_slope(name, tuple(arrays), kappa)
        gaps[name] = value - limit(*arrays), kappa * slope
    return gaps


@few
@given(st.lists(vectors, min_size=3, max_size=3), st.floats(-8, -4))
def test_flat_limit_at_first_order(arrays, power):
    """The gap to the Euclidean value is linear in kappa, with the gradient as its slope."""
    arrays = np.asarray(arrays) / 2 + np.eye(D)  # apart from each other
    with enable_x64(True):
        gaps = flat_gaps(arrays, 10.0**power)
    for name, (gap, slope) in gaps.items():
        atol = 200 * 100.0**power + 1e-14
        np.testing.assert_allclose(gap, slope, rtol=0, atol=atol, err_msg=name)
        assert np.max(np.abs(gap)) < 100 * 10.0**power
