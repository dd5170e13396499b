"""Everything that decides a training run, in one flat record."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train a Lorentz network on images.

    The defaults reach a test accuracy of about 0.99 on `digits`, in a minute on two CPU cores.
    """

    dataset: str = "digits"
    """`digits` (needs no download), `cifar10`, `cifar100`, `fashion_mnist`, or any image
    classification dataset that tensorflow-datasets has prepared."""
    data_dir: Path | None = None
    """Where the datasets are; by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`."""
    verify: bool = True
    """Compare the checksums of archives and records."""
    limit: int | None = None
    """Keep only the first so many training images."""
    validation: int = 0
    """Hold out so many training images, drawn by the seed: the reported network is then the one
    of the best epoch on them, and the test set is used once, at the end."""
    shift: int | None = None
    """Move each training image at random by up to so many pixels; by default what is usual for the
    dataset: 1 for `digits`, 4 for larger images."""
    flip: bool | None = None
    """Mirror half of the training images; by default what is usual for the dataset."""

    model: Literal["lorentz", "euclidean", "hcnn", "poincare", "hcnn-paper"] = "lorentz"
    """Family of the network; `hcnn-paper` is HCNN as the paper's authors have it in their code."""
    stages: tuple[int, ...] = (2, 2, 2)
    """Residual blocks of each stage; 2 2 2 2 is ResNet-18. The width doubles at each stage."""
    width: int = 16
    """Channels of the first stage."""
    kappa: float = 0.1
    """The curvature is -kappa; the first value of it if it is learned."""
    learn_kappa: bool = False
    """Learn kappa together with the weights."""
    kappa_per_layer: bool = False
    """Learn one kappa for each convolution (with its norm) and the classifier of `lorentz`, not one
    for the network."""
    init: Literal["fast", "paper"] = "fast"
    """Initial values and parameter groups: `fast` is made to learn quickly, `paper` is the
    reference's."""

    epochs: int = 20
    """Passes over the training set."""
    batch_size: int = 128
    """Images a step. The incomplete last batch of an epoch is left out."""
    lr: float = 0.1
    """Learning rate at the start."""
    optimiser: Literal["sgd", "adamw", "muon"] = "sgd"
    """SGD with momentum; AdamW; or Muon for the kernels and AdamW for the rest. The rates that
    suit them differ: see README."""
    momentum: float = 0.9
    """Momentum of SGD, of Muon, and of AdamW (its b1)."""
    nesterov: bool = True
    """Use Nesterov's form of momentum, with SGD and Muon."""
    weight_decay: float = 5e-4
    """Coefficient of the L2 penalty, or of AdamW's and Muon's decoupled decay; which parameters it
    touches is up to `init`."""
    max_turn: float | None = 0.015
    """SGD cuts the gradient of each unit of a kernel so that a step at the rate `lr` (without
    momentum and decay) turns its direction by at most so much, in radians; a column of the
    classifier, which has a length of its own, moves by at most this share of it.
    `None` for no limit. It is for `init` fast and `lorentz`, the only network with weight norm."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate over time: down to zero, in steps, or flat."""
    milestones: tuple[int, ...] = (60, 120, 160)
    """`step` schedule: the epochs after which the learning rate is multiplied by gamma."""
    gamma: float = 0.2
    """`step` schedule: the factor at each milestone."""

    seed: int = 0
    """Decides initial values, order of the data and augmentation."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What convolutions of `lorentz` and `euclidean` compute in. Parameters, time, means, logits
    and loss stay float32."""
    skip_nonfinite: int = 0
    """Leave out up to so many steps whose loss or gradient is not finite; one more ends the run."""

    name: str | None = None
    """Folder of the run inside `run_dir`; by default made of model, dataset and seed."""
    run_dir: Path = Path("runs")
    """Where the folders of the runs are."""
    overwrite: bool = False
    """Replace the results of an earlier run with the same name."""
    resume: bool = False
    """Go on from the newest readable checkpoint of the run, or start if it has none."""
    keep: int = 3
    """How many of the last checkpoints stay; the best one on the validation images stays too."""
    checkpoint_every: int | None = None
    """Save a checkpoint every so many steps, besides the one after every epoch."""
    export: bool = False
    """Compile the trained network for inference into `compiled.npz`."""
    tensorboard: bool = False
    """Write TensorBoard events too; needs the extra `tensorboard`."""
    log_radius: bool = False
    """Add the mean hyperbolic radius of every layer's output (the Euclidean norm in `euclidean`)
    to `metrics.jsonl`."""
    diagnostics: bool = False
    """Add how fast every kernel would turn without `max_turn`, every gradient's norm, and every
    output's radius, scale and share of active ReLUs, of one training batch, to `metrics.jsonl`."""
    profile: bool = False
    """Write a `jax.profiler` trace of three early steps to `profile/`."""
    dry_run: bool = False
    """Print the settings, sizes and memory, run one step, and write nothing."""

    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """What to run on; `auto` is the best there is. The batch is split over all devices."""
    multihost: bool = False
    """This process is one of several: call `jax.distributed.initialize` first."""
    compilation_cache: Path | None = None
    """Folder that keeps compiled programs from run to run."""

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size", "width"):
            _whole(field, getattr(self, field), 1)
        _whole("keep", self.keep, 1)
        for field in ("seed", "validation", "skip_nonfinite"):
            _whole(field, getattr(self, field), 0)
        for field, least in (("limit", 1), ("checkpoint_every", 1), ("shift", 0)):
            if getattr(self, field) is not None:
                _whole(field, getattr(self, field), least)
        if not self.stages:
            raise ValueError("stages must name at least one stage")
        for blocks in self.stages:
            _whole("every entry of stages", blocks, 1)
        _number("kappa", self.kappa, self.kappa > 0, "positive (the curvature is -kappa)")
        _number("lr", self.lr, self.lr > 0, "positive")
        _number("momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        _number("weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        if self.max_turn is not None:
            _number("max_turn", self.max_turn, self.max_turn > 0, "positive, or None for no limit")
        _number("gamma", self.gamma, 0 < self.gamma <= 1, "in (0, 1]")
        _choice("model", self.model, ("lorentz", "euclidean", "hcnn", "poincare", "hcnn-paper"))
        _choice("init", self.init, ("fast", "paper"))
        _choice("optimiser", self.optimiser, ("sgd", "adamw", "muon"))
        _choice("schedule", self.schedule, ("cosine", "step", "constant"))
        _choice("precision", self.precision, ("float32", "bfloat16"))
        _choice("device", self.device, ("auto", "cpu", "gpu", "tpu"))
        if self.schedule == "step":
            _check_milestones(self.milestones, self.epochs)
        if self.init == "paper" and self.learn_kappa:
            raise ValueError(
                "init paper needs a fixed kappa: its beta is a point of one hyperboloid"
            )
        if self.kappa_per_layer and not (self.model == "lorentz" and self.learn_kappa):
            raise ValueError(
                "kappa_per_layer goes with the model lorentz and learn_kappa, got "
                f"{self.model} and learn_kappa {self.learn_kappa}"
            )
        if self.init == "paper" and self.optimiser != "sgd":
            raise ValueError(f"init paper goes with the optimiser sgd, not {self.optimiser}")
        if self.precision == "bfloat16" and self.model not in ("lorentz", "euclidean"):
            raise ValueError(
                f"precision bfloat16 is for the models lorentz and euclidean; {self.model} "
                "computes in float32 whatever its input"
            )
        if self.resume and self.overwrite:
            raise ValueError("resume goes on with what is there, overwrite removes it: choose one")
        if self.name is not None and (self.name == ".." or Path(self.name).parts != (self.name,)):
            raise ValueError(f"name must be a plain folder name, got {self.name!r}")

    @property
    def run_name(self) -> str:
        """`name`, or what the run is called without one."""
        return self.name or f"{self.model}-{self.dataset}-seed{self.seed}"

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return Path(self.run_dir) / self.run_name

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {field: _plain(value) for field, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; `TypeError` for fields of another version."""
        fields = cls.__dataclass_fields__
        lacking, unknown = fields.keys() - values.keys(), values.keys() - fields.keys()
        if lacking or unknown:
            raise TypeError(
                "these are settings of another version: "
                + "; ".join(
                    f"{word} {', '.join(sorted(names))}"
                    for word, names in (("it lacks", lacking), ("unknown fields", unknown))
                    if names
                )
            )
        tuples = {field: tuple(values[field]) for field in ("stages", "milestones")}
        paths = {
            field: Path(values[field])
            for field in ("data_dir", "run_dir", "compilation_cache")
            if values.get(field) is not None
        }
        return cls(**{**values, **tuples, **paths})

    def decisive(self) -> dict[str, Any]:
        """The part of `to_json` that decides the numbers: a checkpoint must agree with it."""
        return {field: v for field, v in self.to_json().items() if field not in INDIFFERENT}


# What may differ between a checkpoint and the run that goes on from it. `skip_nonfinite` is here so
# that a run which stopped at a bad step can go on past it.
INDIFFERENT = frozenset({
    "name", "run_dir", "overwrite", "resume", "keep", "checkpoint_every", "export", "tensorboard",
    "profile", "log_radius", "diagnostics", "dry_run", "device", "multihost", "compilation_cache",
    "skip_nonfinite", "data_dir", "verify",
})  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _whole(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{field} must be at least {least}, got {value}")


def _number(field: str, value: float, in_range: bool, range_text: str) -> None:
    if not (math.isfinite(value) and in_range):
        raise ValueError(f"{field} must be finite and {range_text}, got {value}")


def _choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}, got {value!r}")


def _check_milestones(milestones: tuple[int, ...], epochs: int) -> None:
    if any(b <= a for a, b in zip((0, *milestones), milestones, strict=False)):
        raise ValueError(f"milestones must be positive and increasing, got {milestones}")
    if not any(m < epochs for m in milestones):
        raise ValueError(f"no milestone of {milestones} lies before the last of {epochs} epochs")


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
