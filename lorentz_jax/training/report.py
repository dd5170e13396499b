"""What a run says and leaves: lines, events, summary, pictures, the compiled network."""

import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import jax

from lorentz_jax.training import run_files
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.metrics import show
from lorentz_jax.training.plots import save_confusion, save_curves
from lorentz_jax.training.setup import Setup
from lorentz_jax.training.state import Arrays, merge


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """A row of `metrics.jsonl` as a line for people."""
    other = "validation" if "validation_loss" in row else "test"
    skipped = f"  skipped {row['skipped_steps']}" if row["skipped_steps"] else ""
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  loss {show(row['train_loss'])}  accuracy {show(row['train_accuracy'])}"
        f"  {other} loss {show(row[f'{other}_loss'])}"
        f"  {other} accuracy {show(row[f'{other}_accuracy'])}"
        f"  lr {row['lr']:.2g}{skipped}  {row['train_seconds'] + row['eval_seconds']:.1f} s"
    )


def summarise_run(
    config: TrainConfig,
    setup: Setup,
    history: list[dict[str, Any]],
    test: dict[str, Any],
    selected: int,
    seconds: float,
) -> dict[str, Any]:
    """The content of `summary.json`; `test` and `selected` belong to the reported epoch."""
    last, chosen, device = history[-1], history[selected - 1], jax.devices()[0]
    validated = {k: chosen[k] for k in ("validation_accuracy", "validation_loss") if k in chosen}
    return {
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "test_count": test["count"],
        "test_class_accuracy": test["class_accuracy"],
        **validated,
        "selected_epoch": selected,
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "epochs": last["epoch"],
        "steps": last["step"],
        "skipped_steps": sum(row["skipped_steps"] for row in history),
        "batch_size": setup.plan.batch_size,
        "parameters": setup.plan.parameters,
        "seconds": seconds,
        "build_seconds": setup.plan.build_seconds,
        "compile_seconds": setup.compile_seconds,
        "train_seconds": math.fsum(row["train_seconds"] for row in history),
        "eval_seconds": math.fsum(row["eval_seconds"] for row in history),
        "device": f"{device.platform}: {device.device_kind}",
        "devices": setup.plan.placement.devices,
        "versions": run_files.versions(),
        "config": config.to_json(),
    }


def write_results(
    config: TrainConfig,
    history: list[dict[str, Any]],
    confusion: list[list[int]],
    summary: dict[str, Any],
) -> None:
    """Write the pictures and, last, `summary.json`: it marks a finished training."""
    save_curves(config.path / "curves.png", history, config.run_name)
    title = f"{config.run_name}: test accuracy {show(summary['test_accuracy'])}"
    save_confusion(config.path / "confusion.png", confusion, title)
    run_files.write_json(config.path / "summary.json", summary)


def export_run(
    config: TrainConfig, graphdef: Any, params: Arrays, stats: Arrays, summary: dict[str, Any]
) -> Path:
    """Compile the trained network for inference into `compiled.npz`; returns its path.

    Raises:
        TypeError: a network that has no compiled form.
    """
    from lorentz_jax import inference

    info = {
        "dataset": config.dataset,
        "test_accuracy": summary["test_accuracy"],
        "epoch": summary["selected_epoch"],
        "config": config.to_json(),
    }
    path = config.path / "compiled.npz"
    inference.save(inference.compile_cached_v(merge(graphdef, params, stats), info=info), path)
    return path


class Events:
    """TensorBoard events of a run, or nothing at all if they are off."""

    def __init__(self, path: Path, on: bool, first_step: int) -> None:
        self._writer: Any = None
        if on:
            writer = importlib.import_module("tensorboardX").SummaryWriter
            self._writer = writer(str(path), purge_step=first_step)

    def write(self, row: dict[str, Any]) -> None:
        """Every number of a row of `metrics.jsonl`, at its step."""
        if self._writer is None:
            return
        inner = {
            f"{group}/{name}": value
            for group in ("radius", "diagnostics")
            for name, value in row.get(group, {}).items()
        }
        for name, value in {**row, **inner}.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def check_extras(config: TrainConfig) -> None:
    """Refuse an option whose package is absent, before any work.

    Raises:
        ValueError: with what to install.
    """
    if config.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise ValueError(
            "tensorboard needs the package tensorboardX: pip install 'lorentz-jax[tensorboard]'"
        )
