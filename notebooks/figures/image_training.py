"""Train the arms of `image_nets` on small images with labels of several levels.

The loss is the sum of the cross-entropies of all levels, each from its own classifier on the one
point of an image: every arm is told the whole hierarchy. All see the same images in one order.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax.data.stream import epoch_batches
from lorentz_jax.metrics import cross_entropy, ragged_batches
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.optimiser import make_optimiser
from lorentz_jax.training.state import TrainState, init_state, initialiser, merge, split

from .image_nets import ARMS, Outputs, build

__all__ = ["Images", "Settings", "Trainer", "best_rate", "halved", "tuned"]


@dataclass(frozen=True)
class Settings:
    """What every arm is trained with.

    Attributes:
      train, validation: how many images of the training set are used; of the test set all.
      width, stages: of the residual network.
      batch_size: images in a step.
      steps: of every training.
      seeds: of initial values and order of the images; tuning has one of its own.
      tuning_seed: of the runs that choose the rate.
      rates: of SGD at the start, all of which `tuned` tries.
      episodes, queries: of few-shot classification: how many, and queries of each class.
      unseen: classes that few-shot networks are not trained on.
      shots: labelled images of each unseen class.
      noise: deviations of the noise on test images, in units of the largest pixel.
      changed: how many test images are shown with noise, and with their pixels shuffled.
    """

    train: int = 8192
    validation: int = 2000
    width: int = 8
    stages: tuple[int, ...] = (1, 1, 1)
    batch_size: int = 32
    steps: int = 768
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seed: int = 100
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    episodes: int = 500
    queries: int = 15
    unseen: int = 4
    shots: tuple[int, ...] = (1, 5)
    noise: tuple[float, ...] = (0.05, 0.1, 0.2)
    changed: int = 2000


@dataclass(frozen=True)
class Images:
    """Images in one scale, pixels from 0 to 1 less `mean` and over `std`, and their labels."""

    pixels: np.ndarray
    labels: np.ndarray
    mean: float
    std: float

    def take(self, rows: Any) -> "Images":
        """Return the images of an index array, a mask or a slice."""
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])

    @classmethod
    def of(cls, pixels: np.ndarray, labels: np.ndarray, mean: float, std: float) -> "Images":
        """Normalise pixels `(N, H, W)` in 0 .. 1."""
        scaled = ((pixels - mean) / std).astype(np.float32)
        return cls(scaled[..., None], labels.astype(np.int32), mean, std)


def halved(images: np.ndarray) -> np.ndarray:
    """Return images `(N, H, W, 1)` of bytes as `(N, H/2, W/2)` in 0 .. 1: means of 2 x 2 pixels."""
    n, height, width = images.shape[:3]
    blocks = images.reshape(n, height // 2, 2, width // 2, 2)
    return blocks.mean((2, 4), dtype=np.float32) / 255


class Trainer:
    """An arm at one dimension, whose programs are compiled once.

    Args:
      arm: a key of `image_nets.ARMS`.
      dim: dimensions of the point of an image.
      levels: numbers of the classes at each level, `(levels, classes)`.
      settings: of the training.
      train: images to train on.
    """

    def __init__(
        self, arm: str, dim: int, levels: np.ndarray, settings: Settings, train: Images
    ) -> None:
        counts = [int(level.max()) + 1 for level in levels]
        self.arm, self.dim, self.settings, self.labels = arm, dim, settings, train.labels
        width, stages = settings.width, settings.stages
        graphdef, self._values = initialiser(
            lambda rngs: build(arm, dim, counts, width, stages, rngs)
        )
        of = ARMS[arm]
        curved: Any = {} if of.kappa is None else {"kappa": of.kappa}
        # One epoch of the config is the whole training, along which the cosine falls.
        config = TrainConfig(model=of.model, epochs=1, **curved)
        params = self._values(0)[0]
        self._optimiser = optax.inject_hyperparams(
            lambda lr: make_optimiser(config, params, settings.steps, lr)
        )(lr=settings.rates[0])
        self._data = jax.device_put((train.pixels, np.asarray(levels)[:, train.labels]))
        self._step = jax.jit(self._make_step(graphdef), donate_argnums=0)

        def outputs(params: Any, stats: Any, images: Array) -> Outputs:
            return merge(graphdef, params, stats)(images, train=False)

        self._outputs = jax.jit(outputs)

    def _make_step(self, graphdef: Any) -> Any:
        def step(state: TrainState, images: Array, targets: Array, indices: Array) -> Any:
            def loss_fn(params: Any) -> Any:
                model = merge(graphdef, params, state.stats)
                logits = model(images[indices], train=True).logits
                losses = [
                    cross_entropy(of_level, targets[level, indices]).mean()
                    for level, of_level in enumerate(logits)
                ]
                return jnp.sum(jnp.stack(losses)), split(model)[2]

            (loss, stats), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
            updates, opt_state = self._optimiser.update(gradients, state.opt_state, state.params)
            params: Any = optax.apply_updates(state.params, updates)
            return TrainState(params, stats, opt_state, state.step + 1, state.key), loss

        return step

    def run(self, rate: float, seed: int, classes: Any = None) -> tuple[Any, float]:
        """Train, on the images of some classes if they are named.

        Returns:
          Parameters and statistics, and the mean loss of the last 50 steps: not finite where the
          training left the finite numbers, and ended there.
        """
        params, stats = self._values(seed)
        state = init_state(params, stats, self._optimiser, seed)
        start = optax.tree.set(state.opt_state, lr=jnp.asarray(rate, jnp.float32))
        state, losses = state._replace(opt_state=start), []
        for indices in self._batches(seed, classes):
            state, loss = self._step(state, *self._data, indices)
            losses.append(loss)
            if len(losses) % 50 == 0 and not math.isfinite(float(loss)):
                break
        return (state.params, state.stats), float(np.mean(jax.device_get(losses[-50:])))

    def _batches(self, seed: int, classes: Any) -> Iterator[np.ndarray]:
        """Yield the indices of as many steps, whatever the number of images."""
        known = np.arange(len(self.labels), dtype=np.int32)
        if classes is not None:
            known = known[np.isin(self.labels, classes)]
        size, left, epoch = self.settings.batch_size, self.settings.steps, 0
        if len(known) < size:
            raise ValueError(f"a batch of {size} needs as many images, got {len(known)}")
        while left:
            epoch += 1
            for indices in epoch_batches(seed, epoch, len(known), size)[:left]:
                left -= 1
                yield known[indices]

    def outputs(self, weights: Any, pixels: np.ndarray, batch_size: int = 500) -> Outputs:
        """Return points and logits of images in evaluation mode, as NumPy arrays."""
        parts = [
            jax.tree.map(lambda a, m=mask: np.asarray(a)[m], self._outputs(*weights, pixels[rows]))
            for rows, mask in ragged_batches(len(pixels), batch_size)
        ]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

    def accuracy(self, weights: Any, images: Images) -> float:
        """Return how often the largest logit of the finest level is the label's."""
        logits = self.outputs(weights, images.pixels).logits[0]
        return float(np.mean(logits.argmax(axis=-1) == images.labels))


def tuned(
    trainer: Trainer, validation: Images, known: Mapping[float, float] | None = None
) -> dict[float, float]:
    """Return the validation accuracy by rate, from the least; 0 where a training diverged.

    All of `Settings.rates` are tried but those of `known`: accuracy may have two peaks. Of equal
    accuracies the smaller rate is the better.
    """
    found = dict(known or {})
    for rate in trainer.settings.rates:
        if rate not in found:
            weights, loss = trainer.run(rate, trainer.settings.tuning_seed)
            found[rate] = trainer.accuracy(weights, validation) if math.isfinite(loss) else 0.0
    return {rate: found[rate] for rate in sorted(found)}


def best_rate(found: Mapping[float, float]) -> float:
    """Return the rate of the highest accuracy, the smaller one of equals."""
    return max(sorted(found), key=lambda rate: found[rate])
