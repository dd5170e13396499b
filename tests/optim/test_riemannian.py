"""Riemannian SGD on space parts against the ambient textbook rule in 50 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import optax
import pytest

from lorentz_jax.optim.riemannian import riemannian_gradient, riemannian_sgd
from tests import oracle

LR, DECAY = 0.3, 0.05


def ambient_sgd(x, gradients, kappa, *, momentum, nesterov, weight_decay):
    """The rule of the golden `cleansgd` data: ambient vectors, projections, transports.

    `gradients` are with respect to the space part, time following along: as an ambient gradient
    that is `(0, g)`, whose tangential part is what counts.
    """
    kappa, buffer = mp.mpf(kappa), None
    X = oracle.mp_lift([mp.mpf(float(c)) for c in x], kappa)

    def project(V):
        return oracle.combine(1, V, kappa * oracle.minkowski(X, V), X)

    for g in gradients:
        ambient = [mp.mpf(0), *(mp.mpf(float(c)) for c in g)]
        ambient = oracle.combine(1, ambient, weight_decay, X)
        G = project([-ambient[0], *ambient[1:]])
        buffer = G if buffer is None else oracle.combine(momentum, buffer, 1, G)
        step = oracle.combine(1, G, momentum, buffer) if nesterov else buffer
        to = oracle.mp_exp(X, [-mp.mpf(LR) * s for s in step], kappa)
        buffer, X = oracle.mp_transport(X, to, buffer, kappa), to
    return [float(c) for c in X[1:]], [float(c) for c in buffer[1:]]


@pytest.mark.parametrize(
    ("kappa", "momentum", "nesterov"),
    [(0.1, 0.9, True), (1.0, 0.9, True), (2.5, 0.9, True), (2.5, 0.9, False), (2.5, 0.0, False)],
)
def test_four_steps_follow_the_ambient_rule(x64, kappa, momentum, nesterov):
    rng = np.random.default_rng(1)
    start = {"a": rng.normal(size=(3, 4)), "b": np.zeros(2)}
    gradients = [jax.tree.map(lambda x: 0.3 * rng.normal(size=x.shape), start) for _ in range(4)]
    transform = riemannian_sgd(lambda count: LR, momentum, nesterov, DECAY, kappa)
    x = jax.tree.map(jnp.asarray, start)
    state = transform.init(x)
    # Not under jit: so all rules run the same compiled exp and transport.
    for g in gradients:
        deltas, state = transform.update(jax.tree.map(jnp.asarray, g), state, x)
        x = optax.apply_updates(x, deltas)
    rules = {"momentum": momentum, "nesterov": nesterov, "weight_decay": DECAY}
    with mp.workdps(50):
        for i in range(3):
            point, buffer = ambient_sgd(
                start["a"][i], [g["a"][i] for g in gradients], kappa, **rules
            )
            np.testing.assert_allclose(x["a"][i], point, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(state.momentum["a"][i], buffer, rtol=1e-11, atol=1e-12)
        point, _ = ambient_sgd(start["b"], [g["b"] for g in gradients], kappa, **rules)
    np.testing.assert_allclose(x["b"], point, rtol=1e-12, atol=1e-13)
    assert int(state.count) == 4


def test_riemannian_gradient_inverts_the_metric(x64, kappa):
    x, g = jnp.asarray([0.5, -1.0, 2.0]), jnp.asarray([1.0, 0.3, -0.7])
    time_squared = 1 / kappa + x @ x
    metric = jnp.eye(3) - jnp.outer(x, x) / time_squared
    np.testing.assert_allclose(riemannian_gradient(x, g, kappa), jnp.linalg.solve(metric, g))


def test_schedule_counts_from_zero_and_zero_rate_is_a_standstill():
    x = {"beta": jnp.asarray([[1.0, 2.0], [2.0, -1.0]])}
    transform = riemannian_sgd(lambda count: jnp.where(count == 0, 0.0, 0.1), momentum=0.9)
    state = transform.init(x)
    deltas, state = transform.update({"beta": jnp.ones((2, 2))}, state, x)
    np.testing.assert_array_equal(deltas["beta"], 0)
    deltas, state = transform.update({"beta": jnp.ones((2, 2))}, state, x)
    assert (deltas["beta"] != 0).all()


def test_weight_decay_moves_towards_the_origin_and_stays_there():
    transform = riemannian_sgd(0.1, weight_decay=0.5)
    x = jnp.asarray([[1.0, 2.0], [0.0, 0.0]])
    state = transform.init(x)
    for _ in range(50):
        deltas, state = transform.update(jnp.zeros_like(x), state, x)
        x = optax.apply_updates(x, deltas)
    # -> lr * 2 wd = 0.1 a step near the origin.
    assert 0 < float(jnp.linalg.norm(x[0])) < 0.05
    np.testing.assert_array_equal(x[1], 0)


def test_params_are_needed():
    transform = riemannian_sgd(0.1)
    with pytest.raises(ValueError, match="needs the params"):
        transform.update(jnp.zeros(2), transform.init(jnp.zeros(2)))
