"""The folder of a run: refused when taken, written so that a kill leaves whole files."""

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKPOINTS = "checkpoints"
FILES = (
    "config.json", "metrics.jsonl", "summary.json", "curves.png", "confusion.png", "compiled.npz",
)  # fmt: skip
FOLDERS = (CHECKPOINTS, "tensorboard", "profile")
RESULTS = FILES + FOLDERS


def check_free(path: Path, overwrite: bool, resume: bool = False) -> None:
    """Refuse a folder that holds results or cannot be written, before any work is done.

    With `resume` results are expected, if there are checkpoints that they belong to.

    Raises:
        FileExistsError: an earlier run's results, without `overwrite`.
        NotADirectoryError: `path` or a parent of it is a file.
        PermissionError: the folder cannot be written.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"{place} is a file, so {path} cannot be a run's folder")
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".lorentz_jax-"):
            pass
    except OSError as error:
        raise PermissionError(
            f"{existing} cannot be written ({error.strerror}), so {path} cannot get the results"
        ) from None
    taken = [name for name in RESULTS if (path / name).exists()]
    if resume:
        # A run that was killed before its first checkpoint leaves only its configuration.
        if CHECKPOINTS in taken or not set(taken) - {"config.json"}:
            return
        raise FileExistsError(f"{path} holds {', '.join(taken)}, but no checkpoint to go on from")
    if taken and not overwrite:
        raise FileExistsError(
            f"{path} already holds {', '.join(taken)}; choose another --name, go on with --resume, "
            "or replace it with --overwrite"
        )


def start(path: Path, config: dict[str, Any], keep: bool = False) -> None:
    """Create the folder and write `config.json`; without `keep` earlier results are removed."""
    path.mkdir(parents=True, exist_ok=True)
    if not keep:
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(path / name, ignore_errors=True)
    write_json(path / "config.json", config)


def write_json(path: Path, value: Any) -> None:
    """Write through a temporary file beside it, so that `path` is never half a file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write a line of JSON for each row, through a temporary file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
    os.replace(temporary, path)


def append_jsonl(path: Path, value: Any) -> None:
    """Add one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(value, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    from lorentz_jax import _version

    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "lorentz_jax": _version.__version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }
