"""One step of training and of evaluation: pure functions of arrays under `jax.jit`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from lorentz_jax.arguments import as_kappa
from lorentz_jax.training.metrics import count_batch, cross_entropy, hits
from lorentz_jax.training.state import TrainState, merge, split

Prepare = Callable[[Array | None, Array], Array]
"""`(key, images) -> float images`: augmentation and normalisation of a batch."""


class Step:
    """A jitted function of arrays and of a last argument `kappa`, which may be left out.

    `kappa` (a Python, NumPy or JAX number) is brought to one dtype before the call, so that
    neither its value nor its spelling compiles the function again; `step.jitted` is behind it.
    """

    def __init__(self, function: Callable, **jit_options: Any) -> None:
        self.jitted = jax.jit(function, **jit_options)

    def __call__(self, *arrays: Any, kappa: Any = None) -> Any:
        """Run the step.

        Raises:
            ValueError: a concrete kappa that is not one finite and positive number.
        """
        return self.jitted(*arrays, None if kappa is None else as_kappa(kappa, float))

    def lower(self, *arrays: Any) -> jax.stages.Lowered:
        """The step traced for such arrays, without a `kappa`; see `compile_all`."""
        return self.jitted.lower(*arrays, None)


def compile_all(*lowered: jax.stages.Lowered) -> list[Callable]:
    """Compile programs side by side; the results are called like the steps, without a `kappa`."""
    with ThreadPoolExecutor() as pool:
        compiled = list(pool.map(lambda program: program.compile(), lowered))
    return [lambda *arrays, program=program: program(*arrays, None) for program in compiled]


class StepMetrics(NamedTuple):
    """Of one batch, before its update: mean loss, and how many predictions were right (int32)."""

    loss: Array
    correct: Array


def make_train_step(
    graphdef: Any, optimiser: optax.GradientTransformation, prepare: Prepare
) -> Step:
    """Build `step(state, images, labels, indices, kappa=None) -> (TrainState, StepMetrics)`.

    `images` (N, H, W, C) and `labels` (N,) are the whole training set, which stays on the device;
    `indices` (batch,) picks from it. The state is donated: use only the returned one. A `kappa`
    replaces the model's own in the network and in the optimiser.
    """
    optimiser = optax.with_extra_args_support(optimiser)

    def update(state, images, labels, indices, kappa):
        key = jax.random.fold_in(state.key, state.step)
        batch, targets = prepare(key, images[indices]), labels[indices]

        def loss_fn(params):
            model = merge(graphdef, params, state.stats)
            logits = model(batch, train=True, kappa=kappa)
            correct = jnp.sum(hits(logits, targets), dtype=jnp.int32)
            return cross_entropy(logits, targets).mean(), (split(model)[2], correct)

        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, (stats, correct)), gradients = gradient_fn(state.params)
        extra = {} if kappa is None else {"kappa": kappa}
        updates, opt_state = optimiser.update(gradients, state.opt_state, state.params, **extra)
        params: Any = optax.apply_updates(state.params, updates)
        new = TrainState(params, stats, opt_state, state.step + 1, state.key)
        return new, StepMetrics(loss, correct)

    return Step(update, donate_argnums=0)


def make_eval_step(graphdef: Any, prepare: Prepare, num_classes: int) -> Step:
    """Build `step(params, stats, images, labels, indices, mask, kappa=None) -> Counts`.

    Like the training step it picks `indices` from data on the device; `mask` (batch,) is False
    for the padding of a ragged last batch, which counts for nothing. `prepare` gets no key.
    """

    def count(params, stats, images, labels, indices, mask, kappa):
        model = merge(graphdef, params, stats)
        logits = model(prepare(None, images[indices]), train=False, kappa=kappa)
        return count_batch(logits, labels[indices], mask, num_classes)

    return Step(count)
