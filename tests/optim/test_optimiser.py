"""Parameter groups, schedules and the textbook update rules."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lorentz_jax.optim import decay_mask, leaf_groups
from lorentz_jax.training import optimiser
from lorentz_jax.training.config import TrainConfig

CONFIG = TrainConfig(epochs=10, lr=0.1, weight_decay=0.1, schedule="constant")


@pytest.fixture
def params():
    return {
        "stem/conv/kernel": jnp.asarray([1.0, -2.0]),
        "stem/conv/gain": jnp.asarray([1.0]),
        "stem/conv/bias": jnp.asarray([1.0]),
        "stage1/0/norm/beta": jnp.asarray([0.3, 0.4]),
        "stage1/0/norm/raw": jnp.asarray(0.5),
        "head/kernel": jnp.asarray([[3.0]]),
    }


def one_step(transform, params, gradients=None):
    gradients = jax.tree.map(jnp.zeros_like, params) if gradients is None else gradients
    updates, _ = transform.update(gradients, transform.init(params), params)
    return optax.apply_updates(params, updates)


def paper_config(**changes):
    return dataclasses.replace(CONFIG, init="paper", **changes)


def decays(path):
    return path.endswith(("kernel", "gain"))


def test_fast_preset_decays_kernels_and_gains_and_nothing_else(params):
    after = one_step(optimiser.make_optimiser(CONFIG, params, 5), params)
    for path, value in params.items():
        if decays(path):
            # Nesterov at the first step: (1 + momentum) lr wd.
            np.testing.assert_allclose(after[path], (1 - 1.9 * 0.01) * value, rtol=1e-6)
        else:
            np.testing.assert_array_equal(after[path], value)


def test_gains_that_do_not_decay(params):
    params = params | {"conv/distance_gain": jnp.full(2, 0.5)}
    config = dataclasses.replace(CONFIG, decay_gains=False)
    before, after = (
        one_step(optimiser.make_optimiser(c, params, 5), params) for c in (CONFIG, config)
    )
    for path, value in params.items():
        gained = path.endswith("gain")
        np.testing.assert_array_equal(after[path], value if gained else before[path])
        assert not gained or np.all(before[path] < value)
    assert "on 2 of 7 leaves" in optimiser.describe_decay(params, config)
    assert "on 4 of 7 leaves" in optimiser.describe_decay(params, CONFIG)


def test_the_mask_serves_adamw_too(params):
    transform = optax.adamw(0.1, weight_decay=0.1, mask=decay_mask)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        after = one_step(transform, params)
    for path, value in params.items():
        expected = 0.99 * value if decays(path) else value
        np.testing.assert_allclose(after[path], expected, rtol=1e-6 if decays(path) else 0)


def test_untouched_parameters_stay_bit_identical_over_many_steps(params):
    transform = optimiser.make_optimiser(CONFIG, params, 5)
    state, now = transform.init(params), params
    for _ in range(10):
        updates, state = transform.update(jax.tree.map(jnp.zeros_like, params), state, now)
        now = optax.apply_updates(now, updates)
    assert now["stage1/0/norm/raw"] == 0.5
    np.testing.assert_array_equal(now["stem/conv/bias"], params["stem/conv/bias"])


def test_sgd_limits_the_turn_of_each_direction(params):
    """Columns of lengths 5, 2, 2 and 3: steps of 0.1 g beyond 0.005 of that are cut to it."""
    kernel = np.zeros((1, 2, 2, 3), np.float32)
    kernel[0, 0, :, 0], kernel[0, 1, 1, 1:] = (3, 4), 2
    params = {**params, "stem/conv/kernel": jnp.asarray(kernel)}
    gradients = {path: jnp.full_like(p, 0.5) for path, p in params.items()}
    slope = np.zeros_like(kernel)
    slope[0, :, 0, 0], slope[0, 0, 0, 1], slope[0, 0, 1, 2] = (0.6, 0.8), -3, 0.09
    gradients["stem/conv/kernel"] = jnp.asarray(slope)
    expected = slope * [0.25, 0.1 / 3, 1]
    config = dataclasses.replace(CONFIG, momentum=0.0, nesterov=False, weight_decay=0.0)
    for limit, kept in ((0.005, expected), (None, slope)):
        config = dataclasses.replace(config, max_turn=limit)
        after = one_step(optimiser.make_optimiser(config, params, 5), params, gradients)
        moved = jax.tree.map(lambda a, p: np.asarray(p - a) / 0.1, after, params)
        np.testing.assert_allclose(moved["stem/conv/kernel"], kept, atol=1e-5)
        head = moved.pop("head/kernel")
        np.testing.assert_allclose(head, 0.15 if limit else 0.5, rtol=1e-4)
        others = [v for path, v in moved.items() if path != "stem/conv/kernel"]
        np.testing.assert_allclose(np.concatenate([v.ravel() for v in others]), 0.5, rtol=1e-5)


def test_a_network_without_weight_norm_has_no_limit(params):
    """As the Euclidean twin, whose kernels have the same names."""
    plain = {path: p for path, p in params.items() if not path.endswith("gain")}
    gradients = {path: jnp.full_like(p, 50.0) for path, p in plain.items()}
    after = one_step(optimiser.make_optimiser(CONFIG, plain, 5), plain, gradients)
    for path in ("stem/conv/kernel", "head/kernel"):
        step = 0.1 * 1.9 * (50 + 0.1 * plain[path])
        np.testing.assert_allclose(plain[path] - after[path], step, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (1, 4)])
def test_the_units_of_a_kernel_with_one_input_are_limited_one_by_one(shape):
    """A layer alone has no path; its units of length 0.01 and 0 are cut, 0 as if it were 0.001."""
    params = {"kernel": jnp.asarray([1, 0.01, 0, 1]).reshape(shape), "gain": jnp.ones(4)}
    slope = jnp.asarray([0.04, 0.04, 0.04, 0]).reshape(shape)
    config = dataclasses.replace(
        CONFIG, momentum=0.0, nesterov=False, weight_decay=0.0, max_turn=0.005
    )
    after = one_step(
        optimiser.make_optimiser(config, params, 5), params, {"kernel": slope, "gain": jnp.ones(4)}
    )
    moved = np.ravel(params["kernel"] - after["kernel"])
    np.testing.assert_allclose(moved, [0.004, 0.005 * 0.01, 0.005 * 0.001, 0], rtol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_adam_moves_by_its_rate_and_decays_kernels_and_gains_alone(params, name):
    """The first step of Adam is `-lr sign(g)`, whatever g; the decay is decoupled from it."""
    config = dataclasses.replace(CONFIG, optimiser=name)
    if name == "muon":
        params = {path: p for path, p in params.items() if not path.endswith("kernel")}
    gradients = {path: jnp.full_like(p, -3.0) for path, p in params.items()}
    with jax.numpy_dtype_promotion("standard"):
        after = one_step(optimiser.make_optimiser(config, params, 5), params, gradients)
    for path, value in params.items():
        kept = 0.99 if decays(path) else 1
        np.testing.assert_allclose(after[path], kept * value + 0.1, rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_limit_is_for_sgd_alone(name):
    """Adam and Muon fit their steps to the gradient themselves; the second step would show it."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), "gain": jnp.ones(2)}
    ends = []
    for limit in (1e-6, None):
        config = dataclasses.replace(CONFIG, optimiser=name, max_turn=limit)
        rule, now = optimiser.make_optimiser(config, params, 5), params
        state = rule.init(params)
        with jax.numpy_dtype_promotion("standard"):
            for size in (1.0, 5.0):
                slope = {path: size * jnp.cos(7 * p) for path, p in now.items()}
                updates, state = rule.update(slope, state, now)
                now = optax.apply_updates(now, updates)
        ends.append(now["kernel"])
    np.testing.assert_array_equal(*ends)


def test_muon_turns_a_kernel_by_an_orthogonal_matrix():
    """The singular values of its first step are near the rate: a kernel is one matrix."""
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(rng.normal(size=(3, 3, 2, 4)), jnp.float32)
    params, config = {"conv/kernel": kernel}, dataclasses.replace(CONFIG, optimiser="muon")
    gradients = {"conv/kernel": jnp.asarray(rng.normal(size=kernel.shape), jnp.float32)}
    with jax.numpy_dtype_promotion("standard"):
        after = one_step(optimiser.make_optimiser(config, params, 5), params, gradients)
    moved = np.reshape(after["conv/kernel"] - 0.99 * kernel, (18, 4))
    left, _, right = np.linalg.svd(np.reshape(gradients["conv/kernel"], (18, 4)), False)
    # Newton and Schulz bring the singular values to 1 within a third only; their vectors stay.
    inner = -10 * left.T @ moved @ right.T
    np.testing.assert_allclose(np.diag(inner), 1, atol=0.35)
    np.testing.assert_allclose(inner - np.diag(np.diag(inner)), 0, atol=0.02)


@pytest.mark.parametrize("init", ["fast", "paper"])
def test_an_unknown_leaf_is_an_error_that_names_it(params, init):
    params = {"stem/conv/weight": jnp.ones(1), **params}
    config = dataclasses.replace(CONFIG, init=init)
    with pytest.raises(ValueError, match=r"no parameter group for 'stem/conv/weight'.*kernel"):
        optimiser.make_optimiser(config, params, 5)
    with pytest.raises(ValueError, match=r"init must be one of \('fast', 'paper'\), got 'best'"):
        leaf_groups({}, "best")


def test_decay_is_described_with_its_counts(params):
    assert optimiser.describe_decay(params, CONFIG) == (
        "weight decay 0.1 on 3 of 6 leaves (4 of 8 parameters)"
    )


def torch_sgd(p, gradients, lr, momentum, weight_decay):
    """`torch.optim.SGD(nesterov=True)`, spelled out in float64."""
    p, buffer = np.float64(p), None
    for g in gradients:
        g = g + weight_decay * p
        buffer = g if buffer is None else momentum * buffer + g
        p = p - lr * (g + momentum * buffer)
    return p


def test_paper_preset_is_torch_sgd_on_everything_but_beta(params):
    del params["stage1/0/norm/raw"]
    transform = optimiser.make_optimiser(paper_config(), params, 5)
    rng = np.random.default_rng(0)
    gradients = [jax.tree.map(lambda p: rng.normal(size=p.shape), params) for _ in range(3)]
    state, now = transform.init(params), params
    for g in gradients:
        updates, state = transform.update(jax.tree.map(jnp.float32, g), state, now)
        now = optax.apply_updates(now, updates)
    for path in params:
        if not path.endswith("beta"):
            expected = torch_sgd(params[path], [g[path] for g in gradients], 0.1, 0.9, 0.1)
            np.testing.assert_allclose(now[path], expected, rtol=1e-5)


def test_paper_beta_moves_at_a_fifth_of_the_rate_at_the_given_kappa(params):
    del params["stage1/0/norm/raw"]
    config = paper_config(weight_decay=0.0, momentum=0.0, kappa=2.0)
    transform = optimiser.make_optimiser(config, params, 5)
    params["stage1/0/norm/beta"] = jnp.zeros(2)
    gradients = {
        **jax.tree.map(jnp.zeros_like, params),
        "stage1/0/norm/beta": jnp.asarray([5.0, 0]),
    }
    state = transform.init(params)
    for kappa, options in ((2.0, {}), (0.5, {"kappa": jnp.asarray(0.5)})):
        updates, _ = transform.update(gradients, state, params, **options)
        # From the origin along a geodesic: sinh(s 0.02 * 5)/s.
        moved = -np.sinh(np.sqrt(kappa) * 0.1) / np.sqrt(kappa)
        np.testing.assert_allclose(updates["stage1/0/norm/beta"], [moved, 0], rtol=1e-6)


def test_points_of_the_hyperboloid_skip_the_first_drop():
    # The reference gives them a fifth of the rate, and leaves out their first drop by a fifth.
    config = TrainConfig(
        init="paper", schedule="step", milestones=(2, 4), gamma=0.2, epochs=6, lr=0.1,
        momentum=0.0, nesterov=False, weight_decay=0.0, kappa=1.0,
    )  # fmt: skip
    params = {"norm/beta": jnp.zeros(2), "conv/kernel": jnp.zeros(2)}
    gradients = {path: jnp.full(2, 1e-3) for path in params}
    rule = optimiser.make_optimiser(config, params, 1)
    state, moved = rule.init(params), []
    for _ in range(6):
        updates, state = rule.update(gradients, state, params)
        moved.append([-float(updates[path][0]) / 1e-3 for path in params])
    rates = [[0.02, 0.1]] * 2 + [[0.02, 0.02]] * 2 + [[0.004, 0.004]] * 2
    np.testing.assert_allclose(moved, rates, rtol=1e-4)


def test_schedules_give_the_rates_of_their_names():
    make = optimiser.make_schedule
    cosine = make(TrainConfig(epochs=4, lr=0.2), 10)
    np.testing.assert_allclose([cosine(0), cosine(20), cosine(40)], [0.2, 0.1, 0], atol=1e-8)
    step = make(TrainConfig(epochs=9, lr=0.2, schedule="step", milestones=(2, 5), gamma=0.1), 10)
    rates = [step(i) for i in (0, 19, 20, 49, 50, 89)]
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.02, 0.02, 0.002, 0.002], rtol=1e-6)
    constant = make(TrainConfig(schedule="constant", lr=0.2), 10)
    assert constant(0) == constant(99) == np.float32(0.2)
