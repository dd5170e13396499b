"""`compile_cached_v` of models that are not ours: what runs is the model's own call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import inference, nn
from lorentz_jax.inference import compile_cached_v
from lorentz_jax.models import LorentzResNet
from tests.compiled import quick_jit
from tests.oracle import assert_close

POINTS = jax.random.normal(jax.random.key(1), (5, 3))
IMAGES = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))


def linear(kappa=0.5, **options):
    return nn.LorentzLinear(3, 3, kappa=kappa, rngs=nnx.Rngs(0), **options)


def norm(kappa=0.5):
    layer = nn.LorentzBatchNorm(3, kappa=kappa)
    layer.mean[...], layer.beta[...] = jnp.array([0.3, 0, -0.1]), jnp.array([0.1, 0.2, 0])
    return layer


def resnet(kind=LorentzResNet, **options):
    model = kind((1, 1), 4, 5, 3, rngs=nnx.Rngs(0), **options)
    for seed, (_, node) in enumerate(nnx.iter_graph(model)):
        if isinstance(node, nnx.Param | nnx.BatchStat):
            node[...] += 0.1 * jax.random.normal(jax.random.key(seed), node.shape)
    return model


def assert_compiled(model, *args, rtol=1e-6, **options):
    """The compiled form equals the model in evaluation mode; returns the layers' state."""
    evaluated = nnx.clone(model)
    evaluated.eval()
    graphdef, state = nnx.split(evaluated)
    want = jax.jit(lambda state, args: nnx.merge(graphdef, state)(*args))(state, args)
    compiled = compile_cached_v(model, **options)
    assert_close(compiled(*args), want, rtol)
    return {path: layer["folded"] for path, layer in compiled.layers.items()}


def test_another_activation_in_the_blocks_is_followed():
    model = resnet()
    before = compile_cached_v(model)(IMAGES)
    for blocks in model.stages:
        for block in blocks:
            block.relu = lambda x, kappa: jax.nn.gelu(x)
    assert all(folded for path, folded in assert_compiled(model, IMAGES).items() if path != "head")
    assert np.abs(compile_cached_v(model)(IMAGES) - before).max() > 1e-3


def test_another_residual_in_one_block_is_followed():
    model = resnet()
    model.stages[1][0].residual = lambda y, x, kappa: y - x
    assert_compiled(model, IMAGES)


class Halved(LorentzResNet):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) / 2


def test_a_subclass_with_its_own_call_is_followed():
    assert_compiled(resnet(Halved), IMAGES)
    assert_close(
        2 * compile_cached_v(resnet(Halved))(IMAGES), compile_cached_v(resnet())(IMAGES), 1e-6
    )


class Block(nnx.Module):
    def __init__(self):
        self.layer = linear(activation=lambda x: jnp.sin(3 * x))
        self.dense = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dense(self.layer(x)) + x


def test_layers_in_a_module_in_a_sequential():
    head = nn.LorentzMLR(3, 2, kappa=0.5, rngs=nnx.Rngs(0))
    model = nnx.Sequential(Block(), linear(), norm(), jax.nn.relu, head)
    folded = assert_compiled(model, POINTS)
    assert folded == {
        "layers/0/layer": False, "layers/1": True, "layers/2": True, "layers/4": False,
    }  # fmt: skip


class Pair(nnx.Module):
    """Declares that its norm follows its layer, and uses the layer once more if told so."""

    folds = (("layer", "norm"),)

    def __init__(self, again=False):
        self.layer, self.norm = linear(), norm()
        self.second = self.layer if again else None

    def __call__(self, x):
        y = self.norm(self.layer(x))
        return y if self.second is None else self.second(y)


class Between(Pair):
    def __call__(self, x):
        return self.norm(jax.nn.relu(self.layer(x)))


def test_a_declared_pair_is_folded_and_a_shared_layer_is_not():
    assert assert_compiled(Pair(), POINTS) == {"layer": True, "norm": True}
    assert assert_compiled(Pair(again=True), POINTS) == {"layer": False, "norm": False}
    # A subclass with its own call has not declared anything.
    assert assert_compiled(Between(), POINTS) == {"layer": False, "norm": False}


class HalfLayer(nn.LorentzLinear):
    def __call__(self, x, kappa=None):
        return super().__call__(x, kappa) / 2


class ScaledWeights(nn.LorentzLinear):
    def biases(self, kappa=None):
        return super().biases(kappa) + 0.3


def test_a_layer_of_a_subclass_is_kept_or_compiled_and_right():
    model = nnx.Sequential(HalfLayer(3, 3, kappa=0.5, rngs=nnx.Rngs(0)), norm())
    assert assert_compiled(model, POINTS) == {"layers/1": False}
    model = nnx.Sequential(ScaledWeights(3, 3, kappa=0.5, rngs=nnx.Rngs(0)), norm())
    assert assert_compiled(model, POINTS) == {"layers/0": True, "layers/1": True}


class Network(nnx.Module):
    """Passes a kappa of its own to layers that were made with another."""

    def __init__(self, kappa):
        self.kappa, self.layer, self.norm = kappa, linear(), norm()

    def __call__(self, x):
        kappa = nn.resolve_kappa(self.kappa)
        return self.norm(self.layer(x, kappa), kappa)


class Declared(Network):
    passes_kappa = True


@pytest.mark.parametrize("kappa", [0.7, nn.Kappa(0.7)], ids=["fixed", "learned"])
def test_a_kappa_that_the_network_passes(kappa):
    assert assert_compiled(Network(kappa), POINTS) == {}  # unsure, so nothing is cached
    cached = {"layer": False, "norm": False}
    assert assert_compiled(Network(kappa), POINTS, example=(POINTS,)) == cached
    assert assert_compiled(Declared(kappa), POINTS) == cached


class Literal(nnx.Module):
    def __init__(self):
        self.layer = linear()

    def __call__(self, x):
        return self.layer(x, 0.7)


def test_a_kappa_that_no_attribute_tells_is_noticed():
    with pytest.raises(
        ValueError, match=r"'layer' was compiled for kappa 0.5 and is called with 0.7"
    ):
        compile_cached_v(Literal())(POINTS)
    assert assert_compiled(Literal(), POINTS, example=(POINTS,)) == {"layer": False}


class Twice(nnx.Module):
    def __init__(self):
        self.layer = linear()

    def __call__(self, x):
        return self.layer(self.layer(x, 0.7), 0.5)


def test_a_layer_that_is_called_with_two_kappas_is_kept():
    assert assert_compiled(Twice(), POINTS, example=(POINTS,)) == {}


def test_a_linear_head_in_the_place_of_ours():
    model = resnet()
    model.head = nnx.Linear(8, 2, rngs=nnx.Rngs(0))
    assert "head" not in assert_compiled(model, IMAGES)


class Two(nnx.Module):
    def __init__(self):
        self.layer, self.drop = linear(), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x, factor, shift=0.0):
        return self.drop(self.layer(x)) * factor + shift


def test_extra_arguments_and_dropout(tmp_path):
    assert_compiled(Two(), POINTS, jnp.array(2.0))
    compiled = compile_cached_v(Two())
    shifted = compiled.apply(compiled.params, POINTS, jnp.array(2.0), shift=1.0)
    np.testing.assert_allclose(shifted, compiled(POINTS, jnp.array(2.0)) + 1, rtol=1e-6)
    like = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((5, 3), ())]
    exported = inference.export(compiled, (), tmp_path / "two", arguments=like)
    np.testing.assert_allclose(
        exported.call(POINTS, jnp.array(2.0)), compiled(POINTS, jnp.array(2.0)), rtol=1e-6
    )


class Training(nnx.Module):
    def __init__(self, norm):
        self.norm = norm

    def __call__(self, x):
        return self.norm(x, use_running_average=False)


def test_a_norm_in_training_mode_is_refused_with_its_path():
    with pytest.raises(ValueError, match=r"layer 'norm' is in training mode"):
        compile_cached_v(Training(norm()))(POINTS)
    with pytest.raises(ValueError, match=r"norm/mean, norm/var changed in the call"):
        compile_cached_v(Training(nnx.BatchNorm(3, rngs=nnx.Rngs(0))))(POINTS)


def test_a_saliency_map_of_an_exported_network(tmp_path):
    compiled = compile_cached_v(resnet())
    inference.export(compiled, (8, 8, 3), tmp_path / "m", vjp_order=1)
    served = jax.export.deserialize((tmp_path / "m").read_bytes())
    want, got = (
        quick_jit(jax.grad(lambda x, call=call: call(x)[:, 2].sum()))(IMAGES)
        for call in (compiled, served.call)
    )
    assert_close(got, want, 1e-5)
    with pytest.raises(ValueError, match="vjp_order=1 needs numbers for the image size"):
        inference.export(compiled, ("h", "w", 3), tmp_path / "m", vjp_order=1)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_model_of_your_own_is_saved_and_loaded_like_it(tmp_path, ending):
    if ending == "safetensors":
        pytest.importorskip("safetensors")
    path, compiled = tmp_path / f"m.{ending}", compile_cached_v(Pair(), dtype="bfloat16")
    inference.save(compiled, path)
    loaded = inference.load(path, like=Pair())
    np.testing.assert_array_equal(loaded(POINTS), compiled(POINTS))
    with pytest.raises(ValueError, match=r"no unchanged network .*load it with like="):
        inference.load(path)
    with pytest.raises(ValueError, match="differs from the one that was compiled"):
        inference.load(path, like=Between())


def test_a_changed_network_is_not_built_again_from_its_description(tmp_path):
    model = resnet()
    model.stages[0][0].relu = lambda x, kappa: jax.nn.gelu(x)
    compiled = compile_cached_v(model)
    inference.save(compiled, tmp_path / "m.npz")
    with pytest.raises(ValueError, match="no unchanged network"):
        inference.load(tmp_path / "m.npz")
    loaded = inference.load(tmp_path / "m.npz", like=model)
    np.testing.assert_array_equal(loaded(IMAGES), compiled(IMAGES))


def test_a_network_with_another_head_is_not_built_again_from_its_description(tmp_path):
    """The description says ten classes, and nothing but the shapes tells the two apart."""
    model = resnet()
    features = model.head.kernel.shape[0]
    model.head = nn.LorentzMLR(features, 2, kappa=model.head.kappa, rngs=nnx.Rngs(0))
    compiled = compile_cached_v(model)
    assert compiled.description is None
    inference.save(compiled, tmp_path / "m.npz")
    with pytest.raises(ValueError, match="no unchanged network"):
        inference.load(tmp_path / "m.npz")
    loaded = inference.load(tmp_path / "m.npz", like=model)
    np.testing.assert_array_equal(loaded(IMAGES), compiled(IMAGES))
