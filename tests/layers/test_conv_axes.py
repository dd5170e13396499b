"""Convolutions with one, two and three spatial axes, dilation, groups, and transposed ones.

The oracle forms every patch by hand, lifts its point, and takes Minkowski products.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, nn
from lorentz_jax.hyperplane import normals
from lorentz_jax.inference import compile_cached_v
from tests.compiled import quick_jit

CASES = {
    "1d": ((3,), 1, None, 1, 1),
    "1d, stride 2, dilation 2": ((3,), 2, None, 2, 1),
    "2d, dilation (1, 2)": ((3, 2), 1, ((1, 0), (2, 1)), (1, 2), 1),
    "2d, groups": ((3, 3), (2, 1), 1, 1, 2),
    "2d, depthwise": ((3, 3), 1, None, 1, 4),
    "3d": ((2, 1, 3), (1, 2, 1), None, 1, 1),
    "3d, valid, groups": ((2, 2, 2), 1, "VALID", 1, 2),
}
each = pytest.mark.parametrize("case", CASES)


def draw(size, groups, dtype=np.float64):
    rng = np.random.default_rng(0)
    shape = (5, 4, 6)[: len(size)]
    x = rng.normal(size=(2, *shape, 4)).astype(dtype)
    return x, *(rng.normal(size=s).astype(dtype) for s in ((*size, 4 // groups, 8), (8,)))


def by_patches(x, v, kappa, size, strides, padding, dilation, groups):
    """Every output pixel from the concatenated point of its patch, group by group, in numpy."""
    axes = len(size)
    strides, dilation = (np.broadcast_to(n, axes) for n in (strides, dilation))
    reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    if padding is None:
        padding = [(r // 2, r // 2) for r in reach]
    elif padding == "VALID":
        padding = [(0, 0)] * axes
    elif isinstance(padding, int):
        padding = [(padding, padding)] * axes
    x = np.pad(x, [(0, 0), *padding, (0, 0)])
    space, time = np.asarray(v.space), np.asarray(v.times)
    count = [(n - r - 1) // s + 1 for n, r, s in zip(x.shape[1:], reach, strides, strict=False)]
    out = np.zeros((len(x), *count, len(time)))
    inputs, units = x.shape[-1] // groups, len(time) // groups
    for place in itertools.product(*map(range, count)):
        corner = [p * s for p, s in zip(place, strides, strict=True)]
        index = tuple(
            slice(c, c + r + 1, d) for c, r, d in zip(corner, reach, dilation, strict=True)
        )
        for g in range(groups):
            patch = x[(slice(None), *index, slice(g * inputs, (g + 1) * inputs))]
            patch = patch.reshape(len(x), -1)
            own = slice(g * units, (g + 1) * units)
            plane = space[..., own].reshape(-1, units)
            t = np.sqrt(1 / kappa + np.sum(patch**2, axis=1, keepdims=True))
            out[(slice(None), *place, own)] = patch @ plane - t * time[own]
    return out


@each
@pytest.mark.parametrize("kappa", [0.1, 2.5])
def test_values_are_those_of_concatenated_patches(x64, case, kappa):
    size, strides, padding, dilation, groups = CASES[case]
    x, w, b = draw(size, groups)
    v = normals(w, b, kappa)
    got = functional.conv(x, v, kappa, strides, padding, None, dilation, groups)
    want = by_patches(x, v, kappa, size, strides, padding, dilation, groups)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    flat = normals(w, None, kappa)
    got = functional.conv(x, flat, kappa, strides, padding, None, dilation, groups)
    want = by_patches(x, flat, kappa, size, strides, padding, dilation, groups)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@each
def test_the_fused_norm_is_the_plain_one(x64, case):
    size, strides, padding, dilation, groups = CASES[case]
    x, w, b = draw(size, groups)
    b = None if groups > 1 else b
    beta, kappa = jnp.linspace(-1, 1, 8), 0.7

    def plain(x, w, beta, kappa):
        y = functional.conv(
            x, normals(w, b, kappa), kappa, strides, padding, None, dilation, groups
        )
        return functional.center(y, functional.batch_mean(y, kappa), beta, kappa)

    def fused(x, w, beta, kappa):
        window = {"dilation": dilation, "groups": groups}
        v = normals(w, b, kappa)
        return functional.conv_center(x, v, beta, kappa, strides, padding, **window)[0]

    def with_gradients(f):
        def loss(*arguments):
            out = f(*arguments)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

        return quick_jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(x, w, beta, kappa)

    for got, want in zip(*map(jax.tree.leaves, map(with_gradients, (fused, plain))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@each
def test_layers_norms_and_batch_axes(case):
    size, strides, padding, dilation, groups = CASES[case]
    x, *_ = draw(size, groups, np.float32)
    options = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    conv = nn.LorentzConv(4, 8, size, kappa=0.5, rngs=nnx.Rngs(0), **options)
    assert conv.kernel.shape == (*size, 4 // groups, 8)
    conv.bias[...] = jnp.linspace(-1, 1, 8)
    y = conv(x)
    np.testing.assert_allclose(conv(x[None])[0], y, rtol=1e-6, atol=1e-6)
    want = by_patches(x, conv.normals(), 0.5, size, strides, padding, dilation, groups)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    norm = nn.LorentzBatchNorm(8, kappa=0.5)
    together = nn.conv_norm(conv, norm, x)
    other = nn.LorentzBatchNorm(8, kappa=0.5)
    np.testing.assert_allclose(together, other(conv(x)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.mean[...], other.mean[...], rtol=1e-4, atol=1e-6)
    assert conv(x[:0]).shape == (0, *y.shape[1:])


@pytest.mark.parametrize(("size", "groups"), [((3,), 1), ((3, 3), 2), ((2, 2, 2), 1)])
def test_the_compiled_form(x64, size, groups):
    x, *_ = draw(size, groups)
    rngs, options = nnx.Rngs(0), {"kappa": 0.5, "param_dtype": jnp.float64}
    conv = nn.LorentzConv(4, 8, size, rngs=rngs, groups=groups, **options)
    conv.bias[...] = jnp.linspace(-1, 1, 8)
    norm = nn.LorentzBatchNorm(8, **options)
    norm.mean[...], norm.beta[...] = jnp.linspace(0, 1, 8), jnp.linspace(1, -1, 8)
    model = nnx.Sequential(conv, norm)
    compiled = compile_cached_v(model)
    assert compiled.layers["layers/0"]["folded"] == (groups == 1)
    model.eval()
    np.testing.assert_allclose(compiled(x), model(x), rtol=1e-11, atol=1e-11)


def test_wrong_groups_dilation_and_axes():
    x, w, b = draw((3, 3), 2, np.float32)
    v = normals(w, b, 1.0)
    with pytest.raises(ValueError, match=r"D_in = 6 = 2 \* 3 groups"):
        functional.conv(x, v, 1.0, groups=3)
    with pytest.raises(ValueError, match="D_in = 2 space coordinates"):
        functional.conv(x, v, 1.0)
    with pytest.raises(ValueError, match="dilation must be one positive number or 2 of them"):
        functional.conv(x, v, 1.0, dilation=(1, 2, 3), groups=2)
    with pytest.raises(ValueError, match="groups > 1 need normals without a time"):
        functional.conv_center(x, v, jnp.zeros(8), 1.0, groups=2)
    with pytest.raises(ValueError, match="3 groups of 4 input and 8 output features"):
        nn.LorentzConv(4, 8, groups=3, kappa=1.0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="2 groups do not divide the 7 units"):
        functional.conv(x, normals(w[..., :7], b[:7], 1.0), 1.0, groups=2)
    with pytest.raises(ValueError, match="at least 3 axes"):
        functional.conv(x[0, 0], v, 1.0, groups=2)
