"""Linear layer, convolution, weight norm and activation against golden data and mpmath."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import ambient, functional, geometry
from lorentz_jax.hyperplane import normals
from tests import oracle, reference
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

relu = jax.nn.relu


def weights_of(p):
    w = p["U"] if "U" in p else functional.weight_norm(p["v"], jax.nn.softplus(p["g"]))
    return w, -p["a"][0]


def section(prefix):
    return {k.removeprefix(prefix): v for k, v in golden("layers").items() if k.startswith(prefix)}


# --- golden data ----------------------------------------------------------------------------


@functools.partial(quick_jit, static_argnums=0)
def dense(through_ambient, p, X, R, Rm, kappa):
    """Outputs of the layer with ReLU and without, logits, and their gradients by p and X."""

    def outputs(p, X):
        v = normals(*weights_of(p), kappa)
        if through_ambient:
            outs = [ambient.linear(X, v, kappa, h) for h in (relu, None)]
            return [*outs, ambient.mlr(X, v, kappa)]
        x = X[..., 1:]
        outs = [geometry.lift(functional.linear(x, v, kappa, h), kappa) for h in (relu, None)]
        return [*outs, functional.mlr(x, v, kappa)]

    def losses(p, X):
        outs = outputs(p, X)
        return jnp.stack([jnp.sum(r * y) for r, y in zip((R, R, Rm), outs, strict=True)])

    return outputs(p, X), jax.jacrev(losses, (0, 1))(p, X)


@pytest.mark.parametrize(("form", "dimension"), [("U", "d0"), ("wn", "d1"), ("U", "d2")])
def test_golden_linear_and_mlr(x64, kappa, form, dimension):
    """Plain weights directly, weight norm through `ambient`."""
    data = section(f"fc/k{kappa:g}/{dimension}/{form}/")
    p = {name: data[name] for name in (("U", "a") if form == "U" else ("v", "g", "a"))}
    outs, (by_p, by_x) = dense(form == "wn", p, data["x"], data["R"], data["Rm"], kappa)
    for i, (name, want) in enumerate([("relu", "relu_y"), ("id", "id_y"), ("mlr", "ref_d2")]):
        assert_close(outs[i], data[want], 1e-13, what=want)
        pulled = reference.pull_back(data[f"{name}_grad_x"], data["x"])
        assert_close(by_x[i, :, 1:], pulled, 1e-12, what=f"{name} by x")
        assert not by_x[i, :, 0].any()
        for key, gradient in by_p.items():
            assert_close(gradient[i], data[f"{name}_grad_{key}"], 1e-12, axis=0, what=key)


@functools.partial(quick_jit, static_argnames=("size", "strides", "h"))
def image_layer(p, x, R, kappa, size, strides, h):
    def run(p, x):
        w, b = weights_of(p)
        v = normals(w.reshape(size, size, -1, w.shape[-1]), b, kappa)
        y = geometry.lift(functional.conv(x, v, kappa, strides, activation=h), kappa)
        return jnp.sum(R * y), y

    (_, y), gradients = jax.value_and_grad(run, (0, 1), has_aux=True)(p, x)
    return y, *gradients


CONVS = [
    ("k3p1s1", "d0", "ours_U_relu"),
    ("k3p1s2", "d1", "ours_wn_id"),
    ("k1p0s2", "d0", "ours_U_relu"),
]


@pytest.mark.parametrize(("window", "d", "config"), CONVS)
def test_golden_conv(x64, kappa, window, d, config):
    data = section(f"conv/k{kappa:g}/{d}/{window}/{config}/")
    X = reference.channels_last(golden("layers")[f"conv/k{kappa:g}/{d}/x"])
    p = {name: data[name] for name in ("U", "v", "g", "a") if name in data}
    R, grad_x, y = (reference.channels_last(data[name]) for name in ("R", "grad_x", "y"))
    how = {"size": int(window[1]), "strides": int(window[5]), "h": relu if "U" in p else None}
    got, by_p, by_x = image_layer(p, X[..., 1:], R, kappa, **how)
    assert_close(got, y, 1e-13)
    assert_close(by_x, reference.pull_back(grad_x, X), 1e-12, axis=(1, 2, 3), what="x")
    for name, gradient in by_p.items():
        assert_close(gradient, data[f"grad_{name}"], 1e-12, axis=0, what=name)


# --- worked examples ------------------------------------------------------------------------

X = np.array([0.5, -0.25])
W, B = np.array([[1, 0.5], [2, -1.0]]), np.array([0.125, -0.25])


def dense_layer(x, w, b, kappa):
    return functional.linear(x, normals(w, b, kappa), kappa)


layer, layer_jacobian = quick_jit(dense_layer), quick_jit(jax.jacrev(dense_layer, (1, 2)))


WORKED = [
    (1.0, np.float64, [0.14328008831528156, 0.22374845710342248], 1e-15),
    (0.25, np.float64, [0.12980789838777112, 0.24300512692637218], 1e-15),
    (4.0, np.float64, [0.18789086921329852, 0.16321331187977282], 1e-15),
    (1e-8, np.float64, [0.125000000196, 0.249999999714], 1e-11),
    (1e-8, np.float32, [0.125, 0.25], 1e-5),
]


@pytest.mark.parametrize(("kappa", "dtype", "want", "tolerance"), WORKED)
def test_linear_on_a_worked_example(x64, kappa, dtype, want, tolerance):
    got = layer(*(a.astype(dtype) for a in (X, W, B)), kappa)
    assert_close(got, want, 4 * tolerance, axis=None)


@pytest.mark.usefixtures("x64")
def test_gradient_of_a_worked_example():
    by_w, by_b = layer_jacobian(X, W, B, 0.25)
    want = [0.50018856474004793, -0.25011118355987588, 1.0387336061397997]
    assert_close(np.array([*by_w[0, :, 0], by_b[0, 0]]), want, 1e-14, axis=None)


def test_changed_weights_are_seen(x64):  # normals are a function of the weights
    changed = W + np.array([[1, 0], [0, 0]])
    want = [0.6437404721186, 0.2237484571034]
    assert_close(layer(X, changed, B, 1.0), want, 1e-12)


def test_zero_weights_are_a_layer_too(kappa):
    x, zero = X.astype(np.float32), np.zeros((2, 1), np.float32)
    assert layer(x, zero, np.zeros(1, np.float32), kappa) == 0
    by_w, by_b = layer_jacobian(x, zero, np.zeros(1, np.float32), kappa)
    np.testing.assert_allclose(by_w[0, :, 0], X)
    np.testing.assert_allclose(by_b[0, 0], np.sqrt(1 + kappa * X @ X), rtol=1e-6)


def test_planes_beyond_the_range_of_sinh_stay_finite():
    w, b = np.float32([[0.01, 0.01], [0, 0]]), np.float32([1, -1])
    y = layer(X.astype(np.float32), w, b, 1.0)
    assert np.isfinite(y).all()
    assert y[0] > 1e30
    by_w, by_b = layer_jacobian(X.astype(np.float32), w, b, 1.0)
    assert np.isfinite(by_w).all()
    assert np.isfinite(by_b).all()


# --- convolution by its definition ----------------------------------------------------------


def patches(x, size, strides, pads):
    """`(N, H', W', kh, kw, C)` windows of images padded with the origin."""
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, size, (1, 2))
    return windows[:, :: strides[0], :: strides[1]].transpose(0, 1, 2, 4, 5, 3)


same, valid, wide = [(1, 1), (1, 1)], [(0, 0), (0, 0)], [(2, 0), (1, 3)]
WINDOWS = [  # size, strides, padding, and the last two spelled out
    ((3, 3), 1, None, (1, 1), same),
    ((3, 3), 2, 1, (2, 2), same),
    ((3, 3), (2, 1), "VALID", (2, 1), valid),
    ((3, 2), 1, "SAME", (1, 1), [(1, 1), (0, 1)]),
    ((1, 1), (1, 2), None, (1, 2), valid),
    ((3, 3), 2, ((2, 0), (1, 3)), (2, 2), wide),
    ((2, 3), 1, (0, 2), (1, 1), [(0, 0), (2, 2)]),
]


@pytest.mark.parametrize(("size", "strides", "padding", "step", "pads"), WINDOWS)
def test_conv_is_the_layer_of_each_patch(x64, size, strides, padding, step, pads):
    rng, kappa = np.random.default_rng(0), 0.4
    x, w, b = (rng.normal(size=s) for s in ((2, 6, 7, 3), (*size, 3, 4), (4,)))
    v = normals(w, b, kappa)
    got = quick_jit(lambda x: functional.conv(x, v, kappa, strides, padding))(x)
    cut = patches(x, size, step, pads)
    points, units = cut.reshape(-1, math.prod(size) * 3), w.reshape(-1, 4).T
    chosen = points[:: max(1, len(points) // 6)]

    def layer(point, b, kappa):
        return oracle.mp_linear(oracle.mp_lift(point, kappa), rows, b, kappa)[1:]

    rows = oracle.exactly(units)
    want = oracle.evaluate(layer, chosen, b[None], kappa=kappa)
    assert got.shape == (*cut.shape[:3], 4)
    assert_close(got.reshape(-1, 4)[:: max(1, len(points) // 6)], want, 1e-13)


@pytest.mark.parametrize("kappa", [0.25, 1.0])
def test_padding_is_the_origin(kappa):
    image, kernel = np.zeros((2, 5, 5, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    run = quick_jit(lambda v, kappa: functional.conv(image, v, kappa))
    assert not run(normals(kernel, np.zeros(4, np.float32), kappa), kappa).any()
    y = run(normals(kernel, np.ones(4, np.float32), kappa), kappa)
    np.testing.assert_allclose(y, np.broadcast_to(y[0, 2, 2], y.shape), rtol=1e-6)


def test_batch_axes_of_conv():
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 5, 5, 2), (3, 3, 2, 4)))
    v = normals(w, np.zeros(4, np.float32), 1.0)
    run = jax.jit(functional.conv)
    y = run(x, v, 1.0)
    assert y.shape == (2, 3, 5, 5, 4)
    np.testing.assert_array_equal(run(x.reshape(6, 5, 5, 2), v, 1.0), y.reshape(6, 5, 5, 4))
    mapped = jax.jit(jax.vmap(functional.conv, (0, None, None)))(x, v, 1.0)
    np.testing.assert_allclose(mapped, y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(functional.conv(x[0, 0], v, 1.0), y[0, 0], rtol=1e-6, atol=1e-6)
    assert run(x[:0], v, 1.0).shape == (0, 3, 5, 5, 4)


def test_no_patches_are_formed():
    def loss(x, v):
        return jnp.sum(functional.conv(x, v, 1.0) ** 2)

    shape, v = (2, 8, 8, 16), normals(jnp.ones((3, 3, 16, 8)), jnp.zeros(8), 1.0)
    for run in (loss, jax.grad(loss, (0, 1))):
        lowered = jax.jit(run).lower(jnp.ones(shape), v)
        text = lowered.compile().as_text() + lowered.as_text()
        sizes = [
            math.prod(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)", text)
        ]
        sizes += [
            math.prod(map(int, dims.split("x"))) for dims in re.findall(r"<([\dx]+)xf32>", text)
        ]
        assert len(sizes) > 50
        assert max(sizes) < 2 * math.prod(shape)
