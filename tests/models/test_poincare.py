"""Poincare layers against golden data and the formulas of the ball in mpmath."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.models import poincare, variance
from tests.compiled import jitted, quick_jit, run
from tests.oracle import (
    assert_close,
    digits,
    dot,
    euclidean_norm,
    exactly,
    golden,
    mp_dist,
    mp_exp,
    mp_lift,
    mp_log,
    mp_transport,
)

# --- the ball in mpmath: textbook formulas, none of which the package uses -------------------


def scaled(x, factor):
    return [factor * c for c in x]


def ball_exp0(v, k):
    size = mp.sqrt(k) * euclidean_norm(v)
    return scaled(v, mp.tanh(size) / size) if size else list(v)


def ball_log0(y, k):
    size = mp.sqrt(k) * euclidean_norm(y)
    return scaled(y, mp.atanh(size) / size) if size else list(y)


def ball_add(x, y, k):
    xy, xx, yy = dot(x, y), dot(x, x), dot(y, y)
    a, b = 1 + 2 * k * xy + k * yy, 1 - k * xx
    return [(a * p + b * q) / (1 + 2 * k * xy + k**2 * xx * yy) for p, q in zip(x, y, strict=True)]


def ball_scores(x, columns, offsets, k):
    """Shimizu et al., eq. 6."""
    s, conformal = mp.sqrt(k), 2 / (1 - k * dot(x, x))
    scores = []
    for z, r in zip(columns, offsets, strict=True):
        size, turn = euclidean_norm(z), 2 * s * r
        across = s * conformal * dot(x, z) / size * mp.cosh(turn)
        scores.append(2 * size / s * mp.asinh(across - (conformal - 1) * mp.sinh(turn)))
    return scores


def ball_linear(x, columns, offsets, k):
    """Shimizu et al., eq. 7."""
    s = mp.sqrt(k)
    w = [mp.sinh(s * v) / s for v in ball_scores(x, columns, offsets, k)]
    return scaled(w, 1 / (1 + mp.sqrt(1 + k * dot(w, w))))


def ball_conv(image, columns, offsets, k, size, pad, strides):
    """Unfold, concatenate tangent vectors with the factor of eq. 9, and apply `ball_linear`."""
    height, width, channels = len(image), len(image[0]), len(image[0][0])
    n = channels * size * size
    beta = mp.beta(mp.mpf(n) / 2, mp.mpf(1) / 2) / mp.beta(mp.mpf(channels) / 2, mp.mpf(1) / 2)
    rows = range(-pad, height + pad - size + 1, strides)
    out = []
    for i in rows:
        out.append([])
        for j in range(-pad, width + pad - size + 1, strides):
            u = []
            for a, b in itertools.product(range(i, i + size), range(j, j + size)):
                inside = 0 <= a < height and 0 <= b < width
                u += ball_log0(image[a][b], k) if inside else [mp.mpf(0)] * channels
            out[-1].append(ball_linear(ball_exp0(scaled(u, beta), k), columns, offsets, k))
    return out


def ball_midpoint(points, k):
    """van Spengler et al.: conformal factors as weights, then half of the Moebius double."""
    weights = [1 / (1 - k * dot(x, x)) for x in points]
    top = [dot(weights, column) for column in zip(*points, strict=True)]
    m = scaled(top, 1 / (mp.fsum(weights) - mp.mpf(len(points)) / 2))
    gamma = 1 / mp.sqrt(1 - k * dot(m, m))
    return scaled(m, gamma / (1 + gamma))


def run_ball(function, *arrays):
    """`function` of exact arrays, as float64."""
    with mp.workdps(digits(*arrays)):
        out = function(*map(exactly, arrays))
        return np.array(out, dtype=object).astype(np.float64)


def ball_points(rng, *shape, kappa, radius=2.5):
    """Points up to s-scaled distance `radius` from the centre."""
    direction = rng.normal(size=shape)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    r = np.tanh(rng.uniform(0.1, radius, (*shape[:-1], 1)) / 2)
    return direction * r / np.sqrt(kappa)


@functools.cache
def lifted(function, *options):
    """A layer on our points as a function of the ball."""

    def in_ball(x, *args, kappa):
        y = function(geometry.from_poincare(x, kappa), *args, kappa, *options)
        return geometry.to_poincare(y, kappa)

    return quick_jit(in_ball)


# --- linear layer, MLR, activation ----------------------------------------------------------


@quick_jit
def run_golden(x, Z, r, R, kappa):
    def loss(x, Z, r):
        normals, point = poincare.plane_normals(Z, r, kappa), geometry.from_poincare(x, kappa)
        y = poincare.linear(point, normals, kappa)
        out = geometry.to_poincare(poincare.relu(y, kappa), kappa)
        scores = poincare.mlr(point, normals, kappa)
        return jnp.sum(R * out), (geometry.to_poincare(y, kappa), scores, out)

    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, Z, r)


@pytest.mark.usefixtures("x64")
def test_golden_linear_mlr_and_relu(kappa):
    prefix = f"k{kappa:g}/d1/poin_"
    data = {
        k.removeprefix(prefix): v for k, v in golden("baselines").items() if k.startswith(prefix)
    }
    (_, (y, scores, relu)), grads = run_golden(data["x"], data["Z"], data["a"][0], data["R"], kappa)
    assert_close(scores, data["scores"], 1e-14)
    assert_close(y, data["y"], 1e-14)
    assert_close(relu, data["y_relu"], 1e-13)
    for leaf, got in zip(("x", "Z", "a"), grads, strict=True):
        want = data[f"grad_{leaf}"]
        want = want[0] if leaf == "a" else want
        assert_close(got, want, 1e-12, axis=tuple(range(want.ndim)), what=leaf)


def add(x, y, kappa):
    return poincare.add(x, geometry.from_poincare(y, kappa), kappa)


@pytest.mark.usefixtures("x64")
def test_linear_layers_and_moebius_sum_in_the_ball(kappa):
    rng = np.random.default_rng(0)
    x, y = ball_points(rng, 4, 3, kappa=kappa), ball_points(rng, 4, 3, kappa=kappa)
    z, r = rng.normal(size=(3, 2)), rng.normal(size=2) * 0.3
    normals = jitted(poincare.plane_normals)(z, r, kappa)
    want = run_ball(lambda x, z, r, k: [ball_linear(p, z, r, k) for p in x], x, z.T, r, kappa)
    assert_close(lifted(poincare.linear)(x, normals, kappa=kappa), want, 1e-13)

    def ball_sum(x, y, k):
        return [ball_add(p, q, k) for p, q in zip(x, y, strict=True)]

    assert_close(lifted(add)(x, y, kappa=kappa), run_ball(ball_sum, x, y, kappa), 1e-13)

    def ganea(x, w, b, k):
        return [ball_add(ball_exp0([dot(c, ball_log0(p, k)) for c in w], k), b, k) for p in x]

    bias = ball_points(rng, 2, kappa=kappa)
    got = lifted(poincare.moebius_linear)(x, z, geometry.from_poincare(bias, kappa), kappa=kappa)
    assert_close(got, run_ball(ganea, x, z.T, bias, kappa), 1e-13)
    v = rng.normal(size=(4, 3))
    point = jitted(poincare.from_tangent)(v, kappa)
    ball = run_ball(lambda v, k: [ball_exp0(p, k) for p in v], v, kappa)
    assert_close(geometry.to_poincare(point, kappa), ball, 1e-13)
    assert_close(jitted(poincare.to_tangent)(point, kappa), v, 1e-13)


# --- convolution ----------------------------------------------------------------------------


def test_beta_ratio_is_that_of_beta_functions():
    assert poincare.beta_ratio(5, 1) == pytest.approx(1)
    want = mp.beta(72, 0.5) / mp.beta(8, 0.5)
    assert poincare.beta_ratio(16, 9) == pytest.approx(float(want), rel=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("size", "pad", "strides"), [(3, 1, 2), (2, 0, 1)])
def test_convolution_is_the_layer_of_each_concatenated_patch(kappa, size, pad, strides):
    rng = np.random.default_rng(1)
    x = ball_points(rng, 4, 5, 2, kappa=kappa)
    x[1, 1] = 0  # the centre among them
    kernel, r = rng.normal(size=(size, size, 2, 3)), rng.normal(size=3) * 0.3
    want = run_ball(
        lambda x, z, r, k: ball_conv(x, z, r, k, size, pad, strides),
        x, kernel.reshape(-1, 3).T, r, kappa,
    )  # fmt: skip
    normals = jitted(poincare.plane_normals)(kernel, r, kappa)
    assert_close(lifted(poincare.conv, strides, pad)(x, normals, kappa=kappa), want, 1e-12)


def test_an_image_of_the_centre_has_right_gradients():
    x, kernel, r = jnp.zeros((1, 3, 3, 2)), jnp.ones((3, 3, 2, 2)), jnp.zeros(2)

    def loss(x, kernel, r):
        normals = poincare.plane_normals(kernel, r, 0.5)
        return poincare.relu(poincare.conv(x, normals, 0.5), 0.5).sum()

    grads = quick_jit(jax.grad(loss, (0, 1, 2)))(x, kernel, r)
    assert all(np.isfinite(g).all() for g in grads)

    @quick_jit
    @jax.jacobian
    def jacobian(x):
        return poincare.conv(x, poincare.plane_normals(kernel, r, 0.5), 0.5)

    # Near the centre the layer is the Euclidean convolution with 2 z and the beta factor.
    want = 2 * poincare.beta_ratio(2, 9)
    np.testing.assert_allclose(jacobian(x)[0, 1, 1, 0, 0], want, rtol=1e-6)
    zero = jax.grad(lambda k: poincare.conv(x + 1, poincare.plane_normals(k, r, 0.5), 0.5).sum())
    assert np.isfinite(quick_jit(zero)(jnp.zeros_like(kernel))).all()


# --- batch norm, pooling, ReLU --------------------------------------------------------------


def batch_mean(x, kappa):
    return variance.mean_point(x, kappa, (0,))


def midpoint_norm(x, beta, gamma, kappa):
    return variance.midpoint_norm(x, batch_mean(x, kappa), beta, gamma, kappa)[0]


@pytest.mark.usefixtures("x64")
def test_midpoint_norm_transports_straight_to_beta(kappa):
    rng = np.random.default_rng(2)
    x = ball_points(rng, 6, 3, kappa=kappa, radius=1.5) + [0.2 / np.sqrt(kappa), 0, 0]
    beta, gamma = ball_points(rng, 3, kappa=kappa), 1.4

    def truth(x, beta, k):
        double = 2 * mp.mpf(1)
        mid = ball_midpoint(x, k)
        # Onto the hyperboloid, where logarithm and transport are known.
        up = lambda y: mp_lift(scaled(y, double / (1 - k * dot(y, y))), k)  # noqa: E731
        mu, target, points = up(mid), up(beta), [up(p) for p in x]
        v = mp.fsum(mp_dist(mu, p, k) ** 2 for p in points) / len(points)
        factor = mp.mpf(gamma) / mp.sqrt(v + mp.mpf(1e-6))
        out = []
        for p in points:
            tangent = mp_transport(mu, target, mp_log(mu, p, k), k)
            y = mp_exp(target, scaled(tangent, factor), k)
            out.append(scaled(y[1:], 1 / (1 + mp.sqrt(k) * y[0])))
        return out

    got = lifted(midpoint_norm)(x, geometry.from_poincare(beta, kappa), gamma, kappa=kappa)
    assert_close(got, run_ball(truth, x, beta, kappa), 1e-12)
    want = run_ball(ball_midpoint, x, kappa)
    assert_close(lifted(batch_mean)(x, kappa=kappa), want, 1e-14)


@pytest.mark.usefixtures("x64")
def test_relu_and_pool_act_on_tangent_vectors(kappa):
    rng = np.random.default_rng(3)
    x = ball_points(rng, 2, 3, 4, kappa=kappa)

    def relu(x, k):
        cut = lambda v: [max(c, mp.mpf(0)) for c in v]  # noqa: E731
        return [[ball_exp0(cut(ball_log0(p, k)), k) for p in row] for row in x]

    assert_close(lifted(poincare.relu)(x, kappa=kappa), run_ball(relu, x, kappa), 1e-13)

    def pool(x, k):
        tangents = [ball_log0(p, k) for row in x for p in row]
        mean = [mp.fsum(c) / len(tangents) for c in zip(*tangents, strict=True)]
        return ball_exp0(mean, k)

    assert_close(lifted(poincare.pool)(x, kappa=kappa), run_ball(pool, x, kappa), 1e-13)


# --- contract -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dtypes_and_empty_batches(dtype):
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 3)).astype(dtype)
    conv = poincare.PoincareConv(3, 4, kappa=0.5, strides=2, rngs=nnx.Rngs(0))
    linear = poincare.PoincareLinear(3, 4, kappa=0.5, rngs=nnx.Rngs(0))
    mlr = poincare.PoincareMLR(3, 4, kappa=0.5, rngs=nnx.Rngs(0))
    norm = variance.PoincareBatchNorm(3, kappa=0.5)
    functions = {
        conv: (2, 2, 2, 4), linear: (2, 4, 4, 4), mlr: (2, 4, 4, 4), norm: (2, 4, 4, 3),
    }  # fmt: skip
    for layer, shape in functions.items():
        y = run(layer, x)
        assert y.dtype == dtype
        assert y.shape == shape
        assert np.isfinite(y.astype(jnp.float32)).all()
        assert run(layer, x[:0]).shape == (0, *shape[1:])
    for function in (poincare.relu, poincare.from_tangent, poincare.to_tangent):
        assert jitted(function)(x, jnp.full((2, 1, 4), 0.5)).dtype == dtype
    assert jitted(poincare.add)(x, x, 0.5).dtype == dtype
    assert jitted(poincare.pool)(x, 0.5).shape == (2, 3)


def test_scores_beyond_the_range_are_cut():
    normals = jitted(poincare.plane_normals)(jnp.full((2, 1), 100.0), jnp.zeros(1), 1.0)
    x = jnp.asarray([[1e3, 0.0]])
    y = jitted(poincare.linear)(x, normals, 1.0)
    assert geometry.dist0(y, 1.0)[0] == pytest.approx(40, rel=1e-6)
    gradient = quick_jit(jax.grad(lambda x: poincare.linear(x, normals, 1.0).sum()))(x)
    assert np.isfinite(gradient).all()
    assert jitted(poincare.mlr)(x, normals, 1.0)[0, 0] > 1000  # the score itself is representable


def test_layers_are_their_functions_and_start_as_published():
    x = jnp.ones((2, 4, 4, 3))
    conv = poincare.PoincareConv(3, 4, kappa=0.5, strides=2, rngs=nnx.Rngs(0))

    @quick_jit
    def by_function(x, kernel, bias, kappa):
        return poincare.conv(x, poincare.plane_normals(kernel, bias, kappa), kappa, 2)

    want = by_function(x, conv.kernel[...], conv.bias[...], 2.0)
    np.testing.assert_array_equal(run(conv, x, 2.0), want)
    big = {init: poincare.PoincareLinear(64, 400, kappa=0.5, init=init, rngs=nnx.Rngs(0))
           for init in ("fast", "paper")}  # fmt: skip
    assert np.std(big["fast"].kernel[...]) == pytest.approx(1 / np.sqrt(128), rel=0.02)
    assert np.std(big["paper"].kernel[...]) == pytest.approx(1 / np.sqrt(128 * 400), rel=0.02)
    with pytest.raises(ValueError, match="init must be one of"):
        poincare.PoincareLinear(3, 4, kappa=0.5, init="eye", rngs=nnx.Rngs(0))


def test_arguments_that_do_not_fit_are_named():
    x, normals = jnp.ones((2, 3)), poincare.plane_normals(jnp.ones((3, 2)), jnp.zeros(2), 1.0)
    with pytest.raises(ValueError, match="must have one shape"):
        poincare.add(x, x[:1], 1.0)
    with pytest.raises(ValueError, match="D_in = 3"):
        poincare.linear(jnp.ones((2, 4)), normals, 1.0)
    bare = type(normals)(normals.time, normals.space)
    with pytest.raises(ValueError, match="carry `length`"):
        poincare.linear(x, bare, 1.0)
    with pytest.raises(ValueError, match="kappa of shape"):
        poincare.relu(x, jnp.ones(3))
    with pytest.raises(TypeError, match="floating"):
        poincare.relu(jnp.ones((2, 3), jnp.int32), 1.0)
    with pytest.raises(ValueError, match="finite and > 0"):
        poincare.linear(x, normals, 0.0)
    with pytest.raises(ValueError, match=r"mean and beta must have shape \(3,\)"):
        variance.midpoint_norm(x, jnp.zeros(3), jnp.zeros(2), 1.0, 1.0)
