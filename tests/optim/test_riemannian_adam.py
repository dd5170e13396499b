"""Riemannian Adam on space parts against the ambient rule in 50 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import optax
import pytest

from lorentz_jax import geometry
from lorentz_jax.optim import riemannian_adam
from tests import oracle

LR, B1, B2, EPS = 0.3, 0.9, 0.99, 1e-8


def ambient_adam(x, gradients, kappa):
    """Ambient vectors, projected gradients, transported momentum."""
    kappa = mp.mpf(kappa)
    lr, b1, b2, eps = (mp.mpf(value) for value in (LR, B1, B2, EPS))
    X = oracle.mp_lift([mp.mpf(float(c)) for c in x], kappa)
    m, v = [mp.mpf(0)] * len(X), mp.mpf(0)
    for step, g in enumerate(gradients, 1):
        G = [mp.mpf(0), *(mp.mpf(float(c)) for c in g)]
        G = oracle.combine(1, G, kappa * oracle.minkowski(X, G), X)
        m = oracle.combine(b1, m, 1 - b1, G)
        v = b2 * v + (1 - b2) * oracle.minkowski(G, G)
        size = lr / (1 - b1**step) / (mp.sqrt(v / (1 - b2**step)) + eps)
        to = oracle.mp_exp(X, [-size * c for c in m], kappa)
        m, X = oracle.mp_transport(X, to, m, kappa), to
    return [[float(c) for c in X[1:]], [float(c) for c in m[1:]], float(v)]


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_four_steps_follow_the_ambient_rule(x64, kappa):
    rng = np.random.default_rng(1)
    start = {"a": rng.normal(size=(3, 4)), "b": np.zeros(2)}
    gradients = [jax.tree.map(lambda x: 0.3 * rng.normal(size=x.shape), start) for _ in range(4)]
    transform = riemannian_adam(lambda count: LR, B1, B2, EPS, kappa)
    x = jax.tree.map(jnp.asarray, start)
    state = transform.init(x)
    for g in gradients:
        deltas, state = transform.update(jax.tree.map(jnp.asarray, g), state, x)
        x = optax.apply_updates(x, deltas)
    with mp.workdps(50):
        rows = [(start["a"][i], [g["a"][i] for g in gradients]) for i in range(3)]
        rows.append((start["b"], [g["b"] for g in gradients]))
        expected = [ambient_adam(row, g, kappa) for row, g in rows]
    got = [[tree["a"][i] for tree in (x, *state[1:])] for i in range(3)]
    got.append([tree["b"] for tree in (x, *state[1:])])
    for row, (point, momentum, square) in zip(got, expected, strict=True):
        np.testing.assert_allclose(row[0], point, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(row[1], momentum, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(row[2], [square], rtol=1e-12)
    assert int(state.count) == 4


def test_it_finds_the_mean_of_points_and_keeps_tree_and_dtype():
    targets = jnp.asarray([[1.0, 0.5], [-0.5, 2.0], [0.3, -1.0]])
    params = {"points": jnp.asarray([3.0, -4.0]), "none": jnp.zeros((0, 3))}
    transform = riemannian_adam(lambda count: 0.3 * 0.98 ** count.astype(float), b2=0.99)

    def loss(params):
        return jnp.sum(geometry.dist(params["points"], targets, 1.0) ** 2)

    @jax.jit
    def step(params, state):
        updates, state = transform.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = transform.init(params)
    for _ in range(300):
        params, state = step(params, state)
    assert float(jnp.abs(jax.grad(loss)(params)["points"]).max()) < 1e-3
    assert params["none"].shape == (0, 3)
    assert state.square["points"].shape == (1,)


def test_kappa_of_the_call_counts_and_parameters_are_needed():
    x, g = jnp.asarray([1.0, 2.0]), jnp.asarray([0.3, 0.1])
    given, own = riemannian_adam(0.1), riemannian_adam(0.1, kappa=0.3)
    expected, _ = own.update(g, own.init(x), x)
    got, _ = given.update(g, given.init(x), x, kappa=0.3)
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="riemannian_adam needs the params"):
        given.update(g, given.init(x))
    assert given.update({}, given.init({}), {})[0] == {}
