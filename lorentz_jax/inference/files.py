"""Compiled models on disk: an ordinary npz (a zip of npy arrays) with a `header.json` inside.

    unzip -p model.npz header.json    shows what a file holds
    numpy.load("model.npz")["head/time"]    reads an array without this package

With the ending `.safetensors` it is a safetensors file, the header its metadata. Nothing
is pickled. bfloat16, which npy does not know, is stored as uint16 bits there; the header has the
true dtype.
Every array and the header carry a checksum. A file is written beside its place and renamed, so that
a reader meets the old file or the new one.
"""

import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lorentz_jax._src.output import write_atomic
from lorentz_jax.inference.compiled import HALF, Compiled, assemble_from, build, mismatch

FORMAT = "lorentz_jax compiled model"
VERSION = 2
HEADER = "header.json"
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "bool")
_TORN = (zipfile.BadZipFile, EOFError, zlib.error, OSError, NotImplementedError, RuntimeError)


def save(compiled: Compiled, path: str | os.PathLike) -> None:
    """Write the compiled model to `path`, whole or not at all; a file that is there is replaced.

    Args:
      compiled: the model.
      path: ends in `.safetensors` for that format, which needs the package; else an npz.

    Raises:
      TypeError: `compiled` is something else, or its `info` is not JSON.
      ValueError: safetensors is not installed.
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
    content = _safetensors(arrays, text) if _is_safetensors(path) else _npz(arrays, text)
    write_atomic(path, lambda file: file.write(content))


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
    path = Path(path)
    header, members = _read(path)
    try:
        arrays = _arrays(header["arrays"], members)
        compiled = assemble_from(_skeleton(header, like), arrays, header)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from None
    if kappa is not None and not _same_kappa(compiled, kappa):
        raise ValueError(f"{path}: expected kappa {kappa}, got a model of kappa {compiled.kappa}")
    return compiled


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """The header of a compiled model: format, description, layers, arrays, info.

    Raises:
      FileNotFoundError, ValueError: as `load`.
    """
    return _read(Path(path))[0]


def is_compiled(path: str | os.PathLike) -> bool:
    """Whether `path` is a compiled model, of whatever version."""
    try:
        return json.loads(_members(Path(path))[HEADER]).get("format") == FORMAT
    except (KeyError, ValueError, AttributeError, RecursionError, *_TORN):
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
    if header["dtype"] not in (None, *HALF):
        raise ValueError(f"dtype must be None or one of {HALF}, got {header['dtype']!r}")
    if like is not None:
        model = nnx.clone(like)
        model.eval()
        return model
    if not isinstance(header["description"], str):
        raise ValueError(
            "it is no unchanged network of lorentz_jax.models: load it with like=, a model of the "
            "same classes and options"
        )
    return build(header["description"])


def _is_safetensors(path: Path) -> bool:
    return path.suffix == ".safetensors"


def _package() -> Any:
    try:
        import safetensors.numpy  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "a .safetensors file needs the package safetensors: pip install 'lorentz-jax[convert]'"
        ) from None
    return safetensors


def _safetensors(arrays: dict[str, np.ndarray], text: str) -> bytes:
    metadata = {"header": text, "crc32": str(zlib.crc32(text.encode()))}
    return _package().numpy.save(arrays, metadata=metadata)


def _npz(arrays: dict[str, np.ndarray], text: str) -> bytes:
    file = io.BytesIO()
    # ZipInfo has a fixed date: the same model gives the same bytes.
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), text)
        for key, value in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _bits(value), allow_pickle=False)
    return file.getvalue()


def _members(path: Path) -> dict[str, Any]:
    """The header's text under `HEADER`, and every array by its name, as bytes or as an array."""
    content = path.read_bytes()
    if _is_safetensors(path):
        try:
            entries = dict(_package().deserialize(content))
            size = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        except (KeyError, TypeError, ValueError, _package().SafetensorError) as error:
            raise EOFError(f"no safetensors file: {error}") from None
        text = metadata["header"].encode()
        if metadata.get("crc32") != str(zlib.crc32(text)):
            raise EOFError("the header has another checksum")
        names = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
                 "I32": "int32", "I64": "int64", "U32": "uint32", "BOOL": "bool"}  # fmt: skip
        arrays = {
            key: np.frombuffer(bytes(e["data"]), jnp.dtype(names[e["dtype"]])).reshape(e["shape"])
            for key, e in entries.items()
        }
        return {HEADER: text} | arrays
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        stored = all(i.compress_type == zipfile.ZIP_STORED and not i.flag_bits & 1 for i in infos)
        if not stored or sum(i.file_size for i in infos) > len(content):
            raise EOFError("its members are packed or encrypted")
        if len({i.filename for i in infos}) < len(infos):
            raise EOFError("two members have one name")
        return {i.filename.removesuffix(".npy"): archive.read(i) for i in infos}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of a compiled model of this version and its arrays, or `ValueError`."""
    expected = f"expected a {FORMAT} (npz with a {HEADER}, or safetensors)"
    if path.is_dir():
        raise ValueError(f"{path}: {expected}, got a folder")
    try:
        members = _members(path)
        if HEADER not in members:
            names = ", ".join(list(members)[:3])
            raise ValueError(f"{path}: {expected}, got an archive of {names or 'nothing'}")
        header = json.loads(members.pop(HEADER))
    except FileNotFoundError:
        raise
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {expected}, but its header is damaged: {error}") from None
    except _TORN as error:
        size = path.stat().st_size
        torn = f"{size} bytes that end too early or are something else ({error})"
        raise ValueError(f"{path}: {expected}, got {torn if size else 'an empty file'}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        kind = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise ValueError(f"{path}: {expected}, got the format {kind!r}")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected format version {VERSION}, got {header.get('version')!r}; compile "
            "the model again, or read it with the lorentz_jax that wrote it"
        )
    for key in ("layers", "kappas", "arrays", "info"):
        if not isinstance(header.get(key), dict):
            raise ValueError(
                f"{path}: expected {key!r} to be an object, got {header.get(key)!r} in {HEADER}"
            )
    return header, members


def _arrays(described: dict[str, Any], members: dict[str, Any]) -> dict[str, jax.Array]:
    """All arrays, exactly those that the header lists; `ValueError` otherwise."""
    names = mismatch(dict.fromkeys(members), dict.fromkeys(described))
    if names:
        raise ValueError(f"expected the arrays of its {HEADER}: {names}")
    arrays = {}
    for key, entry in described.items():
        value = members[key]
        if isinstance(value, bytes):
            file = io.BytesIO(value)
            value = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError(f"{key}: bytes behind the array")
        if entry.get("dtype") == "bfloat16" and value.dtype == np.uint16:
            value = value.view(jnp.bfloat16)
        if value.dtype.name not in DTYPES:
            raise ValueError(f"{key}: expected one of {', '.join(DTYPES)}, got {value.dtype}")
        arrays[key] = value
    difference = mismatch({key: _describe(value) for key, value in arrays.items()}, described)
    if difference:
        raise ValueError(f"expected whole arrays, got a damaged file: {difference}")
    if not all(np.isfinite(np.asarray(a, np.float64)).all() for a in arrays.values()):
        raise ValueError("it holds values that are not finite")
    wide = any(value.dtype.itemsize == 8 for value in arrays.values())
    if wide and not jax.config.read("jax_enable_x64"):
        raise ValueError("it holds float64 arrays, which need jax.config jax_enable_x64")
    return {key: jnp.asarray(value) for key, value in arrays.items()}


def _describe(array: np.ndarray) -> dict[str, Any]:
    crc = zlib.crc32(np.ascontiguousarray(array).tobytes())
    return {"dtype": array.dtype.name, "shape": list(array.shape), "crc32": crc}


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _same_kappa(compiled: Compiled, kappa: float) -> bool:
    # Relative 1e-6: a kappa that was learned in float32, or read from a printed line.
    return compiled.kappa is not None and abs(compiled.kappa - kappa) <= 1e-6 * abs(kappa)
