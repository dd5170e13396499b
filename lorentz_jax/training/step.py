"""One step of training and of evaluation: pure functions of arrays under `jax.jit`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from lorentz_jax._src.arguments import as_kappa
from lorentz_jax.metrics import count_batch, cross_entropy, hits
from lorentz_jax.training.state import TrainState, merge, split

Prepare = Callable[[Array | None, Array], Array]
"""`(key, images) -> float images`: augmentation and normalisation of a batch."""


class Step:
    """A jitted function of arrays and of a last argument `kappa`, which may be left out.

    `kappa` (a Python, NumPy or JAX number) is brought to one dtype before the call, so that
    neither its value nor its spelling compiles the function again; `step.jitted` is behind it.
    `out_sharding` says how the results lie on several devices.
    """

    def __init__(self, function: Callable, out_sharding: Any = None, **jit_options: Any) -> None:
        if out_sharding is not None:
            jit_options["out_shardings"] = out_sharding
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


class Compiled(NamedTuple):
    """A compiled step, called like the step, without a `kappa`."""

    program: jax.stages.Compiled

    def __call__(self, *arrays: Any) -> Any:
        """Run it."""
        return self.program(*arrays, None)

    @property
    def bytes(self) -> int | None:
        """Device memory that a call takes, arguments included; None if the backend cannot tell."""
        memory = self.program.memory_analysis()
        if memory is None:
            return None
        own = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return memory.argument_size_in_bytes + memory.temp_size_in_bytes + own


def compile_all(*lowered: jax.stages.Lowered) -> list[Compiled]:
    """Compile programs side by side."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda program: Compiled(program.compile()), lowered))


class StepMetrics(NamedTuple):
    """Of one batch, before its update: mean loss, and how many predictions were right (int32).

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
    `indices` (batch,) picks from it. The state is donated: use only the returned one. A `kappa`
    replaces the model's own in the network and in the optimiser.

    Args:
        dtype: what the network computes in; logits, loss and parameters do not change with it.
        skip_nonfinite: a step whose loss or gradient is not finite changes nothing but `step`.
        out_sharding: how the results lie on several devices.
    """
    optimiser = optax.with_extra_args_support(optimiser)
    options = {} if dtype is None else {"dtype": dtype}

    def update(state, images, labels, indices, kappa):
        key = jax.random.fold_in(state.key, state.step)
        batch, targets = prepare(key, images[indices]), labels[indices]

        def loss_fn(params):
            model = merge(graphdef, params, state.stats)
            logits = model(batch, train=True, kappa=kappa, **options)
            correct = jnp.sum(hits(logits, targets), dtype=jnp.int32)
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
    graphdef: Any,
    prepare: Prepare,
    num_classes: int,
    dtype: Any = None,
    out_sharding: Any = None,
) -> Step:
    """Build `step(params, stats, images, labels, indices, mask, kappa=None) -> Counts`.

    Like the training step it picks `indices` from data on the device; `mask` (batch,) is False
    for the padding of a ragged last batch, which counts for nothing. `prepare` gets no key.
    """
    options = {} if dtype is None else {"dtype": dtype}

    def count(params, stats, images, labels, indices, mask, kappa):
        model = merge(graphdef, params, stats)
        logits = model(prepare(None, images[indices]), train=False, kappa=kappa, **options)
        return count_batch(logits, labels[indices], mask, num_classes)

    return Step(count, out_sharding)


def all_finite(tree: Any) -> Array:
    """Whether every float of a tree is finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))
