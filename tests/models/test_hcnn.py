"""Batch norm with variance, pooling and the Lorentz MLR, against golden data and mpmath."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import hcnn, variance
from tests.compiled import jitted, quick_jit, run
from tests.oracle import (
    assert_close,
    digits,
    exactly,
    golden,
    mp_centroid,
    mp_dist,
    mp_exp,
    mp_lift,
    mp_log,
    mp_origin,
    mp_transport,
)
from tests.reference import channels_last, pull_back, space


def section(prefix):
    data = golden("baselines")
    return {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}


# --- classifier -----------------------------------------------------------------------------


@quick_jit
def run_mlr(x, z, a, R, kappa):
    def loss(x, z, a):
        logits = hcnn.mlr(x, z.T, a, kappa)
        return jnp.sum(R * logits), logits

    (_, logits), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, z, a)
    return logits, grads


@pytest.mark.usefixtures("x64")
def test_golden_mlr(kappa):
    data = section(f"k{kappa:g}/d1/")
    X, z, a, R = data["lin_x"], data["mlr_z"], data["mlr_a"], data["mlr_R"]
    logits, grads = run_mlr(space(X), z, a, R, kappa)
    assert_close(logits, data["bdeir_mlr_plain_logits"], 1e-14)
    for leaf, got in zip("xza", grads, strict=True):
        want = data[f"bdeir_mlr_plain_grad_{leaf}"]
        want = pull_back(want, X) if leaf == "x" else want
        assert_close(got, want, 1e-12, axis=tuple(range(want.ndim)), what=leaf)
    # The reference's other form counts offsets in units of |z|.
    offset = a * np.linalg.norm(z, axis=1)
    logits, _ = run_mlr(space(X), z, offset, R, kappa)
    assert_close(logits, data["bdeir_mlr_sd_logits"], 1e-13)


def test_normals_are_those_of_hyperplane_and_finite_at_zero_and_far_away():
    z = jnp.asarray([[1.0, -2.0, 0.5], [0.5, 1.0, 2.0]])
    a = jnp.asarray([0.3, -0.7, 400.0])
    got = jitted(hcnn.plane_normals)(z, a, 0.5)
    want = normals(z, -a * np.linalg.norm(z, axis=0), 0.5)
    for field in ("time", "space", "length", "excess"):
        np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=1e-5)
    x = jnp.asarray([[0.5, -0.25]])
    # The true distance to the far plane, times |z| (the plane is at a along z).
    mlr = jitted(hcnn.mlr)
    reached = float(mlr(x, z[:, 2:], a[2:], 0.5)[0, 0]) / np.sqrt(4.25)
    assert reached == pytest.approx(-400, abs=1)
    gradient = quick_jit(jax.grad(lambda z: hcnn.mlr(x, z, a[:1], 0.5).sum()))
    assert np.isfinite(gradient(jnp.zeros((2, 1)))).all()
    assert mlr(x, jnp.zeros((2, 1)), a[:1], 0.5) == 0
    with pytest.raises(ValueError, match=r"offset must have shape \(3,\)"):
        hcnn.plane_normals(z, a[:2], 0.5)


# --- means ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_pooling_and_mean_of_means(kappa):
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 5)) * [[[[1]]], [[[2]]], [[[0.5]]]]
    with mp.workdps(digits(x)):
        images = exactly(x.reshape(3, 8, 5))
        k = exactly(kappa)
        pooled = [mp_centroid([mp_lift(p, k) for p in image], k) for image in images]
        means = mp_centroid(pooled, k)
    want = np.array([[float(v) for v in p[1:]] for p in pooled])
    assert_close(jitted(hcnn.pool)(x, kappa), want, 1e-14)
    mean_of_means = jitted(variance.mean_of_means)
    got = mean_of_means(x, kappa)
    assert_close(got, np.array([float(v) for v in means[1:]]), 1e-14)
    everything = geometry.centroid(jnp.asarray(x.reshape(-1, 5)), kappa)
    assert np.abs(got - everything).max() > 1e-2  # which is another point
    assert_close(mean_of_means(x.reshape(-1, 5), kappa), everything, 1e-14)
    with pytest.raises(ValueError, match="mean of no points"):
        variance.mean_of_means(x[:0], kappa)


# --- batch norm -----------------------------------------------------------------------------


@functools.cache
def norm_layer():
    return nnx.split(
        variance.VarianceBatchNorm(8, kappa=1.0, init="paper", param_dtype=jnp.float64),
        nnx.Param, nnx.BatchStat,
    )  # fmt: skip


@functools.cache
def norm_runner(running):
    graphdef, _, _ = norm_layer()

    @quick_jit
    def both(params, stats, x, R):
        def loss(params, x):
            layer = nnx.merge(graphdef, params, stats, copy=True)
            y = geometry.lift(layer(x, use_running_average=running), 1.0)
            return jnp.sum(R * y), (y, nnx.split(layer, nnx.Param, nnx.BatchStat)[2])

        (_, (y, after)), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
        return y, after, grads

    return both


@pytest.mark.usefixtures("x64")
def test_golden_batch_norm_over_three_training_steps():
    data = section("norm/")
    golden_case = {
        k.removeprefix("nv1_fg0_off/"): v for k, v in data.items() if k.startswith("nv1_fg0_off/")
    }
    _, params, stats = norm_layer()
    params["beta"][...], params["gamma"][...] = space(data["beta_off"]), data["gamma_free"]
    R = channels_last(data["R"])

    def check(running, index, name, gradients, stats):
        x = channels_last(data[f"x{index}"])
        y, after, (grads, grad_x) = norm_runner(running)(params, stats, space(x), R)
        assert_close(y, channels_last(golden_case[name]), 1e-14, what=name)
        if gradients:
            want = pull_back(channels_last(golden_case[f"{gradients}x"]), x)
            assert_close(grad_x, want, 1e-12, axis=(0, 1, 2, 3), what=gradients)
            want = pull_back(golden_case[f"{gradients}beta"], data["beta_off"])
            assert_close(grads["beta"][...], want, 1e-12, what=gradients)
            want = golden_case[f"{gradients}gamma"][0]
            assert_close(grads["gamma"][...], want, 1e-12, what=gradients)
        return after

    for step in range(3):
        stats = check(False, step, f"train_y{step}", "grad_" if step == 0 else "", stats)
        mean, var = (golden_case[f"running_{n}_after{step + 1}"] for n in ("mean", "var"))
        assert_close(stats["mean"][...], space(mean), 1e-13)
        assert_close(stats["var"][...], var[0], 1e-13)
    check(True, 3, "eval_y3", "eval_grad_", stats)


def mp_norm(x, mean, beta, gamma, kappa, deviation, eps=1e-5):
    """Textbook form: log at the mean, both transports by way of the origin, exp at beta."""
    with mp.workdps(digits(x)):
        k, eps, gamma = exactly(kappa), exactly(eps), exactly(gamma)
        points = [mp_lift(p, k) for p in exactly(x.reshape(-1, x.shape[-1]))]
        mu, beta = (mp_lift(exactly(p), k) for p in (mean, beta))
        o = mp_origin(len(beta) - 1, k)
        distances = [mp_dist(mu, p, k) for p in points]
        if deviation == "rms":
            v = mp.fsum(d**2 for d in distances) / len(distances)
            factor = gamma / mp.sqrt(v + eps)
        else:
            v = mp.fsum(distances) / len(distances)
            factor = gamma / (v + eps)
        out = []
        for p in points:
            tangent = mp_transport(mu, o, mp_log(mu, p, k), k)
            tangent = mp_transport(o, beta, [factor * c for c in tangent], k)
            out.append([float(c) for c in mp_exp(beta, tangent, k)[1:]])
        return np.array(out).reshape(x.shape), float(v)


variance_norm = functools.partial(quick_jit, static_argnames=("deviation", "limits", "eps"))(
    variance.variance_norm
)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("deviation", ["rms", "mean"])
def test_variance_norm_is_right_at_every_kappa(kappa, deviation):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4, 3, 3)) + [0.5, -1, 0.2]
    mean, beta, gamma = np.array([0.4, -0.9, 0.3]), np.array([0.7, 0.1, -1.2]), 1.3
    want, v = mp_norm(x, mean, beta, gamma, kappa, deviation)
    got, measured = variance_norm(x, mean, beta, gamma, kappa, deviation=deviation)
    assert_close(got, want, 1e-13)
    assert_close(measured, np.asarray(v), 1e-14)
    again, _ = variance_norm(x, mean, beta, gamma, kappa, v, deviation=deviation)
    assert_close(again, want, 1e-13)


@pytest.mark.usefixtures("x64")
def test_hcnn_norm_follows_its_own_definitions(kappa):
    x = np.random.default_rng(3).normal(size=(3, 2, 2, 4)) * [[[[2]]], [[[1]]], [[[0.1]]]] + 0.3
    layer = variance.HCNNBatchNorm(4, kappa=kappa, init="paper", param_dtype=jnp.float64)
    layer.beta[...], layer.gamma[...] = np.array([0.3, 0, -0.2, 0.5]), 0.8
    got = run(layer, x, use_running_average=True)
    assert_close(got, mp_norm_with(x, 0 * x[0, 0, 0], layer, 1), 1e-13)
    mean = np.asarray(jitted(variance.mean_of_means)(x, kappa))
    want, v = mp_norm(x, mean, layer.beta[...], 0.8, kappa, "mean")
    assert_close(run(layer, x), want, 1e-13)
    assert_close(layer.var[...], np.asarray(0.9 + 0.1 * v), 1e-14)
    pair = jnp.stack([jnp.zeros(4), mean])
    point = geometry.centroid(pair, kappa, jnp.array([0.9, 0.1]))
    assert_close(layer.mean[...], geometry.log0(point, kappa), 1e-13)
    assert_close(layer.running_mean(kappa), point, 1e-13)
    want = mp_norm_with(x, np.asarray(point), layer, layer.var[...])
    assert_close(run(layer, x, use_running_average=True), want, 1e-12)


def mp_norm_with(x, mean, layer, v):
    """Truth with the variance v given, through a gamma that makes up for the batch's own."""
    kappa, gamma, beta = layer.kappa, float(layer.gamma[...]), layer.beta[...]
    batch_v = mp_norm(x, mean, beta, gamma, kappa, "mean")[1]
    return mp_norm(x, mean, beta, gamma * (batch_v + 1e-5) / (float(v) + 1e-5), kappa, "mean")[0]


@pytest.mark.parametrize("deviation", ["rms", "mean"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equal_points_go_to_beta_with_finite_gradients(deviation, dtype):
    beta = jnp.asarray([0.5, -1.0, 0.25], dtype)

    def loss(x, mean, beta, gamma, kappa):
        y, v = variance.variance_norm(x, mean, beta, gamma, kappa, deviation=deviation)
        return jnp.sum(y.astype(jnp.float32) ** 2) + v, y

    gradient = quick_jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True))
    for point in (jnp.zeros(3, dtype), jnp.asarray([0.5, 0.25, -2.0], dtype)):
        x = jnp.broadcast_to(point, (4, 5, 3))
        (_, y), grads = gradient(x, point, beta, jnp.float32(1.5), jnp.float32(0.5))
        assert y.dtype == dtype
        if not point.any():  # elsewhere f = gamma/eps enlarges the rounding of the boost
            np.testing.assert_allclose(*np.broadcast_arrays(y, beta), rtol=jnp.finfo(dtype).eps)
        assert jnp.isfinite(y).all()
        assert all(jnp.isfinite(g).all() for g in grads)


def test_at_the_mean_the_norm_is_a_multiple_of_the_identity():
    origin, gamma = jnp.zeros(3), 3.0
    norm = functools.partial(variance.variance_norm, variance=4.0, eps=0.0)
    jacobian = quick_jit(jax.jacobian(lambda x: norm(x, origin, origin, gamma, 0.5)[0]))(origin)
    np.testing.assert_allclose(jacobian, 1.5 * np.eye(3), rtol=1e-6)


def test_one_outlier_is_cut_where_layers_can_still_square_it():
    x = jnp.zeros((4000, 2)).at[0, 0].set(1.0)
    y, _ = variance_norm(x, jnp.zeros(2), jnp.zeros(2), 1.0, 1.0)
    assert geometry.dist0(y, 1.0)[0] == pytest.approx(40, rel=1e-3)
    assert np.isfinite(np.square(y)).all()
    gentle, _ = variance_norm(x, jnp.zeros(2), jnp.zeros(2), 0.1, 1.0)
    d = np.arcsinh(1)
    want = 0.1 * d / np.sqrt(d**2 / 4000 + 1e-5)  # a tenth of almost sqrt(4000)
    assert geometry.dist0(gentle, 1.0)[0] == pytest.approx(want, rel=1e-4)
    clipped, _ = variance_norm(x, jnp.zeros(2), jnp.zeros(2), 1.0, 1.0, limits=(0.5, 2.0))
    assert geometry.dist0(clipped, 1.0)[0] == pytest.approx(2 * d, rel=1e-5)
    gradient = jax.grad(lambda x: variance.variance_norm(x, x[1], x[1], 1.0, 1.0)[0].sum())
    assert np.isfinite(quick_jit(gradient)(x)).all()


@pytest.mark.parametrize("kind", [variance.VarianceBatchNorm, variance.HCNNBatchNorm])
def test_layers_normalise_and_remember(kind):
    layer = kind(3, kappa=0.5)
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 3))
    start = run(layer, x, use_running_average=True)
    factor = 1 / np.sqrt(1 + 1e-5) if kind is variance.VarianceBatchNorm else 1 / (1 + 1e-5)
    want = geometry.exp0(factor * np.asarray(geometry.log0(x, 0.5)), 0.5)
    np.testing.assert_allclose(start, want, rtol=1e-5, atol=1e-6)
    assert run(layer, x[:0]).shape == (0, 4, 4, 3)
    assert layer.var[...] == 1
    assert not layer.mean[...].any()
    y = run(layer, x)
    assert y.dtype == x.dtype
    d = np.asarray(geometry.dist0(y, 0.5))
    if kind is variance.VarianceBatchNorm:
        assert np.mean(d**2) == pytest.approx(1, rel=1e-3)
        assert np.abs(geometry.centroid(y.reshape(-1, 3), 0.5)).max() < 0.2
    else:
        assert np.mean(d) == pytest.approx(1, rel=1e-3)
    assert layer.mean[...].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": jnp.zeros(2)}, r"mean and beta must have shape \(3,\)"),
        ({"beta": jnp.zeros((4, 3))}, r"mean and beta must have shape \(3,\)"),
        ({"deviation": "max"}, "deviation must be one of"),
        ({"kappa": -1.0}, "finite and > 0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    arguments = {"x": jnp.ones((4, 3)), "mean": jnp.zeros(3), "beta": jnp.zeros(3)}
    with pytest.raises(ValueError, match=message):
        variance.variance_norm(**{**arguments, "gamma": 1.0, "kappa": 1.0, **change})
    with pytest.raises(ValueError, match="init must be one of"):
        hcnn.BdeirMLR(3, 4, kappa=1.0, init="hcnn", rngs=nnx.Rngs(0))


def test_classifier_is_mlr_and_starts_as_published():
    head = hcnn.BdeirMLR(16, 40, kappa=0.5, init="paper", rngs=nnx.Rngs(0))
    assert 0.24 < np.abs(head.kernel[...]).max() < 0.25  # 1/sqrt(16)
    assert 0.2 < np.abs(head.bias[...]).max() < 0.25
    x = jnp.ones((2, 3, 16))
    want = jitted(hcnn.mlr)(x, head.kernel[...], head.bias[...], 2.0)
    np.testing.assert_array_equal(run(head, x, 2.0), want)
    fast = hcnn.BdeirMLR(16, 40, kappa=0.5, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(np.linalg.norm(fast.kernel[...], axis=0), 1, rtol=1e-6)
