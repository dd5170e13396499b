"""The folder of a run: refuse one in use, and write its files so that a kill leaves whole ones."""

import importlib.metadata
import json
import platform
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lorentz_jax import _version
from lorentz_jax._src.output import write_atomic

CHECKPOINTS = "checkpoints"
PICTURES = ("curves.png", "confusion.png")
FILES = ("config.json", "metrics.jsonl", "summary.json", "compiled.npz", *PICTURES)
FOLDERS = (CHECKPOINTS, "tensorboard", "profile")


def check_free(path: Path, overwrite: bool, resume: bool = False) -> None:
    """Refuse a folder that holds results or cannot be written, before any work is done.

    Args:
        path: the folder of the run, which need not exist.
        overwrite: accept results of an earlier run.
        resume: expect results, if there are checkpoints that they belong to.

    Raises:
        FileExistsError: the folder holds an earlier run's results.
        NotADirectoryError: `path` or a parent of it is a file.
        PermissionError: the folder cannot be written.
    """
    for folder in (path, *path.parents):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file, so {path} cannot be a run's folder")
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".lorentz_jax-"):
            pass
    except OSError as error:
        raise PermissionError(
            f"{existing} cannot be written ({error.strerror}), so {path} cannot get the results"
        ) from None
    taken = [name for name in FILES + FOLDERS if (path / name).exists()]
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
    """Create the folder and write `config.json`; without `keep` remove earlier results."""
    path.mkdir(parents=True, exist_ok=True)
    if not keep:
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(path / name, ignore_errors=True)
    write_json(path / "config.json", config)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomic(path, lambda file: file.write(text.encode()))


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write a line of JSON for each row, all or none."""
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    write_atomic(path, lambda file: file.write(text.encode()))


def append_jsonl(path: Path, value: Any) -> None:
    """Add one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(value, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "lorentz_jax": _version.__version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }
