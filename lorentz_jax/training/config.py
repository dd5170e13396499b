"""Everything that decides a training run, in one flat record, and the published settings."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, get_args, get_origin

import numpy as np

from lorentz_jax import data
from lorentz_jax.models import TRANSFORMERS, ModelName


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; every field is a flag of `train.py`.

    The defaults reach a test accuracy of about 0.99 on `digits`, in a minute on two CPU cores.

    Raises:
        ValueError: a value out of its range, or settings that do not go together.
        TypeError: a number that should be whole and is not.

    >>> TrainConfig(stages=(1, 1), width=8, epochs=2).run_name
    'lorentz-digits-seed0'
    """

    dataset: str = "digits"
    """`digits` (no download), `cifar10`, `cifar100`, `fashion_mnist`, any prepared dataset,
    `folder:PATH` (PNG or JPEG files by class, perhaps in train/ and test/) or `npz:PATH`."""
    data_dir: Path | None = None
    """Folder of the datasets; by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`."""
    verify: bool = True
    """Compare the checksums of official archives."""
    limit: int | None = None
    """Keep only the first N training images."""
    validation: int = 0
    """Hold out N training images, drawn by the seed, and report the best epoch on them.
    The test set is then used once, at the end."""
    shift: int | None = None
    """Move each training image at random by up to N pixels; by default as usual for the dataset."""
    flip: bool | None = None
    """Mirror half of the training images; by default as usual for the dataset."""

    image_size: tuple[int, ...] | None = None
    """Bring the images of a folder or of a prepared dataset to this height and width, or square.
    They are scaled until they cover it, and cut to their middle."""
    stream: Literal["auto", "on", "off"] = "auto"
    """Read images from their files step by step, or all of them into memory at the start. `auto`
    streams what takes more than `data_memory`. It needs the extra `stream`."""
    data_memory: float = 4.0
    """Largest size in GiB of all pixels, as bytes, that are kept in the memory of each device."""
    workers: int = 2
    """Processes that read and decode streamed images; 0 for threads of this one."""

    model: ModelName = "lorentz"
    """Network; `hcnn-paper` is HCNN as its authors implement it, `-vit` a vision transformer."""
    stages: tuple[int, ...] = (2, 2, 2)
    """Residual blocks of each stage; 2 2 2 2 is ResNet-18. The width doubles at each stage.
    A vision transformer has them all at one width."""
    width: int = 16
    """Channels of the first stage, or of the points of a vision transformer."""
    patch_size: int = 2
    """Side of a patch of a vision transformer; it divides height and width of the images."""
    heads: int = 4
    """Heads of its attention; they divide the width."""
    kappa: float = 0.1
    """The curvature is -kappa; with `learn_kappa` its first value."""
    learn_kappa: bool = False
    """Learn kappa together with the weights."""
    kappa_per_layer: bool = False
    """Learn a kappa for each convolution with its norm, and for the classifier, of `lorentz`."""
    distance_gain: bool = False
    """Learn a factor on the distance of every unit of the convolutions of `lorentz`."""
    init: Literal["fast", "paper"] = "fast"
    """Initial values and parameter groups: `fast` learns quickly, `paper` is the reference's."""

    epochs: int = 20
    """Passes over the training set."""
    batch_size: int = 128
    """Images in a step. The incomplete last batch of an epoch is left out."""
    lr: float = 0.1
    """Learning rate at the start."""
    optimiser: Literal["sgd", "adamw", "muon"] = "sgd"
    """`muon` trains the kernels, and AdamW the rest. Each optimiser needs its own `lr`."""
    momentum: float = 0.9
    """Momentum of SGD and Muon; b1 of AdamW."""
    nesterov: bool = True
    """Use Nesterov momentum in SGD and Muon."""
    weight_decay: float = 5e-4
    """L2 penalty of SGD, or decoupled decay of AdamW and Muon; `init` decides what decays."""
    max_turn: float | None = 0.015
    """Largest angle in radians by which a step of SGD at `lr` turns the weights of a unit.
    For the classifier: largest step relative to the weights' length. `None` for no limit.
    It acts with `init` fast on `lorentz` and `lorentz-vit`, the networks with weight norm."""
    decay_gains: bool = True
    """Let `weight_decay` act on gains: the lengths of the weights of `lorentz` and `lorentz-vit`
    (weight norm), and the factors of `distance_gain`."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate over time: a cosine down to zero, steps, or constant."""
    milestones: tuple[int, ...] = (60, 120, 160)
    """Schedule `step`: epochs after which the learning rate drops."""
    gamma: float = 0.2
    """Schedule `step`: factor of each drop."""

    seed: int = 0
    """Seed of initial values, order of the data and augmentation."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the layers of `lorentz`, `euclidean` and the vision transformers; classifier,
    parameters and loss stay float32."""
    skip_nonfinite: int = 0
    """Leave out up to N steps whose loss or gradient is not finite; one more ends the run."""

    name: str | None = None
    """Folder of the run in `run_dir`; by default made of model, dataset and seed."""
    run_dir: Path = Path("runs")
    """Folder of all runs."""
    overwrite: bool = False
    """Replace the results of an earlier run of the same name."""
    resume: bool = False
    """Continue from the newest readable checkpoint of the run; start if there is none. Unless the
    schedule is `cosine`, `epochs` may be larger than before."""
    init_from: Path | None = None
    """Start from the weights of this run's folder; it must have the same network."""
    keep: int = 3
    """Keep the last N checkpoints, and the best one on the validation images."""
    checkpoint_every: int | None = None
    """Save a checkpoint every N steps, besides that of every epoch."""
    export: bool = False
    """Compile the trained network for inference into `compiled.npz`."""
    tensorboard: bool = False
    """Write TensorBoard events; needs the extra `tensorboard`."""
    log_radius: bool = False
    """Add the mean radius of every layer's output to `metrics.jsonl`."""
    diagnostics: bool = False
    """Add radius, scale and active ReLUs of every layer, every gradient's norm, and how fast every
    kernel turns, of one training batch, to `metrics.jsonl`."""
    profile: bool = False
    """Write a `jax.profiler` trace of three early steps to `profile/`."""
    dry_run: bool = False
    """Print settings, sizes and memory, run one step, and write nothing."""

    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Device to run on; `auto` is the best one there is. All devices share the batch."""
    multihost: bool = False
    """Join several processes: call `jax.distributed.initialize` first."""
    join_timeout: int = 120
    """With `multihost`, end after N seconds in which not all processes have joined."""
    compilation_cache: Path | None = None
    """Folder that keeps compiled programs from run to run, `off` for none. By default `train.py`
    uses that of JAX_COMPILATION_CACHE_DIR, or one in ~/.cache/lorentz-jax."""

    def __post_init__(self) -> None:
        for name in _PATHS:
            object.__setattr__(self, name, _local_path(name, getattr(self, name)))
        for field in dataclasses.fields(self):
            name, types = field.name, get_args(field.type)
            value: Any = getattr(self, name)
            if value is None and NoneType in types:
                continue
            if get_origin(field.type) is Literal and value not in types:
                raise ValueError(f"{name} must be one of {', '.join(types)}, got {value!r}")
            if field.type is bool and not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
            if name in _LEAST:
                _check_integer(name, value, _LEAST[name])
            if name in _RANGES:
                _check_number(name, value, *_RANGES[name])
        if not self.stages:
            raise ValueError("stages must name at least one stage")
        for blocks in self.stages:
            _check_integer("every entry of stages", blocks, 1)
        sides = (1,) if self.image_size is None else self.image_size
        if not isinstance(sides, tuple) or len(sides) not in (1, 2):
            raise ValueError(f"image_size must be (height, width) or (side,), got {sides}")
        for side in sides:
            _check_integer("every entry of image_size", side, 1)
        self._check_combinations()

    def _check_combinations(self) -> None:
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
        if self.distance_gain and self.model != "lorentz":
            raise ValueError(f"distance_gain goes with the model lorentz, got {self.model}")
        if self.init == "paper" and self.optimiser != "sgd":
            raise ValueError(f"init paper goes with the optimiser sgd, not {self.optimiser}")
        if self.precision == "bfloat16" and self.model not in (
            "lorentz",
            "euclidean",
            *TRANSFORMERS,
        ):
            raise ValueError(
                f"precision bfloat16 is for the models lorentz and euclidean, and for vision "
                f"transformers; {self.model} computes in float32 whatever its input"
            )
        if self.model in TRANSFORMERS and self.width % self.heads:
            raise ValueError(f"heads must divide the width {self.width}, got {self.heads}")
        if self.resume and self.overwrite:
            raise ValueError("resume goes on with what is there, overwrite removes it: choose one")
        if self.name is not None and (self.name == ".." or Path(self.name).parts != (self.name,)):
            raise ValueError(f"name must be a plain folder name, got {self.name!r}")

    @property
    def run_name(self) -> str:
        """`name`, or else model, dataset and seed."""
        return self.name or f"{self.model}-{data.short_name(self.dataset)}-seed{self.seed}"

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return Path(self.run_dir) / self.run_name

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Height and width of `image_size`."""
        return None if self.image_size is None else (self.image_size[0], self.image_size[-1])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {field: _plain(value) for field, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_json`. A field that is younger than the settings gets its default.

        Raises:
            TypeError: the fields are those of another version.
        """
        fields = cls.__dataclass_fields__
        younger = TRANSFORMER_FIELDS | YOUNGER
        values = {name: fields[name].default for name in younger} | dict(values)
        lacking, unknown = fields.keys() - values.keys(), values.keys() - fields.keys()
        if lacking or unknown:
            parts = [f"it lacks {', '.join(sorted(lacking))}"] if lacking else []
            parts += [f"unknown fields {', '.join(sorted(unknown))}"] if unknown else []
            raise TypeError(f"these are settings of another version: {'; '.join(parts)}")
        names = ("stages", "milestones", "image_size")
        tuples = {field: tuple(values[field]) for field in names if values[field] is not None}
        paths = {field: Path(values[field]) for field in _PATHS if values[field] is not None}
        return cls(**{**values, **tuples, **paths})

    def decisive(self) -> dict[str, Any]:
        """Return the part of `to_json` that decides the numbers: a checkpoint must agree."""
        return decisive(self.to_json())


def decisive(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config's JSON that decides the numbers.

    `epochs` is in it only if the learning rate depends on it, and the fields of a transformer only
    with one, and those of `YOUNGER` only away from their default (runs from before there were any
    have none). Of a user's own data it has the kind alone, wherever they lie: a checkpoint knows
    them by their fingerprint.
    """
    others = set() if values.get("schedule", "cosine") == "cosine" else {"epochs"}
    if values.get("model") not in TRANSFORMERS:
        others |= TRANSFORMER_FIELDS
    fields = TrainConfig.__dataclass_fields__
    others |= {field for field in YOUNGER if values.get(field) == fields[field].default}
    decides = {field: v for field, v in values.items() if field not in INDIFFERENT | others}
    name = values.get("dataset")
    kind = data.split_name(name)[0] if isinstance(name, str) else None
    return decides | {"dataset": kind} if kind else decides


TRANSFORMER_FIELDS = frozenset({"patch_size", "heads"})

YOUNGER = frozenset({"decay_gains", "distance_gain"})
"""Fields whose default says what a run from before them did."""

INDIFFERENT = frozenset(
    {"data_dir", "verify", "image_size", "stream", "data_memory", "workers"}
    | {"name", "run_dir", "overwrite", "resume", "keep", "checkpoint_every"}
    | {"export", "tensorboard", "log_radius", "diagnostics", "profile", "dry_run"}
    | {"device", "multihost", "compilation_cache", "join_timeout"}
    # A run that stopped at a bad step can go on past it.
    | {"skip_nonfinite"}
)
"""Fields in which a checkpoint and the run that continues it may differ."""

_PATHS = ("data_dir", "run_dir", "init_from", "compilation_cache")

_LEAST = {
    **dict.fromkeys(("epochs", "batch_size", "width", "keep", "limit", "checkpoint_every"), 1),
    **dict.fromkeys(("join_timeout", "patch_size", "heads"), 1),
    **dict.fromkeys(("seed", "validation", "skip_nonfinite", "shift", "workers"), 0),
}
"""Fields with whole numbers, and the smallest of them."""

_RANGES = {
    "kappa": (lambda x: x > 0, "positive (the curvature is -kappa)"),
    **dict.fromkeys(("lr", "data_memory"), (lambda x: x > 0, "positive")),
    "momentum": (lambda x: 0 <= x < 1, "in [0, 1)"),
    "weight_decay": (lambda x: x >= 0, "at least 0"),
    "max_turn": (lambda x: x > 0, "positive, or None for no limit"),
    "gamma": (lambda x: 0 < x <= 1, "in (0, 1]"),
}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _check_integer(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{field} must be at least {least}, got {value}")


def _check_number(field: str, value: Any, in_range: Callable[[Any], bool], text: str) -> None:
    """Check a number as it is given and in float32, in which it will be used."""
    if not (math.isfinite(value) and in_range(value)):
        raise ValueError(f"{field} must be finite and {text}, got {value}")
    limits = np.finfo(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        used = np.float32(value)
    # XLA takes what is smaller than `tiny` for 0. kappa is divided by.
    largest = 1 / limits.tiny if field == "kappa" else limits.max
    if not (in_range(used) and abs(used) <= largest and (value == 0 or abs(used) >= limits.tiny)):
        raise ValueError(f"{field} must be finite and {text} in float32, got {value}")


def _local_path(field: str, value: Path | str | None) -> Path | None:
    if value is None:
        return None
    # `Path` makes one slash of two.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(value)):
        raise ValueError(
            f"{field} must be a local path, got the URL {value}: mount or copy what it names"
        )
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{field}: {error}, got {value}") from None


def _check_milestones(milestones: tuple[int, ...], epochs: int) -> None:
    if any(b <= a for a, b in zip((0, *milestones), milestones, strict=False)):
        raise ValueError(f"milestones must be positive and increasing, got {milestones}")
    if not any(m < epochs for m in milestones):
        raise ValueError(f"no milestone of {milestones} lies before the last of {epochs} epochs")


# SGD with Nesterov momentum, five-fold smaller steps at three epochs, and the paper's own initial
# values and parameter groups (points of the hyperboloid at a fifth of the rate until the first
# drop).
_PAPER: dict[str, Any] = {
    **{"model": "lorentz", "stages": (2, 2, 2, 2), "width": 64, "kappa": 1.0, "init": "paper"},
    **{"epochs": 200, "batch_size": 128, "lr": 0.1, "schedule": "step", "gamma": 0.2},
    **{"milestones": (60, 120, 160), "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
}

RECIPES: dict[str, dict[str, Any]] = {
    "paper-cifar10": {"dataset": "cifar10", **_PAPER},
    "paper-cifar100": {"dataset": "cifar100", **_PAPER},
}
"""Settings of the paper's experiments: `TrainConfig(**RECIPES[name])` is the run."""
