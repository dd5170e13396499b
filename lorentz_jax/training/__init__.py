"""Training runs: config, steps, loop, checkpoints, reports. `train` does what `train.py` does."""

from lorentz_jax.training.config import RECIPES, TrainConfig
from lorentz_jax.training.loop import NonFiniteLossError, Terminated
from lorentz_jax.training.run import dry_run, train

__all__ = ["RECIPES", "NonFiniteLossError", "Terminated", "TrainConfig", "dry_run", "train"]
