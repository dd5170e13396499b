"""What is asked for in one way or another: by device, by size, or where there are derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, geometry
from lorentz_jax._src import forms
from lorentz_jax._src.plain import boost_by
from lorentz_jax.hyperplane import normals
from tests.oracle import assert_close

EDGES = [-np.inf, -1.5, -1e-30, -0.0, 0.0, 1e-30, 2.0, np.inf]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("relu", [forms.relu, forms.relu_before_time])
def test_relu_has_one_value_with_derivatives_and_without(x64, relu, dtype):
    x = jnp.asarray(EDGES, dtype)
    want = jax.nn.relu(x)
    out, pull = jax.vjp(jax.jit(relu), x)
    for got in (relu(x), jax.jit(relu)(x), out, jax.jvp(relu, (x,), (x,))[0]):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(pull(jnp.ones_like(x))[0], np.asarray(EDGES) > 0)


@pytest.mark.parametrize("relu", [forms.relu, forms.relu_before_time])
def test_relu_shows_a_nan(relu):
    x = np.array([np.nan, 1.0], np.float32)
    with jax.debug_nans(False):
        out, _ = jax.vjp(relu, x)
        np.testing.assert_array_equal(out, x)
        np.testing.assert_array_equal(relu(x), x)


@pytest.mark.parametrize("kernels", ["xla", "pallas"])
def test_a_nan_is_not_cut_off_by_the_relu_of_a_layer(kernels):
    planes = normals(jnp.ones((1, 1, 2, 4)), None, 1.0)
    with jax.debug_nans(False), functional.kernels(kernels):
        x = jnp.ones((2, 2, 2, 2)).at[0, 0, 0, 0].set(jnp.nan)
        out, _ = functional.conv_center(x, planes, jnp.zeros(4), 1.0, relu=True)
        assert jnp.isnan(out[0, 0, 0]).all()


def test_relu_has_no_second_derivative():
    x = jnp.array([-1.0, 0.0, 2.0])
    square = jax.jit(lambda x: jnp.sum(forms.relu(x) ** 2))
    np.testing.assert_array_equal(jax.hessian(square)(x), np.diag([0.0, 0.0, 2.0]))
    np.testing.assert_array_equal(jax.jacrev(jax.jacrev(square))(x), np.diag([0.0, 0.0, 2.0]))


@pytest.mark.parametrize("relu", [forms.relu, forms.relu_before_time])
def test_what_a_gradient_reads_is_made_once(relu):
    """The gradient of a kernel reads the activations; XLA must not form them from theirs again."""

    def loss(kernels, x):
        for kernel in kernels:
            x = relu(jnp.tanh(x @ kernel))
        return x.sum()

    text = str(jax.make_jaxpr(jax.grad(loss))([jnp.eye(4)] * 2, jnp.ones((3, 4))))
    assert "select_n" in text
    assert " max " not in text
    assert " max " in str(jax.make_jaxpr(loss)([jnp.eye(4)] * 2, jnp.ones((3, 4))))


@pytest.mark.parametrize("kappa", [0.1, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("width", [8, 32, 64, 96])
def test_a_compiled_norm_is_the_same_for_few_points_and_many(x64, kappa, width):
    """From 4,096 points of 17 to 64 coordinates on, a CPU sums in another way."""
    rng = np.random.default_rng(width)
    y, p = rng.normal(size=(4096, width)), rng.normal(size=width) / 4
    s, time = np.sqrt(kappa), np.sqrt(1 / kappa + p @ p)
    move = jax.jit(lambda y: boost_by(y, s * p, s * p / (1 + s * time), kappa))
    want = geometry.translate(p, y, kappa)
    many, few = move(y.reshape(8, 16, 32, width)), move(y[:4095])
    assert_close(many.reshape(y.shape), want, 1e-12)
    assert_close(few, want[:4095], 1e-12)
    small = move(y.astype(np.float32))
    assert small.dtype == jnp.float32
    assert_close(small, want, 3e-6)

    def pull(move, y):
        return jax.grad(lambda y: jnp.sum(jnp.sin(move(y))))(y)

    slope = pull(lambda y: geometry.translate(p, y, kappa), y)
    assert_close(pull(move, y), slope, 1e-11)
    assert_close(pull(move, y[:4095]), slope[:4095], 1e-11)


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_far_points_of_a_compiled_norm_err_alike_however_many_there_are(x64, kappa):
    """At s r = 10 time and product nearly cancel for points opposite to p."""
    rng = np.random.default_rng(0)
    y, s = rng.normal(size=(4096, 32)), np.sqrt(kappa)
    y = y / np.linalg.norm(y, axis=-1, keepdims=True) * np.sinh(10) / s
    p = rng.normal(size=32) / 4
    time = np.sqrt(1 / kappa + p @ p)
    move = jax.jit(lambda y: boost_by(y, s * p, s * p / (1 + s * time), kappa))
    want, small = geometry.translate(p, y, kappa), y.astype(np.float32)
    for points in (small, small[:4095]):
        assert_close(move(points), want[: len(points)], 1e-5)


def test_a_compiled_norm_is_exported_for_any_number_of_points():
    export = pytest.importorskip("jax.export")
    move = jax.jit(lambda y: boost_by(y, jnp.ones(32), jnp.ones(32) / 2, 1.0))
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("n, 64, w, 32"), jnp.float32)
    run = export.export(move)(shape).call
    y = np.random.default_rng(0).normal(size=(2, 64, 64, 32)).astype(np.float32)
    assert_close(run(y), move(y), 1e-5)
