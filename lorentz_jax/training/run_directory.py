"""The folder of a run: refuse one in use, and write its files so that a kill leaves whole ones.

Only what this package made is ever removed: files with the names below, in a folder whose
`config.json` is a run's, and in subfolders what has the names and marks of its writer.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lorentz_jax import _version
from lorentz_jax._src.output import discard_parts, write_atomic
from lorentz_jax.training.lock import locked

CHECKPOINTS = "checkpoints"
MODEL = "model.safetensors"
PICTURES = ("curves.png", "confusion.png")
# The mark of a finished run goes first, that of a run last.
FILES = ("summary.json", MODEL, "compiled.npz", *PICTURES, "metrics.jsonl", "config.json")
# What TensorBoard's writer and `jax.profiler` write into their folders.
WRITERS = {
    "tensorboard": r"events\.out\.tfevents\.[^/]*",
    "profile": r"plugins/profile/\d[\d_]*/[^/]*\.(xplane\.pb|trace\.json\.gz)",
}
FOLDERS = (CHECKPOINTS, *WRITERS)


@contextlib.contextmanager
def claimed(path: Path, overwrite: bool, resume: bool = False) -> Iterator[None]:
    """Own the folder of a run, or refuse it before any work is done.

    A folder of checkpoints that is a link to elsewhere is owned too.

    Args:
        path: the folder of the run, which need not exist.
        overwrite: accept results of an earlier run.
        resume: expect results, if there are checkpoints that they belong to.

    Raises:
        BlockingIOError: another process owns it.
        FileExistsError: the folder holds an earlier run's results, or what is not ours.
        NotADirectoryError: a file is where a folder should be.
        PermissionError: the folder cannot be written.
    """
    check_place(path)
    with contextlib.ExitStack() as locks:
        locks.enter_context(locked(path))
        check_free(path, overwrite, resume)
        if (path / CHECKPOINTS).is_symlink():
            locks.enter_context(locked(path / CHECKPOINTS))
        yield


def check_place(path: Path) -> None:
    """Refuse a path that cannot be a folder or cannot be written."""
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


def check_free(path: Path, overwrite: bool, resume: bool) -> None:
    """Refuse a folder whose contents are in the way, as `claimed` says."""
    taken = [name for name in FILES + FOLDERS if os.path.lexists(path / name)]
    for name in taken:
        there = path / name
        if name in FOLDERS and not there.is_dir():
            kind = "a link to nowhere" if there.is_symlink() else "a file"
            raise NotADirectoryError(f"{there} is {kind}, where a run needs a folder")
        if name in FILES and there.is_dir():
            raise FileExistsError(f"{there} is a folder, where a run writes a file")
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
    if taken and not _is_run(path):
        raise FileExistsError(
            f"{path} holds {', '.join(taken)}, but no config.json of a run, so --overwrite might "
            "remove what is not its own; choose another --name"
        )


def check_progress(path: Path) -> None:
    """Refuse to begin a run again that has come further than its first checkpoint.

    Raises:
        FileExistsError: its checkpoints are gone.
    """
    rows = 0
    if (path / "metrics.jsonl").exists():
        rows = len((path / "metrics.jsonl").read_bytes().splitlines())
    # A row is written before the checkpoint of its epoch, which is written beside the next epoch.
    if (path / "summary.json").exists() or rows > 2:
        raise FileExistsError(
            f"{path} holds the results of {rows} epochs, but no checkpoint to go on from"
        )


def start(path: Path, config: dict[str, Any], rows: Iterable[Any], keep: bool = False) -> None:
    """Write `config.json` and the first rows of the metrics; without `keep` remove earlier results.

    The checkpoints are removed by `checkpoint.remove_all`.
    """
    discard_parts(path, "|".join(map(re.escape, FILES)))
    if not keep:
        for name in FILES[:-1]:
            (path / name).unlink(missing_ok=True)
        for name, pattern in WRITERS.items():
            _remove_written(path / name, pattern)
    # With this folder a run may be resumed, so it comes first.
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    write_json(path / "config.json", config)
    write_jsonl(path / "metrics.jsonl", rows)


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


def _is_run(path: Path) -> bool:
    """Whether the folder has the `config.json` of a run."""
    try:
        config = json.loads((path / "config.json").read_text())
    except (ValueError, FileNotFoundError, RecursionError):
        return False
    return isinstance(config, dict) and {"model", "kappa", "stages", "run_dir"} <= config.keys()


def _remove_written(folder: Path, pattern: str) -> None:
    """Remove the files of one writer, then the folders that are empty."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            if re.fullmatch(pattern, (Path(place) / name).relative_to(folder).as_posix()):
                (Path(place) / name).unlink()
        if not Path(place).is_symlink():
            with contextlib.suppress(OSError):  # it holds something else
                Path(place).rmdir()
