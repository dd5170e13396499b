"""Checkpoints of a run: everything that the next step depends on, in one file each.

`checkpoints/<step>.safetensors` holds every array of the state by its path, and as JSON the format
version, the configuration, the progress, and shape and dtype of every array, all under one checksum
(`sealed`). Saving runs in the background. A file gets its name when it is whole, so a kill leaves
whole checkpoints. No file is removed that is not a checkpoint by its own header.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from lorentz_jax._src.output import discard_parts
from lorentz_jax.inference import refuse_compiled
from lorentz_jax.training import devices, packing, sealed
from lorentz_jax.training.config import decisive
from lorentz_jax.training.devices import is_main, print_main
from lorentz_jax.training.state import TrainState

FORMAT = "lorentz_jax training checkpoint"
VERSION = 3
SUFFIX = ".safetensors"


class CheckpointError(OSError):
    """A checkpoint could not be written or read, or none of those that are there can be used."""


class Store:
    """The checkpoints of one run: keeps the last `keep`, and every best one that these refer to."""

    def __init__(self, root: Path, keep: int) -> None:
        self._root, self._keep = root, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None

    def save(self, state: TrainState, meta: Mapping[str, Any]) -> None:
        """Begin to save the state under its step; the training may go on at once.

        Raises:
            ArithmeticError: the state is not finite; nothing is written.
            CheckpointError: the checkpoint before could not be written.
        """
        step = int(state.step)
        self._finish()
        # Copies: the next step donates the state while it is still being written.
        held = jax.device_get(packing.flatten(state))
        arrays = {path: np.array(x) for path, x in sorted(held.items())}
        if not all(np.isfinite(x).all() for x in arrays.values()):
            raise ArithmeticError(f"the state after step {step} is not finite; {self.last()}")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "step": step,
            "arrays": packing.describe(arrays),
        }
        if is_main():
            self._pending = self._thread.submit(self._write, step, arrays, {**header, **meta})

    def wait(self) -> None:
        """Return when everything is written, in every process.

        Raises:
            CheckpointError: it could not be written.
        """
        self._finish()
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("checkpoint")

    def last(self) -> str:
        """Return where the newest whole checkpoint is, as text for a message."""
        with contextlib.suppress(Exception):  # it goes into a message about another failure
            self._finish()
        found = _headers(self._root)
        if not found:
            return "there is no checkpoint"
        return f"the last good checkpoint is {_file(self._root, max(found))}"

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Return the state saved at `step`, on the devices of `like`.

        Raises:
            CheckpointError: it is damaged or cannot be read.
        """
        self.wait()
        try:
            return _place(_read(_file(self._root, step))[0], like)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the best checkpoint cannot be read: {error}") from None

    def close(self) -> None:
        """Finish what is being written, and end the thread; does not raise."""
        self._thread.shutdown()

    def _finish(self) -> None:
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except Exception as error:
            raise CheckpointError(
                f"cannot write a checkpoint into {self._root} ({error}): is the disk full? "
                f"{self.last()}"
            ) from error

    def _write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        file = _file(self._root, step)
        if file.exists():
            _set_aside(file)
        sealed.write(file, arrays, meta)
        found = _headers(self._root) | {step: dict(meta)}
        steps = sorted(found)
        for old in set(steps) - set(steps[-self._keep :]) - _referred(found, steps[-self._keep :]):
            _file(self._root, old).unlink()


def restore(
    root: Path, like: TrainState, expected: Mapping[str, Any]
) -> tuple[TrainState, dict[str, Any]] | None:
    """Read the newest checkpoint that is whole, as is the best one that it refers to.

    What is damaged is skipped with a printed warning. When the run goes on from an older one, it is
    renamed, so that the run can write these steps again.

    Args:
        root: the folder of checkpoints.
        like: a state with the expected arrays, on the devices that the restored ones go to.
        expected: `{"config": ..., "classes": ..., "data": ...}` as in the meta data.

    Returns:
        `(state, meta)`, or None if there is no checkpoint at all.

    Raises:
        ValueError: a readable checkpoint of another configuration, class count, shape or format;
            the message lists every field and path. Nothing is changed.
        CheckpointError: there are checkpoints, and all are damaged, or one cannot be read now.
    """
    refuse_file(root)

    read: list[tuple[dict[str, np.ndarray], dict[str, Any]]] = []

    def find() -> int | None:
        skipped: list[Path] = []
        found = newest(root, skipped, lambda text: print_main(f"warning: {text}"))
        if found is None:
            return None
        read.append(found)
        step = found[1]["step"]
        refuse_mismatch(_file(root, step), found[1], like, expected)
        for file in skipped:
            _set_aside(file)
        return step

    step = devices.from_main(find)
    if step is None:
        return None
    arrays, meta = read[0] if read else _read(_file(root, step))
    return _place(arrays, like), meta


def newest(
    root: Path, skipped: list[Path], warn: Callable[[str], object]
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return arrays and meta data of the newest usable checkpoint; None if there are none.

    Args:
        root: the folder of checkpoints.
        skipped: gets the newer files.
        warn: called with the reason for each of them.

    Raises:
        CheckpointError: as `restore`.
    """
    for step in sorted(_names(root), reverse=True):
        file = _file(root, step)
        try:
            arrays, meta = _read(file)
            best = meta["progress"]["best"] if meta["version"] == VERSION else None
            if best is not None and best["step"] != step:
                _read(_file(root, best["step"]))
        except sealed.ForeignFileError as error:
            warn(f"{error}; it stays as it is")
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            warn(f"skipped the unreadable checkpoint {step}: {error}")
            skipped.append(file)
        except (OSError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            raise CheckpointError(f"cannot read {file} ({reason}); nothing was changed") from None
        else:
            return arrays, meta
    if skipped:
        raise CheckpointError(f"none of the {len(skipped)} checkpoints in {root} can be read")
    _refuse_old_format(root)
    return None


def read_step(root: Path, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and meta data of one checkpoint.

    Raises:
        ValueError: it is damaged or something else.
        OSError: it cannot be read.
    """
    return _read(_file(root, step))


def remove_all(root: Path) -> None:
    """Remove every checkpoint; other files stay."""
    for step in _headers(root):
        _file(root, step).unlink()


def discard_unfinished(root: Path) -> None:
    """Remove what killed processes did not finish."""
    if root.is_dir():
        discard_parts(root, r"\d+\.safetensors")


def refuse_file(path: Path) -> None:
    """Raise `ValueError` for a compiled network where training state is expected."""
    if path.is_file():
        refuse_compiled(path)


def refuse_mismatch(
    file: Path, meta: dict[str, Any], like: TrainState, expected: Mapping[str, Any]
) -> None:
    """Raise `ValueError` for a checkpoint that does not fit, with every difference."""
    if meta["version"] != VERSION:
        raise ValueError(
            f"{file} has format version {meta['version']}, this program reads {VERSION}"
        )
    there, here = decisive(meta["config"]), expected["config"]
    known = [name for name in ("classes", "data") if name in meta and name in expected]
    found = [
        *differences(there, here),
        *differences(*({name: of[name] for name in known} for of in (meta, expected))),
        *differences(meta["arrays"], packing.describe(packing.flatten(like))),
    ]
    if found:
        hint = ""
        if there.get("epochs") != here.get("epochs"):
            hint = (
                "; the cosine schedule depends on epochs, so train with --schedule constant or "
                "step to go on for more, or begin another run with --init-from"
            )
        raise ValueError(f"{file} belongs to another run: {'; '.join(found)}{hint}")


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Say in which entries two JSON objects differ."""

    def text(values: Mapping[str, Any], name: str) -> str:
        return json.dumps(values[name]) if name in values else "nothing"

    return [
        f"{name} is {text(there, name)} there, {text(here, name)} here"
        for name in dict.fromkeys([*here, *there])
        if name not in there or name not in here or there[name] != here[name]
    ]


def _file(root: Path, step: int) -> Path:
    return root / f"{step}{SUFFIX}"


def _names(root: Path) -> list[int]:
    """The steps of all files that are named like a checkpoint."""
    if not root.is_dir():
        return []
    files = (file for file in root.iterdir() if file.suffix == SUFFIX and file.is_file())
    # Only the name that `_file` gives: neither `007` nor the digits of another script.
    return [int(f.stem) for f in files if f.stem.isdecimal() and f.stem == str(int(f.stem))]


def _headers(root: Path) -> dict[int, dict[str, Any]]:
    """The meta data of all files that are checkpoints by their header, by step."""
    found = {}
    for step in _names(root):
        with contextlib.suppress(ValueError, OSError):
            found[step] = sealed.read_meta(_file(root, step), FORMAT)
    return found


def _referred(headers: Mapping[int, dict[str, Any]], steps: list[int]) -> set[int]:
    """The best steps that these checkpoints refer to."""
    bests = (headers[step].get("progress", {}).get("best") for step in steps)
    return {best["step"] for best in bests if best is not None}


def _read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays, meta = sealed.read(file, FORMAT)
    if meta["version"] == VERSION and packing.describe(arrays) != meta["arrays"]:
        raise sealed.DamagedFileError(f"{file} does not hold the arrays of its header")
    return arrays, meta


def _place(arrays: Mapping[str, np.ndarray], like: TrainState) -> TrainState:
    """Return the state of these arrays, on the devices of `like`."""
    on_devices = {path: devices.put(x, like.step.sharding) for path, x in arrays.items()}
    return packing.unflatten(on_devices, like)


def _set_aside(file: Path) -> None:
    """Rename a file to a name that nothing has."""
    places = (file.with_name(f"{file.name}.aside{n}") for n in range(1, 1_000_000))
    place = next(place for place in places if not place.exists())
    print_main(f"notice: {file} is now {place.name}")
    file.rename(place)


def _refuse_old_format(root: Path) -> None:
    """Raise for checkpoints of an older version of this package, which were folders."""
    if root.is_dir() and any((f / "_CHECKPOINT_METADATA").exists() for f in root.iterdir()):
        raise ValueError(
            f"{root} has checkpoints of format version 2, this program reads {VERSION}: go on "
            "with the lorentz_jax that wrote them, or begin again with another --name"
        )
