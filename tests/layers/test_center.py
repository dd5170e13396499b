"""Centring of a batch: an isometry, equal to the textbook chain of log, transports and exp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, geometry
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

center = quick_jit(functional.center)
batch_mean = quick_jit(functional.batch_mean)
dist = quick_jit(geometry.dist)


def mp_center(x, mean, beta, kappa):
    X, M, B = (oracle.mp_lift(p, kappa) for p in (x, mean, beta))
    o = oracle.mp_origin(len(x), kappa)
    at_origin = oracle.mp_transport(M, o, oracle.mp_log(M, X, kappa), kappa)
    return oracle.mp_exp(B, oracle.mp_transport(o, B, at_origin, kappa), kappa)[1:]


def sample(n=6, dimension=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    x, beta = rng.normal(size=(n, dimension)), rng.normal(size=dimension)
    return scale * x + 0.5, beta


@pytest.mark.parametrize("stage", ["train", "eval"])
@pytest.mark.parametrize("radius", ["r2", "r4", "r8"])
def test_golden_boosts(x64, kappa, radius, stage):
    data = golden("layers")
    x, beta, mean, truth = (
        data[f"boost/k{kappa:g}/{radius}/{stage}_{name}"][..., 1:]
        for name in ("x", "beta", "mu", "y_truth")
    )
    assert_close(center(x, mean, beta, kappa), truth, 1e-12)
    if stage == "train":
        assert_close(batch_mean(x, kappa), mean, 1e-12)


@quick_jit
def chain(x, mean, beta, kappa):
    v = geometry.transport_to_origin(mean, geometry.log(mean, x, kappa), kappa)
    return geometry.exp(beta, geometry.transport_from_origin(beta, v, kappa), kappa)


@pytest.mark.usefixtures("x64")
def test_center_is_the_textbook_chain(kappa):
    x, beta = sample()
    mean = batch_mean(x, kappa)
    y = center(x, mean, beta, kappa)
    assert_close(y, oracle.evaluate(mp_center, x, mean, beta, kappa=kappa), 1e-13)
    assert_close(y, chain(x, mean, beta, kappa), 1e-13)


COTANGENT = np.array([[1, -0.5, 2], [0.3, 0.7, -1.1], [-2, 1.5, 0.2], [0.9, -0.4, 1.3]])


@quick_jit
def gradients_at_mean(x, mean, beta, kappa):
    def loss(*arguments):
        return jnp.sum(COTANGENT * functional.center(*arguments))

    return jax.grad(loss, (0, 1, 2, 3))(x, mean, beta, kappa)


@quick_jit
def gradients_through_mean(x, beta, kappa):
    def loss(x, beta, kappa):
        mean = functional.batch_mean(x, kappa)
        return jnp.sum(COTANGENT.astype(x.dtype) * functional.center(x, mean, beta, kappa))

    return jax.grad(loss, (0, 1, 2))(x, beta, kappa)


@pytest.mark.usefixtures("x64")
def test_gradients_of_center(kappa):
    x, beta = sample(4)
    mean = np.array([0.3, -0.2, 1.1])
    got = gradients_at_mean(x, mean, beta, kappa)
    rows = [np.broadcast_to(p, x.shape) for p in (mean, beta)]
    want = oracle.gradients(
        mp_center, x, *rows, kappa=np.full(4, kappa), cotangent=COTANGENT
    )  # a row's own share of the gradients of mean, beta and kappa
    for g, h in zip(got, [want[0], *(h.sum(0) for h in want[1:])], strict=True):
        assert_close(g, h, 1e-12)


@pytest.mark.usefixtures("x64")
def test_gradients_flow_through_the_mean(kappa):
    x, beta = sample(4)

    def mp_loss(flat, beta, kappa):
        points = [flat[i : i + 3] for i in range(0, 12, 3)]
        mean = oracle.mp_centroid([oracle.mp_lift(p, kappa) for p in points], kappa)[1:]
        moved = [mp_center(p, mean, beta, kappa) for p in points]
        return oracle.dot(oracle.exactly(COTANGENT.ravel()), [c for p in moved for c in p])

    got = gradients_through_mean(x, beta, kappa)
    want = oracle.gradients(mp_loss, x.reshape(1, 12), beta[None], kappa=np.array([kappa]))
    for g, h in zip(got, want, strict=True):
        assert_close(np.ravel(g), h.ravel(), 1e-12)


@pytest.mark.parametrize(
    ("kappa", "mean", "distances"),
    [
        (1.0, -0.13590318714087, [0.717374463076224, 0.859058016709921, 0.191032110859288]),
        (0.25, -0.15634321614352, [0.764584971333263, 0.962414683715305, 0.220654784226241]),
    ],
)
def test_a_worked_example(x64, kappa, mean, distances):
    x = np.array([[0.5, -0.25], [-1, 0.75], [0, 0]])
    mu, origin = batch_mean(x, kappa), np.zeros(2)
    assert_close(mu, [mean, -mean], 1e-13)
    out = center(x, mu, origin, kappa)
    assert_close(geometry.dist0(out, kappa), distances, 1e-13, axis=None)
    np.testing.assert_allclose(batch_mean(out, kappa), 0, atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_an_isometry_that_takes_the_mean_to_beta(x64, kappa, seed):
    x, beta = sample(8, 4, seed)
    mean = batch_mean(x, kappa)
    y = center(x, mean, beta, kappa)
    assert_close(dist(y[:, None], y, kappa), dist(x[:, None], x, kappa), 1e-12)
    assert_close(center(mean[None], mean, beta, kappa)[0], beta, 1e-13)
    assert_close(batch_mean(y, kappa), beta, 1e-13)
    assert_close(mean, geometry.centroid(x, kappa), 1e-13)
    np.testing.assert_allclose(center(y, beta, mean, kappa), x, atol=1e-12)  # and back


def test_nothing_to_move_is_the_identity(kappa):
    x = sample()[0].astype(np.float32)
    origin = np.zeros(3, np.float32)
    np.testing.assert_array_equal(center(x, origin, origin, kappa), x)
    np.testing.assert_allclose(center(x, x[0], x[0], kappa), x, atol=2e-5)
    at_origin = gradients_through_mean(np.zeros((4, 3), np.float32), origin, kappa)
    assert all(np.isfinite(gradient).all() for gradient in at_origin)


def test_float32_is_right_near_the_origin(kappa):
    x, beta = (a.astype(np.float32) for a in sample())
    mean = batch_mean(x, kappa)
    want = oracle.evaluate(mp_center, x, mean, beta, kappa=kappa)
    assert_close(center(x, mean, beta, kappa), want, 2e-6)
