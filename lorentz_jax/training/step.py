"""One step of training and of evaluation: pure functions of arrays under `jax.jit`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from lorentz_jax._src.arguments import as_kappa
from lorentz_jax.metrics import correct_predictions, count_batch, cross_entropy
from lorentz_jax.training.state import TrainState, merge, split

Prepare = Callable[[Array | None, Array], Array]
"""`(key, images) -> float images`: augmentation and normalisation of a batch."""


class Step:
    """A function of arrays under `jax.jit`, with a keyword `kappa` that may be left out.

    `kappa` replaces the network's own. It is brought to one dtype before the call, so that neither
    its value nor its type (Python, NumPy or JAX) compiles the function again. `jitted` is the
    function itself, to lower it.
    """

    def __init__(self, function: Callable, out_sharding: Any = None, **jit_options: Any) -> None:
        if out_sharding is not None:
            jit_options["out_shardings"] = out_sharding
        self.jitted = jax.jit(function, **jit_options)

    def __call__(self, *arrays: Any, kappa: Any = None) -> Any:
        """Run the step.

        Raises:
            ValueError: a concrete kappa is not one finite and positive number.
        """
        return self.jitted(*arrays, kappa=None if kappa is None else as_kappa(kappa, float))


def compile_all(*lowered: jax.stages.Lowered) -> list[jax.stages.Compiled]:
    """Compile programs side by side."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(jax.stages.Lowered.compile, lowered))


def pick(array: Array, indices: Array | None) -> Array:
    """Return the rows `indices`, and with None the whole array."""
    return array if indices is None else array[indices]


class StepMetrics(NamedTuple):
    """Mean loss and number of right predictions (int32) of a batch, before its update.

    `finite` tells whether the loss and every gradient are.
    """

    loss: Array
    correct: Array
    finite: Array


def make_train_step(
    graphdef: Any,
    optimiser: optax.GradientTransformation,
    prepare: Prepare,
    skip_nonfinite: bool = False,
    dtype: Any = None,
    out_sharding: Any = None,
) -> Step:
    """Build `step(state, images, labels, indices, kappa=None) -> (TrainState, StepMetrics)`.

    `images` (N, H, W, C) and `labels` (N,) are the whole training set, which stays on the device;
    `indices` (batch,) picks from it; with None they are the batch itself. The state is donated: use
    only the returned one. A `kappa` replaces the model's own in the network and in the optimiser.

    Args:
        graphdef: of the network, from `state.split`.
        optimiser: of the flat parameters.
        prepare: called with a new key at every step.
        skip_nonfinite: a step whose loss or gradient is not finite changes nothing but `step`.
        dtype: what the network computes in; logits, loss and parameters do not change with it.
        out_sharding: how the results lie on several devices.
    """
    optimiser = optax.with_extra_args_support(optimiser)
    options = {} if dtype is None else {"dtype": dtype}

    def update(state, images, labels, indices, kappa=None):
        key = jax.random.fold_in(state.key, state.step)
        batch, targets = prepare(key, pick(images, indices)), pick(labels, indices)

        def loss_fn(params):
            model = merge(graphdef, params, state.stats)
            logits = model(batch, train=True, kappa=kappa, **options)
            correct = jnp.sum(correct_predictions(logits, targets), dtype=jnp.int32)
            return cross_entropy(logits, targets).mean(), (split(model)[2], correct)

        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, (stats, correct)), gradients = gradient_fn(state.params)
        extra = {} if kappa is None else {"kappa": kappa}
        updates, opt_state = optimiser.update(gradients, state.opt_state, state.params, **extra)
        params: Any = optax.apply_updates(state.params, updates)
        new = TrainState(params, stats, opt_state, state.step + 1, state.key)
        finite = all_finite((loss, gradients))
        if skip_nonfinite:
            old = state._replace(step=new.step)
            new = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        return new, StepMetrics(loss, correct, finite)

    return Step(update, out_sharding, donate_argnums=0)


def make_eval_step(
    graphdef: Any, prepare: Prepare, num_classes: int, dtype: Any = None, out_sharding: Any = None
) -> Step:
    """Build `step(params, stats, images, labels, indices, mask, kappa=None) -> Counts`.

    Like the training step it picks `indices` from data on the device; `mask` (batch,) is False
    for the padding of a ragged last batch, which counts for nothing. `prepare` gets no key.
    """
    options = {} if dtype is None else {"dtype": dtype}

    def count(params, stats, images, labels, indices, mask, kappa=None):
        model = merge(graphdef, params, stats)
        batch, targets = prepare(None, pick(images, indices)), pick(labels, indices)
        logits = model(batch, train=False, kappa=kappa, **options)
        return count_batch(logits, targets, mask, num_classes)

    return Step(count, out_sharding)


def all_finite(tree: Any) -> Array:
    """Tell whether every float of a tree is finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))
