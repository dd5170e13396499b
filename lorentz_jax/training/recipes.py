"""Settings of published experiments, by name."""

from typing import Any

# The paper's: SGD with Nesterov, five-fold smaller steps at three epochs, its initial values and
# parameter groups (points of the hyperboloid at a fifth of the rate until the first drop).
_PAPER: dict[str, Any] = {
    "model": "lorentz",
    "stages": (2, 2, 2, 2),
    "width": 64,
    "kappa": 1.0,
    "init": "paper",
    "epochs": 200,
    "batch_size": 128,
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": "step",
    "milestones": (60, 120, 160),
    "gamma": 0.2,
}

RECIPES: dict[str, dict[str, Any]] = {
    "paper-cifar10": {"dataset": "cifar10", **_PAPER},
    "paper-cifar100": {"dataset": "cifar100", **_PAPER},
}
"""Fields of `TrainConfig` that a recipe sets; `TrainConfig(**RECIPES[name])` is the run."""
