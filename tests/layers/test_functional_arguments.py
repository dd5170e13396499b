"""What all functions of `functional` share: dtypes, batch axes, compiling, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, hyperplane
from lorentz_jax.hyperplane import normals

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 3, 4, 5, 3)).astype(np.float32)
MATRIX, KERNEL = (RNG.normal(size=s).astype(np.float32) for s in ((3, 4), (3, 3, 3, 4)))
BIAS, MEAN, BETA = (RNG.normal(size=n).astype(np.float32) for n in (4, 3, 3))
V, VK = normals(MATRIX, BIAS, 0.5), normals(KERNEL, BIAS, 0.5)


def cast(x, array):
    return jnp.asarray(array, x.dtype)


# Each takes points `(..., D)`; here images `(..., H, W, D)`.
LAYERS = {
    "linear": lambda x, kappa: functional.linear(x, V, kappa, jax.nn.relu),
    "conv": lambda x, kappa: functional.conv(x, VK, kappa, 2),
    "center": lambda x, kappa: functional.center(x, cast(x, MEAN), cast(x, BETA), kappa),
    "mlr": lambda x, kappa: functional.mlr(x, V, kappa),
}
COMPILED = {name: jax.jit(function) for name, function in LAYERS.items()}


@pytest.mark.parametrize("name", LAYERS)
def test_eager_compiled_and_mapped_agree(name):
    want = COMPILED[name](IMAGE, 0.5)
    assert want.dtype == jnp.float32
    assert want.shape[:2] == IMAGE.shape[:2]
    close = {"rtol": 1e-6, "atol": 1e-5}
    np.testing.assert_allclose(LAYERS[name](IMAGE, 0.5), want, **close)
    mapped = jax.jit(jax.vmap(LAYERS[name], (0, None)))(IMAGE, 0.5)
    np.testing.assert_allclose(mapped, want, **close)
    np.testing.assert_allclose(COMPILED[name](IMAGE[1, 1], 0.5), want[1, 1], **close)
    empty = COMPILED[name](IMAGE[:, :0], 0.5)
    assert empty.shape == (want.shape[0], 0, *want.shape[2:])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_is_right_to_rounding(name, dtype):
    x = jnp.asarray(IMAGE, dtype)
    got, want = COMPILED[name](x, 0.5), COMPILED[name](x.astype(jnp.float32), 0.5)
    assert got.dtype == dtype
    # Kernels are rounded, which counts for products of about the size of the largest output.
    size = np.abs(want).max()
    tolerance = {"linear": 4, "conv": 4, "mlr": 1, "center": 4}[name] * float(jnp.finfo(dtype).eps)
    assert np.abs(got.astype(jnp.float32) - want).max() < tolerance * size


@pytest.mark.parametrize("name", ["mean", *LAYERS])
def test_points_must_be_floats_of_the_right_width(name):
    def mean(x, kappa):
        return functional.center(x, functional.batch_mean(x, kappa), MEAN, kappa)

    run = mean if name == "mean" else LAYERS[name]
    wrong_width = "to go with x" if name in ("mean", "center") else r"D_in = 3 .* got shape \(2"
    with pytest.raises(TypeError, match="x must be a floating-point array, got dtype int32"):
        run(IMAGE.astype(np.int32), 0.5)
    for wide in (IMAGE[..., :2], np.concatenate([IMAGE, IMAGE], -1)):
        for call in (run, jax.jit(run)):
            with pytest.raises(ValueError, match=wrong_width):
                call(wide, 0.5)
    for kappa in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="curvature is -kappa"):
            run(IMAGE, kappa)
    with pytest.raises(ValueError, match="kappa of shape"):
        run(IMAGE, np.ones(3, np.float32))


X = IMAGE[0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: functional.linear(X, VK, 1.0), "a space part of 2 axes"),
        (lambda: functional.conv(X, V, 1.0), "a space part of 3 to 5 axes"),
        (lambda: functional.conv(X[0, 0], VK, 1.0), "at least 3 axes"),
        (lambda: functional.conv(X, VK, 1.0, 0), "strides must be"),
        (lambda: functional.conv(X, VK, 1.0, (1, 2, 3)), "strides must be"),
        (lambda: functional.conv(X, VK, 1.0, 1, (1, 1, 1)), "padding must name 2 spatial axes"),
        (lambda: functional.conv(X, VK, np.ones(3, np.float32)), "kappa of shape"),
        (lambda: functional.center(X, MEAN[:2], BETA, 1.0), "mean and beta must have shape"),
        (lambda: functional.center(X, MEAN, BETA[None], 1.0), "mean and beta must have shape"),
        (lambda: functional.batch_mean(X[:0], 1.0), "the mean of no points"),
        (lambda: functional.mlr(X, V, 1.0, "both"), "scale must be"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_one_kappa_per_sample():
    x, kappas = IMAGE[0, 0, 0], np.linspace(0.2, 2, 5, dtype=np.float32)
    for function in (functional.linear, functional.mlr):
        run = jax.jit(function)
        want = np.stack([run(row, V, k) for row, k in zip(x, kappas, strict=True)])
        np.testing.assert_allclose(run(x, V, kappas), want, rtol=1e-5, atol=1e-6)


def test_the_spelling_of_kappa_compiles_once():
    normals(MATRIX, BIAS, 0.5)
    before = hyperplane._normals._cache_size()
    for kappa in (1, 1.0, np.float32(1), np.float64(0.3), jnp.asarray(1.0), *range(2, 9)):
        normals(MATRIX, BIAS, kappa)
    assert hyperplane._normals._cache_size() == before
