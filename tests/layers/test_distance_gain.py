"""A gain on the distance of a unit: the function against mpmath, layers against the function."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, nn
from lorentz_jax.inference import compile_cached_v
from lorentz_jax.models import LorentzResNet
from lorentz_jax.training.state import flatten
from tests import second
from tests.compiled import quick_jit

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(5, 3))
IMAGES = RNG.normal(size=(2, 5, 5, 3))


def mp_scaled(x, gain, kappa):
    s = mp.sqrt(kappa)
    return mp.sinh(gain * mp.asinh(s * x)) / s


@quick_jit
def value_and_slopes(x, gain, kappa):
    run = jax.vmap(lambda x, g: functional.scale_distance(x[None], g, kappa)[0])
    ones, zero = jnp.ones_like(x), jnp.zeros_like(x)
    value, by_x = jax.jvp(run, (x, gain), (ones, zero))
    return value, by_x, jax.jvp(run, (x, gain), (zero, ones))[1]


@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 4e-6), (np.float64, 1e-14)])
def test_value_and_slopes(x64, kappa, dtype, digits):
    """From 1e-9 to radius 30 and beyond, with gains under and over 1."""
    sizes, gains = [0, 1e-9, 0.3, 7, 1e4, 1e12], [0.25, 1, 1.7]
    x = np.array([sign * a for a in sizes for sign in (1, -1) for _ in gains], dtype)
    gain = np.array(gains * (2 * len(sizes)), dtype)
    near = np.abs(gain * np.arcsinh(np.sqrt(kappa) * x.astype(np.float64))) < 39
    x, gain = x[near], gain[near]
    got = value_and_slopes(x, gain, dtype(kappa))
    with mp.workdps(50):
        k = mp.mpf(float(dtype(kappa)))
        for index, (a, g) in enumerate(zip(x.tolist(), gain.tolist(), strict=True)):
            s, angle = mp.sqrt(k), mp.asinh(mp.sqrt(k) * a)
            want = [
                mp.sinh(g * angle) / s,
                g * mp.cosh(g * angle) / mp.cosh(angle),
                angle * mp.cosh(g * angle) / s,
            ]
            for found, exact in zip(got, want, strict=True):
                # The angle is rounded, and the result is its exponential.
                loss = 1 + abs(g * angle)
                assert found.dtype == dtype
                assert abs(float(found[index]) - exact) <= digits * loss * abs(exact)


def test_second_derivatives(x64):
    rows = [((0.0, 0.6, -3.0), (1.7, 0.3, 1.0)), ((20.0, 0.0, 1e-5), (2.0, 1.0, 0.5))]

    def exact(x, gain, kappa):
        return [mp_scaled(a, g, kappa) for a, g in zip(x, gain, strict=True)]

    second.check(functional.scale_distance, exact, rows, 1e-11)


def test_second_derivatives_of_far_points_in_float32():
    """Autodiff of asinh forms the third power of its argument there."""
    hessian = jax.jit(jax.hessian(lambda x: functional.scale_distance(x[None], 0.5, 1.0)[0]))
    for radius in (10, 30, 38):
        with mp.workdps(50):
            want = float(mp.diff(lambda x: mp_scaled(x, 0.5, 1), mp.sinh(radius), 2))
        assert float(hessian(np.float32(np.sinh(radius)))) == pytest.approx(want, rel=2e-5)


def test_far_out_it_is_cut_where_a_square_is_finite():
    for dtype in (jnp.float32, jnp.bfloat16):
        y = functional.scale_distance(jnp.asarray([1e15, -1e15], dtype), 3.0, 1.0)
        assert y.dtype == dtype
        assert np.isfinite(np.square(np.asarray(y, np.float32))).all()
        assert y[0] > 1e15 > -1e15 > y[1]


def test_arguments():
    one, x = np.float32(1), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"gain must have shape \(\) or \(3,\), got \(2,\)"):
        functional.scale_distance(x, np.ones(2, np.float32), 1.0)
    with pytest.raises(TypeError, match="gain must be a floating-point array"):
        functional.scale_distance(x, np.ones(3, np.int32), 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        functional.scale_distance(x, one, -1.0)
    each = functional.scale_distance(x, one * 2, np.float32([1, 4]))
    np.testing.assert_allclose(each[1], functional.scale_distance(x[1], one * 2, 4.0), rtol=1e-6)


def layer_and_input(kind, **options):
    options |= {"kappa": 0.5, "rngs": nnx.Rngs(0), "param_dtype": jnp.float64}
    make, x = {"linear": (nn.LorentzLinear, POINTS), "conv": (nn.LorentzConv, IMAGES)}[kind]
    return make(3, 4, **options), x


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_layers(x64, kind):
    """At the start it is the layer without; then each unit's distance has its gain."""
    plain, x = layer_and_input(kind)
    layer, _ = layer_and_input(kind, distance_gain=True, activation=jax.nn.relu)
    plain.bias[...] = layer.bias[...] = jnp.linspace(-1, 1, 4)
    y = plain(x)
    np.testing.assert_allclose(layer(x), jax.nn.relu(y), rtol=1e-14)
    assert not hasattr(nnx.state(plain), "distance_gain")
    layer.distance_gain[...] = jnp.log(jnp.array([0.5, 1, 2, 3]))
    want = np.sinh(np.array([0.5, 1, 2, 3]) * np.arcsinh(0.5**0.5 * y)) / 0.5**0.5
    np.testing.assert_allclose(layer(x), np.maximum(want, 0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(compile_cached_v(layer)(x), layer(x), rtol=1e-12, atol=1e-14)


def test_a_norm_behind_it(x64):
    conv, x = layer_and_input("conv", distance_gain=True)
    norm = nn.LorentzBatchNorm(4, kappa=0.5, param_dtype=jnp.float64)
    conv.distance_gain[...] = jnp.linspace(-1, 1, 4)
    want = functional.center_batch(conv(x), jnp.zeros(4), 0.5)[0]
    np.testing.assert_allclose(nn.conv_norm(conv, norm, x), want, rtol=1e-12, atol=1e-14)
    pair = nnx.Sequential(conv, norm)
    pair.eval()
    np.testing.assert_allclose(compile_cached_v(pair)(x), pair(x), rtol=1e-12, atol=1e-14)


def test_a_network_has_gains_in_every_convolution():
    def gains(**options):
        def make():
            return LorentzResNet((1,), 2, 3, in_channels=1, rngs=nnx.Rngs(0), **options)

        state = nnx.state(nnx.eval_shape(make), nnx.Param)
        return [path for path in flatten(state) if path.endswith("/distance_gain")]

    assert len(gains(distance_gain=True)) == 3
    assert not gains()


@pytest.mark.parametrize("use_bias", [True, False])
def test_layers_made_of_linear_ones(x64, use_bias):
    """A gain acts in attention and on a graph too, and in what is compiled of them."""
    options = {
        "kappa": 0.5, "rngs": nnx.Rngs(0), "param_dtype": jnp.float64, "distance_gain": True,
        "use_bias": use_bias,
    }  # fmt: skip
    attention = nn.LorentzAttention(2, 3, 4, **options)
    graph = nn.LorentzGraphConv(3, 4, **options)
    adjacency = jnp.abs(jnp.asarray(RNG.normal(size=(5, 5))))
    graph.distance_gain[...] = jnp.linspace(-1, 1, 4)
    y = functional.linear(POINTS, graph.normals(), 0.5)
    y = functional.scale_distance(y, jnp.exp(jnp.linspace(-1, 1, 4)), 0.5)
    want = functional.aggregate(y, adjacency, 0.5)
    np.testing.assert_allclose(graph(POINTS, adjacency=adjacency), want, rtol=1e-12)
    compiled = compile_cached_v(graph)
    np.testing.assert_allclose(compiled(POINTS, None, adjacency), want, rtol=1e-12)
    before = attention(POINTS)
    attention.qkv.distance_gain[...] = jnp.linspace(-1, 1, 12)
    after = attention(POINTS)
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_allclose(attention(POINTS, key=POINTS), after, rtol=1e-11)
    np.testing.assert_allclose(compile_cached_v(attention)(POINTS), after, rtol=1e-11)
