"""What a run says and leaves: console lines, summary, exported network, events, trace, plots."""

import importlib
import importlib.util
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lorentz_jax import inference
from lorentz_jax.metrics import format_metric
from lorentz_jax.training import run_directory
from lorentz_jax.training.build import Plan, Program, augmentation
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.devices import program_bytes
from lorentz_jax.training.optimiser import describe_decay
from lorentz_jax.training.state import Arrays, merge

# --- console --------------------------------------------------------------------------------


def describe_plan(config: TrainConfig, plan: Plan) -> str:
    """Say what will be trained on what, in a few lines."""
    count, devices = len(plan.dataset.train_labels), plan.placement.devices
    shift, flip = augmentation(config)
    validation = f"{config.validation} validation, " if config.validation else ""
    lines = [
        f"{plan.dataset.name}: {count} training, {validation}"
        f"{len(plan.dataset.test_labels)} test images",
        plan.storage,
        f"augmentation: moved by up to {shift} pixels{', half of them mirrored' if flip else ''}",
        f"{config.model}: {plan.parameters:,} parameters, "
        f"{describe_decay(plan.state.params, config)}",
    ]
    if plan.batch_size < config.batch_size:
        lines.insert(
            0, f"notice: only {count} training images, so the batch size is {plan.batch_size}"
        )
    if devices > 1:
        lines.append(f"{devices} devices, {plan.batch_size // devices} images each")
    return "\n".join(lines)


def describe_step(config: TrainConfig, program: Program, loss: float, seconds: float) -> str:
    """Say what a training step costs, in a few lines."""
    memory, steps = program_bytes(program.train_step), program.plan.steps_per_epoch
    size = "unknown" if memory is None else f"{memory / 2**20:.1f} MiB a device"
    images = "a batch of" if program.plan.streamed else "the training"
    return (
        f"memory of a training step, {images} images included: {size}\n"
        f"{steps} steps an epoch, {steps * config.epochs} in all\n"
        f"compiled in {program.compile_seconds:.1f} s; one step: {seconds:.3f} s, loss {loss:.4f}"
    )


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """Return a row of `metrics.jsonl` as a line for people."""
    split = "validation" if "validation_loss" in row else "test"
    skipped = f"  skipped {row['skipped_steps']}" if row["skipped_steps"] else ""
    wait = f"  data wait {100 * row['data_wait']:.1f} %" if "data_wait" in row else ""
    train_loss, train_accuracy, loss, accuracy = (
        format_metric(row[f"{part}_{name}"])
        for part in ("train", split)
        for name in ("loss", "accuracy")
    )
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  loss {train_loss}  accuracy {train_accuracy}"
        f"  {split} loss {loss}  {split} accuracy {accuracy}"
        f"  lr {row['lr']:.2g}{skipped}{wait}  {row['train_seconds'] + row['eval_seconds']:.1f} s"
    )


# --- summary and exported network -----------------------------------------------------------


def summarise_run(
    config: TrainConfig,
    program: Program,
    history: list[dict[str, Any]],
    test: dict[str, Any],
    epoch: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the content of `summary.json`; `test` and `epoch` are those of the reported state."""
    last, reported, device = history[-1], history[epoch - 1], jax.devices()[0]
    names = ("validation_accuracy", "validation_loss")
    validation = {name: reported[name] for name in names if name in reported}
    train_seconds = math.fsum(row["train_seconds"] for row in history)
    waits = [row["data_wait"] * row["train_seconds"] for row in history if "data_wait" in row]
    classes = program.plan.dataset.classes
    return {
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "test_count": test["count"],
        "test_class_accuracy": test["class_accuracy"],
        **({} if classes is None else {"classes": list(classes)}),
        **validation,
        "selected_epoch": epoch,
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "epochs": last["epoch"],
        "steps": last["step"],
        "skipped_steps": sum(row["skipped_steps"] for row in history),
        "batch_size": program.plan.batch_size,
        "parameters": program.plan.parameters,
        "seconds": seconds,
        "build_seconds": program.plan.build_seconds,
        "compile_seconds": program.compile_seconds,
        "train_seconds": train_seconds,
        "eval_seconds": math.fsum(row["eval_seconds"] for row in history),
        **({"data_wait": math.fsum(waits) / train_seconds} if waits else {}),
        "data": program.plan.fingerprint,
        "device": f"{device.platform}: {device.device_kind}",
        "devices": program.plan.placement.devices,
        "versions": run_directory.versions(),
        "config": config.to_json(),
    }


def write_results(
    config: TrainConfig,
    history: list[dict[str, Any]],
    confusion: list[list[int]],
    summary: dict[str, Any],
) -> None:
    """Write the pictures and, last, `summary.json`, which marks a finished training."""
    save_curves(config.path / "curves.png", history, config.run_name)
    title = f"{config.run_name}: test accuracy {format_metric(summary['test_accuracy'])}"
    save_confusion(config.path / "confusion.png", confusion, title, summary.get("classes"))
    run_directory.write_json(config.path / "summary.json", summary)


def export_run(
    config: TrainConfig, graphdef: Any, params: Arrays, stats: Arrays, summary: dict[str, Any]
) -> Path:
    """Compile the trained network for inference into `compiled.npz`; returns its path.

    Raises:
        TypeError: the network has no compiled form.
    """
    info = {
        "dataset": config.dataset,
        "test_accuracy": summary["test_accuracy"],
        "epoch": summary["selected_epoch"],
        **{name: summary[name] for name in ("classes",) if name in summary},
        "config": config.to_json(),
    }
    path = config.path / "compiled.npz"
    inference.save(inference.compile_cached_v(merge(graphdef, params, stats), info=info), path)
    return path


# --- TensorBoard and profiler ---------------------------------------------------------------


def check_extras(config: TrainConfig) -> None:
    """Refuse an option whose package is absent, before any work.

    Raises:
        ValueError: with what to install.
    """
    if config.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise ValueError(
            "tensorboard needs the package tensorboardX: pip install 'lorentz-jax[tensorboard]'"
        )


class Events:
    """TensorBoard events of a run, or nothing at all if they are off."""

    def __init__(self, path: Path, on: bool, first_step: int) -> None:
        self._path, self._on, self._first_step = str(path), on, first_step
        self._writer: Any = None

    def write(self, row: dict[str, Any]) -> None:
        """Write every number of a row of `metrics.jsonl`, at its step."""
        if not self._on:
            return
        if self._writer is None:  # not before there is something to write
            writer = importlib.import_module("tensorboardX").SummaryWriter
            self._writer = writer(self._path, purge_step=self._first_step)
        groups = {
            f"{group}/{name}": value
            for group in ("radius", "diagnostics")
            for name, value in row.get(group, {}).items()
        }
        for name, value in {**row, **groups}.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


class Profile:
    """Trace the steps `FIRST .. LAST - 1` of the process into a folder; nothing without a folder.

    The first step, number 0, is not typical.
    """

    FIRST, LAST = 2, 5

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._step, self._tracing = folder, 0, False

    def at_step(self) -> None:
        """Note that a step begins."""
        if self._folder is not None and self._step == self.FIRST:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        if self._step == self.LAST:
            self._stop()
        self._step += 1

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False


# --- pictures -------------------------------------------------------------------------------

# Blue and vermilion of the Okabe-Ito palette: distinct for every common colour vision.
TRAIN, HELD_OUT = "#0072B2", "#D55E00"
FEW = 20  # classes whose counts and names there is room for


def save_curves(path: Path, history: Sequence[dict[str, Any]], title: str) -> None:
    """Draw loss and accuracy by epoch, from the lines of `metrics.jsonl`, into a PNG."""
    figure = _figure(9, 3.6)
    figure.suptitle(title, parse_math=False)  # a dollar in it is one
    held_out = "validation" if "validation_loss" in history[0] else "test"
    epochs = [row["epoch"] for row in history]
    panels = (("loss", "cross-entropy (nats)"), ("accuracy", "accuracy"))
    for axes, (quantity, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for split, colour, style in (("train", TRAIN, "o-"), (held_out, HELD_OUT, "s--")):
            values = [row[f"{split}_{quantity}"] for row in history]
            numbers = [math.nan if value is None else value for value in values]
            axes.plot(epochs, numbers, style, color=colour, markersize=4, label=split)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    _save(figure, path)


def save_confusion(
    path: Path, confusion: Sequence[Sequence[int]], title: str, classes: Sequence[str] | None = None
) -> None:
    """Draw, by label and prediction, the share of the label's images, into a PNG.

    Up to `FEW` classes have their counts in the picture, and their names if `classes` has them.
    """
    counts = np.asarray(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(4 + 0.25 * len(counts), 10)
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    # cividis looks alike to every common colour vision, and is monotone in grey.
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the label's images", shrink=0.8)
    if len(counts) <= FEW:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "black" if shares[row, column] > 0.5 else "white"
                axes.text(column, row, count, ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="predicted class", ylabel="class")
    axes.set_title(title, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if classes is not None and len(classes) <= FEW:
        names = [name if len(name) <= 16 else f"{name[:15]}…" for name in classes]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(names)), names, parse_math=False)
        axes.tick_params(axis="x", labelrotation=0 if len("".join(names)) < 40 else 90)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes; the summary has the names.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> Any:
    # Figure and the Agg canvas directly: no pyplot, so no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
