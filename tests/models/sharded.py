"""Run by `test_transforms` in a process with four devices: training and means on a mesh."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lorentz_jax import functional, geometry, hyperplane, models

warnings.simplefilter("error")
RANDOM = np.random.default_rng(0)
KAPPA = 0.7


def draw(*shape):
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


def mesh_of(kind):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


def norm(x, w, b, beta):
    return functional.center_batch(x, beta[:3], KAPPA)[0]


def conv(x, w, b, beta):
    return functional.conv_center(x, hyperplane.normals(w, None, KAPPA), beta, KAPPA)[0]


def conv_with_bias(x, w, b, beta):
    return functional.conv_center(x, hyperplane.normals(w, b, KAPPA), beta, KAPPA)[0]


def centroid(x, w, b, beta):
    return geometry.centroid(x[:, 0], KAPPA, weights=jax.nn.softmax(x[:, 0, :, 0], 0), axis=0)


FUNCTIONS = (norm, conv, conv_with_bias, centroid)
X, W, B, BETA = draw(8, 3, 4, 3), draw(3, 3, 3, 4), draw(4), draw(4)


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max() + 1e-6)


def both_modes(function, *arguments):
    """The gradient of a number, and its tangent."""
    loss = lambda *a: jnp.sum(jnp.sin(function(*a)))  # noqa: E731
    gradient = jax.grad(loss, tuple(range(len(arguments))))(*arguments)
    return gradient, jax.jvp(loss, arguments, arguments)[1]


def test_explicit():
    """Statistics are those of the whole batch."""
    mesh = mesh_of(AxisType.Explicit)
    for function in FUNCTIONS:
        run = jax.jit(functools.partial(both_modes, function))
        want = run(X, W, B, BETA)
        with jax.set_mesh(mesh):
            x = jax.device_put(X, NamedSharding(mesh, P("data")))
            close(run(x, *jax.device_put((W, B, BETA), NamedSharding(mesh, P()))), want)


def test_shard_map():
    """Statistics are those of a device's own points; what all devices share gets the sum."""
    specs = P("data"), P(), P(), P()
    for function in FUNCTIONS[:3]:
        run = jax.jit(functools.partial(both_modes, function))
        want = [run(part, W, B, BETA) for part in jnp.split(X, 4)]
        total = lambda *a, f=function: jax.lax.psum(jnp.sum(jnp.sin(f(*a))), "data")  # noqa: E731
        mapped = jax.shard_map(total, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=P())
        got = jax.jit(jax.grad(mapped, (1, 2, 3)))(X, W, B, BETA)
        close(got, jax.tree.map(lambda *a: sum(a), *[gradient[1:] for gradient, _ in want]))
        tangent = jax.jit(lambda *a, f=mapped: jax.jvp(f, a, a)[1])(X, W, B, BETA)
        close(tangent, sum(tangent for _, tangent in want))


def test_pmap():
    run = functools.partial(both_modes, conv_with_bias)
    got = jax.pmap(run, in_axes=(0, None, None, None))(X.reshape(4, 2, 3, 4, 3), W, B, BETA)
    parts = [jax.jit(run)(part, W, B, BETA) for part in jnp.split(X, 4)]
    close(got, jax.tree.map(lambda *a: jnp.stack(a), *parts))


def gradient_of(name, init, axis):
    """A pure gradient of a network, averaged over a mapped axis, and its parameters as types."""
    options = {} if name.startswith("euclidean") else {"init": init}
    if name in models.TRANSFORMERS:
        options |= {"image_size": 5, "patch_size": 1, "heads": 2}
    make = lambda: models.MODELS[name]((1,), 2, rngs=nnx.Rngs(0), **options)  # noqa: E731
    graphdef, params, stats = nnx.split(nnx.eval_shape(make), nnx.Param, nnx.BatchStat)
    stats = jax.tree.map(lambda a: np.ones(a.shape, a.dtype), stats)

    def loss(params, images):
        model = nnx.merge(graphdef, params, jax.tree.map(jnp.asarray, stats), copy=True)
        mean = jnp.mean(model(images, train=True))
        return mean if axis is None else jax.lax.pmean(mean, axis)

    return jax.grad(loss), params


def test_networks():
    """Every network, in types alone: what fails on a mesh fails as it is traced."""
    mesh, kinds = mesh_of(AxisType.Explicit), [*((m, "fast") for m in models.MODELS)]
    images = jax.ShapeDtypeStruct((8, 5, 5, 3), jnp.float32)
    everywhere, split = (NamedSharding(mesh, spec) for spec in (P(), P("data")))

    def typed(a, sharding):
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    for kind in [*kinds, ("lorentz", "paper")]:
        gradient, params = gradient_of(*kind, "data")
        options = {"mesh": mesh_of(AxisType.Auto), "in_specs": (P(), P("data")), "out_specs": P()}
        jax.eval_shape(jax.shard_map(gradient, **options), params, images)
        with jax.set_mesh(mesh):
            gradient, params = gradient_of(*kind, None)
            params = jax.tree.map(lambda a: typed(a, everywhere), params)
            jax.eval_shape(gradient, params, typed(images, split))


if __name__ == "__main__":
    for test in (test_explicit, test_shard_map, test_pmap, test_networks):
        test()
