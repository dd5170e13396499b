"""Files of named arrays and JSON under one checksum: safetensors, whole or absent, never pickled.

    safetensors.numpy.load_file("model.safetensors")    reads the arrays without this package

The header's metadata has one entry, a JSON object. Its `sha256` is the digest of the whole file
with the digest itself read as zeros, so a flipped bit is noticed wherever it is.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from lorentz_jax._src.output import write_atomic

KEY = "lorentz_jax"
_NO_DIGEST = "0" * 64
_LARGEST_HEADER = 100_000_000  # bytes; safetensors has the same bound


class DamagedFileError(ValueError):
    """A file is not as it was written."""


class ForeignFileError(ValueError):
    """A file is something else."""


def write(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write arrays and JSON, whole or not at all.

    Args:
        path: of the file.
        arrays: of float32, int32 or another type that safetensors knows.
        meta: JSON with a `format`.
    """
    text = json.dumps({"sha256": _NO_DIGEST, **meta}, allow_nan=False)
    content = memoryview(safetensors.numpy.save(dict(arrays), {KEY: text}))
    start = _find(content, _NO_DIGEST)
    digest = hashlib.sha256(content).hexdigest().encode()

    def pieces(file: Any) -> None:
        for piece in (content[:start], digest, content[start + len(digest) :]):
            file.write(piece)

    write_atomic(path, pieces)


def read(path: Path, format: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the JSON of a file.

    Raises:
        ForeignFileError: it is something else than a whole or damaged file of this format.
        DamagedFileError: it is not as it was written.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    meta = _meta(path, content[8 : 8 + int.from_bytes(content[:8], "little")], format)
    try:
        start = _find(memoryview(content), meta["sha256"])
        digest = hashlib.sha256(content[:start])
        digest.update(_NO_DIGEST.encode())
        digest.update(memoryview(content)[start + len(_NO_DIGEST) :])
        if digest.hexdigest() != meta["sha256"]:
            raise DamagedFileError(f"{path} is damaged: wrong checksum")
        return safetensors.numpy.load(content), meta
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def read_meta(path: Path, format: str) -> dict[str, Any]:
    """Return the JSON of a file without looking at the arrays or the checksum.

    Raises: as `read`.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return _meta(path, file.read(min(size, _LARGEST_HEADER)), format)


def _meta(path: Path, header: bytes, format: str) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise DamagedFileError(f"{path} is damaged: it has no readable header")
    try:
        meta = json.loads(entries["__metadata__"][KEY])
        if meta["format"] == format:
            return meta
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise ForeignFileError(f"{path} is no {format}")


def _find(content: memoryview, digest: Any) -> int:
    """Where the digest is in the header."""
    header = bytes(content[: 8 + int.from_bytes(content[:8], "little")])
    if not isinstance(digest, str) or len(digest) != len(_NO_DIGEST):
        raise ValueError("no checksum")
    return header.index(digest.encode())
