"""Parameter groups in every tree that JAX users keep parameters in."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util

from lorentz_jax import nn, optim


class Model(nnx.Module):
    """Our layers among Flax's, a user's own parameter, and a list of layers."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nn.LorentzLinear(3, 4, kappa=0.5, learn_kappa=True, rngs=rngs)
        self.norm = nn.LorentzBatchNorm(4, kappa=0.5)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs)])
        self.flat_norm = nnx.BatchNorm(4, rngs=rngs)
        self.table = nnx.Param(jnp.ones((2, 4)))
        self.head = nn.LorentzMLR(4, 2, kappa=0.5, rngs=rngs)

    def __call__(self, x):
        x = self.flat_norm(self.blocks[0](self.norm(self.first(x))))
        return self.head(x + self.table[...].sum(0))


DECAYS = {
    "first/kernel": True, "first/gain": True, "first/bias": False, "first/kappa/raw": False,
    "norm/beta": False, "blocks/0/kernel": True, "blocks/0/bias": False,
    "flat_norm/scale": False, "flat_norm/bias": False, "table": False,
    "head/kernel": True, "head/bias": False,
}  # fmt: skip


def trees():
    """The same parameters as a state, a nested dict, and flat dicts by text and by tuple."""
    state = nnx.state(Model(), nnx.Param)
    nested = nnx.to_pure_dict(state)
    flat = traverse_util.flatten_dict(nested)
    text = {"/".join(map(str, path)): value for path, value in flat.items()}
    return {"state": state, "nested": nested, "tuples": flat, "text": text}


def by_path(tree):
    """The leaves of any of the trees, by path as text."""
    flat = {}
    for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
        names = [key.key for key in path if hasattr(key, "key")]
        names = [part for name in names for part in (name if isinstance(name, tuple) else [name])]
        flat["/".join(map(str, names))] = value
    return flat


@pytest.mark.parametrize("kind", ["state", "nested", "tuples", "text"])
def test_the_mask_names_what_decays_in_every_tree(kind):
    params = trees()[kind]
    mask = optim.decay_mask(params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    assert by_path(mask) == DECAYS
    assert all(by_path(optim.decay_mask(params, "paper")).values())


def test_groups_have_the_structure_of_the_parameters():
    nested = trees()["nested"]
    groups = optim.leaf_groups(nested)
    assert groups["first"]["kernel"] == optim.GROUPS["fast"]["kernel"]
    assert groups["table"] == optim.OTHERS["fast"] == optim.Group()
    paper = optim.leaf_groups(nested, "paper")
    assert paper["norm"]["beta"].riemannian
    assert paper["table"] == optim.OTHERS["paper"] == optim.Group(decay=True)
    with pytest.raises(ValueError, match=r"init must be one of \('fast', 'paper'\), got 'best'"):
        optim.decay_mask(nested, "best")


@pytest.mark.parametrize("kind", ["state", "nested", "tuples", "text"])
def test_a_turn_is_limited_in_every_tree(kind):
    """Kernels move by 0.01 of the length of each unit; whatever else, by the rate."""
    params = trees()[kind]
    rule = optax.chain(optax.sgd(1.0), optim.limit_turn(0.01))
    gradients = jax.tree.map(lambda p: jnp.full_like(p, 9.0), params)
    updates = by_path(rule.update(gradients, rule.init(params), params)[0])
    assert updates.keys() == DECAYS.keys()
    for path, p in by_path(params).items():
        if path.endswith("kernel"):
            moved, length = (np.linalg.norm(a, axis=0) for a in (updates[path], p))
            np.testing.assert_allclose(moved, 0.01 * length, rtol=1e-4)
        else:
            np.testing.assert_array_equal(updates[path], -9.0)


def test_both_forms_of_the_limit_cut_alike():
    params = {"kernel": jnp.array([[3.0, 1.0], [4.0, 1.0]]), "bias": jnp.ones(2)}
    gradients = jax.tree.map(lambda p: 50 * p, params)
    wrapped = optim.limit_turn(optax.sgd(0.5), 0.1)
    chained = optax.chain(optim.limit_turn(0.1), optax.sgd(0.5))
    results = [rule.update(gradients, rule.init(params), params)[0] for rule in (wrapped, chained)]
    np.testing.assert_array_equal(results[0]["kernel"], results[1]["kernel"])
    np.testing.assert_allclose(results[0]["kernel"], -0.05 * params["kernel"], rtol=1e-5)
    np.testing.assert_array_equal(results[0]["bias"], -25 * params["bias"])
    bare = optim.limit_turn(0.1)
    updates = bare.update(gradients["kernel"], bare.init(None), params["kernel"])[0]
    np.testing.assert_allclose(updates, 0.1 * params["kernel"], rtol=1e-5)
    with pytest.raises(ValueError, match="limit_turn needs the params"):
        bare.update(gradients["kernel"], bare.init(None))


def test_the_optimiser_of_flax_trains_with_the_mask_and_the_limit():
    model, x = Model(), jax.random.normal(jax.random.key(0), (8, 3))
    labels = jnp.arange(8) % 2

    def loss(model):
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    rule = optax.chain(
        optax.adamw(1e-2, weight_decay=0.1, mask=optim.decay_mask), optim.limit_turn(0.02)
    )
    before = by_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        optimiser = nnx.Optimizer(model, rule, wrt=nnx.Param)

        @nnx.jit
        def step(model, optimiser):
            value, gradients = nnx.value_and_grad(loss)(model)
            optimiser.update(model, gradients)
            return value

        losses = [float(step(model, optimiser)) for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    after = by_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    assert after.keys() == before.keys() == DECAYS.keys()
    assert all((after[path] != before[path]).any() for path in before)


def test_leaf_names_of_all_kinds_of_paths():
    assert optim.leaf_name("kernel") == optim.leaf_name("a/kernel") == "kernel"
    assert optim.leaf_name(("a", 0, "kernel")) == "kernel"
    assert optim.leaf_name(()) == ""
    # A parameter of the user that is itself called value, in a dict.
    assert optim.decay_mask({"kernel": {"value": 1.0}}) == {"kernel": {"value": False}}
