"""Kernels of our own for a GPU, run by Pallas' interpreter, against the form that XLA has."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, hyperplane, models
from lorentz_jax._src import fused, kernels
from lorentz_jax._src.conv import window_arguments
from tests.compiled import quick_jit

RANDOM = np.random.default_rng(0)
NAMES = ["x", "space", "scale", "beta", "kappa", "residual"]


def draw(*shape):
    return jnp.asarray(RANDOM.normal(size=shape))


def images(channels, added, kappa=1.0, shape=(3, 5, 5)):
    """Arguments of a 3x3 convolution of stride 2, and the shape of its result: 27 points."""
    out = (shape[0], -(-shape[1] // 2), -(-shape[2] // 2), channels)
    arrays = draw(*shape, 3), draw(3, 3, 3, channels), draw(channels), draw(channels)
    return (*arrays, jnp.float64(kappa), draw(*out) if added else None), out


def own(relu, *arguments):
    window = window_arguments(2, None, (3, 3))
    return fused.conv_center(*arguments, window, fused.Step(relu, interpret=True))


def plain(relu, x, space, scale, beta, kappa, residual):
    """By autodiff of the plain functions."""
    planes = hyperplane.normals(space * scale, None, kappa)
    y = functional.conv(x, planes, kappa, 2)
    mean = functional.batch_mean(y, kappa)
    out = functional.center(y, mean, beta, kappa)
    out = out if residual is None else out + residual
    return jax.nn.relu(out) if relu else out, mean


@pytest.fixture
def small_tiles(monkeypatch):
    """Three programs, each of which walks over tiles; the last of them are not full."""
    monkeypatch.setattr(kernels, "TILE", 64)
    monkeypatch.setattr(kernels, "PROGRAMS", 3)


@pytest.mark.parametrize(
    ("channels", "kappa", "relu", "added"),
    [(16, 0.1, True, True), (6, 1.0, True, False), (512, 2.5, False, True)],
)
def test_value_mean_and_every_gradient(x64, small_tiles, channels, kappa, relu, added):
    arguments, shape = images(channels, added, kappa)
    g = draw(*shape)

    def gradients(function):
        loss = lambda *a: (jnp.sum(function(relu, *a)[0] * g), function(relu, *a))  # noqa: E731
        live = tuple(range(5 + added))
        return quick_jit(jax.value_and_grad(loss, live, has_aux=True))(*arguments)

    ((_, (out, mean)), got), ((_, (want, centre)), right) = map(gradients, (own, plain))
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, centre, rtol=1e-12, atol=1e-14)
    for name, a, b in zip(NAMES, got, right, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max(), err_msg=name)


def test_half_precision_rounds_images_alone():
    """At the tiles that a GPU gets."""
    z, residual = (draw(5, 13, 8).astype(jnp.bfloat16) for _ in range(2))
    scale, beta, kappa = (a.astype(jnp.float32) for a in (draw(8), draw(8), jnp.float32(0.1)))
    run = functools.partial(kernels.forward, relu=True, interpret=True)
    out, mean, _ = quick_jit(run)(z, scale, beta, kappa, residual)
    assert (out.dtype, mean.dtype) == (jnp.bfloat16, jnp.float32)
    wide = scale * z.astype(jnp.float32)
    want = functional.center_batch(wide, beta, kappa)[0] + residual.astype(jnp.float32)
    want = jax.nn.relu(want)
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=2**-8 * np.abs(want).max())


def test_forward_mode_and_second_derivatives_are_those_of_the_other_form(x64):
    arguments, _ = images(4, True, shape=(2, 3, 3))
    directions = tuple(draw(*a.shape) for a in arguments)

    @functools.partial(quick_jit, static_argnums=0)
    def both(function):
        loss = lambda *a: jnp.sum(jnp.sin(function(True, *a)[0]))  # noqa: E731
        tangent = jax.jvp(loss, arguments, directions)[1]
        return tangent, jax.jvp(jax.grad(loss, tuple(range(6))), arguments, directions)[1]

    for a, b in zip(*map(jax.tree.leaves, map(both, (own, plain))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * np.abs(b).max())


def step(x):
    planes = hyperplane.normals(jnp.ones((3, 3, 2, 2)), None, 1.0)
    return functional.conv_center(x, planes, jnp.ones(2), 1.0, relu=True, residual=x)[0]


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
def test_only_a_gpu_gets_them_and_only_where_they_are_chosen():
    x, gradient = jnp.ones((2, 4, 4, 2)), jax.jit(jax.grad(lambda x: jnp.sum(step(x))))
    check = jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")

    def count(platform):
        to = {"platforms": [platform], "disabled_checks": [check]}
        text = str(jax.export.export(gradient, **to)(x).mlir_module())
        return text.count("xla.gpu.triton")

    assert count("cuda") == 0
    with functional.kernels("pallas"):
        assert (count("cuda"), count("tpu")) == (6, 0)
        with functional.kernels("xla"):
            assert count("cuda") == 0


def test_forward_mode_at_the_kink_of_relu():
    planes = hyperplane.normals(jnp.ones((1, 1, 2, 3)), None, 1.0)

    def of(beta):
        return functional.conv_center(jnp.zeros((2, 2, 2, 2)), planes, beta, 1.0, relu=True)[0]

    for choice in ("xla", "pallas"):
        with functional.kernels(choice):
            assert not np.any(jax.jvp(of, (jnp.zeros(3),), (jnp.ones(3),))[1])


def test_elsewhere_the_choice_changes_no_number():
    x, traced = jnp.asarray(RANDOM.normal(size=(2, 4, 4, 2)), jnp.float32), []

    @quick_jit
    def gradient(x):
        traced.append(fused.takes(x, jnp.zeros((3, 3, 2, 2))))
        return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(step(x))))(x)

    want = gradient(x)
    with functional.kernels("pallas"):
        got = gradient(x)
    assert traced == [False, True]  # a compiled function is not that of the other choice
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_network_passes_residual_sums_and_relu_on():
    network, x = models.LorentzResNet((1,), 2, 3, 1, rngs=nnx.Rngs(0)), jnp.ones((2, 4, 4, 1))
    graphdef, state = nnx.split(network)

    def text():
        run = lambda state: nnx.merge(graphdef, state)(x, train=True)  # noqa: E731
        return str(jax.make_jaxpr(run)(state))

    assert "pallas_call" not in text()
    with functional.kernels("pallas"):
        chosen = text()
    assert chosen.count("pallas_call[") == 9  # three for each of three convolutions
    assert "name=relu" in text()
    assert "name=relu" not in chosen  # they are inside


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="kernels must be one of xla, pallas, got 'triton'"):
        functional.kernels("triton")
    planes = hyperplane.normals(jnp.ones((3, 3, 2, 2)), None, 1.0)
    x = jnp.ones((2, 4, 4, 2))
    with pytest.raises(ValueError, match=r"residual must have shape \(2, 2, 2, 2\)"):
        functional.conv_center(x, planes, jnp.ones(2), 1.0, 2, residual=x)
