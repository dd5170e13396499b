"""The folder of a run: refused when taken, written so that a kill leaves whole files."""

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = ("config.json", "metrics.jsonl", "summary.json", "curves.png")


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse a folder that holds results, before any work is done.

    Raises:
        FileExistsError: an earlier run's results, without `overwrite`.
        NotADirectoryError: `path` or a parent of it is a file.
    """
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"{place} is a file, so {path} cannot be a run's folder")
    taken = [name for name in RESULTS if (path / name).exists()]
    if taken and not overwrite:
        raise FileExistsError(
            f"{path} already holds {', '.join(taken)}; "
            "choose another --name, or replace it with --overwrite"
        )


def start(path: Path, config: dict[str, Any]) -> None:
    """Create the folder, remove the results of an earlier run, and write `config.json`."""
    path.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (path / name).unlink(missing_ok=True)
    write_json(path / "config.json", config)


def write_json(path: Path, value: Any) -> None:
    """Write through a temporary file beside it, so that `path` is never half a file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
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
