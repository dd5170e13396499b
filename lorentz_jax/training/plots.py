"""The picture of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Blue and vermilion of the Okabe-Ito palette: distinct for every common colour vision.
TRAIN, TEST = "#0072B2", "#D55E00"


def save_curves(path: Path, history: Sequence[dict[str, Any]], title: str) -> None:
    """Draw loss and accuracy by epoch, from the lines of `metrics.jsonl`, into a PNG."""
    # Figure and the Agg canvas directly: no pyplot, so no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    epochs = [row["epoch"] for row in history]
    panels = (("loss", "cross-entropy (nats)"), ("accuracy", "accuracy"))
    for axes, (quantity, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for split, colour, style in (("train", TRAIN, "o-"), ("test", TEST, "s--")):
            values = [row[f"{split}_{quantity}"] for row in history]
            known = [float("nan") if value is None else value for value in values]
            axes.plot(epochs, known, style, color=colour, markersize=4, label=split)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
