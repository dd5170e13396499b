"""Transposed convolution, pooling, group norm and weighted residual, with independent oracles."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, geometry, nn
from lorentz_jax.hyperplane import normals
from lorentz_jax.inference import compile_cached_v
from tests import oracle, second
from tests.compiled import quick_jit

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 4, 5, 3))
SHIFT = np.asarray([0.3, -1.2, 0.5])


def holes(x, strides):
    """Origins between the pixels."""
    size = [(n - 1) * s + 1 for n, s in zip(x.shape[1:-1], strides, strict=True)]
    out = np.zeros((len(x), *size, x.shape[-1]))
    out[(slice(None), *(slice(None, None, s) for s in strides))] = x
    return out


TRANSPOSED = {
    "2d": ((2, 2), (2, 2), "SAME"),
    "2d, overlapping": ((3, 4), (2, 1), "VALID"),
    "pairs": ((3, 3), (2, 2), ((1, 2), (0, 1))),
    "1d": ((3,), (2,), "VALID"),
    "3d": ((2, 1, 2), (2, 1, 1), "VALID"),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_conv_transpose_is_conv_with_origins_between(x64, case, kappa):
    size, strides, padding = TRANSPOSED[case]
    x = RNG.normal(size=(2, *(4, 3, 2)[: len(size)], 3))
    v = normals(RNG.normal(size=(*size, 3, 4)), RNG.normal(size=4), kappa)
    got = functional.conv_transpose(x, v, kappa, strides, padding, jnp.tanh)
    pads = padding
    if padding == "VALID":
        # Every input pixel reaches a whole window.
        pads = [(k - 1, max(k - 1, s - 1)) for k, s in zip(size, strides, strict=True)]
    elif padding == "SAME":
        total = [k + s - 2 for k, s in zip(size, strides, strict=True)]
        pads = [(t - t // 2 if s <= k - 1 else k - 1, None) for t, s, k in
                zip(total, strides, size, strict=True)]  # fmt: skip
        pads = [(a, t - a) for (a, _), t in zip(pads, total, strict=True)]
    want = functional.conv(holes(x, strides), v, kappa, 1, tuple(pads), jnp.tanh)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    if padding == "SAME":
        assert got.shape[1:-1] == tuple(n * s for n, s in zip(x.shape[1:], strides, strict=False))


def test_conv_transpose_layer_and_its_compiled_form(x64):
    options = {"kappa": 0.5, "rngs": nnx.Rngs(0), "param_dtype": jnp.float64}
    layer = nn.LorentzConvTranspose(3, 4, 3, strides=2, activation=jax.nn.relu, **options)
    layer.bias[...] = jnp.linspace(-1, 1, 4)
    y = layer(IMAGES)
    assert y.shape == (2, 8, 10, 4)
    np.testing.assert_allclose(compile_cached_v(layer)(IMAGES), y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer(IMAGES[None])[0], y, rtol=1e-12)
    # The preset keeps the size of points on the way.
    deep = nn.LorentzConvTranspose(64, 64, 4, strides=2, kappa=0.1, rngs=nnx.Rngs(0))
    x = RNG.normal(size=(4, 8, 8, 64)).astype(np.float32)
    inside = np.asarray(deep(x))[:, 3:-3, 3:-3]
    assert 1.2 < np.std(inside) < 1.6  # |w| of sqrt 2 makes up for the ReLU that follows
    with pytest.raises(ValueError, match='padding must be "SAME", "VALID" or pairs'):
        functional.conv_transpose(IMAGES, layer.normals(), 0.5, padding="FULL")
    with pytest.raises(ValueError, match="padding must name 2 spatial axes"):
        functional.conv_transpose(IMAGES, layer.normals(), 0.5, padding=((1, 1),))


def test_gradients_of_conv_transpose_are_those_of_the_oracle(x64):
    w, b = RNG.normal(size=(3, 3, 3, 4)), RNG.normal(size=4)

    def loss(function):
        def of(x, w, b, kappa):
            out = function(x, normals(w, b, kappa), kappa)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape)))

        return quick_jit(jax.grad(of, (0, 1, 2, 3)))(IMAGES, w, b, 0.7)

    def spread(x, v, kappa):
        out = jnp.zeros((2, 7, 9, 3)).at[:, ::2, ::2].set(x)
        return functional.conv(out, v, kappa, 1, ((2, 2), (2, 2)))

    got = loss(lambda x, v, kappa: functional.conv_transpose(x, v, kappa, 2, "VALID"))
    for a, b in zip(got, loss(spread), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_avg_pool_is_the_centroid_of_windows(x64, kappa, dtype, rtol):
    x = IMAGES.astype(dtype)
    got = functional.avg_pool(x, (2, 3), kappa, (1, 2), ((1, 0), (0, 0)))
    padded = np.pad(x, [(0, 0), (1, 0), (0, 0), (0, 0)])
    for i, j in itertools.product(range(4), range(2)):
        window = padded[:, i : i + 2, 2 * j : 2 * j + 3].reshape(2, 6, 3)
        np.testing.assert_allclose(
            got[:, i, j], geometry.centroid(window, kappa), rtol=rtol, atol=rtol
        )
    assert got.dtype == dtype


def test_avg_pool_is_equivariant_and_max_pool_takes_coordinates(x64, kappa):
    moved = geometry.translate(SHIFT, IMAGES, kappa)
    got = functional.avg_pool(moved, (2, 2), kappa)
    want = geometry.translate(SHIFT, functional.avg_pool(IMAGES, (2, 2), kappa), kappa)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    pooled = functional.max_pool(IMAGES, (2, 2), 1, ((1, 0), (0, 0)))
    want = nnx.max_pool(jnp.asarray(IMAGES), (2, 2), (1, 1), ((1, 0), (0, 0)))
    np.testing.assert_array_equal(pooled, want)


def test_pooling_of_other_ranks_batches_and_dtypes():
    line = IMAGES[:, 0].astype(np.float32)
    assert functional.avg_pool(line, (5,), 1.0).shape == (2, 1, 3)
    assert functional.max_pool(IMAGES[None].astype(np.float32), (2, 2)).shape == (1, 2, 2, 2, 3)
    assert functional.avg_pool(IMAGES[:, :, None].astype(np.float32), (2, 1, 2), 1.0).ndim == 5
    assert functional.avg_pool(jnp.asarray(line, jnp.bfloat16), (2,), 1.0).dtype == jnp.bfloat16
    same = functional.avg_pool(line, (1,), 0.3)
    np.testing.assert_allclose(same, line, rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(functional.avg_pool(x, (2,), 1.0)))(jnp.zeros((1, 4, 3)))
    np.testing.assert_allclose(gradient, 0.5)
    with pytest.raises(ValueError, match="window must have one to three sizes"):
        functional.avg_pool(line, (), 1.0)
    with pytest.raises(ValueError, match="window must be one positive number or 1 of them"):
        functional.max_pool(line, (0,))
    with pytest.raises(ValueError, match="padding must name 1 spatial axes"):
        functional.max_pool(line, (2,), None, (1, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_group_norm_centres_every_example_and_group(x64, kappa, groups):
    x = RNG.normal(size=(3, 4, 5, 6)) + 1
    beta = np.linspace(-1, 1, 6)
    y, mean = functional.center_groups(x, beta, kappa, groups)
    for n, g in itertools.product(range(3), range(groups)):
        own = slice(g * (6 // groups), (g + 1) * (6 // groups))
        points = x[n, ..., own].reshape(20, -1)
        middle = geometry.centroid(points, kappa)
        np.testing.assert_allclose(mean[n, own], middle, rtol=1e-12)
        back = geometry.translate(-middle, points, kappa)
        want = geometry.translate(beta[own], back, kappa)
        np.testing.assert_allclose(y[n, ..., own].reshape(20, -1), want, rtol=1e-11, atol=1e-12)


def test_group_norm_layer_and_gradients(x64):
    layer = nn.LorentzGroupNorm(6, kappa=0.7, groups=2, param_dtype=jnp.float64)
    x = RNG.normal(size=(3, 20, 6))
    layer.beta[...] = jnp.linspace(-1, 1, 6)
    beta = layer.beta[...] / np.sqrt(1 + 0.7 * 3)
    np.testing.assert_allclose(layer(x), functional.center_groups(x, beta, 0.7, 2)[0], rtol=1e-12)
    np.testing.assert_allclose(layer(x[1:2]), layer(x)[1:2], rtol=1e-12)

    def plain(x, beta, kappa):
        out = []
        for g in range(2):
            own = slice(3 * g, 3 * g + 3)
            points = x[..., own]
            mean = jax.vmap(functional.batch_mean, (0, None))(points, kappa)
            centre = jax.vmap(functional.center, (0, 0, None, None))
            out.append(centre(points, mean, beta[own], kappa))
        return jnp.concatenate(out, axis=-1)

    def gradients(function):
        def loss(*a):
            out = function(*a)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape)))

        return quick_jit(jax.grad(loss, (0, 1, 2)))(x, beta, 0.7)

    fast = gradients(lambda *a: functional.center_groups(*a, 2)[0])
    for a, b in zip(fast, gradients(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)
    with pytest.raises(ValueError, match="channels that 4 groups divide"):
        functional.center_groups(x, beta, 0.7, 4)
    with pytest.raises(ValueError, match="groups must divide the features, got 4 of 6"):
        nn.LorentzGroupNorm(6, kappa=0.7, groups=4)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_weighted_residual_and_its_gradients(x64, dtype, rtol):
    x, y = RNG.normal(size=(2, 6, 3)).astype(dtype)
    weight = np.asarray([0, 0.5, 1, 3, 1e-3, 100], dtype)[:, None]
    kappa = np.asarray([0.1, 1, 2.5] * 2, dtype)

    def exact(x, y, weight, kappa):
        points = [oracle.mp_lift(p, kappa) for p in (x, y)]
        return oracle.mp_centroid(points, kappa, [1, weight[0]])[1:]

    def ours(x, y, weight, kappa):
        return functional.weighted_residual(x, y, weight[..., 0], kappa)

    got = ours(x, y, weight, kappa)
    assert got.dtype == dtype
    want = oracle.evaluate(exact, x, y, weight, kappa=kappa)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    grads = quick_jit(jax.grad(lambda *a: jnp.sum(ours(*a)), (0, 1, 2, 3)))(x, y, weight, kappa)
    ones = np.ones((6, 3))
    wanted = oracle.gradients(exact, x, y, weight, kappa=kappa, cotangent=ones)
    for a, b in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=20 * rtol, atol=20 * rtol)


def test_weighted_residual_of_far_points_in_float32():
    """A near pair, one behind the other, an opposite one at r = 10; second derivatives too."""
    far = np.sinh(10) * np.array([0.6, -0.8])
    rows = [(far, far * 1.01 + (300, 200), 0.5), (far, 1.5 * far, 2), (far, (-3, 8000), 0.7)]
    rows.append((1e3 * far, (-8e6, 3), 1e5))  # far apart, and all but one of them

    def exact(x, y, weight, kappa):
        points = [oracle.mp_lift(p, kappa) for p in (x, y)]
        return oracle.mp_centroid(points, kappa, [1, weight])[1:]

    second.check(functional.weighted_residual, exact, rows, 1e-4, np.float32)
    x, y = (np.float32([row[i] for row in rows]) for i in range(2))
    weight = np.float32([row[2] for row in rows])
    got = functional.weighted_residual(x, y, weight, 1.0)
    want = oracle.evaluate(lambda x, y, w, k: exact(x, y, w[0], k), x, y, weight[:, None], kappa=1)
    oracle.assert_close(got, want, 1e-6)


def test_weighted_residual_is_equivariant_and_its_layer_learns(x64, kappa):
    x, y = IMAGES[:, 0], IMAGES[:, 1]
    moved = [geometry.translate(SHIFT, p, kappa) for p in (x, y)]
    got = functional.weighted_residual(*moved, 0.7, kappa)
    want = geometry.translate(SHIFT, functional.weighted_residual(x, y, 0.7, kappa), kappa)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    layer = nn.LorentzResidual(kappa=kappa, weight=0.7, param_dtype=jnp.float64)
    np.testing.assert_allclose(layer(x, y), functional.weighted_residual(x, y, 0.7, kappa))
    gradient = nnx.grad(lambda layer: jnp.sum(layer(x, y)))(layer)
    assert float(jnp.abs(gradient["scale"][...])) > 1e-3
    flat = functional.weighted_residual(x, y, 3.0, 1e-12)
    np.testing.assert_allclose(flat, (x + 3 * y) / 4, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="weight must be finite and at least 0"):
        functional.weighted_residual(x, y, -1.0, kappa)
    with pytest.raises(ValueError, match="agree in their last axis"):
        functional.weighted_residual(x, y[..., :2], 1.0, kappa)
    with pytest.raises(ValueError, match="weight must be finite and > 0"):
        nn.LorentzResidual(kappa=kappa, weight=0.0)
