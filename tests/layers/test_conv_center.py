"""The fused block against the plain functions in float64, where autodiff is the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional
from lorentz_jax.hyperplane import factored_normals, normals
from tests.compiled import enable_x64, quick_jit

GEOMETRIES = [((3, 3), 1, None), ((3, 3), 2, ((0, 1), (2, 1))), ((1, 1), 2, None)]


def arrays(window, dtype=np.float64, scale=1.0, seed=0):
    random = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(scale * random.normal(size=shape), dtype)  # noqa: E731
    return draw(2, 5, 6, 3), draw(*window, 3, 4), draw(4), draw(4)


def plain(x, w, b, beta, kappa, strides, padding):
    y = functional.conv(x, normals(w, b, kappa), kappa, strides, padding)
    mean = functional.batch_mean(y, kappa)
    return functional.center(y, mean, beta, kappa), mean


def fast(x, w, b, beta, kappa, strides, padding):
    return functional.conv_center(x, normals(w, b, kappa), beta, kappa, strides, padding)


def plain_weight_norm(x, a, g, b, beta, kappa, strides, padding):
    return plain(x, functional.weight_norm(a, g), b, beta, kappa, strides, padding)


def factored(x, a, g, b, beta, kappa, strides, padding):
    planes, scale = factored_normals(a, g, b, kappa)
    return functional.conv_center(x, planes, beta, kappa, strides, padding, scale)


@functools.partial(quick_jit, static_argnums=(0, 1, 2))
def outputs_and_gradients(function, strides, padding, arguments, cotangent):
    """Output and mean, and the gradients of the output against (a part of) the cotangent."""

    def loss(*arguments):
        out, mean = function(*arguments, strides, padding)
        return jnp.sum(cotangent[:, : out.shape[1], : out.shape[2]] * out), (out, mean)

    every = tuple(range(len(arguments)))
    gradients, outputs = jax.grad(loss, every, has_aux=True)(*arguments)
    return *outputs, gradients


COTANGENT = np.random.default_rng(1).normal(size=(2, 8, 8, 4))


@pytest.mark.parametrize(("window", "strides", "padding"), GEOMETRIES)
def test_value_mean_and_every_gradient(x64, kappa, window, strides, padding):
    arguments = (*arrays(window), kappa)
    (want, mean, right), (got, fast_mean, gradients) = (
        outputs_and_gradients(f, strides, padding, arguments, COTANGENT) for f in (plain, fast)
    )
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fast_mean, mean, rtol=1e-12)
    for name, a, b in zip(["x", "w", "b", "beta", "kappa"], gradients, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize(("window", "strides", "padding"), GEOMETRIES)
def test_factored_normals_change_no_value_and_no_gradient(x64, kappa, window, strides, padding):
    # The outputs of the first geometry outnumber the kernel, those of the second do not: the
    # scale's cotangent comes from the smaller of the two.
    x, direction, bias, beta = arrays(window)
    arguments = (x, direction, jnp.asarray([0.5, -1.5, 2.0, 0.8]), bias, beta, kappa)
    (value, _, got), (truth, _, want) = (
        outputs_and_gradients(f, strides, padding, arguments, COTANGENT)
        for f in (factored, plain_weight_norm)
    )
    np.testing.assert_allclose(value, truth, rtol=1e-12, atol=1e-12)
    for name, a, b in zip(["x", "a", "g", "b", "beta", "kappa"], got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * np.abs(b).max(), err_msg=name)


def test_float32_at_radius_10():
    """Value and gradients at kappa 0.3, r = 10, as good as rounding of far points allows."""
    random, kappa = np.random.default_rng(3), 0.3
    s = np.sqrt(kappa)
    unit = random.normal(size=(2, 4, 4, 3))
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    x = np.sinh(10 * s) / s * unit
    a, b, beta = (random.normal(size=shape) for shape in ((1, 1, 3, 4), (4,), (4,)))
    arguments = (x, a, np.array([0.5, 1.0, 2.0, 0.8]), b, beta)

    def both(function, arguments):
        def loss(*arguments):
            out, _ = function(*arguments, kappa, 1, None)
            return jnp.mean(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

        return quick_jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4)))(*arguments)

    value, got = both(factored, [a.astype(np.float32) for a in arguments])
    with enable_x64(True):
        truth, want = both(plain_weight_norm, arguments)
    np.testing.assert_allclose(value, truth, rtol=1e-4)
    for name, one, other in zip(["x", "a", "g", "b", "beta"], got, want, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max(), err_msg=name
        )


def test_the_returned_mean_carries_no_gradient(x64):
    arguments = (*arrays((3, 3)), 0.5)
    mean = lambda x: jnp.sum(fast(x, *arguments[1:], 1, None)[1])  # noqa: E731
    assert not np.asarray(quick_jit(jax.grad(mean))(arguments[0])).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_keeps_its_dtype_and_accuracy(dtype):
    x, *rest = arrays((3, 3), np.float32, scale=0.5)
    rest = (*rest, np.float32(0.5))
    want, *_ = outputs_and_gradients(plain, 1, None, (x, *rest), np.float32(COTANGENT))
    half = jnp.asarray(COTANGENT, dtype)
    got, _, (by_x, *_) = outputs_and_gradients(fast, 1, None, (x.astype(dtype), *rest), half)
    assert got.dtype == dtype
    assert by_x.dtype == dtype
    tolerance = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        got.astype(jnp.float32), want, rtol=0, atol=tolerance * float(jnp.abs(want).max())
    )


def test_gradient_at_the_origin_is_finite():
    zeros = [np.zeros(a.shape, np.float32) for a in arrays((3, 3), np.float32)]
    arguments = (*zeros, np.float32(1))
    *_, gradients = outputs_and_gradients(fast, 1, None, arguments, np.float32(COTANGENT))
    assert all(np.isfinite(g).all() for g in gradients[:4])


def test_bad_input_names_what_was_expected():
    x, w, b, beta = arrays((3, 3), np.float32)
    planes = normals(w, b, 1.0)
    with pytest.raises(ValueError, match="D_in = 3"):
        functional.conv_center(x[..., :2], planes, beta, 1.0)
    with pytest.raises(ValueError, match=r"beta must have shape \(4,\)"):
        functional.conv_center(x, planes, beta[:3], 1.0)
    with pytest.raises(ValueError, match=r"scale must have shape \(4,\)"):
        functional.conv_center(x, planes, beta, 1.0, unit_scale=beta[:3])
    with pytest.raises(ValueError, match="pixels"):
        functional.conv_center(x[:0], planes, beta, 1.0)
    with pytest.raises(ValueError, match="kappa"):
        functional.conv_center(x, planes, beta, -1.0)
