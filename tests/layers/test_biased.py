"""The convolution with a bias in the form of a GPU and of a TPU, against the plain functions."""

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional
from lorentz_jax._src import biased, conv, forms
from lorentz_jax.hyperplane import factored_normals, normals
from tests.compiled import enable_x64, quick_jit

FORMS = {"gpu": forms.GPU, "tpu": forms.TPU}
NAMES = ["x", "a", "g", "b", "beta", "kappa"]
KAPPAS = [0.1, 1.0, 2.5]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Take a form, whatever the device."""

    def choose(function, *arguments, cpu):
        return function(FORMS[request.param], *arguments)

    monkeypatch.setattr(biased, "by_platform", choose)
    return request.param


def arguments_of(window=(3, 3), dtype: Any = np.float64):
    """x, direction, gain, bias and beta; of angles below 3."""
    draw = lambda *shape: np.random.default_rng(0).normal(size=shape)  # noqa: E731
    gain = np.array([0.5, -1.5, 2.0, 0.8])
    drawn = draw(2, 5, 6, 3), draw(*window, 3, 4), gain, draw(4) / 2, draw(4)
    return tuple(jnp.asarray(a, dtype) for a in drawn)


def fused_and_plain(strides=1, padding=None):
    """Two functions of x, direction, gain, bias, beta, kappa; new ones, since `jit` knows old."""

    def fused(x, a, g, b, beta, kappa):
        planes, scale = factored_normals(a, g, b, kappa)
        return functional.conv_center(x, planes, beta, kappa, strides, padding, scale)[0]

    def plain(x, a, g, b, beta, kappa):
        planes = normals(functional.weight_norm(a, g), b, kappa)
        y = functional.conv(x, planes, kappa, strides, padding)
        return functional.center(y, functional.batch_mean(y, kappa), beta, kappa)

    return fused, plain


def close(got, want, tolerance):
    *sizes, _ = (np.abs(b).max() for b in want)
    sizes.append(max(sizes))  # kappa's is a sum of such terms, which may cancel
    for name, a, b, size in zip(NAMES, got, want, sizes, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * size, err_msg=name)


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [((3, 3), 1, None), ((3, 3), 2, ((0, 1), (2, 1))), ((1, 1), 2, None)],
)
def test_value_and_every_gradient(x64, form, window, strides, padding):
    arguments = arguments_of(window)
    fused, plain = fused_and_plain(strides, padding)

    def gradients(function):
        loss = lambda *a: jnp.sum(jnp.sin(function(*a)))  # noqa: E731
        return quick_jit(lambda *a: (function(*a), jax.grad(loss, range(6))(*a)))

    ours, theirs = map(gradients, (fused, plain))
    for kappa in KAPPAS:
        (out, got), (truth, want) = ours(*arguments, kappa), theirs(*arguments, kappa)
        np.testing.assert_allclose(out, truth, rtol=1e-12, atol=1e-12)
        close(got, want, 1e-12)


def test_both_modes_over_each_other(x64, form):
    arguments = arguments_of()
    directions = tuple(jnp.cos(a) for a in (*arguments, jnp.ones(())))
    fused, plain = fused_and_plain(2)
    loss = lambda function, *a: jnp.sum(jnp.sin(function(*a)))  # noqa: E731
    gradient = jax.grad(loss, range(1, 7))

    def forward(function, *a):
        along = functools.partial(gradient, function)
        return jax.jvp(function, a, directions)[1], jax.jvp(along, a, directions)[1]

    def reverse(*a):
        along = functools.partial(loss, fused)
        return jax.grad(lambda *a: jax.jvp(along, a, directions)[1], range(6))(*a)

    ours = quick_jit(lambda *a: (*forward(fused, *a), reverse(*a)))
    theirs = quick_jit(functools.partial(forward, plain))
    for kappa in KAPPAS:
        (tangent, got, over), (truth, want) = ours(*arguments, kappa), theirs(*arguments, kappa)
        np.testing.assert_allclose(tangent, truth, rtol=1e-12, atol=1e-12 * np.abs(truth).max())
        close(got, want, 1e-11)
        close(over, want, 1e-11)


@pytest.mark.parametrize("biased", [True, False])
def test_second_derivatives_in_some_arguments_alone(x64, biased):
    """Under jit every device's branch is differentiated, in which only some sums have a tangent."""
    x, a, _, b, beta = arguments_of((1, 1))
    fused, plain = fused_and_plain()

    def loss(function, x, beta, kappa):
        return jnp.sum(jnp.sin(function(x, a, jnp.ones(4), b if biased else None, beta, kappa)))

    for argument in (0, 2):
        along = functools.partial(loss, fused)
        jax.eval_shape(jax.jacrev(jax.grad(along, argument), argument), x, beta, 1.3)
        jax.eval_shape(jax.jacfwd(jax.grad(along, argument), 1), x, beta, 1.3)
    ours, theirs = (
        quick_jit(jax.hessian(functools.partial(loss, function), 1))(x, beta, 1.3)
        for function in (fused, plain)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)


def test_a_unit_without_scale_gets_the_gradient_of_its_bias(x64, form):
    x, a, _, b, beta = arguments_of()
    planes = normals(a, b, 1.0)
    scale = jnp.asarray([1.0, 0.0, -0.5, 2.0])

    def loss(function, scale, time):
        planes_ = type(planes)(time, planes.space)
        return jnp.sum(jnp.sin(function(planes_, scale)))

    def fused(planes, scale):
        return functional.conv_center(x, planes, beta, 1.0, unit_scale=scale)[0]

    def plain(planes, scale):
        y = functional.conv(x, type(planes)(planes.time, planes.space * scale), 1.0)
        return functional.center(y, functional.batch_mean(y, 1.0), beta, 1.0)

    (g_scale, g_time), (want_scale, want_time) = (
        quick_jit(jax.grad(functools.partial(loss, f), (0, 1)))(scale, planes.time)
        for f in (fused, plain)
    )
    live = np.asarray(scale) != 0
    np.testing.assert_allclose(g_time, want_time, rtol=1e-11)
    np.testing.assert_allclose(g_scale[live], want_scale[live], rtol=1e-11)
    assert float(g_scale[1]) == 0  # as its docstring says


def test_half_precision_rounds_images_alone(form):
    """bfloat16 images, float32 numbers: as exact as roundings of z, input and output."""
    x, a, g, b, beta = arguments_of(dtype=np.float32)
    half = x.astype(jnp.bfloat16)
    fused, plain = fused_and_plain()

    def gradients(function, *arguments):
        loss = lambda *a: jnp.sum(jnp.sin(function(*a).astype(jnp.float32)))  # noqa: E731
        if arguments[0].dtype == jnp.float64:
            loss = lambda *a: jnp.sum(jnp.sin(function(*a)))  # noqa: E731
        return quick_jit(lambda *a: (function(*a), jax.grad(loss, range(6))(*a)))(*arguments)

    out, got = gradients(fused, half, a, g, b, beta, jnp.float32(0.1))
    with enable_x64(True):
        exact = [jnp.asarray(v, jnp.float64) for v in (half, a, g, b, beta, np.float32(0.1))]
        truth, want = gradients(plain, *exact)
    assert out.dtype == got[0].dtype == jnp.bfloat16
    assert all(v.dtype == jnp.float32 for v in got[1:])
    np.testing.assert_allclose(np.float64(out), truth, atol=2e-2 * np.abs(truth).max())
    for name, one, other in zip(NAMES, got, want, strict=True):
        atol = 3e-2 * np.abs(other).max()
        np.testing.assert_allclose(np.float64(one), other, atol=atol, err_msg=name)


def test_the_form_is_that_of_the_device_it_is_lowered_for():
    arguments = arguments_of(dtype=np.float32)
    fused, _ = fused_and_plain()
    loss = lambda x, a, g, b, beta: fused(x, a, g, b, beta, 1.0).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss, range(5)))

    def text(platform):
        exported = jax.export.export(gradient, platforms=[platform])
        return str(exported(*arguments).mlir_module())

    texts = {name: text(name) for name in ("cpu", "cuda", "tpu")}
    products = {name: t.count("stablehlo.dot_general") for name, t in texts.items()}
    # Sums over channels are products on a CPU alone, sums over pixels on a GPU, too.
    assert products == {"cpu": 5, "cuda": 2, "tpu": 0}
    held = {name: t.count("stablehlo.optimization_barrier") for name, t in texts.items()}
    assert held["cpu"] == 0
    assert held["tpu"] == 1  # the kernel
    assert held["cuda"] > 5


def test_steps_of_a_linear_layer_on_a_gpu_are_its_formula(x64, monkeypatch):
    monkeypatch.setattr(conv, "on_gpu", lambda gpu, other, *arguments: gpu(*arguments))
    draw = lambda *shape: np.random.default_rng(1).normal(size=shape)  # noqa: E731
    arguments = tuple(map(jnp.asarray, (draw(2, 5, 4), np.exp(draw(2, 5, 1)), draw(4))))

    def every(function):
        def loss(*a):
            return jnp.sum(jnp.sin(function(*a)))

        @quick_jit
        def run(*a):
            alone = jax.jvp(lambda time: function(*a[:2], time), a[2:], a[2:])[1]
            hessian = jax.hessian(loss, range(3))(*a)
            return function(*a), jax.jvp(function, a, a)[1], alone, hessian

        return jax.tree.leaves(run(*arguments))

    want = every(lambda z, t, time: z - t * time)
    for a, b in zip(every(conv.less_rank_one), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max())


def test_relu_on_a_gpu_has_the_derivative_of_relu(monkeypatch):
    monkeypatch.setattr(forms, "on_gpu", lambda gpu, other, *arguments: gpu(*arguments))
    x = jnp.asarray([-2.0, -0.0, 0.0, 1e-45, 3.0, jnp.inf])
    ours, theirs = (jax.jvp(f, (x,), (x - 5,)) for f in (forms.relu, jax.nn.relu))
    np.testing.assert_array_equal(ours, theirs)
    slope = jax.vmap(jax.grad(forms.relu))(x)
    np.testing.assert_array_equal(slope, jax.vmap(jax.grad(jax.nn.relu))(x))
