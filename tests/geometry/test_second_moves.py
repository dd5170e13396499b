"""Second derivatives of translations, exponential maps, charts and centroids, against mpmath."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax.bench.numerics.cases import CASES
from tests import second
from tests.compiled import quick_jit

ZERO, X, Y, OPPOSITE, SMALL = (0, 0), (0.6, -0.8), (0.3, 0.5), (-0.6, 0.8), (1e-9, -2e-9)
FAR, NEAR_FAR, ACROSS, FARTHER = (30, -40), (29, -41), (-29, 41), (3e5, -4e5)
POINTS = [(ZERO,), (X,), (SMALL,), (FAR,)]
PAIRS = [(X, X), (X, Y), (ZERO, X), (X, ZERO), (ZERO, ZERO), (X, OPPOSITE), (FAR, NEAR_FAR),
         (FAR, ACROSS), (FAR, ZERO), (ZERO, FAR), (FAR, X), ((30, 0), (-30, 0))]  # fmt: skip
TANGENTS = [(X, Y), (X, ZERO), (ZERO, ZERO), (ZERO, X), (SMALL, X), (FAR, Y), (FAR, ZERO),
            (FAR, (0.04, 0.03)), ((2, 0), (0, 1))]  # fmt: skip
INSIDE = [(ZERO,), ((0.06, -0.08),), ((0.3, 0.2),)]
ROWS = {
    "time": POINTS, "lift": POINTS, "to_poincare": POINTS, "to_klein": POINTS,
    "from_poincare": INSIDE, "from_klein": INSIDE, "exp0": POINTS[:3],
    "inner": PAIRS, "translate": [*PAIRS, (FARTHER, SMALL)],
    "exp": TANGENTS,
    "transport_to_origin": TANGENTS, "transport_from_origin": TANGENTS,
    "tangent_inner": [(x, v, Y) for x, v in TANGENTS],
    "tangent_norm": [row for row in TANGENTS if row[1] != ZERO],
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_along_a_direction(x64, name):
    second.check(CASES[name].call, CASES[name].truth, ROWS[name], 1e-11)


def test_a_small_step_from_a_far_point(x64):
    """In x and kappa alone: these are as small as the square of v."""
    call, truth = CASES["exp"].call, CASES["exp"].truth
    v = jnp.array([8e-5, 6e-5])

    def exact(x, kappa):
        return [100 * a for a in truth(x, [8e-5, 6e-5], kappa)]

    second.check(lambda x, k: 100 * call(x, v, k), exact, [(FARTHER,)], 1e-11)


@pytest.mark.parametrize("name", ["inner", "exp", "tangent_norm"])
def test_other_modes(x64, name):
    """Those that differ in what they transpose; `tangent_norm` has rules of three orders."""
    modes = (second.REVERSE_OVER_FORWARD, second.REVERSE_OVER_REVERSE)
    second.check(CASES[name].call, CASES[name].truth, ROWS[name], 1e-11, modes=modes)


@pytest.mark.parametrize("name", ["translate", "exp"])
def test_in_float32(name):
    """Far out as well: at kappa 2.5 the largest radius is 4."""
    second.check(CASES[name].call, CASES[name].truth, ROWS[name], 2e-4, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finite_at_radius_40(x64, dtype):
    """Points at the origin and there; in float32 the sum of two such radii is not representable."""
    kappa = np.array([0.1, 1, 2.5])
    far = (np.sinh(40 * np.sqrt(kappa)) / np.sqrt(kappa))[:, None] * np.array([0.6, -0.8])
    zero = np.zeros_like(far)
    columns = (np.concatenate(c) for c in ((far, zero, far), (zero, far, -far), [kappa] * 3))
    for block in jax.tree.leaves(_hessians(*(c.astype(dtype) for c in columns))):
        assert np.isfinite(block).all()


@quick_jit
@functools.partial(jax.vmap, in_axes=0)
def _hessians(x, y, kappa):
    """Of the product with a point, and of translations that return to it."""

    def total(x, y, kappa):
        back = geometry.translate(x, y, kappa)
        return geometry.inner(x, x, kappa) + geometry.time(y, kappa) + jnp.sum(back)

    return jax.hessian(total, (0, 1, 2))(x, y, kappa)


def test_values_by_name(x64):
    """Those at kappa 0.5 and the point (0.6, -0.8)."""
    x, zero = jnp.array(X), jnp.zeros(2)
    time, inner, exp, square = jax.jit(
        lambda: (
            jax.hessian(lambda a: geometry.time(a, 0.5))(zero),
            jax.hessian(lambda a: geometry.inner(x, a, 0.5))(x),
            jax.hessian(lambda a: geometry.exp(x, a, 0.5)[0])(zero),
            jax.hessian(lambda a: geometry.tangent_norm(x, a, 0.5) ** 2)(zero),
        )
    )()
    np.testing.assert_allclose(time, np.eye(2) / np.sqrt(2), rtol=1e-15)
    np.testing.assert_allclose(inner, [[-0.88, -0.16], [-0.16, -59 / 75]], rtol=1e-14)
    np.testing.assert_allclose(exp, [[0.264, 0.048], [0.048, 0.236]], rtol=1e-14)
    np.testing.assert_allclose(square, [[1.76, 0.32], [0.32, 118 / 75]], rtol=1e-14)


SETS = [((X, Y, (-0.3, 0.1)),), ((X, X, X),), ((ZERO, ZERO, ZERO),), ((ZERO, X, Y),),
        ((X, OPPOSITE, ZERO),), ((FAR, NEAR_FAR, (31, -39)),), ((SMALL, ZERO, X),)]  # fmt: skip


def test_centroid(x64):
    rows = [(*points, weights) for points in SETS for weights in ((0.2, 0.5, 0.3),)]
    second.check(CASES["centroid"].call, CASES["centroid"].truth, rows, 1e-10)


def test_newton_finds_a_mean(x64):
    """Newton's step on the centroid's own criterion, from a point of the set; it was NaN."""
    points = jnp.array([X, Y, ZERO])

    def loss(c):
        return -jnp.sum(geometry.inner(points, c, 0.5))

    step = quick_jit(lambda c: c - jnp.linalg.solve(jax.hessian(loss)(c), jax.grad(loss)(c)))
    c = points[0]
    for _ in range(8):
        c = step(c)
    np.testing.assert_allclose(c, geometry.centroid(points, 0.5), rtol=1e-13)
