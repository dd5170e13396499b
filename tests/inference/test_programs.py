"""A compiled model of any use keeps a bounded number of programs, and every row is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import nn
from lorentz_jax.inference import compile_cached_v
from lorentz_jax.inference.programs import EXACT, KEPT
from lorentz_jax.models import EuclideanResNet

RNG = np.random.default_rng(0)


def live():
    """Programs that the device holds."""
    return len(jax.devices()[0].client.live_executables())


class OfTheWholeBatch(nnx.Module):
    """Rows see each other, so that no row may be added."""

    def __init__(self):
        self.layer = nn.LorentzLinear(3, 4, kappa=0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        x = self.layer(x)
        return {"mean": x.mean(axis=0), "rows": x}


def test_a_network_of_ours_pads_batches_beyond_a_few():
    model = EuclideanResNet((1,), 2, 3, 1, rngs=nnx.Rngs(0))
    compiled = compile_cached_v(model)
    images = RNG.normal(size=(40, 4, 4, 1)).astype(np.float32)
    whole, before = np.asarray(compiled(images)), live()
    for count in (*range(1, 41), 5, 33):
        x = images[:count]
        got = compiled(x if count % 2 else jax.device_put(x))
        assert isinstance(got, jax.Array)
        assert got.shape == (count, 3)
        np.testing.assert_allclose(got, whole[:count], rtol=1e-5, atol=1e-6)
    # The sizes 40 and 1 to 7 got their own; the others 8, 16, 32 and 64.
    assert live() - before <= EXACT - 1 + 4
    with pytest.raises(ValueError, match=r"expected images \(N, H, W, 1\)"):
        compiled(np.concatenate([images, images], -1))
    assert compiled(images[:0]).shape == (0, 3)


def test_the_first_shapes_are_not_padded():
    """A service with a few batch sizes computes nothing in vain."""
    compiled, seen = compile_cached_v(OfTheWholeBatch()), []
    object.__setattr__(compiled, "description", "one whose rows are its own")
    original = compiled.apply
    object.__setattr__(
        compiled, "apply", lambda p, x: seen.append(x.shape[0]) or original(p, x)["rows"]
    )
    for count in (*range(3, 3 + EXACT), 3, 4, 100, 101, 128, 100):
        assert compiled(np.ones((count, 3), np.float32)).shape == (count, 4)
    assert seen == [*range(3, 3 + EXACT), 128]


def test_any_other_model_keeps_the_last_programs_and_is_never_padded():
    compiled, before = compile_cached_v(OfTheWholeBatch()), live()
    x = RNG.normal(size=(3 * KEPT, 3)).astype(np.float32)
    rows = np.asarray(jax.jit(compiled.apply)(compiled.params, x)["rows"])
    for count in range(1, len(x) + 1):
        got = compiled(x[:count])
        np.testing.assert_allclose(got["rows"], rows[:count], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got["mean"], rows[:count].mean(0), rtol=1e-4, atol=1e-5)
    assert live() - before <= KEPT + 1


def test_inside_another_program_the_model_is_part_of_it():
    compiled = compile_cached_v(OfTheWholeBatch())
    x = jnp.asarray(RNG.normal(size=(5, 3)), jnp.float32)
    got = jax.jit(jax.vmap(lambda row: compiled(row[None])["rows"][0]))(x)
    np.testing.assert_allclose(got, compiled(x)["rows"], rtol=1e-6, atol=1e-6)
    assert jax.grad(lambda x: compiled(x)["mean"].sum())(x).shape == x.shape
