"""Second derivatives of the functions of two points, singular points included, against mpmath."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax._src.scalars import tiny
from lorentz_jax.bench.numerics import truth

KAPPAS = (0.1, 1.0, 2.5)
MODES = {
    "hessian": jax.hessian,
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
}
COTANGENT = (0.75, -0.5)


def _ambient(x, y, kappa):
    return truth.point(x, kappa), truth.point(y, kappa), kappa


def _square(x, y, kappa):
    return [truth.distance(*_ambient(x, y, kappa)) ** 2]


def _transport(x, y, v, kappa):
    return truth.transported(*_ambient(x, y, kappa)[:2], truth.tangent(x, v, kappa), kappa)[1:]


# A function of arrays and kappa, how many arrays, its truth.
FUNCTIONS = {
    "dist": (lambda x, y, k: geometry.dist(x, y, k) ** 2, 2, _square),
    "squared_dist": (geometry.squared_dist, 2, _square),
    "dist0": (
        lambda x, k: geometry.dist0(x, k) ** 2,
        1,
        lambda x, k: _square(x, [mp.mpf(0)] * 2, k),
    ),
    "inner": (geometry.inner, 2, lambda x, y, k: [truth.minkowski(*_ambient(x, y, k)[:2])]),
    "log": (geometry.log, 2, lambda x, y, k: truth.logarithm(*_ambient(x, y, k))[1:]),
    "log0": (geometry.log0, 1, lambda x, k: truth.logarithm(*_ambient([mp.mpf(0)] * 2, x, k))[1:]),
    "transport": (geometry.transport, 3, _transport),
}


def at(radius, angle, kappa):
    s = np.sqrt(kappa)
    return np.sinh(s * radius) / s * np.array([np.cos(angle), np.sin(angle)])


def pairs(kappa):
    """Coincident, collinear, opposite, at the origin, near each other and far out."""
    o, x, y, far = np.zeros(2), np.array([0.6, -0.8]), np.array([0.3, 0.9]), at(4, 0.3, kappa)
    return [(o, o), (o, x), (x, o), (x, x), (x, -x), (x, x + (1e-4, 2e-4)), (1e-9 * x, 1e-9 * y),
            (x, 2 * x), (x, -x / 2), (x, y), (far, far), (far, at(4.5, 0.35, kappa)), (far, o),
            (o, far), (at(8, 0.3, kappa), at(5, 2, kappa))]  # fmt: skip


def points(count, dtype):
    """Rows of coordinates and kappa."""
    rows = [(*pair, (0.4, 0.7))[:count] + ((k,),) for k in KAPPAS for pair in pairs(k)]
    return np.array([np.concatenate(row) for row in rows], dtype)


def exact_hessian(function, row):
    """Central differences of the cotangent's product at so many digits that 25 are right."""
    count = len(row)
    with mp.workdps(120 + 8 * int(np.log10(1 + np.abs(row).max()))):
        step, flat = mp.mpf(10) ** -28, [mp.mpf(float(a)) for a in row]

        def value(*moves):
            z = list(flat)
            for i, sign in moves:
                z[i] += sign * step
            out = function(*(z[i : i + 2] for i in range(0, count - 1, 2)), z[-1])
            return mp.fdot(map(mp.mpf, COTANGENT), out) if len(out) == 2 else out[0]

        def entry(i, j):
            corners = [(a, b) for a in (1, -1) for b in (1, -1)]
            total = mp.fsum(a * b * value((i, a), (j, b)) for a, b in corners)
            return float(total / (4 * step * step))

        half = [[entry(i, j) if i <= j else 0.0 for j in range(count)] for i in range(count)]
    return np.array(half) + np.triu(half, 1).T


@functools.cache
def exact(name, dtype):
    _, count, function = FUNCTIONS[name]
    return np.stack([exact_hessian(function, row) for row in points(count, dtype)])


def hessians(name, dtype, mode):
    function, count, _ = FUNCTIONS[name]

    def product(z):
        out = function(*(z[2 * i : 2 * i + 2] for i in range(count)), z[-1])
        return out @ jnp.asarray(COTANGENT, dtype) if out.ndim else out

    with jax.debug_nans(False):
        return np.asarray(jax.jit(jax.vmap(MODES[mode](product)))(points(count, dtype)))


def check(name, dtype, mode):
    got, want = hessians(name, dtype, mode), exact(name, dtype)
    size = np.abs(want).max(axis=(1, 2))
    error = np.abs(got - want).max(axis=(1, 2))
    # Where the truth is 0, `tiny` squared may be left.
    limit = {np.float64: 1e-11, np.float32: 2e-4}[dtype]
    assert (error <= limit * size + 1e-24).all(), (error / size).max()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians_of_points_and_kappa(x64, name, dtype):
    check(name, dtype, "hessian")


@pytest.mark.parametrize("mode", list(MODES)[1:])
@pytest.mark.parametrize("name", ["dist", "squared_dist", "log"])
def test_other_orders_of_differentiation(x64, name, mode):
    check(name, np.float64, mode)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distance_at_coincident_points(x64, dtype):
    """Value and gradient 0; the Hessian finite, the metric's, and 0 for a joint movement."""
    x = jnp.array([(0.6, -0.8), (0, 0), (3e5, -4e5), (3e17, -4e17)], dtype)

    def results(x):
        def distance(x, y):
            return geometry.dist(x, y, 0.5)

        value, gradient = jax.value_and_grad(distance, (0, 1))(x, x)
        alone = jax.hessian(lambda y: distance(x, y))(x)
        joint = jax.hessian(lambda x: distance(x, x))(x)
        metric = jax.hessian(lambda y: geometry.squared_dist(x, y, 0.5))(x)
        return value, gradient, alone * tiny(dtype) * 4, joint, metric

    value, gradient, alone, joint, metric = jax.jit(jax.vmap(results))(x)
    for zero in (value, *gradient, joint):
        np.testing.assert_array_equal(zero, 0 * zero)
    np.testing.assert_allclose(alone, metric, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metric[0], [[1.76, 0.32], [0.32, 1.76 - 0.56 / 3]], rtol=1e-5)


def test_newton_finds_the_mean_of_two_points_from_one_of_them(x64):
    """Karcher's mean: the Hessian of the sum of squares is right where one distance is 0."""
    x, y = jnp.array([0.6, -0.8]), jnp.array([1.0, 0.2])

    def loss(m):
        return geometry.dist(m, x, 0.5) ** 2 + geometry.dist(m, y, 0.5) ** 2

    @jax.jit
    def step(m):
        return m - jnp.linalg.solve(jax.hessian(loss)(m), jax.grad(loss)(m))

    m = x
    for _ in range(6):
        m = step(m)
    np.testing.assert_allclose(m, geometry.exp(x, geometry.log(x, y, 0.5) / 2, 0.5), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_third_derivatives_are_finite_and_right_at_coincident_points(x64, dtype):
    """Against differences of the Hessian in float64 a little way off."""
    x = np.array([0.6, -0.8])

    def hessian(y, dtype):
        function = jax.hessian(lambda y: geometry.squared_dist(jnp.asarray(x, dtype), y, 0.5))
        return function(y)

    third = jax.jit(jax.jacfwd(lambda y: hessian(y, dtype)))(jnp.asarray(x, dtype))
    moves = 1e-5 * np.eye(2)
    apart = [hessian(x + e, np.float64) - hessian(x - e, np.float64) for e in moves]
    np.testing.assert_allclose(third, np.stack(apart, -1) / 2e-5, rtol=1e-4, atol=1e-4)


def test_finite_far_out_in_float32():
    kappa = 1.0
    radii = np.array([10, 20, 40])
    x, y = (np.array([at(r, a, kappa) for r in rs], np.float32)
            for rs, a in ((radii, 0.3), (radii - 1, 1)))  # fmt: skip
    first, second = np.concatenate([x, x, x, 0 * x]), np.concatenate([y, x, 0 * x, x])

    def all_of(x, y):
        v = jnp.array([0.4, 0.7], jnp.float32)
        results = geometry.dist(x, y, kappa) ** 2, geometry.log(x, y, kappa)
        return *results, geometry.transport(x, y, v, kappa)

    leaves = jax.tree.leaves(jax.jit(jax.vmap(jax.hessian(all_of, (0, 1))))(first, second))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
