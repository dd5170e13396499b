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
from jax import Array

from lorentz_jax import data, metrics
from lorentz_jax.models import build_model
from lorentz_jax.training import devices
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.diagnostics import make_diagnostic_step, make_radius_step
from lorentz_jax.training.optimiser import make_optimiser, make_schedule
from lorentz_jax.training.state import Arrays, TrainState, init_network, init_state
from lorentz_jax.training.step import Prepare, compile_all, make_eval_step, make_train_step

Compiled = jax.stages.Compiled


class Plan(NamedTuple):
    """What a run starts from, before anything is compiled.

    `validation` is the images and labels that `dataset` no longer has, of length 0 for none.
    """

    dataset: data.Dataset
    validation: tuple[np.ndarray, np.ndarray]
    graphdef: Any
    state: TrainState
    optimiser: Any
    placement: devices.Placement
    batch_size: int
    steps_per_epoch: int
    parameters: int
    build_seconds: float


class Program(NamedTuple):
    """A plan compiled, with its images on the devices.

    Validation and test images are one array, so that one program evaluates both.
    """

    plan: Plan
    train_step: Compiled
    eval_step: Compiled
    radius_step: Compiled | None
    diagnostic_step: Compiled | None
    train_set: tuple[Array, Array]
    eval_set: tuple[Array, Array]
    schedule: Callable[[int], Any]
    compile_seconds: float

    def train(self, state: TrainState, indices: np.ndarray) -> tuple[TrainState, Any]:
        """Take one step on the training images `indices`."""
        return self.train_step(state, *self.train_set, *self.plan.placement.split(indices))

    def evaluate(self, params: Arrays, stats: Arrays, split: str) -> dict[str, Any]:
        """Return `metrics.evaluate` on the `validation` or the `test` images."""
        held_out, test = len(self.plan.validation[1]), len(self.plan.dataset.test_labels)
        start, count = {"validation": (0, held_out), "test": (held_out, test)}[split]

        def step(indices: np.ndarray, mask: np.ndarray) -> metrics.Counts:
            picked = self.plan.placement.split((indices + start).astype(np.int32), mask)
            return self.eval_step(params, stats, *self.eval_set, *picked)

        return metrics.evaluate(step, count, self.plan.batch_size)

    def radii(self, params: Arrays, stats: Arrays) -> dict[str, float | None]:
        """Return the mean radius of every layer's output, for the first evaluated images."""
        if self.radius_step is None:
            return {}
        indices = np.arange(self.plan.batch_size, dtype=np.int32) % len(self.eval_set[1])
        picked = self.plan.placement.split(indices)
        return finite_floats(self.radius_step(params, stats, self.eval_set[0], *picked))

    def diagnose(self, state: TrainState, indices: np.ndarray) -> dict[str, float | None]:
        """Return the measures of `make_diagnostic_step` on the training images `indices`.

        The run's own key augments them, so the same indices give the same pixels in every epoch.
        """
        if self.diagnostic_step is None:
            return {}
        picked = self.plan.placement.split(indices)
        return finite_floats(
            self.diagnostic_step(state.params, state.stats, *self.train_set, *picked, state.key)
        )


def make_plan(config: TrainConfig, dataset: data.Dataset) -> Plan:
    """Hold images out, choose the batch size, and build network, optimiser and first state.

    Raises:
        ValueError: a network that cannot be built, or a batch that does not divide.
    """
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
        validation=held_out,
        graphdef=graphdef,
        state=placement.everywhere(init_state(params, stats, optimiser, config.seed)),
        optimiser=optimiser,
        placement=placement,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        parameters=sum(p.size for p in params.values()),
        build_seconds=build_seconds,
    )


def compile_program(config: TrainConfig, plan: Plan) -> Program:
    """Put the images on the devices and compile the steps that the config asks for."""
    dataset, placement, state = plan.dataset, plan.placement, plan.state
    train_set = placement.everywhere((dataset.train_images, dataset.train_labels))
    images = np.concatenate([plan.validation[0], dataset.test_images])
    labels = np.concatenate([plan.validation[1], dataset.test_labels])
    eval_set = placement.everywhere((images, labels))
    start = time.perf_counter()
    prepare, model = preparation(config, dataset), (state.params, state.stats)
    options: Any = {"dtype": network_dtype(config), "out_sharding": placement.replicated}
    indices, mask = placement.split(*next(metrics.ragged_batches(plan.batch_size, plan.batch_size)))
    skip = config.skip_nonfinite > 0
    train_step = make_train_step(plan.graphdef, plan.optimiser, prepare, skip, **options)
    eval_step = make_eval_step(plan.graphdef, prepare, dataset.num_classes, **options)
    lowered = {
        "train": train_step.jitted.lower(state, *train_set, indices),
        "eval": eval_step.jitted.lower(*model, *eval_set, indices, mask),
    }
    if config.log_radius:
        step = make_radius_step(plan.graphdef, prepare, **options)
        lowered["radius"] = step.jitted.lower(*model, eval_set[0], indices)
    if config.diagnostics:
        step = make_diagnostic_step(plan.graphdef, prepare, **options)
        lowered["diagnostics"] = step.jitted.lower(*model, *train_set, indices, state.key)
    compiled = dict(zip(lowered, compile_all(*lowered.values()), strict=True))
    return Program(
        plan=plan,
        train_step=compiled["train"],
        eval_step=compiled["eval"],
        radius_step=compiled.get("radius"),
        diagnostic_step=compiled.get("diagnostics"),
        train_set=train_set,
        eval_set=eval_set,
        schedule=make_schedule(config, plan.steps_per_epoch),
        compile_seconds=time.perf_counter() - start,
    )


def model_maker(config: TrainConfig, dataset: data.Dataset) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return a factory `rngs -> network` for this config and dataset."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        return build_model(
            config, num_classes=dataset.num_classes, in_channels=dataset.channels, rngs=rngs
        )

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
