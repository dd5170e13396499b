"""The norm of points, a learned temperature, and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, geometry, nn
from tests.compiled import quick_jit, run
from tests.oracle import assert_close

F32 = np.float32


def points(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_layer_norm_is_a_projection_and_a_move_along_a_geodesic(x64, kappa):
    """To the nearest point with coordinates that sum to 0, then to a fixed distance."""
    x, s = points(6, 5), kappa**0.5
    normal = np.full(5, 5**-0.5)
    ambient = np.asarray(geometry.lift(x, kappa))
    nearest = ambient - (x @ normal)[:, None] * np.concatenate([[0], normal])
    square = np.square(nearest[:, 1:]).sum(-1) - np.square(nearest[:, 0])
    nearest = nearest / np.sqrt(-kappa * square)[:, None]  # on the hyperboloid again
    logs = geometry.log0(nearest[:, 1:], kappa)
    length = np.arcsinh(s * 5**0.5) / s
    want = geometry.exp0(logs * (length / np.linalg.norm(logs, axis=-1))[:, None], kappa)
    assert_close(functional.layer_norm(x, epsilon=1e-30), want, 1e-13)


def test_layer_norm_has_the_derivatives_of_its_formula(x64):
    """At equal coordinates too, first and second; scale and bias."""
    scale, bias, g = points(3, 4, seed=1)
    x = np.stack([points(4), np.full(4, 3.0), np.zeros(4)])

    def formula(x, scale, bias):
        centred = x - x.mean()
        return g @ (scale * centred * (jnp.mean(centred**2) + 1e-2) ** -0.5 + bias)

    def ours(x, scale, bias):
        return g @ functional.layer_norm(x, scale, bias, 1e-2)

    def all_of(f):
        every = jax.value_and_grad(f, (0, 1, 2)), jax.hessian(f, (0, 1, 2))
        return [jax.tree.leaves(quick_jit(jax.vmap(d, (0, None, None)))(x, scale, bias))
                for d in every]  # fmt: skip

    for got, want in zip(all_of(ours), all_of(formula), strict=True):
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, 1e-11, axis=None)


def test_layer_norm_of_far_points_in_float32():
    """It is the same along a ray, so that the radial derivative is about 0, out to 1e20 too."""
    direction = np.array([0.3, -1.2, 0.5, 0.1])
    want = functional.layer_norm(1e6 * direction)
    for size in (np.sinh(32), np.sinh(40), 1e20):
        x = jnp.asarray(size * direction, jnp.float32)
        value, radial = jax.jvp(functional.layer_norm, (x,), (x,))
        assert_close(value, want, 1e-6)
        assert np.abs(radial).max() < 1e-6
    with pytest.raises(ValueError, match="epsilon must be positive, got 0"):
        functional.layer_norm(x, epsilon=0)


def test_the_norm_layer_keeps_digits_and_dtype():
    """Flax's loses them: its variance is a difference of squares."""
    layer, flat = nn.LorentzLayerNorm(8), nnx.LayerNorm(8, rngs=nnx.Rngs(0))
    x = points(3, 8)
    for a in (layer, flat):
        a.scale[...], a.bias[...] = jnp.asarray(points(2, 8, seed=1), jnp.float32)
    np.testing.assert_allclose(layer(F32(x), 0.5), flat(F32(x)), rtol=1e-5, atol=1e-6)
    far = F32(x + 4096)
    centred = far.astype(np.float64) - far.astype(np.float64).mean(-1, keepdims=True)
    want = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(functional.layer_norm(far), want, rtol=1e-3, atol=1e-3)
    assert layer(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16
    bare = nn.LorentzLayerNorm(8, use_scale=False, use_bias=False)
    assert not jax.tree.leaves(nnx.state(bare))
    for make, message in (
        (lambda: nn.LorentzLayerNorm(0), "features must be at least 1"),
        (lambda: nn.LorentzLayerNorm(2, epsilon=-1.0), "epsilon must be positive"),
        (lambda: functional.layer_norm(far, epsilon=-1.0), "epsilon must be positive"),
        (lambda: functional.layer_norm(far, np.ones(3, F32)), r"scale must have shape \(8,\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make()


def attention(**options):
    return nn.LorentzAttention(2, 4, kappa=0.7, rngs=nnx.Rngs(0), **options)


def test_a_temperature_is_learned():
    """A parameter of one number a head: found by `nnx.split`, and it gets the right gradient."""
    temperature = np.array([0.5, 2.0], F32)
    layer = attention(temperature=nnx.Param(jnp.asarray(temperature)))
    x = points(3, 4).astype(F32)
    graphdef, params = nnx.split(layer, nnx.Param)
    assert params["temperature"].shape == (2,)

    @quick_jit
    @jax.value_and_grad
    def loss(t):
        return jnp.sum(nnx.merge(graphdef, params | {"temperature": nnx.Param(t)})(x) ** 2)

    for step, got in zip(0.02 * np.eye(2, dtype=F32), loss(temperature)[1], strict=True):
        want = float(loss(temperature + step)[0] - loss(temperature - step)[0]) / 0.04
        assert float(got) == pytest.approx(want, rel=2e-2, abs=1e-4)
    pair = (attention(temperature=t) for t in (0.5, nnx.Param(jnp.float32(0.5))))
    np.testing.assert_allclose(*(run(layer, x) for layer in pair), rtol=1e-6)
    for bad in (-1.0, 0.0, nnx.Param(jnp.array([1.0, -1.0]))):
        with pytest.raises(ValueError, match="temperature must be positive"):
            attention(temperature=bad)
    with pytest.raises(ValueError, match=r"temperature of shape \(3,\)"):
        attention(temperature=nnx.Param(jnp.ones(3)))


def test_another_layer_in_the_attention_is_followed():
    layer, x = attention(), points(3, 4).astype(F32)
    before = run(layer, x)
    layer.out = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    layer.out.kernel[...], layer.out.bias[...] = jnp.eye(4), jnp.full(4, 0.25)
    after = run(layer, x)
    assert np.abs(after - before).max() > 1e-3
    layer.out.bias[...] = jnp.zeros(4)
    np.testing.assert_allclose(after - run(layer, x), 0.25, rtol=1e-5)


def test_dropout_of_space_parts_tends_to_that_of_vectors(x64):
    """Flax's own layer: the rest is scaled up, and a point with nothing left is the origin."""
    layers = nn.LorentzLinear(4, 6, kappa=1.0, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    layers.bias[...] = points(6)
    (w, b), x = layers.weights(1e-9), points(3, 4)

    def drop(y):  # with the same key
        return nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=1))(y)

    got = drop(layers(drop(x), 1e-9))
    assert_close(got, drop(drop(x) @ w + b), 1e-7)
    assert 0 < np.mean(np.asarray(got) == 0) < 1
    gone = nnx.Dropout(1.0, rngs=nnx.Rngs(0))(x)
    np.testing.assert_array_equal(geometry.dist0(gone, 0.5), 0)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"temperature": np.float32([1, 2])}])
def test_attention_of_a_batch_without_rank_promotion(options):
    x = jnp.asarray(points(2, 5, 4), jnp.float32)
    with jax.numpy_rank_promotion("raise"):
        for dtype in (jnp.float32, jnp.bfloat16):
            layer = nn.LorentzAttention(
                2, 4, kappa=1.0, rngs=nnx.Rngs(0), param_dtype=dtype, **options
            )
            assert jax.eval_shape(layer, x).dtype == jnp.float32
        kappa = jnp.float32([1, 2])
        both = jax.eval_shape(lambda x: functional.attention(x, x, x, kappa, **options), x)
        assert both.shape == x.shape
