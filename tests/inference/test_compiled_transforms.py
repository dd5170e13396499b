"""A compiled network under JAX's transforms, by its images and by its arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from lorentz_jax import inference, models
from tests.compiled import quick_jit
from tests.oracle import assert_close

IMAGES, MOVES = np.random.default_rng(0).normal(size=(2, 4, 5, 5, 3)).astype(np.float32)
COTANGENT = np.random.default_rng(1).normal(size=(4, 7)).astype(np.float32)


@functools.cache
def network():
    """A network in evaluation mode whose means are no origins, as arrays and as a function."""
    model = models.LorentzResNet((1,), 2, 7, 3, kappa=0.5, rngs=nnx.Rngs(0))
    for seed, (_, node) in enumerate(nnx.iter_graph(model)):
        if isinstance(node, nnx.Param | nnx.BatchStat):
            node[...] += 0.1 * jax.random.normal(jax.random.key(seed), node.shape)
    model.eval()
    graphdef, state = nnx.split(model)
    return (
        (lambda state, x: nnx.merge(graphdef, state)(x)),
        state,
        inference.compile_cached_v(model),
    )


def by_images(call, x):
    """Logits, their gradient and tangent, and both of them of each image by itself."""

    def product(x, cotangent):
        return jnp.vdot(call(x), cotangent)

    def alone(x, cotangent):
        return product(x[None], cotangent[None])

    gradient = jax.grad(product)(x, COTANGENT)
    logits, tangent = jax.jvp(call, (x,), (jnp.asarray(MOVES),))
    return logits, gradient, tangent, jax.vmap(jax.grad(alone))(x, jnp.asarray(COTANGENT))


def test_by_images_it_is_the_network():
    call, state, compiled = network()
    got = quick_jit(lambda params, x: by_images(functools.partial(compiled.apply, params), x))
    want = quick_jit(lambda state, x: by_images(functools.partial(call, state), x))
    pairs = zip(got(compiled.params, IMAGES), want(state, IMAGES), strict=True)
    for a, b in pairs:
        assert_close(a, b, 2e-4, axis=None if a.ndim == 0 else tuple(range(a.ndim)))


MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
WHOLE, SPLIT = PartitionSpec(), PartitionSpec("data")


@pytest.mark.parametrize("mapped", [False, True], ids=["explicit axes", "shard_map"])
def test_on_a_mesh(mapped):
    """In types alone: value, gradients by arrays and images, tangent."""
    _, _, compiled = network()

    def both(params, x):
        logits, pull = jax.vjp(compiled.apply, params, x)
        return logits, pull(logits), jax.jvp(compiled.apply, (params, x), (params, x))[1]

    def place(a, share):
        sharding = NamedSharding(MESH, share)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    params = jax.tree.map(lambda a: place(a, WHOLE), dict(compiled.params))
    with jax.sharding.use_abstract_mesh(MESH):
        if mapped:
            specs = SPLIT, (WHOLE, SPLIT), SPLIT
            both = jax.shard_map(both, in_specs=(WHOLE, SPLIT), out_specs=specs)
        logits, (by_params, by_images), _ = jax.eval_shape(both, params, place(IMAGES, SPLIT))
    assert logits.shape == COTANGENT.shape
    assert logits.sharding.spec[0] == by_images.sharding.spec[0] == "data"
    assert jax.tree.map(jnp.shape, by_params) == jax.tree.map(jnp.shape, params)
