"""Checkpoints of a run: everything that the next step depends on, written by orbax.

`checkpoints/<step>/` holds `meta` and `state`. `meta` is one JSON object with format version,
configuration, progress, and the shape of every array by its path. `state` has these arrays in
alphabetical order of the paths, flat and joined into one array for each dtype, since orbax takes
3 ms for each array that it writes. Saving runs in the background. A folder gets its final name when
it is whole, so a kill leaves whole checkpoints.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from lorentz_jax.inference import refuse_compiled
from lorentz_jax.training import packing
from lorentz_jax.training.devices import is_main, print_main
from lorentz_jax.training.state import LOW_EFFORT, TrainState

FORMAT = "lorentz_jax training checkpoint"
VERSION = 2


class CheckpointError(OSError):
    """A checkpoint could not be written, or none of those that are there can be read."""


class Store:
    """The checkpoints of one run: keeps the last `keep` and the one of step `best`."""

    def __init__(self, root: Path, keep: int) -> None:
        # orbax takes a second to import: only now.
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import PreservationPolicy

        store = self

        class Keep(PreservationPolicy):
            def should_preserve(self, checkpoints, *, context):
                last = len(checkpoints) - keep
                return [i >= last or c.step == store.best for i, c in enumerate(checkpoints)]

        self.best: int | None = None
        self._root = root.absolute()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=Keep(), cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._root, options=options)
        # Joined arrays are new ones: the next step donates the state while orbax is still reading.
        self._join = jax.jit(packing.join_and_check, compiler_options=LOW_EFFORT)

    def save(self, state: TrainState, meta: Mapping[str, Any]) -> None:
        """Begin to save the state under its step; the training may go on at once.

        Raises:
            ArithmeticError: the state is not finite; nothing is written.
            CheckpointError: this checkpoint, or the one before, could not be written.
        """
        import orbax.checkpoint as ocp

        step = int(state.step)
        arrays = packing.flatten(state)
        joined, finite, sums = self._join(arrays)
        if not finite:
            raise ArithmeticError(f"the state after step {step} is not finite; {self.last()}")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "step": step,
            "checksums": {dtype: int(value) for dtype, value in sums.items()},
            "arrays": packing.describe(arrays),
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(joined), meta=ocp.args.JsonSave({**header, **meta})
        )
        with self._explained():
            self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Return when everything is written.

        Raises:
            CheckpointError: it could not be written.
        """
        with self._explained():
            self._manager.wait_until_finished()

    def last(self) -> str:
        """Return where the newest whole checkpoint is, as text for a message."""
        with contextlib.suppress(Exception):  # it goes into a message about another failure
            self._manager.wait_until_finished()
        steps = [step for step in _steps(self._root) if (self._root / f"{step}" / "meta").is_dir()]
        if not steps:
            return "there is no checkpoint"
        return f"the last good checkpoint is {self._root / str(steps[0])}"

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Return the state saved at `step`, on the devices of `like`."""
        self.wait()
        folder = self._root / str(step)
        return _read_state(folder, like, _read_meta(folder)["checksums"])

    def close(self) -> None:
        """Finish what is being written, and end the threads; does not raise."""
        with contextlib.suppress(Exception):  # `wait` reports; here a run ends that failed already
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn whatever orbax raises into a `CheckpointError`."""
        try:
            yield
        except Exception as error:
            raise CheckpointError(
                f"cannot write a checkpoint into {self._root} ({error}): is the disk full? "
                f"{self.last()}"
            ) from error


def restore(
    root: Path, like: TrainState, expected: Mapping[str, Any]
) -> tuple[TrainState, dict[str, Any]] | None:
    """Read the newest readable checkpoint.

    What cannot be read is skipped with a printed warning, and removed, so that the run can write
    these steps again.

    Args:
        root: the folder with a folder for each step.
        like: a state with the expected arrays, on the devices that the restored ones go to.
        expected: `{"config": ..., "classes": ..., "data": ...}` as in the meta data.

    Returns:
        `(state, meta)`, or None if there is no checkpoint at all.

    Raises:
        ValueError: a readable checkpoint of another configuration, class count, shape or format;
            the message lists every field and path. Nothing is removed.
        CheckpointError: there are checkpoints, and none can be read.
    """
    refuse_file(root)
    torn = []
    for step in _steps(root):
        folder = root / str(step)
        try:
            meta = _read_meta(folder)
            _refuse_mismatch(folder, meta, like, expected)
            _check_whole(folder / "state")
            state = _read_state(folder, like, meta["checksums"])
        except _MismatchError as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            print_main(f"warning: skipped the unreadable checkpoint {folder}: {reason}")
            torn.append(folder)
            continue
        if is_main():
            for folder in torn:
                shutil.rmtree(folder)
        return state, meta
    if torn:
        raise CheckpointError(f"none of the {len(torn)} checkpoints in {root} can be read")
    return None


def refuse_file(path: Path) -> None:
    """Raise `ValueError` for a compiled network where training state is expected."""
    if path.is_file():
        refuse_compiled(path)


class _MismatchError(ValueError):
    """A whole checkpoint, of something else."""


def _steps(root: Path) -> list[int]:
    """All folders named like a step, newest first; orbax's temporary ones have other names."""
    if not root.is_dir():
        return []
    names = [folder.name for folder in root.iterdir() if folder.is_dir()]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def _read_meta(folder: Path) -> dict[str, Any]:
    meta = json.loads((folder / "meta" / "metadata").read_text())
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(f"expected the meta data of a {FORMAT}")
    return meta


def _check_whole(folder: Path) -> None:
    """Read the files once, one after the other; raises some exception if one is damaged.

    orbax reads all arrays at a time. Of several failures it reports one, and the interpreter
    complains about the others.
    """
    import tensorstore

    for file in (folder / "_METADATA", *sorted((folder / "array_metadatas").iterdir())):
        json.loads(file.read_text())
    base = {"driver": "file", "path": f"{folder.absolute()}/"}
    arrays = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    keys = arrays.list().result()
    if not keys:
        raise ValueError(f"no arrays in {folder}")
    for key in keys:
        if not arrays.read(key).result().value:  # an absent file reads as no bytes
            raise ValueError(f"no {key.decode()} in {folder}")


def _read_state(folder: Path, like: TrainState, checksums: Mapping[str, int]) -> TrainState:
    import orbax.checkpoint as ocp

    expected = packing.flatten(like)
    joined = jax.eval_shape(packing.join, expected)
    abstract = {
        dtype: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=like.step.sharding)
        for dtype, x in joined.items()
    }
    args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    with ocp.CheckpointManager(folder.parent.absolute()) as manager:
        joined = manager.restore(int(folder.name), args=args).state
    split_and_check = jax.jit(
        lambda x: (packing.split(x, expected), packing.checksums(x)), compiler_options=LOW_EFFORT
    )
    arrays, sums = split_and_check(joined)
    damaged = [dtype for dtype, value in sums.items() if int(value) != checksums[dtype]]
    if damaged:
        raise ValueError(f"wrong checksum of the {', '.join(damaged)} arrays")
    return packing.unflatten(arrays, like)


def _refuse_mismatch(
    folder: Path, meta: dict[str, Any], like: TrainState, expected: Mapping[str, Any]
) -> None:
    if meta["version"] != VERSION:
        raise _MismatchError(
            f"{folder} has format version {meta['version']}, this program reads {VERSION}"
        )
    known = [name for name in ("classes", "data") if name in meta and name in expected]
    differences = [
        *_differences(meta["config"], expected["config"]),
        *_differences(*({k: m[k] for k in known} for m in (meta, expected))),
        *_differences(meta["arrays"], packing.describe(packing.flatten(like))),
    ]
    if differences:
        raise _MismatchError(f"{folder} belongs to another run: {'; '.join(differences)}")


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    def text(values: Mapping[str, Any], name: str) -> str:
        return json.dumps(values[name]) if name in values else "nothing"

    return [
        f"{name} is {text(there, name)} there, {text(here, name)} here"
        for name in dict.fromkeys([*here, *there])
        if name not in there or name not in here or there[name] != here[name]
    ]
