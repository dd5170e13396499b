"""Compiled models on disk: an ordinary npz (a zip of npy arrays) with a `header.json` inside.

    unzip -p model.npz header.json    shows what a file holds
    numpy.load("model.npz")["head/time"]    reads an array without this package

Nothing is pickled. bfloat16, which npy does not know, is stored as uint16 bits; the header has the
true dtype. Every member carries a checksum. A reader meets the old file or the new one, never half.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.output import write_atomic
from lorentz_jax.inference.compiled import Compiled, mismatch

FORMAT = "lorentz_jax compiled model"
VERSION = 1
HEADER = "header.json"
_TORN = (zipfile.BadZipFile, EOFError, zlib.error, OSError)


def save(compiled: Compiled, path: str | os.PathLike) -> None:
    """Write a compiled model, whole or not at all; a file that is there is replaced.

    Args:
        compiled: the model.
        path: of the file, usually `*.npz`.

    Raises:
        TypeError: `compiled` is something else, or its `info` is not JSON.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"expected a Compiled, got {type(compiled).__name__}; compile it first")
    arrays = {key: np.asarray(value) for key, value in compiled.params.items()}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "kappa": compiled.kappa,
        "dtype": compiled.dtype,
        "network": compiled.network,
        "layers": compiled.layers,
        "arrays": {key: _describe(value) for key, value in arrays.items()},
        "info": compiled.info,
    }
    text = json.dumps(header, indent=1, allow_nan=False)

    def write(file: Any) -> None:
        # ZipInfo has a fixed date: the same model gives the same bytes.
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo(HEADER), text)
            for key, value in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _bits(value), allow_pickle=False)

    write_atomic(Path(path), write)


def load(
    path: str | os.PathLike, *, kappa: float | None = None, like: Compiled | None = None
) -> Compiled:
    """Read a compiled model.

    Args:
        path: a file of `save`.
        kappa: refuse a model of any other.
        like: refuse a model whose arrays have other names or shapes than this one's.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not such a model, torn, of another format version, inconsistent, or
            not what was asked for. The message names the file, what was expected and what it has.
    """
    path = Path(path)
    header = _header(path)
    for key in ("network", "layers", "arrays", "info"):
        if not isinstance(header.get(key), dict):
            raise ValueError(
                f"{path}: expected {key!r} to be an object, got {header.get(key)!r} in {HEADER}"
            )
    try:
        compiled = Compiled(
            _read_arrays(path, header["arrays"]),
            header["layers"],
            header["network"],
            header.get("dtype"),
            header["info"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if kappa is not None and not _same_kappa(compiled, kappa):
        raise ValueError(f"{path}: expected kappa {kappa}, got a model of kappa {compiled.kappa}")
    difference = mismatch(compiled.shapes, like.shapes) if like is not None else ""
    if difference:
        raise ValueError(f"{path}: not the expected network: {difference}")
    return compiled


def is_compiled(path: str | os.PathLike) -> bool:
    """Tell whether `path` is a compiled model, of whatever version."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(HEADER)).get("format") == FORMAT
    except (KeyError, ValueError, AttributeError, *_TORN):
        return False


def refuse_compiled(path: str | os.PathLike) -> None:
    """Raise `ValueError` if `path`, which should be training state, is a compiled model."""
    if is_compiled(path):
        raise ValueError(
            f"{path} is a {FORMAT}, made for inference: its weight norm, V and batch norm are "
            "constants and cannot be trained. Expected a training checkpoint"
        )


def _header(path: Path) -> dict[str, Any]:
    """Read the JSON of a compiled model of this version; `ValueError` otherwise."""
    expected = f"expected a {FORMAT} (npz with a {HEADER})"
    if path.is_dir():
        raise ValueError(f"{path}: {expected}, got a folder")
    try:
        with zipfile.ZipFile(path) as archive:
            if HEADER not in archive.namelist():
                members = ", ".join(archive.namelist()[:3])
                raise ValueError(f"{path}: {expected}, got an archive of {members or 'nothing'}")
            header = json.loads(archive.read(HEADER))
    except FileNotFoundError:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: {expected}, but its header is damaged: {error}") from None
    except _TORN as error:
        size = path.stat().st_size
        content = f"{size} bytes that end too early or are something else ({error})"
        raise ValueError(
            f"{path}: {expected}, got {content if size else 'an empty file'}"
        ) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        name = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise ValueError(f"{path}: {expected}, got the format {name!r}")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected format version {VERSION}, got {header.get('version')!r}; compile "
            "the model again, or read it with the lorentz_jax that wrote it"
        )
    return header


def _read_arrays(path: Path, described: dict[str, dict[str, Any]]) -> dict[str, jax.Array]:
    """Read all arrays, exactly those that the header lists; `ValueError` otherwise."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            stored = [n.removesuffix(".npy") for n in archive.namelist() if n != HEADER]
            names = mismatch(dict.fromkeys(stored), dict.fromkeys(described))
            if names:
                raise ValueError(f"expected the arrays of its {HEADER}: {names}")
            for key, entry in described.items():
                with archive.open(f"{key}.npy") as member:
                    value = np.lib.format.read_array(member, allow_pickle=False)
                    member.read()  # to the end, where the checksum is compared
                if entry["dtype"] == "bfloat16" and value.dtype == np.uint16:
                    value = value.view(jnp.bfloat16)
                arrays[key] = value
    except _TORN as error:
        raise ValueError(f"expected whole arrays, got a damaged file ({error})") from None
    difference = mismatch({key: _describe(value) for key, value in arrays.items()}, described)
    if difference:
        raise ValueError(difference)
    wide = any(value.dtype.itemsize == 8 for value in arrays.values())
    if wide and not jax.config.read("jax_enable_x64"):
        raise ValueError("it holds float64 arrays, which need jax.config jax_enable_x64")
    return {key: jnp.asarray(value) for key, value in arrays.items()}


def _describe(array: np.ndarray) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _same_kappa(compiled: Compiled, kappa: float) -> bool:
    # Relative 1e-6: a kappa that was learned in float32, or read from a printed line.
    return compiled.kappa is not None and abs(compiled.kappa - kappa) <= 1e-6 * abs(kappa)


def export(
    compiled: Compiled,
    sample_shape: Sequence[int],
    path: str | os.PathLike | None = None,
    *,
    platforms: Sequence[str] | None = None,
) -> jax.export.Exported:
    """Export the whole model, weights included, as one function of a batch `(b, *sample_shape)`.

    The batch size b stays a symbol, so one export serves every b >= 1; an empty batch is refused
    by the call ("expected ... batch >= 1"). The input has the precision of the model's constants
    (float32, or float64), whatever precision the activations have.

    Args:
        compiled: the model.
        sample_shape: one image `(H, W, C)`, or one point `(D,)`.
        path: also write `serialize()` there, whole or not at all.
        platforms: for example `("cpu", "cuda")`; by default the present one.

    Returns:
        The exported function; `.call(batch)` runs it.

    Raises:
        ValueError: `sample_shape` is not the shape of one sample.
    """
    sizes = tuple(int(size) for size in sample_shape)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sample_shape must be the shape of one sample, got {sample_shape}")
    (batch,) = jax.export.symbolic_shape("batch")
    dtype = jnp.result_type(*(compute_dtype(value.dtype) for value in compiled.params.values()))
    sample = jax.ShapeDtypeStruct((batch, *sizes), dtype)
    function = jax.jit(lambda x: compiled.apply(compiled.params, x))
    exported = jax.export.export(function, platforms=platforms)(sample)
    if path is not None:
        data = exported.serialize()
        write_atomic(Path(path), lambda file: file.write(data))
    return exported
