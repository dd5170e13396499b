"""The pictures of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Blue and vermilion of the Okabe-Ito palette: distinct for every common colour vision.
TRAIN, HELD_OUT = "#0072B2", "#D55E00"


def save_curves(path: Path, history: Sequence[dict[str, Any]], title: str) -> None:
    """Draw loss and accuracy by epoch, from the lines of `metrics.jsonl`, into a PNG."""
    figure = _figure(9, 3.6)
    figure.suptitle(title)
    other = "validation" if "validation_loss" in history[0] else "test"
    epochs = [row["epoch"] for row in history]
    panels = (("loss", "cross-entropy (nats)"), ("accuracy", "accuracy"))
    for axes, (quantity, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for split, colour, style in (("train", TRAIN, "o-"), (other, HELD_OUT, "s--")):
            values = [row[f"{split}_{quantity}"] for row in history]
            known = [float("nan") if value is None else value for value in values]
            axes.plot(epochs, known, style, color=colour, markersize=4, label=split)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def save_confusion(path: Path, confusion: Sequence[Sequence[int]], title: str) -> None:
    """Draw, by label and prediction, the share of the label's images, into a PNG."""
    counts = np.asarray(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(4 + 0.25 * len(counts), 10)
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    # cividis looks alike to every common colour vision, and is monotone in grey.
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the label's images", shrink=0.8)
    if len(counts) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "black" if shares[row, column] > 0.5 else "white"
                axes.text(column, row, count, ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="predicted class", ylabel="class", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> Any:
    # Figure and the Agg canvas directly: no pyplot, so no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
