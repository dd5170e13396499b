"""Build a run: from a configuration and a dataset to compiled steps and arrays on the devices.

`make_plan` makes all that a run starts from, `compile_program` compiles it.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lorentz_jax import data, metrics
from lorentz_jax.data.dataset import Split
from lorentz_jax.data.stream import epoch_batches
from lorentz_jax.models import build_model
from lorentz_jax.training import devices
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.diagnostics import make_diagnostic_step, make_radius_step
from lorentz_jax.training.feed import Batch, Feed, InMemory, Streamed, decide
from lorentz_jax.training.optimiser import make_optimiser, make_schedule
from lorentz_jax.training.state import Arrays, TrainState, init_network, init_state
from lorentz_jax.training.step import Prepare, compile_all, make_eval_step, make_train_step

Compiled = jax.stages.Compiled


class Plan(NamedTuple):
    """What a run starts from, before anything is compiled.

    `validation` is the images and labels that `dataset` no longer has, of length 0 for none.
    `fingerprint` is that of the whole dataset, `storage` says in words where its images are.
    """

    dataset: data.Dataset
    fingerprint: str
    streamed: bool
    storage: str
    validation: Split
    graphdef: Any
    state: TrainState
    optimiser: Any
    placement: devices.Placement
    batch_size: int
    steps_per_epoch: int
    parameters: int
    build_seconds: float
    first_batch: np.ndarray


class Program(NamedTuple):
    """A plan compiled, with the feed of its batches."""

    plan: Plan
    feed: Feed
    train_step: Compiled
    eval_step: Compiled
    radius_step: Compiled | None
    diagnostic_step: Compiled | None
    schedule: Callable[[int], Any]
    compile_seconds: float

    def train(self, state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        """Take one step."""
        return self.train_step(state, *batch)

    def evaluate(self, params: Arrays, stats: Arrays, split: str) -> dict[str, Any]:
        """Return `metrics.evaluate` on the `validation` or the `test` images."""
        plan, before = self.plan, None
        labels = {"validation": plan.validation.labels, "test": plan.dataset.test_labels}[split]
        with self.feed.evaluate(split) as batches:

            def step(indices: np.ndarray, mask: np.ndarray) -> metrics.Counts:
                nonlocal before
                batch = next(batches)
                if self.feed.waited is not None:  # or all images would lie on the device at once
                    jax.block_until_ready(before)
                before = self.eval_step(params, stats, *batch, *plan.placement.split(mask))
                return before

            return metrics.evaluate(step, len(labels), plan.batch_size)

    def radii(self, params: Arrays, stats: Arrays) -> dict[str, float | None]:
        """Return the mean radius of every layer's output, for the first evaluated images."""
        if self.radius_step is None:
            return {}
        images, _, indices = self.feed.eval_batch(_first_evaluated(self.plan))
        return finite_floats(self.radius_step(params, stats, images, indices))

    def diagnose(self, state: TrainState) -> dict[str, float | None]:
        """Return the measures of `make_diagnostic_step` on the batch that the run began with.

        The run's own key augments it, so every epoch measures the same pixels.
        """
        if self.diagnostic_step is None:
            return {}
        batch = self.feed.train_batch(self.plan.first_batch)
        return finite_floats(self.diagnostic_step(state.params, state.stats, *batch, state.key))


def make_plan(config: TrainConfig, dataset: data.Dataset) -> Plan:
    """Hold images out, choose the batch size, and build network, optimiser and first state.

    Raises:
        ValueError: a network that cannot be built, a batch that does not divide, or Grain is absent
            and needed.
    """
    fingerprint, (streamed, storage) = dataset.fingerprint, decide(config, dataset)
    dataset, held_out = dataset.hold_out(config.validation, config.seed)
    count = len(dataset.train_labels)
    batch_size = min(config.batch_size, count)
    steps_per_epoch = count // batch_size
    placement = devices.place(batch_size)
    start = time.perf_counter()
    graphdef, params, stats = init_network(model_maker(config, dataset), config.seed)
    build_seconds = time.perf_counter() - start
    optimiser = make_optimiser(config, params, steps_per_epoch)
    return Plan(
        dataset=dataset,
        fingerprint=fingerprint,
        streamed=streamed,
        storage=storage,
        validation=held_out,
        graphdef=graphdef,
        state=placement.everywhere(init_state(params, stats, optimiser, config.seed)),
        optimiser=optimiser,
        placement=placement,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        parameters=sum(p.size for p in params.values()),
        build_seconds=build_seconds,
        first_batch=epoch_batches(config.seed, 1, count, batch_size)[0],
    )


def identity(config: TrainConfig, plan: Plan) -> dict[str, Any]:
    """Return what a checkpoint and the run that goes on from it must agree in."""
    classes = plan.dataset.num_classes
    return {"config": config.decisive(), "classes": classes, "data": plan.fingerprint}


def compile_program(config: TrainConfig, plan: Plan) -> Program:
    """Put the images on the devices and compile the steps that the config asks for."""
    dataset, placement, state = plan.dataset, plan.placement, plan.state
    kind = Streamed if plan.streamed else InMemory
    feed = kind(config, dataset, plan.validation, placement, plan.batch_size)
    start = time.perf_counter()
    prepare, model = preparation(config, dataset), (state.params, state.stats)
    options: Any = {"dtype": network_dtype(config), "out_sharding": placement.replicated}
    batch, first = feed.train_batch(plan.first_batch), feed.eval_batch(_first_evaluated(plan))
    (mask,) = placement.split(np.ones(plan.batch_size, bool))
    skip = config.skip_nonfinite > 0
    train_step = make_train_step(plan.graphdef, plan.optimiser, prepare, skip, **options)
    eval_step = make_eval_step(plan.graphdef, prepare, dataset.num_classes, **options)
    lowered = {
        "train": train_step.jitted.lower(state, *batch),
        "eval": eval_step.jitted.lower(*model, *first, mask),
    }
    if config.log_radius:
        step = make_radius_step(plan.graphdef, prepare, **options)
        lowered["radius"] = step.jitted.lower(*model, first[0], first[2])
    if config.diagnostics:
        step = make_diagnostic_step(plan.graphdef, prepare, **options)
        lowered["diagnostics"] = step.jitted.lower(*model, *batch, state.key)
    compiled = dict(zip(lowered, compile_all(*lowered.values()), strict=True))
    return Program(
        plan=plan,
        feed=feed,
        train_step=compiled["train"],
        eval_step=compiled["eval"],
        radius_step=compiled.get("radius"),
        diagnostic_step=compiled.get("diagnostics"),
        schedule=make_schedule(config, plan.steps_per_epoch),
        compile_seconds=time.perf_counter() - start,
    )


def _first_evaluated(plan: Plan) -> np.ndarray:
    count = len(plan.validation.labels) + len(plan.dataset.test_labels)
    return np.arange(plan.batch_size, dtype=np.int32) % count


def model_maker(config: TrainConfig, dataset: data.Dataset) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return a factory `rngs -> network` for this config and dataset."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        size = dataset.train_images.shape[1:3]
        sizes = {"num_classes": dataset.num_classes, "in_channels": dataset.channels}
        return build_model(config, rngs=rngs, image_size=size, **sizes)

    return make


def preparation(config: TrainConfig, dataset: data.Dataset) -> Prepare:
    """Return the augmentation and normalisation of a batch."""
    shift, flip = augmentation(config)
    return functools.partial(
        data.prepare, mean=dataset.mean, std=dataset.std, shift=shift, flip=flip
    )


def augmentation(config: TrainConfig) -> tuple[int, bool]:
    """Return the largest shift and whether to mirror, by default what is usual for the dataset."""
    shift, flip = data.augmentation(config.dataset)
    return (
        shift if config.shift is None else config.shift,
        flip if config.flip is None else config.flip,
    )


def network_dtype(config: TrainConfig) -> Any:
    """Return what the network computes in; None for the dtype of its images."""
    # The layers compute in the dtype of their input, and time and means at least in float32.
    return None if config.precision == "float32" else jnp.dtype(config.precision)


def finite_floats(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Convert scalar arrays to floats, and to None where they are not finite."""
    floats = {name: float(value) for name, value in values.items()}
    return {name: value if math.isfinite(value) else None for name, value in floats.items()}
