"""Forward mode of the fused blocks, and both modes over each other, against autodiff."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, hyperplane, nn
from tests.compiled import quick_jit

RANDOM = np.random.default_rng(0)


def draw(*shape):
    return RANDOM.normal(size=shape)


def apart(y, beta, kappa):
    return functional.center(y, functional.batch_mean(y, kappa), beta, kappa)


def conv_apart(x, w, b, scale, beta, kappa):
    normals = hyperplane.normals(w * scale, b, kappa)
    return apart(functional.conv(x, normals, kappa, 2), beta, kappa)


def conv_fused(x, w, b, scale, beta, kappa):
    scaled = hyperplane.normals(w * scale, b, kappa)
    normals = hyperplane.Normals(scaled.time, w)  # the space part without its scale
    if b is not None:
        scale = jnp.sum(scaled.space * w, (0, 1, 2)) / jnp.sum(w * w, (0, 1, 2))
    return functional.conv_center(x, normals, beta, kappa, 2, unit_scale=scale)[0]


X, W, B, SCALE, BETA = draw(2, 4, 5, 3), draw(3, 3, 3, 4), draw(4), draw(4), draw(4)
without_bias = lambda f: lambda x, w, scale, beta, k: f(x, w, None, scale, beta, k)  # noqa: E731
# The fused function, the plain ones, and all arguments but kappa.
CASES = {
    "center": (lambda *a: functional.center_batch(*a)[0], apart, (draw(2, 3, 4), BETA)),
    "conv": (without_bias(conv_fused), without_bias(conv_apart), (X, W, SCALE, BETA)),
    "conv with bias": (conv_fused, conv_apart, (X, W, B, SCALE, BETA)),
}


def compare(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


@functools.partial(quick_jit, static_argnums=0)
def every_mode(function, arguments, directions):
    """First and second derivatives, one mode over the other."""
    every = tuple(range(len(arguments)))

    def loss(*arguments):
        return jnp.sum(jnp.sin(function(*arguments)))

    gradient = jax.grad(loss, every)
    out, tangent = jax.jvp(function, arguments, directions)
    # Every argument by itself: the others have no tangent.
    alone = [
        jax.jvp(lambda v, i=i: function(*arguments[:i], v, *arguments[i + 1 :]), (a,), (d,))[1]
        for i, (a, d) in enumerate(zip(arguments, directions, strict=True))
    ]
    return {
        "jvp": (out, tangent),
        "alone": alone,
        "Gauss-Newton": jax.vjp(function, *arguments)[1](tangent),
        "forward over reverse": jax.jvp(gradient, arguments, directions)[1],
        "reverse over forward": jax.grad(
            lambda *a: jax.jvp(loss, a, directions)[1], every
        )(*arguments),
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_modes_and_second_derivatives_are_those_of_the_plain_functions(x64, kappa, name):
    fused, plain, arguments = CASES[name]
    arguments = (*map(jnp.asarray, arguments), jnp.float64(kappa))
    directions = tuple(jnp.asarray(draw(*a.shape)) for a in arguments)
    got, want = (every_mode(f, arguments, directions) for f in (fused, plain))
    for mode, value in got.items():
        compare(value, want[mode], 1e-11 if "over" in mode else 1e-12)
    tangent, sum_of_parts = got["jvp"][1], sum(got["alone"])
    np.testing.assert_allclose(sum_of_parts, tangent, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_map_of_either_mode_is_the_loop(x64, name):
    fused, _, arguments = CASES[name]
    arguments = (*map(jnp.asarray, arguments), jnp.float64(0.7))
    first = jnp.stack([arguments[0], 1.1 * arguments[0]])

    def both(x, direction):
        def loss(x, *rest):
            return jnp.sum(jnp.sin(fused(x, *rest)))

        run = lambda x: fused(x, *arguments[1:])  # noqa: E731
        gradient = jax.grad(loss, tuple(range(len(arguments))))(x, *arguments[1:])
        return jax.jvp(run, (x,), (direction,))[1], gradient

    @quick_jit
    def every(x, directions):
        # The other arguments have no mapped axis, and then the direction has none either.
        mapped = jax.vmap(both)(x, directions), jax.vmap(both, (0, None))(x, directions[0])
        pairs = (0, 0), (1, 1), (1, 0)
        return mapped, [both(x[i], directions[j]) for i, j in pairs]

    (mapped, shared), (zeroth, first, mixed) = every(first, first[::-1])
    for got, want in ((mapped, (zeroth, first)), (shared, (zeroth, mixed))):
        compare(got, jax.tree.map(lambda *a: jnp.stack(a), *want), 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_modes_are_transposes_where_the_mean_is_at_its_floor(x64, name):
    """Equal points have `L = 1`, where autodiff of a maximum would halve the tangent."""
    fused, _, arguments = CASES[name]
    x = jnp.zeros_like(arguments[0]) + (0 if "conv" in name else jnp.arange(4.0))
    arguments = (x, *map(jnp.asarray, arguments[1:]), jnp.float64(0.7))
    directions = tuple(jnp.asarray(draw(*a.shape)) for a in arguments)
    cotangent = jnp.asarray(draw(*jax.eval_shape(fused, *arguments).shape))
    both = lambda a: (jax.jvp(fused, a, directions)[1], jax.vjp(fused, *a)[1](cotangent))  # noqa: E731
    tangent, pulled = quick_jit(both)(arguments)
    got = sum(jnp.vdot(a, b) for a, b in zip(pulled, directions, strict=True))
    np.testing.assert_allclose(got, jnp.vdot(cotangent, tangent), rtol=1e-10)


def test_half_precision_tangents_keep_their_dtype():
    x, beta = jnp.asarray(draw(4, 6, 6, 8), jnp.bfloat16), jnp.asarray(draw(8), jnp.float32)
    run = lambda x: functional.center_batch(x, beta, 0.5)[0]  # noqa: E731
    tangent_of = quick_jit(lambda x: jax.jvp(run, (x,), (x,))[1])
    tangent, wide = tangent_of(x), tangent_of(x.astype(jnp.float32))
    assert tangent.dtype == jnp.bfloat16
    np.testing.assert_allclose(tangent.astype(jnp.float32), wide, atol=2**-8 * np.abs(wide).max())


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_forward_mode_lowers_for_accelerators(platform):
    x, beta = jnp.asarray(draw(2, 3, 4), jnp.float32), jnp.asarray(draw(4), jnp.float32)
    run = lambda x: functional.center_batch(x, beta, 0.5)[0]  # noqa: E731
    tangent = jax.jit(lambda x: jax.jvp(run, (x,), (x,))[1])
    assert jax.export.export(tangent, platforms=[platform])(x).platforms == (platform,)


def test_a_gauss_newton_product_of_layers_in_training():
    """`u J^T J v` from both sides, through weight norm, a learned kappa and running means."""
    layer = {"kappa": 0.5, "rngs": nnx.Rngs(0)}

    class Net(nnx.Module):
        def __init__(self):
            conv = functools.partial(nn.LorentzConv, 2, 2, **layer)
            self.convs = nnx.List([conv(use_bias=True), conv(use_bias=False)])
            self.norms = nnx.List([nn.LorentzBatchNorm(2, kappa=0.5) for _ in range(2)])
            self.kappa = nn.Kappa(0.5)

        def __call__(self, x):
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = jax.nn.relu(nn.conv_norm(conv, norm, x, self.kappa()))
            return x

    graphdef, params, stats = nnx.split(Net(), nnx.Param, nnx.BatchStat)
    x = jnp.asarray(draw(4, 5, 5, 2), jnp.float32)

    def run(params):
        net = nnx.merge(graphdef, params, stats, copy=True)
        return net(x), nnx.state(net, nnx.BatchStat)

    @quick_jit
    def products(params, u, v):
        (_, moved), (ahead, drift) = jax.jvp(run, (params,), (v,))
        _, push, _ = jax.linearize(run, params, has_aux=True)
        (pulled,) = jax.vjp(lambda p: run(p)[0], params)[1](ahead)
        pairs = zip(jax.tree.leaves(u), jax.tree.leaves(pulled), strict=True)
        return sum(jnp.vdot(*pair) for pair in pairs), jnp.vdot(push(u), ahead), moved, drift

    keys = iter(jax.random.split(jax.random.key(0), 100))
    noise = lambda a: jax.random.normal(next(keys), a.shape)  # noqa: E731
    u, v = (jax.tree.map(noise, params) for _ in range(2))
    pulled, pushed, moved, drift = products(params, u, v)
    np.testing.assert_allclose(pulled, pushed, rtol=2e-4)
    assert all(jnp.any(a != 0) for a in jax.tree.leaves(moved))
    assert all(jnp.all(a == 0) for a in jax.tree.leaves(drift))  # running means carry none
