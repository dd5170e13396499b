"""The trained network of a run on disk, and how to get it back without the run's dataset."""

import dataclasses
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import data
from lorentz_jax.models import FLAT, TRANSFORMERS
from lorentz_jax.training import build, checkpoint, packing, run_directory, sealed
from lorentz_jax.training.config import YOUNGER, TrainConfig
from lorentz_jax.training.state import Arrays, merge, split

FORMAT = "lorentz_jax trained model"
VERSION = 1
Which = Literal["reported", "best", "last"]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that was read from its folder.

    Attributes:
        path: the folder.
        config: the settings that the network was trained with.
        summary: the content of `summary.json`; None of a run that has not finished.
        model: the network, an NNX module in evaluation mode (`model.train()` ends it).
        epoch: completed epochs of this network.
        step: training steps of this network.
        mean, std: of the training pixels, one number a channel.
    """

    path: Path
    config: TrainConfig
    summary: dict[str, Any] | None
    model: Any = dataclasses.field(repr=False)
    epoch: int
    step: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def prepare(self, images: Any) -> Array:
        """Return uint8 images `(N, height, width, channels)` as the network's input."""
        return data.normalise(jnp.asarray(images), self.mean, self.std)


def load_run(path: Path | str, which: Which = "reported") -> Run:
    """Read settings, summary and network of a run, without its dataset.

    Everything comes from files with a checksum: a damaged one is refused or, where an older
    checkpoint will do, skipped with a warning.

    Args:
        path: the folder of the run.
        which: the network whose accuracy `summary.json` states; the one of the best epoch on the
            validation images; or the one of the newest checkpoint, also of a run that has not
            finished.

    Raises:
        FileNotFoundError: there is no such run, or it has not come so far.
        ValueError: a file is damaged, changed, or of another version; there is no best epoch.

    >>> run = load_run("runs/digits")  # doctest: +SKIP
    >>> logits = run.model(run.prepare(images))  # doctest: +SKIP
    """
    path = Path(path).expanduser()
    if which not in get_args(Which):
        raise ValueError(f"which must be one of {', '.join(get_args(Which))}, got {which!r}")
    if not path.is_dir():
        raise FileNotFoundError(f"there is no run {path}")
    summary = _read_summary(path)
    weights = _read_weights(path, which)
    if which == "reported" and summary is None:
        raise FileNotFoundError(f"{path} has no summary.json: the run has not finished")
    meta = weights.meta
    try:
        config = TrainConfig.from_json(meta["config"])
    except TypeError as error:
        raise ValueError(f"{path} is a run of another version of lorentz_jax: {error}") from None
    sizes = {"num_classes": meta["classes"], "in_channels": meta["channels"]}
    sizes["image_size"] = meta.get("image_size")  # a file from before this was noted has none
    network = nnx.eval_shape(lambda: build.build_model(config, rngs=nnx.Rngs(0), **sizes))
    graphdef, params, stats = split(network)
    differences = _misfits(weights.arrays, {**params, **stats})
    if differences:
        raise ValueError(f"{path} does not hold the network of its config: {differences}")
    values = jax.tree.map(jnp.asarray, weights.arrays)
    params, stats = ({name: values[name] for name in group} for group in (params, stats))
    model = merge(graphdef, params, stats)
    model.eval()
    return Run(
        path=path,
        config=config,
        summary=summary,
        model=model,
        epoch=weights.epoch,
        step=meta["step"],
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
    )


def facts(dataset: data.Dataset) -> dict[str, Any]:
    """Return what a network must know of its dataset, as JSON."""
    return {
        "classes": dataset.num_classes,
        "channels": dataset.channels,
        "image_size": list(dataset.train_images.shape[1:3]),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def save_model(
    config: TrainConfig,
    dataset: data.Dataset,
    params: Arrays,
    stats: Arrays,
    step: int,
    summary: dict[str, Any],
) -> None:
    """Write `model.safetensors`: the reported network by parameter path, and the summary."""
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "config": config.to_json(),
        **facts(dataset),
        "summary": summary,
    }
    arrays = {name: np.asarray(x) for name, x in sorted({**params, **stats}.items())}
    sealed.write(config.path / run_directory.MODEL, arrays, meta)


def initial_weights(config: TrainConfig, plan: build.Plan) -> tuple[Arrays, Arrays, str]:
    """Return parameters and statistics of the run `config.init_from`, and where they are from.

    They are those that its summary reports, or of its newest checkpoint if it has not finished.

    Raises:
        ValueError: the run has another network, or another number of classes.
        OSError: the run cannot be read.
    """
    assert config.init_from is not None
    path = config.init_from
    which: Which = "reported" if (path / "summary.json").exists() else "last"
    weights = _read_weights(path, which)
    younger = {name: getattr(TrainConfig(), name) for name in YOUNGER}
    there, here = younger | weights.meta["config"], config.to_json()
    # A learned kappa is a weight.
    fixed = () if config.model in FLAT or config.learn_kappa else ("kappa",)
    if config.model in TRANSFORMERS:  # heads have no shape of their own
        fixed += ("patch_size", "heads")
    shape = ("model", "stages", "width", "learn_kappa", "kappa_per_layer", "distance_gain", "init")
    differences = [
        f"{name} is {there.get(name)} there, {here[name]} here"
        for name in (*shape, *fixed)
        if there.get(name) != here[name]
    ]
    classes = weights.meta["classes"], plan.dataset.num_classes
    if not differences and classes[0] != classes[1]:
        raise ValueError(
            f"init_from: {path} has {classes[0]} classes, the dataset has {classes[1]}, so its "
            "classifier does not fit; docs/fine_tuning.md says how to replace it"
        )
    params, stats = plan.state.params, plan.state.stats
    misfits = _misfits(weights.arrays, {**params, **stats})
    if differences or misfits:
        reasons = "; ".join([*differences, *([misfits] if misfits else [])])
        raise ValueError(f"init_from: {path} has another network: {reasons}")
    place = plan.placement.everywhere
    first, second = (
        place({name: weights.arrays[name] for name in group}) for group in (params, stats)
    )
    return first, second, f"{path}, epoch {weights.epoch} ({which})"


class _Weights(NamedTuple):
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
    epoch: int


def _read_weights(path: Path, which: Which) -> _Weights:
    """Read the arrays of a network by parameter path."""
    if which == "reported":
        file = path / run_directory.MODEL
        if not file.exists():
            raise FileNotFoundError(
                f"{path} has no {file.name}: the run has not finished; its newest checkpoint is "
                "which='last'"
            )
        arrays, meta = sealed.read(file, FORMAT)
        _check_version(file, meta, VERSION)
        return _Weights(arrays, meta, meta["summary"]["selected_epoch"])
    root = path / run_directory.CHECKPOINTS
    found = checkpoint.newest(root, [], lambda text: warnings.warn(text, stacklevel=4))
    if found is None:
        raise FileNotFoundError(f"{path} has no checkpoint")
    _check_version(root, found[1], checkpoint.VERSION)
    if which == "best":
        best = found[1]["progress"]["best"]
        if best is None:
            raise ValueError(
                f"{path} has no best epoch: no image was held out (--validation), or no epoch is "
                "complete"
            )
        found = checkpoint.read_step(root, best["step"])
    arrays, meta = found
    groups = ("params/", "stats/")
    weights = {
        name.removeprefix(group): x
        for group in groups
        for name, x in arrays.items()
        if name.startswith(group)
    }
    return _Weights(weights, meta, len(meta["progress"]["history"]))


def _read_summary(path: Path) -> dict[str, Any] | None:
    """Return `summary.json`, if it is that of `model.safetensors`; None if there is none."""
    file = path / "summary.json"
    if not file.exists():
        return None
    try:
        summary = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    model = path / run_directory.MODEL
    if not model.exists() or sealed.read(model, FORMAT)[1].get("summary") != summary:
        raise ValueError(
            f"{file} and {model.name} do not belong together: one was changed or is gone, or the "
            "run was killed while it wrote them; train.py --resume writes both"
        )
    return summary


def _check_version(place: Path, meta: Mapping[str, Any], version: int) -> None:
    if meta["version"] != version:
        raise ValueError(
            f"{place} has format version {meta['version']}, this program reads {version}"
        )


def _misfits(arrays: Mapping[str, Any], like: Mapping[str, Any]) -> str:
    """Say where names, shapes or types differ."""
    return "; ".join(checkpoint.differences(packing.describe(arrays), packing.describe(like)))
