"""Layers and networks under JAX's transforms and strict settings, and in a user's hands."""

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
from flax import nnx

from lorentz_jax import functional, geometry, hyperplane, inference, models, nn
from tests.compiled import quick_jit

IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5, 5, 3)), jnp.float32)
POINTS = IMAGES[0]
LAYERS = {
    layer.__name__: (functools.partial(layer, 3, 4), POINTS)
    for layer in (models.ChenLinear, models.BdeirMLR, models.PoincareLinear, models.PoincareMLR,
                  models.PoincareHead)
} | {
    layer.__name__: (functools.partial(layer, 3, 4), IMAGES)
    for layer in (models.ChenConv, models.PoincareConv)
} | {
    layer.__name__: (functools.partial(layer, 3), IMAGES)
    for layer in (models.VarianceBatchNorm, models.HCNNBatchNorm, models.PoincareBatchNorm)
}  # fmt: skip
NETWORKS = {name: functools.partial(net, (1,), 2) for name, net in models.RESNETS.items()}
for name, net in models.TRANSFORMERS.items():
    NETWORKS[name] = functools.partial(net, (1,), 2, image_size=5, patch_size=1, heads=2)
NETWORKS["with bias"] = functools.partial(models.LorentzResNet, (1,), 2, init="paper")
NETWORKS["variance"] = functools.partial(models.LorentzResNet, (1,), 2, norm="variance")
CURVED = [name for name in NETWORKS if name not in ("euclidean", "euclidean-vit")]


@functools.cache
def layer(name):
    make, x = LAYERS[name]
    return make(kappa=0.5, rngs=nnx.Rngs(0)), x


@functools.cache
def network(name):
    return nnx.eval_shape(lambda: NETWORKS[name](rngs=nnx.Rngs(0)))


def gradient_of(model, train=None):
    """A pure gradient, and what it takes."""
    graphdef, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
    options = {} if train is None else {"train": train}

    def loss(params, stats, x):
        model = nnx.merge(graphdef, params, stats, copy=True)
        return jnp.mean(model(x, **options)), nnx.state(model, nnx.BatchStat)

    return jax.value_and_grad(loss, has_aux=True), params, stats


# --- several devices ---


def test_on_a_mesh():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(Path(__file__).with_name("sharded.py"))]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# --- rank promotion ---


def strictly(function, *arguments):
    """Trace tangent and gradient without any rank promotion."""

    def both(*arguments):
        _, push = jax.linearize(function, *arguments)
        out, pull = jax.vjp(function, *arguments)
        return push(*arguments), pull(jax.tree.map(jnp.ones_like, out))

    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(both, *arguments)


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_promotes_ranks(name):
    model, x = layer(name)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    strictly(lambda p, x: nnx.merge(graphdef, p, rest, copy=True)(x), params, x)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_promotes_ranks(name, train):
    gradient, params, stats = gradient_of(network(name), train)
    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(gradient, params, stats, IMAGES)


# --- kappa ---


@pytest.mark.parametrize("name", CURVED)
def test_every_spelling_of_kappa_makes_the_same_network(name):
    make = NETWORKS[name]
    for kappa in (np.float32(0.5), np.array(0.5), jnp.float32(0.5), 0.5):
        model = nnx.eval_shape(lambda kappa=kappa: make(kappa=kappa, rngs=nnx.Rngs(0)))
        assert model.kappa == 0.5
        nnx.split(model, nnx.Param, nnx.BatchStat)
    model = nnx.eval_shape(lambda: make(kappa=nnx.Param(jnp.float32(0.5)), rngs=nnx.Rngs(0)))
    gradient, params, stats = gradient_of(model, True)
    assert params["kappa"]["raw"].shape == ()
    (_, _), slopes = jax.eval_shape(gradient, params, stats, IMAGES)
    assert slopes["kappa"]["raw"].shape == ()


def test_a_parameter_is_kappa_itself():
    x = POINTS[0]
    own = nn.LorentzLinear(3, 4, kappa=nnx.Param(jnp.float32(0.5)), rngs=nnx.Rngs(0))
    fixed = nn.LorentzLinear(3, 4, kappa=0.5, rngs=nnx.Rngs(0))
    own.bias[...] = fixed.bias[...] = jnp.arange(4.0)

    @nnx.jit
    def slopes(own, fixed):
        right = jax.grad(lambda k: jnp.sum(fixed(x, k)))(jnp.float32(0.5))
        return nnx.grad(lambda m: jnp.sum(m(x)))(own)["kappa"]["raw"][...], right

    np.testing.assert_allclose(*slopes(own, fixed), rtol=1e-5)
    # A function takes the parameter as it is, under jit too.
    param = nnx.Param(jnp.float32(0.5))
    got = nnx.jit(lambda k: (geometry.dist0(x, k), fixed(x, k)))(param)
    for a, b in zip(got, (geometry.dist0(x, 0.5), fixed(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(ValueError, match="kappa must be finite"):
        nn.LorentzLinear(3, 4, kappa=nnx.Param(jnp.float32(-1.0)), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="takes a number"):
        models.LorentzResNet(kappa=param, learn_kappa=True, kappa_per_layer=True, rngs=nnx.Rngs(0))


def test_layers_share_a_kappa_by_passing_it():
    class Net(nnx.Module):
        def __init__(self):
            shared, rngs = nn.Kappa(0.5), nnx.Rngs(0)
            self.conv = nn.LorentzConv(3, 4, kappa=shared, rngs=rngs)
            self.norm = nn.LorentzBatchNorm(4, kappa=shared)

        def __call__(self, x):
            return nn.conv_norm(self.conv, self.norm, x)

    net = Net()
    assert net.conv.kappa is net.norm.kappa
    _, params, stats = gradient_of(net)
    paths = [path for path, _ in nnx.to_flat_state(params) if path[-1] == "raw"]
    assert paths == [("conv", "kappa", "raw")]
    # One curvature, so that the fused function serves both.
    run = lambda params: nnx.merge(nnx.graphdef(net), params, stats, copy=True)(IMAGES)  # noqa: E731
    assert "conv_center" in str(jax.make_jaxpr(run)(params))


def test_a_network_of_a_parameter_compiles():
    kappa = nnx.Param(jnp.float32(0.5))
    model = models.LorentzResNet((1,), 2, kappa=kappa, rngs=nnx.Rngs(0))
    compiled = inference.compile_cached_v(model)
    assert compiled.kappa == 0.5


# --- nnx ---


def test_a_frozen_norm_stays_frozen_in_training():
    model = models.LorentzResNet((1,), 2, rngs=nnx.Rngs(0))
    model.stem.eval()

    @functools.partial(quick_jit, static_argnums=(0, 3))
    def moved(graphdef, state, x, train):
        net = nnx.merge(graphdef, state)
        net(x, train=train)
        means = net.stem.norm.mean[...], net.stages[0][0].first.norm.mean[...]
        return [jnp.any(mean != 0) for mean in means]

    for train in (None, True):
        assert [bool(m) for m in moved(*nnx.split(model), IMAGES, train)] == [False, True]
    model.eval()  # all of it: then `train=True` is the mode of a call
    assert [bool(m) for m in moved(*nnx.split(model), IMAGES, True)] == [True, True]
    model.train()
    assert [bool(m) for m in moved(*nnx.split(model), IMAGES, None)] == [True, True]


def test_normals_are_an_attribute_of_a_module():
    class Cached(nnx.Module):
        def __init__(self):
            self.normals = hyperplane.normals(jnp.ones((3, 4)), jnp.ones(4), 0.5)

        def __call__(self, x):
            return functional.linear(x, self.normals, 0.5)

    model = Cached()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    assert not params
    assert len(jax.tree.leaves(rest)) == 4
    np.testing.assert_array_equal(nnx.merge(graphdef, rest)(POINTS), model(POINTS))


@pytest.mark.parametrize("name", NETWORKS)
def test_an_ensemble_a_checkpoint_and_a_linear_head(name):
    def make():
        model = NETWORKS[name](rngs=nnx.Rngs(0))
        model.head = nnx.Linear(2, 7, rngs=nnx.Rngs(0))
        return model

    gradient, params, stats = gradient_of(nnx.eval_shape(make), True)
    stack = lambda a: jax.ShapeDtypeStruct((2, *a.shape), a.dtype)  # noqa: E731
    pairs = [jax.tree.map(stack, tree) for tree in (params, stats)]
    (losses, _), slopes = jax.eval_shape(jax.vmap(gradient, (0, 0, None)), *pairs, IMAGES)
    assert losses.shape == (2,)
    assert slopes["head"]["kernel"].shape == (2, 2, 7)
    again = jax.grad(jax.checkpoint(lambda *a: gradient(*a)[0][0]))
    assert jax.eval_shape(again, params, stats, IMAGES)["head"]["bias"].shape == (7,)


def test_a_scan_over_blocks_in_training():
    """One block's program for all: their parameters have a leading axis."""

    def make(seed):
        return nn.LorentzConv(3, 3, kappa=0.5, use_bias=False, rngs=nnx.Rngs(seed))

    graphdef = nnx.graphdef(make(0))
    params = jax.tree.map(lambda *a: jnp.stack(a), *[nnx.state(make(i)) for i in range(2)])
    beta = jnp.zeros(3)

    def block(x, params):
        conv = nnx.merge(graphdef, params)
        normals, scale = conv.factored_normals()
        y, mean = functional.conv_center(x, normals, beta, 0.5, unit_scale=scale)
        return jax.nn.relu(y), mean

    def loss(params, scan):
        if scan:
            return jnp.sum(jnp.sin(jax.lax.scan(block, IMAGES, params)[0]))
        x = IMAGES
        for i in range(2):
            x = block(x, jax.tree.map(lambda a, i=i: a[i], params))[0]
        return jnp.sum(jnp.sin(x))

    @functools.partial(quick_jit, static_argnums=1)
    def both(params, scan):
        run = functools.partial(loss, scan=scan)
        return jax.grad(run)(params), jax.jvp(run, (params,), (params,))[1]

    got, want = both(params, True), both(params, False)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_training_step_is_exported_for_any_batch():
    gradient, params, stats = gradient_of(network("lorentz"), True)
    leaves, tree = jax.tree.flatten((params, stats))
    run = lambda leaves, x: jax.tree.leaves(gradient(*tree.unflatten(leaves), x))  # noqa: E731
    (batch,) = jax.export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, 5, 5, 3), jnp.float32)
    written = jax.export.export(jax.jit(run, donate_argnums=0))(leaves, images).serialize()
    assert len(jax.export.deserialize(written).in_avals) == len(leaves) + 1
