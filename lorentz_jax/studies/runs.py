"""What `train.py` left in a folder, read back: settings and results, or the trained network."""

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax import data
from lorentz_jax.training import checkpoint, run_files
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.setup import plan_run
from lorentz_jax.training.state import Arrays, merge


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network with the images that it knows.

    Attributes:
      config: of the run.
      dataset: what it was trained on, held-out images removed.
      graphdef, params, stats: the network after the last epoch, for `training.state.merge`.
    """

    config: TrainConfig
    dataset: data.Dataset
    graphdef: Any
    params: Arrays
    stats: Arrays

    def model(self) -> Any:
        """The network as an NNX module."""
        return merge(self.graphdef, self.params, self.stats)

    def logits(self, images: Array) -> Array:
        """Of normalised images, from one compiled program."""

        def apply(params, stats, images):
            return merge(self.graphdef, params, stats)(images, train=False)

        return jax.jit(apply)(self.params, self.stats, images)

    def images(self, count: int) -> Array:
        """The first test images, normalised as in training."""
        known, pixels = self.dataset, jnp.asarray(self.dataset.test_images[:count])
        return data.prepare(None, pixels, mean=known.mean, std=known.std, shift=0)


def read_run(path: Path | str) -> tuple[TrainConfig, dict[str, Any]]:
    """Configuration and summary of a finished run.

    Raises:
      ValueError: a folder without them, or whose files are of something else.
    """
    found = {}
    for name in ("config", "summary"):
        file = Path(path) / f"{name}.json"
        if not file.is_file():
            raise ValueError(f"{path} is not the folder of a finished run: it has no {name}.json")
        try:
            found[name] = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from None
    try:
        return TrainConfig.from_json(found["config"]), found["summary"]
    except TypeError as error:
        raise ValueError(f"{path} is a run of another version of lorentz_jax: {error}") from None


def open_run(path: Path | str) -> Trained:
    """The network of a finished run after its last epoch, from the newest checkpoint.

    Raises:
      ValueError: no finished run, or no checkpoint of it.
    """
    path = Path(path)
    config, _ = read_run(path)
    dataset = data.load(
        config.dataset, data_dir=config.data_dir, limit=config.limit, verify=config.verify
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it would announce a training
        plan = plan_run(config, dataset)
    expected = {"config": config.decisive(), "classes": dataset.num_classes}
    found = checkpoint.restore(path / run_files.CHECKPOINTS, plan.state, expected)
    if found is None:
        raise ValueError(f"{path} has no checkpoint to take the network from")
    return Trained(config, plan.dataset, plan.graphdef, found[0].params, found[0].stats)
