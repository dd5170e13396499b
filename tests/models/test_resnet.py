"""The skeleton and the Lorentz network on it; parity with the reference is in test_parity."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax.models import EuclideanResNet, LorentzResNet
from lorentz_jax.training.state import merge, split
from tests.compiled import quick_jit

IMAGES = np.random.default_rng(0).normal(size=(3, 7, 6, 2)).astype(np.float32)


@functools.cache
def network(stages=(1,), classes=3, channels=2, **options):
    return split(LorentzResNet(stages, 4, classes, channels, rngs=nnx.Rngs(0), **options))


def abstract(stages=(2, 2, 2, 2), width=64, classes=10, channels=3, **options):
    """Shapes alone."""
    return nnx.eval_shape(
        lambda: LorentzResNet(stages, width, classes, channels, rngs=nnx.Rngs(0), **options)
    )


def forward(graphdef, train, params, stats, images, kappa=None):
    """Logits and the new state."""
    model = merge(graphdef, params, stats)
    return model(images, train=train, kappa=kappa), split(model)[2]


def trace(model, train):
    graphdef, params, stats = split(model)
    return str(jax.make_jaxpr(functools.partial(forward, graphdef, train))(params, stats, IMAGES))


run = quick_jit(forward, static_argnums=(0, 1))


def test_resnet18_has_the_reference_layout():
    model = abstract()
    blocks = [block for stage in model.stages for block in stage]
    widths = [block.second.conv.kernel.shape[-1] for block in blocks]
    assert widths == [64, 64, 128, 128, 256, 256, 512, 512]
    # Strides on the second convolution, a shortcut only where the width changes.
    assert [block.second.conv.strides for block in blocks] == [1, 1, 2, 1, 2, 1, 2, 1]
    assert all(block.first.conv.strides == 1 for block in blocks)
    assert [block.shortcut is not None for block in blocks] == [False, False] + 3 * [True, False]
    assert model.head.kernel.shape == (512, 10)
    # The reference has 702,687 parameters at width 16 (its random V left out), of which 20 are the
    # times of its betas and one is its curvature.
    _, params, _ = split(abstract(width=16, use_bias=True))
    assert sum(p.size for p in params.values()) == 702_666


@pytest.mark.parametrize(
    ("shape", "stages", "classes"),
    [((2, 1, 9, 1), (1,), 3), ((4, 32, 32, 3), (2, 2, 2, 2), 100), ((0, 8, 8, 3), (1, 2, 1), 2)],
)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_any_image_size_channels_and_classes(shape, stages, classes, train, dtype):
    graphdef, params, stats = split(abstract(stages, 4, classes, shape[-1]))
    images = jax.ShapeDtypeStruct(shape, dtype)
    logits, after = jax.eval_shape(
        functools.partial(forward, graphdef, train), params, stats, images
    )
    assert logits.shape == (shape[0], classes)
    assert logits.dtype == dtype
    assert jax.tree.map(lambda a: (a.shape, a.dtype), after) == jax.tree.map(
        lambda a: (a.shape, a.dtype), stats
    )


@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("init", ["fast", "paper"])
def test_branches_of_deep_networks_start_small(init, weight_norm):
    """Twelve blocks of `1 + g^2 = 64^(1/12)` in the preset fast; |w| of each unit is sqrt 2 g."""
    options = {"init": init, "weight_norm": weight_norm}
    _, params, _ = split(LorentzResNet((12,), 2, 3, 2, rngs=nnx.Rngs(0), **options))
    lengths = {"first": 2**0.5, "second": (2 * (64 ** (1 / 12) - 1)) ** 0.5}
    if init == "paper":  # softplus of g = 1/sqrt(in + out), or kernels of that deviation
        both = float(np.log1p(np.exp(20**-0.5))) if weight_norm else (18 / 20) ** 0.5
        lengths = {"first": both, "second": both}
    for name, length in lengths.items():
        convs = [f"stages/0/{block}/{name}/conv" for block in range(12)]
        if weight_norm:
            for conv in convs:
                norms = np.log1p(np.exp(params[f"{conv}/gain"]))
                np.testing.assert_allclose(norms, length, rtol=1e-6)
        else:
            squares = [np.sum(np.square(params[f"{conv}/kernel"])) / 2 for conv in convs]
            assert np.mean(squares) ** 0.5 == pytest.approx(length, rel=0.15)


def test_training_moves_every_mean_and_evaluation_none():
    graphdef, params, stats = network()
    trained, after = run(graphdef, True, params, stats, IMAGES)
    evaluated, untouched = run(graphdef, False, params, stats, IMAGES)
    assert np.abs(np.asarray(trained - evaluated)).max() > 1e-3
    assert all((after[path] != stats[path]).any() for path in stats)
    assert all((untouched[path] == stats[path]).all() for path in stats)
    again, _ = run(graphdef, False, params, after, IMAGES)
    assert np.abs(np.asarray(again - evaluated)).max() > 1e-4
    model = merge(graphdef, params, stats)
    assert trace(model, None) == trace(model, True)  # training is the default
    model.eval()
    assert trace(model, None) == trace(model, False)
    model.train()
    assert trace(model, None) == trace(model, True)


def test_before_training_the_norms_do_nothing():
    graphdef, params, stats = network()

    @quick_jit
    def without_norms(params, images):
        model = merge(graphdef, params, stats)
        x = jax.nn.relu(model.stem.conv(images))
        for block in (block for blocks in model.stages for block in blocks):
            y = block.second.conv(jax.nn.relu(block.first.conv(x)))
            x = jax.nn.relu(y + (x if block.shortcut is None else block.shortcut.conv(x)))
        return jnp.mean(model.head(x), axis=(1, 2))

    logits, _ = run(graphdef, False, params, stats, IMAGES)
    np.testing.assert_allclose(logits, without_norms(params, IMAGES), rtol=1e-5, atol=1e-6)


def test_state_is_params_and_batch_stats_and_all_of_it_learns():
    graphdef, params, stats = network((1, 1), learn_kappa=True)
    model = merge(graphdef, params, stats)
    assert not jax.tree.leaves(nnx.split(model, nnx.Param, nnx.BatchStat, ...)[3])
    leaves = {path.rsplit("/", 1)[-1] for path in params}
    assert leaves == {"kernel", "gain", "bias", "beta", "raw"}
    assert len([path for path in params if path.endswith("raw")]) == 1
    assert {path.rsplit("/", 1)[-1] for path in stats} == {"mean"}

    @quick_jit
    def gradients(params):
        return jax.grad(lambda p: jnp.sum(forward(graphdef, True, p, stats, IMAGES)[0] ** 2))(
            params
        )

    for path, gradient in gradients(params).items():
        assert np.isfinite(gradient).all(), path
        assert np.abs(np.asarray(gradient)).max() > 0, path


@pytest.mark.parametrize("norm", ["centering", "variance"])
@pytest.mark.parametrize("train", [True, False])
def test_each_layer_can_learn_a_kappa_of_its_own(train, norm):
    graphdef, params, stats = network(learn_kappa=True, kappa_per_layer=True, norm=norm)
    raws = [path for path in params if path.endswith("raw")]
    units = ("stages/0/0/first", "stages/0/0/second", "stem", "head")
    assert sorted(raws) == sorted(f"{unit}/kappa/raw" for unit in units)
    # log kappa is a sigmoid's share of the way from log 1e-3 to log 1e2.
    kappas = dict(zip(units, (0.3, 0.6, 1.2, 2.4), strict=True))
    share = {unit: np.log(kappa * 1e3) / np.log(1e5) for unit, kappa in kappas.items()}
    own = {f"{unit}/kappa/raw": jnp.float32(np.log(s / (1 - s))) for unit, s in share.items()}

    def by_hand(params, stats):
        model = merge(graphdef, params, stats)
        block, fixed = model.stages[0][0], not train
        x = jax.nn.relu(model.stem(IMAGES, kappas["stem"], fixed))
        y = jax.nn.relu(block.first(x, kappas[units[0]], fixed))
        x = jax.nn.relu(x + block.second(y, kappas[units[1]], fixed))
        return jnp.mean(model.head(x, kappas["head"]), axis=(1, 2)), split(model)[2]

    def loss(params):
        out = forward(graphdef, train, params, stats, IMAGES)
        return jnp.sum(out[0] ** 2), out

    if train:
        gradients, (logits, moved) = quick_jit(jax.grad(loss, has_aux=True))(params | own)
        assert all(abs(float(gradients[raw])) > 1e-4 for raw in raws)
    else:
        logits, moved = run(graphdef, train, params | own, stats, IMAGES)
    want, expected = quick_jit(by_hand)(params, stats)
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)
    for path, value in expected.items():
        np.testing.assert_allclose(moved[path], value, rtol=1e-4, atol=1e-5)


def test_a_network_knows_the_kappa_of_every_output():
    layered = merge(*network(learn_kappa=True, kappa_per_layer=True))
    block = layered.stages[0][0]
    owners = {"stem": layered.stem, "stages/0/0": block.second, "stages/0/0/first": block.first}
    for i, unit in enumerate((layered.stem, block.first, block.second)):
        unit.kappa.raw[...] = jnp.float32(i)
    for path, owner in owners.items():
        for part in (path, f"{path}/conv") if path != "stages/0/0" else (path,):
            assert layered.kappa_at(part) == owner.kappa()
            assert layered.kappa_at(part, 0.3) == 0.3
    assert layered.resolve_kappa() is None
    shared, flat = merge(*network(kappa=0.7)), EuclideanResNet((1,), 4, rngs=nnx.Rngs(0))
    assert [shared.resolve_kappa(), shared.kappa_at("stages/0/0/second")] == [0.7, 0.7]
    assert [flat.resolve_kappa(0.3), flat.kappa_at("stem", 0.3)] == [None, None]


def test_one_kappa_serves_the_whole_network():
    graphdef, params, stats = network()
    large = split(abstract((1,), 4, 3, 2, kappa=1.0))[0]
    moved, _ = run(graphdef, False, params, stats, IMAGES, 1.0)
    want, _ = run(large, False, params, stats, IMAGES)
    np.testing.assert_allclose(moved, want, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(moved - run(graphdef, False, params, stats, IMAGES)[0])).max() > 1e-3


def test_bfloat16_images_give_nearly_the_same_logits():
    graphdef, params, stats = network()
    logits, _ = run(graphdef, False, params, stats, jnp.asarray(IMAGES, jnp.bfloat16))
    assert logits.dtype == jnp.bfloat16
    want, _ = run(graphdef, False, params, stats, IMAGES)
    np.testing.assert_allclose(logits.astype(jnp.float32), want, rtol=0.1, atol=0.1)


def test_bad_input_names_what_was_expected():
    model = merge(*network())
    with pytest.raises(ValueError, match=r"images \(N, H, W, 2\), got shape \(3, 7, 6, 1\)"):
        model(IMAGES[..., :1])
    with pytest.raises(ValueError, match="at least 4 axes"):
        model(IMAGES[0])
    with pytest.raises(TypeError, match="floating-point"):
        model(IMAGES.astype(np.int32))
    with pytest.raises(ValueError, match="kappa_per_layer goes with learn_kappa=True"):
        abstract(kappa_per_layer=True)
    with pytest.raises(ValueError, match="every entry of stages must be at least 1, got 0"):
        abstract((1, 0))
    assert len(abstract((np.int64(1), 1), width=4).stages) == 2
    for stages in (2, "22", b"11", None, {1, 2}):
        with pytest.raises(TypeError, match="stages must be a sequence of numbers of blocks, got"):
            abstract(stages)
    with pytest.raises(TypeError, match=r"every entry of stages must be a whole number, got 1\.5"):
        abstract((1, 1.5))
    with pytest.raises(TypeError, match="width must be a whole number, got '4'"):
        abstract(width="4")
    with pytest.raises(ValueError, match="number of stages"):
        abstract(())
    with pytest.raises(ValueError, match="width must be at least 1"):
        abstract(width=0)
