"""What must hold for any points, vectors and curvature, on examples that hypothesis chooses.

One compiled function of fixed shapes gives all relations, so nothing compiles twice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorentz_jax import functional, geometry
from lorentz_jax.hyperplane import normals
from tests.compiled import quick_jit

D = 3
few = settings(derandomize=True, deadline=None, max_examples=30, database=None)
numbers = st.floats(-1, 1, allow_subnormal=False)
vectors = st.lists(numbers, min_size=D, max_size=D)
# Six vectors and their common size, in units of 1/s: from tiny ones to radius 7.
samples = st.tuples(
    st.lists(vectors, min_size=6, max_size=6), st.floats(-9, 0.6), st.floats(-4, 1.3)
)


@quick_jit
def relations(p, x, y, u, v, q, kappa):
    """Pairs of arrays that must be equal, by name."""
    g = geometry
    p, x, y, q = (g.exp0(a, kappa) for a in (p, x, y, q))
    at_x = [g.transport_from_origin(x, a, kappa) for a in (u, v)]
    at_y = [g.transport(x, y, a, kappa) for a in at_x]
    three = jnp.stack([x, y, q])
    weights = jnp.array([0.5, 0.2, 1.0], x.dtype)
    mirror = jnp.eye(D) - 2 * jnp.outer(p, p) / (p @ p + 1e-300)
    w = jnp.stack([u, v], axis=1)  # with |theta| up to 2
    b = jnp.linalg.norm(w, axis=0) * jnp.array([2.0, -0.3], x.dtype) / jnp.sqrt(kappa)
    return {
        "isometry": (
            g.dist(g.translate(p, x, kappa), g.translate(p, y, kappa), kappa), g.dist(x, y, kappa)
        ),
        "exp of log": (g.exp(x, g.log(x, y, kappa), kappa), y),
        "products": (g.tangent_inner(y, *at_y, kappa), g.tangent_inner(x, *at_x, kappa)),
        "centroid": (
            g.centroid(g.translate(p, three, kappa), kappa, weights),
            g.translate(p, g.centroid(three, kappa, weights), kappa),
        ),
        "rotations": (
            functional.linear(mirror @ x, normals(mirror @ w, b, kappa), kappa),
            functional.linear(x, normals(w, b, kappa), kappa),
        ),
        "rotated centre": (
            functional.center(three @ mirror, x @ mirror, q @ mirror, kappa),
            functional.center(three, x, q, kappa) @ mirror,
        ),
        "triangle": (g.dist(x, y, kappa), g.dist(x, p, kappa) + g.dist(p, y, kappa)),
        "radius": (g.dist0(jnp.stack([p, x, y, q]), kappa), jnp.zeros(4)),
    }  # fmt: skip


def found(sample, name):
    """One relation, the larger of its sizes, and how much rounding of far points is worth."""
    arrays, size, power = sample
    kappa = 10.0**power
    with jax.enable_x64(True):
        scale = 10.0**size / np.sqrt(kappa)
        results = relations(*(np.asarray(arrays) * scale), kappa)
        got, want = map(np.asarray, results[name])
        reach = np.exp(np.sqrt(kappa) * float(np.max(results["radius"][0])))
    return got, want, scale, reach


def assert_same(sample, name):
    """Equal to `2e-14 e^(2 s r)` of the sizes involved."""
    got, want, scale, reach = found(sample, name)
    tolerance = 2e-14 * reach**2 * max(np.abs(want).max(), scale)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance + 1e-300)


@pytest.mark.parametrize("name", ["isometry", "exp of log", "centroid"])
@few
@given(sample=samples)
def test_translations_are_isometries_exp_inverts_log_and_centroids_move_along(name, sample):
    # A far point is rounded to eps e^(s r) of transverse distance, before and after the move.
    assert_same(sample, name)


@few
@given(samples)
def test_transport_keeps_products(sample):
    got, want, scale, reach = found(sample, "products")
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-14 * reach**2 * scale**2 + 1e-300)


@few
@given(samples)
def test_layers_turn_with_their_input(sample):
    got, want, scale, reach = found(sample, "rotations")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * reach**2 * scale * (1 + scale))
    got, want, scale, reach = found(sample, "rotated centre")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * reach**3 * scale + 1e-300)


@few
@given(samples)
def test_triangle_inequality(sample):
    direct, detour, _, _ = found(sample, "triangle")
    assert direct <= detour * (1 + 1e-14)


@quick_jit
def both_ways(x, y, kappa):
    return geometry.dist(x, y, kappa), geometry.dist(y, x, kappa)


@few
@given(vectors, vectors, st.floats(-18, 18), st.floats(-18, 18), st.floats(-6, 2))
def test_distance_is_symmetric_bit_for_bit(x, y, size_x, size_y, power):
    x, y = np.float32(10**size_x) * np.float32(x), np.float32(10**size_y) * np.float32(y)
    there, back = both_ways(x, y, np.float32(10**power))
    np.testing.assert_array_equal(there, back)


def _matrix(u, v):
    return jnp.stack([u, v], axis=1) + 2 * jnp.eye(D, 2)  # |w| of order 1: theta = -s b/|w|


FLAT = {
    "dist": (geometry.dist, 2, lambda x, y: jnp.linalg.norm(x - y)),
    "exp": (geometry.exp, 2, lambda x, v: x + v),
    "log": (geometry.log, 2, lambda x, y: y - x),
    "transport": (geometry.transport, 3, lambda x, y, v: v),
    "translate": (geometry.translate, 2, lambda p, x: p + x),
    "centroid": (
        lambda x, y, q, k: geometry.centroid(jnp.stack([x, y, q]), k), 3,
        lambda x, y, q: (x + y + q) / 3,
    ),
    "linear": (
        lambda x, u, v, k: functional.linear(x, normals(_matrix(u, v), x[:2], k), k), 3,
        lambda x, u, v: x @ _matrix(u, v) + x[:2],
    ),
}  # fmt: skip


@quick_jit
def flat_gaps(arrays, kappa):
    """`f(kappa) - f(0)` and `kappa f'(kappa)` of every function with a flat limit."""
    gaps = {}
    for name, (function, count, limit) in FLAT.items():
        some = tuple(arrays[:count])
        value, slope = jax.jvp(lambda k, f=function, a=some: f(*a, k), (kappa,), (1.0,))
        gaps[name] = value - limit(*some), kappa * slope
    return gaps


@few
@given(st.lists(vectors, min_size=3, max_size=3), st.floats(-8, -4))
def test_flat_limit_at_first_order(arrays, power):
    """The gap to the Euclidean value is linear in kappa, with the gradient as its slope."""
    arrays = np.asarray(arrays) / 2 + np.eye(D)  # apart from each other
    with jax.enable_x64(True):
        gaps = flat_gaps(arrays, 10.0**power)
    for name, (gap, slope) in gaps.items():
        atol = 200 * 100.0**power + 1e-14
        np.testing.assert_allclose(gap, slope, rtol=0, atol=atol, err_msg=name)
        assert np.max(np.abs(gap)) < 100 * 10.0**power
