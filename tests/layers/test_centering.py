"""The centring norm at the batch's own mean, in the form of every device, against autodiff."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import ambient, functional, geometry, hyperplane
from lorentz_jax._src import centering, forms
from tests.compiled import enable_x64, quick_jit

FORMS = {"cpu": forms.CPU, "gpu": forms.GPU, "tpu": forms.TPU}
NAMES = ["x", "beta", "kappa", "scale"]


def points(shape=(3, 5, 7, 6), radius=None, kappa=1.0, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=shape) + 0.5
    if radius is not None:
        s = np.sqrt(kappa)
        x *= np.sinh(radius * s) / s / np.linalg.norm(x, axis=-1, keepdims=True)
    return x, random.normal(size=shape[-1:]), random.normal(size=shape)


def in_form(form):
    """`centering` in one form, whatever the device."""

    @jax.custom_vjp
    def center(x, beta, kappa, scale):
        return centering.forward(form, x, scale, beta, kappa)[0]

    def keep(x, beta, kappa, scale):
        results, kept = centering.forward(form, x, scale, beta, kappa)
        return results, (kept, x, scale)

    def pull_back(residuals, g):
        kept, x, scale = residuals
        g_x, g_beta, g_kappa, _ = centering.backward(form, kept, g[0])
        product = (g_x * x).reshape(-1, x.shape[-1]).astype(scale.dtype)
        g_scale = jnp.sum(product, axis=0) / scale
        return g_x, g_beta, g_kappa, g_scale

    center.defvjp(keep, pull_back)
    return center


def plain(x, beta, kappa, scale):
    y = scale * x
    mean = functional.batch_mean(y, kappa)
    return functional.center(y, mean, beta, kappa), mean


def value_and_gradients(function, cotangent, *arguments):
    def loss(*arguments):
        out, mean = function(*arguments)
        return jnp.sum(out * cotangent), (out, mean)

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)
    (_, outputs), gradients = quick_jit(gradient)(*arguments)
    return outputs, gradients


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(3, 5, 7, 6), (40, 6)])
def test_value_mean_and_every_gradient(x64, kappa, form, shape):
    x, beta, g = points(shape)
    scale = np.linspace(-1.5, 2, shape[-1])
    (out, mean), gradients = value_and_gradients(in_form(FORMS[form]), g, x, beta, kappa, scale)
    (want, centre), right = value_and_gradients(plain, g, x, beta, kappa, scale)
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, centre, rtol=1e-12, atol=1e-14)
    for name, a, b in zip(NAMES, gradients, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_far_points_in_float32(form):
    """At r = 10, all around the origin; a tight cluster there loses eps e^(2 s r)."""
    kappa = 2.5
    x, beta, g = points((6, 4, 4, 3), radius=10.0, kappa=kappa)
    single = [np.float32(a) for a in (g, x, beta, kappa, np.ones(3))]
    (out, _), gradients = value_and_gradients(in_form(FORMS[form]), *single)
    with enable_x64(True):
        (want, _), right = value_and_gradients(plain, *map(np.float64, single))
    np.testing.assert_allclose(out, want, atol=4e-6 * np.abs(want).max())
    for name, a, b in zip(NAMES[:3], gradients[:3], right[:3], strict=True):
        np.testing.assert_allclose(a, b, atol=4e-6 * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_rounds_images_alone(form):
    """bfloat16 points, float32 numbers: as exact as the roundings of input and output."""
    x, beta, g = points((4, 6, 6, 8))
    half = jnp.asarray(x, jnp.bfloat16)
    exact = np.asarray(half, np.float64)
    center = in_form(FORMS[form])
    arguments = (half, jnp.float32(beta), jnp.float32(0.1), jnp.ones(8, jnp.float32))

    def loss(*arguments):
        out, _ = center(*arguments)
        assert out.dtype == jnp.bfloat16
        return jnp.sum(out.astype(jnp.float32) * np.float32(g)), out

    (_, out), (g_x, g_beta, g_kappa) = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arguments)
    with enable_x64(True):
        (want, _), right = value_and_gradients(plain, g, exact, beta, 0.1, np.ones(8))
    np.testing.assert_allclose(np.float64(out), want, atol=2**-8 * np.abs(want).max())
    assert (g_x.dtype, g_beta.dtype) == (jnp.bfloat16, jnp.float32)
    # The cotangent arrives in bfloat16, too.
    for name, a, b in zip(NAMES, (g_x, g_beta, g_kappa), right, strict=False):
        np.testing.assert_allclose(np.float64(a), b, atol=8e-3 * np.abs(b).max(), err_msg=name)


def test_the_form_is_that_of_the_device_it_is_lowered_for():
    x, beta, _ = (jnp.float32(a) for a in points())
    gradient = jax.jit(jax.grad(lambda x: functional.center_batch(x, beta, 1.0)[0].sum()))

    def text(platform):
        return str(jax.export.export(gradient, platforms=[platform])(x).mlir_module())

    products = {name: text(name).count("stablehlo.dot_general") for name in ("cpu", "cuda", "tpu")}
    assert products["cpu"] >= 4
    assert products["cuda"] == products["tpu"] == 0
    assert "optimization_barrier" in text("cuda")
    assert "optimization_barrier" not in text("tpu")


def test_the_public_function_centres_any_batch_shape(kappa):
    x, beta, _ = (np.float32(a) for a in points((2, 3, 4)))
    y, mean = functional.center_batch(x, beta, kappa)
    np.testing.assert_allclose(mean, functional.batch_mean(x, kappa), rtol=1e-5)
    np.testing.assert_allclose(functional.batch_mean(y, kappa), beta, rtol=1e-5, atol=1e-5)
    one, at = functional.center_batch(x[0, 0], beta, kappa)
    np.testing.assert_allclose(one, beta, rtol=1e-5)
    np.testing.assert_allclose(at, x[0, 0], rtol=1e-5)
    mapped = jax.vmap(lambda x: functional.center_batch(x, beta, kappa)[0])(x)
    np.testing.assert_allclose(mapped[0], functional.center_batch(x[0], beta, kappa)[0], rtol=1e-5)


def test_gradients_of_a_map_and_of_a_checkpoint(x64):
    x, beta, g = points((2, 3, 4))
    kappas = np.array([0.1, 2.5])

    def gradients(center, x, kappa, g):
        loss = lambda x, beta, kappa: jnp.sum(center(x, beta, kappa) * g)  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(x, beta, kappa)

    def fused(x, beta, kappa):
        return functional.center_batch(x, beta, kappa)[0]

    def apart(x, beta, kappa):
        return functional.center(x, functional.batch_mean(x, kappa), beta, kappa)

    want = jax.vmap(functools.partial(gradients, apart))(x, kappas, g)
    for center in (fused, jax.checkpoint(fused)):
        got = jax.vmap(functools.partial(gradients, center))(x, kappas, g)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_the_returned_mean_carries_no_gradient():
    x, beta, _ = (np.float32(a) for a in points((3, 4)))
    slope = jax.grad(lambda x: functional.center_batch(x, beta, 1.0)[1].sum())(x)
    np.testing.assert_array_equal(slope, 0)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from lorentz_jax import functional, hyperplane

random = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
x, w, beta, scale = draw(4, 3, 3, 2), draw(3, 3, 2, 5), draw(5), draw(5)

def norm(x, w, beta, scale):
    y = functional.conv(x, hyperplane.normals(w * scale, None, 1.3), 1.3)
    return jnp.sum(jnp.sin(functional.center_batch(y, beta, 1.3)[0]))

def fused(x, w, beta, scale):
    planes = hyperplane.normals(w, None, 1.3)
    return jnp.sum(jnp.sin(functional.conv_center(x, planes, beta, 1.3, unit_scale=scale)[0]))

mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
specs = P("d"), P(), P(), P()
for loss in (norm, fused):
    total = lambda *a: jax.lax.psum(loss(*a), "d")
    mapped = jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P())
    got = jax.jit(jax.grad(mapped, (1, 2, 3)))(x, w, beta, scale)
    parts = [jax.grad(loss, (1, 2, 3))(part, w, beta, scale) for part in (x[:2], x[2:])]
    for a, *b in zip(got, *parts, strict=True):
        np.testing.assert_allclose(a, sum(b), rtol=1e-4, atol=1e-5)
"""


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map")
def test_gradients_inside_shard_map():
    """Statistics are those of a device's own points; what all devices share gets the sum."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "error", "-c", SHARDED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_what_does_not_fit_is_refused():
    x, beta, _ = (np.float32(a) for a in points((2, 3, 4)))
    with pytest.raises(ValueError, match="no points"):
        functional.center_batch(x[:0], beta, 1.0)
    with pytest.raises(ValueError, match=r"beta must have shape \(4,\)"):
        functional.center_batch(x, beta[:3], 1.0)
    with pytest.raises(ValueError, match="kappa"):
        functional.center_batch(x, beta, 0.0)


# --- planes through the origin: normals without a time ---


def kernel(*shape, seed=2):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_layers_of_normals_without_time_are_those_of_zero_biases(kappa):
    x, w = kernel(2, 6, 6, 3, seed=3), kernel(3, 3, 3, 4)
    bare, full = (hyperplane.normals(w, b, kappa) for b in (None, jnp.zeros(4)))
    assert bare.time is None
    assert full.time is not None
    relu = jax.nn.relu
    for got, want in (
        (functional.conv(x, bare, kappa, 2), functional.conv(x, full, kappa, 2)),
        (functional.conv(x, bare, kappa, 1, 0, relu), functional.conv(x, full, kappa, 1, 0, relu)),
        (
            functional.conv_center(x, bare, kernel(4), kappa)[0],
            functional.conv_center(x, full, kernel(4), kappa)[0],
        ),
        (hyperplane.weights(bare, kappa)[0], w),
        (hyperplane.weights(bare, kappa)[1], jnp.zeros(4)),
    ):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    bare, full = (hyperplane.normals(w[0, 0], b, kappa) for b in (None, jnp.zeros(4)))
    lifted = geometry.lift(x, kappa)
    pairs = [(functional.linear(x, n, kappa, relu), ambient.linear(lifted, n, kappa, relu))
             for n in (bare, full)]  # fmt: skip
    for got, want in zip(*pairs, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    for scale in ("inside", "outside", None):
        got, want = (hyperplane.signed_distance(x, n, kappa, scale) for n in (bare, full))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_every_gradient_of_a_convolution_without_bias(x64, kappa):
    random = np.random.default_rng(4)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape))  # noqa: E731
    arguments = draw(2, 5, 6, 3), draw(3, 3, 3, 4), draw(4), draw(4), kappa
    cotangent = draw(2, 3, 3, 4)

    def fused(x, a, g, beta, kappa):
        planes, scale = hyperplane.factored_normals(a, g, None, kappa)
        return functional.conv_center(x, planes, beta, kappa, 2, None, scale)

    def apart(x, a, g, beta, kappa):
        w = functional.weight_norm(a, g)
        y = functional.conv(x, hyperplane.normals(w, jnp.zeros(4), kappa), kappa, 2)
        mean = functional.batch_mean(y, kappa)
        return functional.center(y, mean, beta, kappa), mean

    @functools.partial(quick_jit, static_argnums=0)
    def gradients(function, *arguments):
        loss = lambda *a: jnp.sum(function(*a)[0] * cotangent)  # noqa: E731
        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))(*arguments)

    (value, got), (truth, want) = (gradients(f, *arguments) for f in (fused, apart))
    np.testing.assert_allclose(value, truth, rtol=1e-12)
    dead = (*arguments[:2], arguments[2].at[1].set(0), *arguments[3:])
    assert float(gradients(fused, *dead)[1][2][1]) == 0  # as its docstring says
    for name, a, b in zip(["x", "a", "g", "beta", "kappa"], got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * np.abs(b).max(), err_msg=name)
