"""The paper's propositions as properties, at curvatures where its misprints would show."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import functional, geometry
from lorentz_jax.hyperplane import normals, point_from_distances, signed_distance
from lorentz_jax.models import chen
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import assert_close

pytestmark = pytest.mark.usefixtures("x64")


def sample(seed, dimension=3, units=4, points=6):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=s) for s in ((points, dimension), (dimension, units), (units,)))


@quick_jit
def distances(x, w, b, kappa):
    """`{scale: (N, out)}` and the output of the layer without activation."""
    v = normals(w, b, kappa)
    found = {scale or "none": signed_distance(x, v, kappa, scale) for scale in SCALES}
    return found, functional.linear(x, v, kappa)


SCALES = (None, "inside", "outside")


@quick_jit
def transported(w, b, kappa):
    """Units first: where each plane meets its axis, and w transported there."""
    p = geometry.exp0(-b[:, None] * w.T / jnp.sum(w.T**2, axis=1, keepdims=True), kappa)
    return p, geometry.transport_from_origin(p, w.T, kappa)


@pytest.mark.parametrize("seed", range(3))
def test_hyperplane_simplification(kappa, seed):
    """The normal (|w| sinh, w cosh) is w carried along its geodesic to distance -b/|w|."""
    _, w, b = sample(seed)
    v, (p, carried) = normals(w, b, kappa), transported(w, b, kappa)
    assert_close(v.space, carried.T, 1e-13, axis=0)
    time = (p * carried).sum(1) / geometry.time(p, kappa)  # a tangent vector's time
    assert_close(v.time, time, 1e-13)
    rows = [oracle.exactly(column) for column in w.T]
    for j, row in enumerate(rows):
        with mp.workdps(50):
            want = oracle.mp_normals(row, mp.mpf(b[j]), mp.mpf(kappa))
        assert_close([v.time[j], *v.space[:, j]], [float(c) for c in want], 1e-13)


def nearest(x, w, b, kappa):
    """Distance of x to the points of a geodesic line, by golden-section search in 40 digits."""
    with mp.workdps(40):
        x, w, b, kappa = oracle.exactly(x), oracle.exactly(w), mp.mpf(b), mp.mpf(kappa)
        X, o = oracle.mp_lift(x, kappa), oracle.mp_origin(2, kappa)
        P = oracle.mp_exp(o, [mp.mpf(0), *(-b * c / oracle.dot(w, w) for c in w)], kappa)
        along = oracle.mp_transport(o, P, [mp.mpf(0), -w[1], w[0]], kappa)

        def far(t):
            return oracle.mp_dist(X, oracle.mp_exp(P, [t * c for c in along], kappa), kappa)

        low, high, ratio = mp.mpf(-30), mp.mpf(30), (mp.sqrt(5) - 1) / 2
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = far(left), far(right)
        while high - low > 1e-8:  # squared, that is the error of the distance
            if at_left < at_right:
                high, right, at_right = right, left, at_left
                left = high - ratio * (high - low)
                at_left = far(left)
            else:
                low, left, at_left = left, right, at_right
                right = low + ratio * (high - low)
                at_right = far(right)
        return float(min(at_left, at_right))


def test_point_to_hyperplane_distance_is_the_least_distance(kappa):
    x, w, b = sample(3, dimension=2, units=2, points=2)
    found, _ = distances(x, w, b, kappa)
    want = [[nearest(x[i], w[:, j], b[j], kappa) for j in range(2)] for i in range(2)]
    assert_close(np.abs(found["none"]), want, 1e-13, axis=None)


def test_the_distance_of_a_worked_example():
    x, w, b = np.array([[0.5, -0.25]]), np.array([[1.0], [2]]), np.array([0.125])
    found, _ = distances(x, w, b, 1.0)
    assert_close(found["none"], [[0.064033036127600084]], 1e-14)
    assert nearest(x[0], w[:, 0], b[0], 1.0) == pytest.approx(0.064033036127600084, rel=1e-14)


@quick_jit
def around(p, tangents, x, normal, kappa):
    """Points of the planes through p, their distances to x, and x's side of the plane."""
    plane = geometry.exp(p, geometry.transport_from_origin(p, tangents, kappa), kappa)
    side = geometry.tangent_inner(p, geometry.log(p, x[:, None], kappa), normal, kappa)
    return plane, geometry.dist(x[:, None, None], plane, kappa), side


def test_no_point_of_the_plane_is_nearer_and_the_scales_agree(kappa):
    x, w, b = sample(4)
    found, _ = distances(x, w, b, kappa)
    p, carried = transported(w, b, kappa)
    tangents = np.random.default_rng(5).normal(size=(200, 4, 3))
    at_origin = w.T / np.linalg.norm(w.T, axis=1, keepdims=True)
    tangents = tangents - (tangents * at_origin).sum(-1, keepdims=True) * at_origin
    plane, apart, side = around(p, tangents, x, carried, kappa)
    on_it, _ = distances(plane[:6].reshape(24, 3), w, b, kappa)
    on_it = np.diagonal(on_it["none"].reshape(6, 4, 4), axis1=1, axis2=2)
    np.testing.assert_allclose(on_it, 0, atol=1e-10)
    assert (apart.min(axis=1) >= np.abs(found["none"]) - 1e-12).all()
    # The sign is the side: that of the logarithm at p against the normal, for every scale.
    size, s = np.linalg.norm(w, axis=0), np.sqrt(kappa)
    for scale in found:
        np.testing.assert_array_equal(np.sign(found[scale]), np.sign(side))
    sine = np.sinh(s * found["none"])
    assert_close(found["outside"], size * found["none"], 1e-13, axis=None)
    assert_close(found["inside"], np.arcsinh(size * sine) / s, 1e-12, axis=None)


@pytest.mark.parametrize("small", [1e-4, 1e-6, 1e-8, 1e-10])
def test_flat_limit(small):
    x, w, b = sample(6)
    found, y = distances(x, w, b, small)
    flat, size = x @ w + b, np.linalg.norm(w, axis=0)
    tolerance = 100 * small + 1e-11 / np.sqrt(small) * 1e-4
    for got, want in [
        (y, flat),
        (found["none"], flat / size),
        (found["inside"], flat),
        (found["outside"], flat),
        (geometry.dist(x[:1], x, small), np.linalg.norm(x - x[0], axis=1)),
    ]:
        np.testing.assert_allclose(got, want, atol=tolerance)


def test_output_construction(kappa):
    """The point whose distances to the coordinate hyperplanes are given is `sinh(s d)/s`."""
    d = np.random.default_rng(7).normal(size=(5, 4))
    y = point_from_distances(d, kappa)
    back, _ = distances(y, np.eye(4), np.zeros(4), kappa)
    for scale in back:
        assert_close(back[scale], d, 1e-13)
    misprint = np.sinh(np.sqrt(kappa) * d) / kappa
    assert (kappa == 1) == np.allclose(misprint, y)


@functools.partial(quick_jit, static_argnums=0)
def in_steps(h, x, w, b, kappa):
    """The layer, and the activations and the point that the paper makes it from."""
    v = normals(w, b, kappa)
    activations = functional.lorentzian(h)(signed_distance(x, v, kappa, "inside"), kappa)
    made = point_from_distances(activations, kappa)
    return functional.linear(x, v, kappa, h), activations, made


@pytest.mark.parametrize("h", [jax.nn.relu, jnp.tanh])
def test_the_layer_is_distance_activation_construction(kappa, h):
    """asinh, the Lorentzian activation and sinh cancel into h(z)."""
    got, activations, made = in_steps(h, *sample(8), kappa)
    assert_close(got, made, 1e-13)
    back, _ = distances(got, np.eye(4), np.zeros(4), kappa)
    np.testing.assert_allclose(back["none"], activations, rtol=1e-12, atol=1e-13)


def test_output_distance_grows_linearly_in_b_for_us_and_as_its_logarithm_for_chen(kappa):
    x, w, s = np.array([[0.5, -0.25]]), np.array([[1.2], [-0.9]]), np.sqrt(kappa)
    biases = np.array([20.0, 40, 80, 160]) / s

    @quick_jit
    def reach(b):
        ours = functional.linear(x, normals(w, b[None], kappa), kappa)
        theirs = chen.linear(x, w, np.array([0.3]), kappa, bias=1e4 * b[None])
        return geometry.dist0(ours, kappa)[0], geometry.dist0(theirs, kappa)[0]

    ours, theirs = np.transpose([reach(b) for b in biases])
    # A change of b by delta moves the output by delta/|w|, with |w| = 1.5.
    np.testing.assert_allclose(np.diff(ours), np.diff(biases) / 1.5, rtol=1e-8)
    # There even 10^4 times that b only adds log(2)/s when it doubles.
    np.testing.assert_allclose(np.diff(theirs), np.log(2) / s, rtol=1e-4)
