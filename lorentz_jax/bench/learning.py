"""How fast networks learn, step by step: training loss and validation accuracy over the steps.

Every arm (a network with its preset, curvature and optimiser) is trained with every learning rate
and seed; its rate is then chosen on validation images, and only the networks of that rate are
evaluated on the test images, after the last step. All arms see the same images in the same order.

A program is compiled once for each arm: the learning rate is an argument of it.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lorentz_jax import data, metrics
from lorentz_jax.data.stream import epoch_batches
from lorentz_jax.models import FLAT
from lorentz_jax.training.build import model_maker, network_dtype, preparation
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.optimiser import make_optimiser
from lorentz_jax.training.state import TrainState, init_state, initialiser
from lorentz_jax.training.step import make_eval_step, make_train_step

DIVERGED = 50.0
"""A training loss above this ends a run, as one that is not finite does."""

Weights = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Parameters and running statistics."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      arm, rate, seed: what was trained.
      loss: training loss of each step, before its update, in train mode, as long as it is finite.
      validation: `(step, accuracy)`, from the first evaluation to the last step.
      test: accuracy on the test images after the last step; None where it was not asked for.
      diverged: the loss left the finite numbers, or `DIVERGED` behind; the lists end there.
      seconds: of training and evaluation; in the first run of an arm, of compiling too.
    """

    arm: str
    rate: float
    seed: int
    loss: list[float]
    validation: list[tuple[int, float]]
    test: float | None
    diverged: bool
    seconds: float

    def late_loss(self, steps: int) -> float:
        """Return the mean training loss of the last `steps` steps; infinity if the run diverged."""
        return math.inf if self.diverged else float(np.mean(self.loss[-steps:]))

    @property
    def accuracy(self) -> float:
        """Validation accuracy at the end; 0 if the run diverged."""
        return 0.0 if self.diverged else self.validation[-1][1]

    def steps_to(self, accuracy: float) -> int | None:
        """Return the first evaluated step with such a validation accuracy, or None."""
        return next((step for step, value in self.validation if value >= accuracy), None)


def arms(
    config: TrainConfig,
    models: Sequence[str],
    kappas: Sequence[float],
    presets: Sequence[str],
    optimisers: Sequence[str],
) -> dict[str, TrainConfig]:
    """Return configurations by name: all combinations that there are.

    The Euclidean network has neither kappa nor presets, and the preset `paper` no optimiser but
    `sgd`.

    Raises:
      ValueError: a name that is unknown or a curvature that is not positive, also where no arm
        would use it.
    """
    options = {"model": models, "kappa": kappas, "init": presets, "optimiser": optimisers}
    plain = replace(config, learn_kappa=False, kappa_per_layer=False, distance_gain=False)
    for field, values in options.items():
        for value in values:
            replace(plain, **{field: value})
    configs = {}
    for model, kappa, preset, optimiser in itertools.product(*options.values()):
        flat = model in FLAT
        kappa, preset = (config.kappa, "fast") if flat else (kappa, preset)
        if preset == "paper" and optimiser != "sgd":
            continue
        learn = config.learn_kappa and not flat
        per_layer, gained = (
            on and model == "lorentz" for on in (config.kappa_per_layer, config.distance_gain)
        )
        parts = [model, *([] if flat else [f"kappa {kappa:.9g}"])]
        parts += ["learned per layer" if per_layer else "learned"] * learn
        parts += ["distance gain"] * gained
        parts += ["paper"] * (preset == "paper") + [optimiser] * (optimiser != "sgd")
        arm: dict[str, Any] = {"model": model, "kappa": kappa, "init": preset}
        arm |= {"optimiser": optimiser, "learn_kappa": learn}
        arm |= {"kappa_per_layer": per_layer, "distance_gain": gained}
        configs[", ".join(parts)] = replace(config, **arm)
    return configs


class Trainer:
    """An arm whose steps are compiled once, when they are first needed.

    Raises:
      ValueError: a network that cannot be built, or images that do not suffice.
    """

    def __init__(self, name: str, config: TrainConfig, dataset: data.Dataset) -> None:
        left = len(dataset.train_labels) - config.validation
        if left < config.batch_size or config.validation < 1:
            raise ValueError(
                f"expected validation images and at least {config.batch_size} others to train "
                f"on, got {config.validation} of {len(dataset.train_labels)}"
            )
        self.name, self.config, self.dataset = name, config, dataset
        self.steps_per_epoch = left // config.batch_size
        self._prepare = preparation(config, dataset)
        self._graphdef, self._values = initialiser(model_maker(config, dataset))
        self._dtype = network_dtype(config)
        self._eval_step = make_eval_step(
            self._graphdef, self._prepare, dataset.num_classes, dtype=self._dtype
        )
        self._program: tuple[Any, Any] | None = None

    def run(self, rate: float, seed: int, every: int) -> tuple[Run, Weights]:
        """Train, and evaluate on the validation images after every `every` steps."""
        config = self.config
        dataset, held_out = self.dataset.hold_out(config.validation, seed)
        held = np.asarray(held_out.images), held_out.labels
        train_set = jax.device_put((np.asarray(dataset.train_images), dataset.train_labels))
        state, train_step = self._start(rate, seed)
        total = config.epochs * self.steps_per_epoch
        losses: list[float] = []
        course: list[tuple[int, float]] = []
        diverged, begin = False, time.perf_counter()
        for indices in self._batches(seed, len(dataset.train_labels)):
            state, result = train_step(state, *train_set, indices)
            loss = float(result.loss)
            losses += [loss] * math.isfinite(loss)
            diverged = not (bool(result.finite) and loss < DIVERGED)
            if diverged:
                break
            if len(losses) % every == 0 or len(losses) == total:
                course.append((len(losses), self.accuracy((state.params, state.stats), *held)))
        seconds = time.perf_counter() - begin
        run = Run(self.name, rate, seed, losses, course, None, diverged, seconds)
        return run, jax.device_get((state.params, state.stats))

    def accuracy(self, weights: Weights, images: np.ndarray, labels: np.ndarray) -> float:
        """Return the accuracy of a network on some images."""
        on_device = jax.device_put((images, labels))

        def step(indices: np.ndarray, mask: np.ndarray) -> metrics.Counts:
            return self._eval_step(*weights, *on_device, indices, mask)

        return metrics.evaluate(step, len(labels), self.config.batch_size)["accuracy"]

    def _batches(self, seed: int, count: int) -> Iterator[np.ndarray]:
        for epoch in range(1, self.config.epochs + 1):
            yield from epoch_batches(seed, epoch, count, self.config.batch_size)

    def _start(self, rate: float, seed: int) -> tuple[TrainState, Any]:
        """Return the initial state, which holds the rate, and the training step."""
        params, stats = self._values(seed)
        if self._program is None:
            optimiser = optax.inject_hyperparams(
                lambda lr: make_optimiser(self.config, params, self.steps_per_epoch, lr)
            )(lr=rate)
            graphdef, prepare = self._graphdef, self._prepare
            train_step = make_train_step(graphdef, optimiser, prepare, dtype=self._dtype)
            self._program = train_step, optimiser
        train_step, optimiser = self._program
        state = init_state(params, stats, optimiser, seed)
        opt_state = optax.tree.set(state.opt_state, lr=jnp.asarray(rate, jnp.float32))
        return state._replace(opt_state=opt_state), train_step
