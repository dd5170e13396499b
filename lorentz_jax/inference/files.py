"""Compiled models on disk: an ordinary npz (a zip of npy arrays) with a `header.json` inside.

    unzip -p model.npz header.json    shows what a file holds
    numpy.load("model.npz")["head/time"]    reads an array without this package

With the ending `.safetensors` it is a safetensors file, the header its metadata. Nothing
is pickled. bfloat16, which npy does not know, is stored as uint16 bits there; the header has the
true dtype.
Every array and the header carry a checksum. A file is written beside its place and renamed, so that
a reader meets the old file or the new one. What is read may come from anybody: whatever is wrong
with it is a `ValueError` in one line, found in bounded memory and time (see `_src.archive`).
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lorentz_jax._src.archive import MAX_TEXT, Archive, open_archive, parse_json
from lorentz_jax._src.output import write_atomic
from lorentz_jax.inference.compiled import HALF, Compiled, assemble_from, build, mismatch

FORMAT = "lorentz_jax compiled model"
VERSION = 2
HEADER = "header.json"
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "bool")
_EXPECTED = f"a {FORMAT} (npz with a {HEADER}, or safetensors)"


def save(compiled: Compiled, path: str | os.PathLike) -> None:
    """Write the compiled model to `path`, whole or not at all; a file that is there is replaced.

    Args:
      compiled: the model.
      path: ends in `.safetensors` for that format, which needs the package; else an npz. A link is
        followed.

    Raises:
      TypeError: `compiled` is something else, or its `info` is not JSON.
      ValueError: safetensors is not installed; `path` is a folder or a device; or `info` is longer
        than a reader takes.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"expected a Compiled, got {type(compiled).__name__}; compile it first")
    path = Path(path)
    arrays = {key: np.asarray(value) for key, value in compiled.params.items()}
    fields = ("kappa", "dtype", "description", "structure", "layers", "kappas", "info")
    header = {
        "format": FORMAT,
        "version": VERSION,
        **{field: getattr(compiled, field) for field in fields},
        "arrays": {key: _describe(value) for key, value in arrays.items()},
    }
    text = json.dumps(header, indent=1, allow_nan=False)
    if len(text) > MAX_TEXT // 2:  # in safetensors its quotes are escaped once more
        raise ValueError(f"{path}: the header would have {len(text)} characters: shorten `info`")
    if path.suffix == ".safetensors":
        content = _safetensors(arrays, text)
        write_atomic(path, lambda file: file.write(content))
    else:
        write_atomic(path, lambda file: _write_npz(file, arrays, text))


def load(
    path: str | os.PathLike, *, kappa: float | None = None, like: nnx.Module | None = None
) -> Compiled:
    """Read a compiled model.

    Args:
      path: a file of `save`.
      kappa: refuse a model of any other.
      like: a model of the same classes and options, whose arrays do not matter. A network of
        `models` needs none: it is built again from its description. (Functions are recognised by
        name, so that one lambda is taken for another.)

    Raises:
      FileNotFoundError: no such file.
      ValueError: a file that is not such a model, torn, of another format version, inconsistent,
        or not what was asked for. The message names the file, what was expected and what was found.
    """
    with open_archive(path, _EXPECTED) as archive:
        header = _header(path, archive)
        arrays = _arrays(path, header["arrays"], archive)
    try:
        compiled = assemble_from(_skeleton(header, like), arrays, header)
    except MemoryError:
        raise
    except Exception as error:  # whatever a class raises for options that a file holds
        raise ValueError(f"{path}: {error}") from error
    if kappa is not None and not _same_kappa(compiled, kappa):
        raise ValueError(f"{path}: expected kappa {kappa}, got a model of kappa {compiled.kappa}")
    return compiled


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """The header of a compiled model: format, description, layers, arrays, info.

    Raises:
      FileNotFoundError, ValueError: as `load`.
    """
    with open_archive(path, _EXPECTED) as archive:
        return _header(path, archive)


def is_compiled(path: str | os.PathLike) -> bool:
    """Whether `path` is a compiled model, of whatever version."""
    try:
        with open_archive(path) as archive:
            return parse_json(_text(archive) or "{}").get("format") == FORMAT
    except (ValueError, AttributeError, OSError):
        return False


def refuse_compiled(path: str | os.PathLike) -> None:
    """Raise `ValueError` if `path`, which should be training state, is a compiled model."""
    if is_compiled(path):
        raise ValueError(
            f"{path} is a {FORMAT}, made for inference: its weight norm, V and batch norm are "
            "constants and cannot be trained. Expected a training checkpoint"
        )


def _skeleton(header: dict[str, Any], like: nnx.Module | None) -> nnx.Module:
    """The model whose structure a file has; its arrays do not matter."""
    if like is not None:
        model = nnx.clone(like)
        model.eval()
        return model
    if not isinstance(header["description"], str):
        raise ValueError(
            "it is no unchanged network of lorentz_jax.models: load it with like=, a model of the "
            "same classes and options"
        )
    # Each block has two convolutions, of two arrays at least.
    return build(header["description"], most_blocks=len(header["arrays"]) // 4)


def _safetensors(arrays: dict[str, np.ndarray], text: str) -> bytes:
    try:
        from safetensors.numpy import save  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "to write .safetensors needs the package safetensors: "
            "pip install 'lorentz-jax[convert]'"
        ) from None
    return save(arrays, metadata={"header": text, "crc32": str(zlib.crc32(text.encode()))})


def _write_npz(file: Any, arrays: dict[str, np.ndarray], text: str) -> None:
    # ZipInfo has a fixed date: the same model gives the same bytes.
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), text)
        for key, value in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _bits(value), allow_pickle=False)


def _header(path: str | os.PathLike, archive: Archive) -> dict[str, Any]:
    """The header of a compiled model of this version, each field of its kind, or `ValueError`."""
    expected = f"{path}: expected {_EXPECTED}"
    text = _text(archive)
    if text is None:
        names = ", ".join(archive.names[:3])
        raise ValueError(f"{expected}, got an archive of {names or 'nothing'}")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{expected}, but its header is damaged: {error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        kind = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise ValueError(f"{expected}, got the format {kind!r}")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected format version {VERSION}, got {header.get('version')!r}; compile "
            "the model again, or read it with the lorentz_jax that wrote it"
        )
    crc = archive.text("crc32")  # of safetensors; a zip has its own
    if crc is not None and crc != str(zlib.crc32(text)).encode():
        raise ValueError(f"{expected}, but its header is damaged: it has another checksum")
    wrong = next(_wrong_fields(header), None)
    if wrong is not None:
        raise ValueError(f"{path}: expected {wrong} in {HEADER}")
    return header


def _text(archive: Archive) -> bytes | None:
    text = archive.text(HEADER)  # of an npz
    return archive.text("header") if text is None else text


def _wrong_fields(header: dict[str, Any]) -> Iterator[str]:
    """What the fields of a header should be and are not, in words."""

    def number(value: Any) -> bool:
        return type(value) in (int, float)

    def is_layer(value: Any) -> bool:
        return (
            value.keys() == {"layer", "kappa", "folded"}
            and isinstance(value["layer"], str)
            and (value["kappa"] is None or number(value["kappa"]))
            and isinstance(value["folded"], bool)
        )

    def is_array(value: Any) -> bool:
        return (
            value.keys() == {"dtype", "shape", "crc32"}
            and value["dtype"] in DTYPES
            and all(type(size) is int and size >= 0 for size in value["shape"])
            and type(value["crc32"]) is int
        )

    for field, kind, name in (
        ("kappa", int | float | None, "a number or null"),
        ("description", str | None, "text or null"),
        ("structure", str, "text"),
        *((field, dict, "an object") for field in ("layers", "kappas", "arrays", "info")),
    ):
        if not isinstance(header.get(field), kind):
            yield f"{field!r} to be {name}, got {_short(header.get(field))}"
    if header.get("dtype") not in (None, *HALF):
        yield f"'dtype' to be null or one of {HALF}, got {_short(header.get('dtype'))}"
    for field, good, what in (
        ("layers", is_layer, "layer, kappa and folded"),
        ("kappas", number, "a number"),
        ("arrays", is_array, f"shape, crc32 and a dtype of {', '.join(DTYPES)}"),
    ):
        for key, value in header[field].items():
            try:
                fits = good(value)
            except (AttributeError, TypeError):
                fits = False
            if not fits:
                yield f"{field}[{key!r}] to be {what}, got {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}..."


def _arrays(
    path: str | os.PathLike, described: dict[str, Any], archive: Archive
) -> dict[str, jax.Array]:
    """All arrays, exactly those that the header lists; `ValueError` otherwise."""
    there = dict.fromkeys(name for name in archive.names if name != HEADER)
    names = mismatch(there, dict.fromkeys(described))
    if names:
        raise ValueError(f"{path}: expected the arrays of its {HEADER}: {names}")
    wide = any(entry["dtype"].endswith("64") for entry in described.values())
    if wide and not jax.config.read("jax_enable_x64"):
        raise ValueError(f"{path}: it holds float64 arrays, which need jax.config jax_enable_x64")
    arrays = {}
    for key, entry in described.items():
        value = archive.array(key)
        if entry["dtype"] == "bfloat16" and value.dtype == np.uint16:
            value = value.view(jnp.bfloat16)
        difference = mismatch({key: _describe(value)}, {key: entry})
        if difference:
            raise ValueError(f"{path}: expected whole arrays, got a damaged file: {difference}")
        if not np.isfinite(value).all():
            raise ValueError(f"{path}: {key} holds values that are not finite")
        arrays[key] = jnp.asarray(value)
    return arrays


def _describe(array: np.ndarray) -> dict[str, Any]:
    crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "crc32": crc}


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _same_kappa(compiled: Compiled, kappa: float) -> bool:
    # Relative 1e-6: a kappa that was learned in float32, or read from a printed line.
    return compiled.kappa is not None and abs(compiled.kappa - kappa) <= 1e-6 * abs(kappa)
