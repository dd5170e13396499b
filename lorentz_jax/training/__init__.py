"""Training runs: settings, steps, loop, checkpoints and reports.

`train(config)` does in Python or a notebook what `train.py` does on the command line: the same
files in `runs/<name>/`, the same printed lines, the same bits. `train(config, dataset)` does it
with data of your own. Every flag of `train.py` is a field of `TrainConfig`, and
`TrainConfig(**RECIPES[name])` is what `--recipe` sets.
"""

from lorentz_jax._src.extras import require

require(
    "lorentz_jax.training",
    "train",
    "flax",
    "optax",
    "safetensors",
    "tyro",
    "tqdm",
    "matplotlib",
    "sklearn",
)

from lorentz_jax.training.config import RECIPES, TrainConfig
from lorentz_jax.training.devices import OutOfMemoryError
from lorentz_jax.training.loop import NonFiniteLossError, Terminated
from lorentz_jax.training.reload import Run, load_run
from lorentz_jax.training.run import dry_run, train

__all__ = [
    "RECIPES",
    "NonFiniteLossError",
    "OutOfMemoryError",
    "Run",
    "Terminated",
    "TrainConfig",
    "dry_run",
    "load_run",
    "train",
]
