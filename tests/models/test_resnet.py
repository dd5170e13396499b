"""The skeleton and the Lorentz network on it; parity with the reference is in test_parity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax.models import LorentzResNet


def network(stages=(1, 1), width=4, classes=3, channels=2, **options):
    return LorentzResNet(stages, width, classes, channels, rngs=nnx.Rngs(0), **options)


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 6, 2)), jnp.float32)


def test_resnet18_has_the_reference_layout():
    model = nnx.eval_shape(lambda: LorentzResNet(num_classes=10, rngs=nnx.Rngs(0)))
    blocks = [block for stage in model.stages for block in stage]
    widths = [block.second.conv.kernel.shape[-1] for block in blocks]
    assert widths == [64, 64, 128, 128, 256, 256, 512, 512]
    # Strides on the second convolution, a shortcut only where the width changes.
    assert [block.second.conv.strides for block in blocks] == [1, 1, 2, 1, 2, 1, 2, 1]
    assert all(block.first.conv.strides == 1 for block in blocks)
    assert [block.shortcut is not None for block in blocks] == [False, False] + 3 * [True, False]
    assert model.head.kernel.shape == (512, 10)


def test_any_image_size_channels_and_classes(images):
    assert network()(images, train=False).shape == (3, 3)
    assert network((1,), channels=1)(jnp.zeros((2, 1, 9, 1)), train=True).shape == (2, 3)
    assert network()(images[:0], train=True).shape == (0, 3)


def test_modes(images):
    model = network()
    training = model(images, train=True)
    fresh = network()
    np.testing.assert_array_equal(fresh(images), training)  # training is the default
    fresh.eval()
    np.testing.assert_array_equal(fresh(images), model(images, train=False))
    assert np.abs(np.asarray(fresh(images) - training)).max() > 1e-3


def test_state_is_params_and_batch_stats_and_the_step_is_pure(images):
    model = network(learn_kappa=True)
    graphdef, params, stats, rest = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    assert not jax.tree.leaves(rest)

    @jax.jit
    def loss(params, stats, images):
        copy = nnx.merge(graphdef, params, stats, copy=True)
        return jnp.sum(copy(images, train=True) ** 2), nnx.state(copy, nnx.BatchStat)

    gradients, new = jax.grad(loss, has_aux=True)(params, stats, images)
    for path, leaf in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), path
        assert np.abs(np.asarray(leaf)).max() > 0, path
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), stats, new)
    assert all(jax.tree.leaves(moved))


def test_one_kappa_serves_the_whole_network(images):
    small, large = network(kappa=0.1), network(kappa=1.0)
    np.testing.assert_allclose(
        small(images, train=False, kappa=1.0), large(images, train=False), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_output_dtype_is_input_dtype(images, dtype):
    logits = network()(images.astype(dtype), train=True)
    assert logits.dtype == dtype
    assert np.isfinite(logits.astype(jnp.float32)).all()


def test_bad_input_names_what_was_expected(images):
    with pytest.raises(ValueError, match=r"images \(N, H, W, 2\), got shape \(3, 7, 6, 1\)"):
        network()(images[..., :1])
    with pytest.raises(TypeError, match="floating-point"):
        network()(images.astype(jnp.int32))
    with pytest.raises(ValueError, match="every stage needs a block"):
        network((1, 0))
    with pytest.raises(ValueError, match="number of stages"):
        network(())
    with pytest.raises(ValueError, match="width must be at least 1"):
        network(width=0)
