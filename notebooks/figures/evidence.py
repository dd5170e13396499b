"""Print what the stored studies say of each geometry, in one table: `docs/evidence.md` has it.

python -m notebooks.figures.evidence
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

from lorentz_jax._src.output import report_error
from lorentz_jax.bench.style import make_console, make_table

from . import images_report, mammals_study

__all__ = ["METHODS", "rows"]

METHODS = {
    "Euclidean": ("euclidean", "euclidean"),
    "FGG": ("fgg", "fgg"),
    "FGG, gain": ("fgg, gain", "fgg, outside"),
    "HCNN": ("chen", "hcnn"),
    "Poincaré": ("poincare", "poincare"),
}
"""The columns: their names in the study of mammals and in that of images."""
_TASKS = {"reconstruction": "mammals, known pairs, MAP", "links": "mammals, unseen pairs, MAP"}
_IMAGES = {
    "accuracy": "images, accuracy %",
    "height": "images, hierarchical error",
    "1-shot": "images, 1-shot %",
    "5-shot": "images, 5-shot %",
    "radius": "digits found by radius, AUROC",
    "0.2": "images with noise 0.2, accuracy %",
}


def rows(mammals: Mapping[str, Any], images: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each measure and dimension: both, then a cell for each of `METHODS`.

    Args:
      mammals: what `mammals_study` wrote.
      images: what `images_study` wrote.
    """
    dims = sorted({int(part.rsplit(", ", 1)[1]) for part in mammals["parts"]})
    found = [
        [title, str(dim)]
        + [
            mammals_study.cell(mammals["parts"][f"{name}, {dim}"][task], "precision")
            for name, _ in METHODS.values()
        ]
        for task, title in _TASKS.items()
        for dim in dims
    ]
    dims = sorted({int(dim) for arm in images["runs"].values() for dim in arm})
    return found + [
        [title, str(dim)]
        + [images_report.cell(images, arm, dim, column) for _, arm in METHODS.values()]
        for column, title in _IMAGES.items()
        for dim in dims
    ]


def main(folder: tyro.conf.Positional[Path] = Path("notebooks")) -> int:
    """Print the table.

    Args:
      folder: where `evidence_mammals.json` and `evidence_images.json` are.
    """
    try:
        texts = ((folder / f"evidence_{name}.json").read_text() for name in ("mammals", "images"))
        mammals, images = map(json.loads, texts)
    except (OSError, ValueError) as error:
        return report_error("evidence", error, 2)
    out = make_table("mean ± deviation of five seeds", "measure", "D", *METHODS, left=1)
    for row in rows(mammals, images):
        out.add_row(*row)
    make_console().print(out)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
