"""The pure step: state in, state out; compiled once, and in every mode of NNX."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from lorentz_jax.metrics import evaluate
from lorentz_jax.training import state as states
from lorentz_jax.training import step as steps
from tests.training.tiny import TinyNet

IMAGES = np.random.default_rng(0).normal(size=(40, 4, 4, 1)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 40).astype(np.int32)
INDICES = np.arange(8, dtype=np.int32)


def plain(key, images):
    return images


@functools.cache
def compiled(optimiser, prepare):
    graphdef, params, stats = states.split(TinyNet(3, rngs=nnx.Rngs(0)))
    return graphdef, params, stats, steps.make_train_step(graphdef, optimiser, prepare)


SGD = optax.sgd(0.1)


def make(optimiser=SGD, prepare=plain):
    """A fresh state, with steps that tests share so that they compile once."""
    graphdef, params, stats, step = compiled(optimiser, prepare)
    return graphdef, states.init_state(params, stats, optimiser, seed=0), step


def test_split_gives_flat_paths_and_merge_inverts_it():
    model = TinyNet(3, rngs=nnx.Rngs(0))
    graphdef, params, stats = states.split(model)
    names = ("beta", "bias", "gain", "kernel")
    blocks = {f"blocks/{i}/{name}" for i in range(2) for name in names}
    assert set(params) == {"kernel", *blocks}
    assert set(stats) == {"blocks/0/mean", "blocks/1/mean"}
    again = states.merge(graphdef, params, stats)
    np.testing.assert_array_equal(again(IMAGES), model(IMAGES))
    assert again.blocks[0].kernel is not model.blocks[0].kernel


def test_build_gives_the_values_of_the_eager_constructor():
    _, params, stats = states.init_network(lambda rngs: TinyNet(3, rngs=rngs), 5)
    _, eager_params, eager_stats = states.split(TinyNet(3, rngs=nnx.Rngs(5)))
    assert list(params) == list(eager_params)
    # One program rounds a product or two differently.
    chex.assert_trees_all_close((params, stats), (eager_params, eager_stats), rtol=1e-6)


def test_a_step_is_gradient_descent_on_the_mean_loss():
    graphdef, state, step = make()

    def loss_fn(params):
        logits = states.merge(graphdef, params, state.stats)(IMAGES[8:16], train=True)
        log_p = jax.nn.log_softmax(logits)
        return -jnp.mean(log_p[jnp.arange(8), LABELS[8:16]]), jnp.argmax(logits, 1)

    (loss, predictions), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, state.params, gradients)
    means = jax.tree.map(np.asarray, state.stats)
    new, metrics = step(state, IMAGES, LABELS, INDICES + 8)
    chex.assert_trees_all_close(new.params, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(metrics.loss, loss, rtol=1e-6)
    assert metrics.correct.dtype == jnp.int32
    assert metrics.correct == np.sum(predictions == LABELS[8:16])
    assert new.step == 1
    assert all((new.stats[path] != means[path]).any() for path in means)  # statistics moved


def test_the_state_is_donated_and_the_model_is_not():
    graphdef, params, _, _ = compiled(SGD, plain)
    _, state, _ = make()
    step = steps.make_train_step(graphdef, SGD, plain)
    with jax.debug_nans(False):  # which keeps what it may have to run again
        step(state, IMAGES, LABELS, INDICES)
    assert all(p.is_deleted() for p in state.params.values())
    assert not any(p.is_deleted() for p in params.values())


def test_kappa_in_any_spelling_and_value_compiles_once():
    graphdef, state, _ = make()
    step = steps.make_train_step(graphdef, SGD, plain)
    evaluation = steps.make_eval_step(graphdef, plain, 3)
    mask = np.ones(8, bool)
    spellings = [1.0, 0.5, 2, np.float32(1), np.float64(1), jnp.asarray(1.0)]
    for kappa in [*spellings, *np.linspace(0.5, 1, 100)]:
        state, _ = step(state, IMAGES, LABELS, INDICES, kappa=kappa)
        evaluation(state.params, state.stats, IMAGES, LABELS, INDICES, mask, kappa=kappa)
    assert step.jitted._cache_size() == 1
    assert evaluation.jitted._cache_size() == 1


def test_kappa_reaches_the_model_and_the_optimiser():
    seen = []

    def record(updates, state, params=None, *, kappa=None, **_):
        seen.append(kappa)
        return updates, state

    spy = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), record)
    optimiser = optax.chain(SGD, spy)
    _, state, step = make(optimiser)
    own = step(state, IMAGES, LABELS, INDICES)
    _, state, step = make(optimiser)
    same = step(state, IMAGES, LABELS, INDICES, kappa=0.1)
    _, state, step = make(optimiser)
    other = step(state, IMAGES, LABELS, INDICES, kappa=0.7)
    assert seen[0] is None
    assert seen[1].dtype == jnp.float32
    np.testing.assert_allclose(own[1].loss, same[1].loss, rtol=1e-6)
    assert abs(other[1].loss - own[1].loss) > 1e-3


@pytest.mark.parametrize("kappa", [-1.0, 0.0, float("nan"), float("inf"), [1.0, 2.0]])
def test_a_bad_kappa_is_refused_and_the_state_survives(kappa):
    _, state, step = make()
    with pytest.raises(ValueError, match="kappa"):
        step(state, IMAGES, LABELS, INDICES, kappa=np.asarray(kappa))
    step(state, IMAGES, LABELS, INDICES)


def test_the_preparation_gets_a_new_key_at_every_step_and_none_in_evaluation():
    def noisy(key, images):
        return images if key is None else jax.random.normal(key, images.shape)

    graphdef, state, step = make(optax.set_to_zero(), noisy)
    losses = []
    for _ in range(3):
        state, metrics = step(state, IMAGES, LABELS, INDICES)
        losses.append(float(metrics.loss))
    assert len(set(losses)) == 3
    count = steps.make_eval_step(graphdef, noisy, 3)
    counts = count(state.params, state.stats, IMAGES, LABELS, INDICES, np.ones(8, bool))
    assert counts.total.sum() == 8


def test_evaluation_uses_the_running_statistics_and_counts_each_example_once():
    graphdef, state, step = make()
    for _ in range(3):
        state, _ = step(state, IMAGES, LABELS, INDICES)
    count = steps.make_eval_step(graphdef, plain, 3)
    result = evaluate(
        lambda indices, mask: count(state.params, state.stats, IMAGES, LABELS, indices, mask),
        len(LABELS),
        16,
    )
    logits = states.merge(graphdef, state.params, state.stats)(IMAGES, train=False)
    assert result["accuracy"] == np.mean(np.argmax(logits, 1) == LABELS)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
    np.testing.assert_allclose(result["loss"], losses.mean(), rtol=1e-6)


def test_compiled_programs_match_the_steps():
    graphdef, state, step = make()
    count = steps.make_eval_step(graphdef, plain, 3)
    mask = np.ones(8, bool)
    train, evaluation = steps.compile_all(
        step.jitted.lower(state, IMAGES, LABELS, INDICES),
        count.jitted.lower(state.params, state.stats, IMAGES, LABELS, INDICES, mask),
    )
    counts = evaluation(state.params, state.stats, IMAGES, LABELS, INDICES, mask)
    expected = count(state.params, state.stats, IMAGES, LABELS, INDICES, mask)
    chex.assert_trees_all_equal(counts, expected)
    _, metrics = train(state, IMAGES, LABELS, INDICES)
    _, state, step = make()
    chex.assert_trees_all_equal(metrics, step(state, IMAGES, LABELS, INDICES)[1])


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
def test_both_modes_of_nnx(graph):
    with nnx.set_graph_mode(graph):
        _, state, step = make(optax.sgd(0.2))
        state, metrics = step(state, IMAGES, LABELS, INDICES)
    assert np.isfinite(metrics.loss)


def test_float64_losses_stay_float64(x64):
    graphdef, params, stats = states.split(TinyNet(3, rngs=nnx.Rngs(0)))
    params, stats = jax.tree.map(lambda a: a.astype(jnp.float64), (params, stats))
    state = states.init_state(params, stats, optax.sgd(0.1), seed=0)
    step = steps.make_train_step(graphdef, optax.sgd(0.1), plain)
    state, metrics = step(state, IMAGES.astype(np.float64), LABELS, INDICES, kappa=0.5)
    assert metrics.loss.dtype == jnp.float64
    assert all(p.dtype == jnp.float64 for p in state.params.values())
