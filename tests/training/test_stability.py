"""20,000 noisy updates of single layers: everything stays finite while |theta| grows.

Weights decay and biases do not, so planes move away from the origin until their normals are beyond
the range of sinh; the curvature is learned on the way.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, geometry
from lorentz_jax._src.scalars import theta_limit
from lorentz_jax.hyperplane import normals
from tests.compiled import quick_jit

STEPS, BATCH, D, UNITS = 20_000, 4, 3, 5
RATE, DECAY = 0.01, 1e-3


def loss(parameters, x, labels):
    """Cross-entropy of a head behind a linear layer and a centring, in the dtype of x."""
    kappa = jnp.clip(jnp.exp(parameters["log_kappa"]), 1e-3, 100)
    weights = functional.weight_norm(parameters["a"], parameters["gain"])
    planes = normals(weights.astype(x.dtype), parameters["b"].astype(x.dtype), kappa)
    y = functional.linear(x, planes, kappa, jnp.tanh)
    beta = parameters["beta"].astype(x.dtype)
    y = functional.center(y, functional.batch_mean(y, kappa), beta, kappa)
    head = normals(parameters["w"].astype(x.dtype), parameters["c"].astype(x.dtype), kappa)
    logits = functional.mlr(y, head, kappa).astype(jnp.float32)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(BATCH), labels])


def update(parameters, key, dtype):
    """A clipped step of SGD on a random batch, with weight decay on w and the gain alone."""
    keys = jax.random.split(key)
    kappa = jnp.clip(jnp.exp(parameters["log_kappa"]), 1e-3, 100)
    x = geometry.exp0(jax.random.normal(keys[0], (BATCH, D), dtype), kappa)
    labels = jax.random.randint(keys[1], (BATCH,), 0, UNITS)
    value, gradient = jax.value_and_grad(loss)(parameters, x, labels)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    rate = RATE / jnp.maximum(norm, 1.0)
    moved = jax.tree.map(lambda p, g: p - rate * g, parameters, gradient)
    # The decayed weights lose their size, as in a run whose loss does not need them; b is kept.
    kept = {name: parameters[name] for name in ("b", "c")}
    moved = {
        **moved,
        **kept,
        "gain": (1 - DECAY) * parameters["gain"],
        "w": (1 - DECAY) * moved["w"],
    }
    return moved, jnp.isfinite(value) & jnp.isfinite(norm)


def train(parameters, dtype):
    keys = jax.random.split(jax.random.key(0), STEPS)
    return jax.lax.scan(lambda p, key: update(p, key, dtype), parameters, keys)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_training_stays_finite(dtype):
    rng = np.random.default_rng(0)
    kappas = np.float32([0.1, 1, 10])
    shapes = {"a": (D, UNITS), "gain": (UNITS,), "b": (UNITS,), "beta": (UNITS,)}
    shapes |= {"w": (UNITS, UNITS), "c": (UNITS,)}
    start = {
        name: rng.normal(size=(3, *shape)).astype(np.float32) for name, shape in shapes.items()
    }
    with jax.debug_nans(False):
        end, finite = quick_jit(jax.vmap(lambda p: train(p, dtype)))(
            {**start, "log_kappa": np.log(kappas)}
        )
    assert np.asarray(finite).all(), np.argmin(np.asarray(finite), axis=1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(end))
    kappa = np.exp(end["log_kappa"])
    assert (kappa != kappas).all()
    theta = np.sqrt(kappa)[:, None] * np.abs(end["b"]) / np.abs(end["gain"])
    assert theta.max(axis=1).min() > theta_limit(jnp.float32)  # beyond the range of sinh
