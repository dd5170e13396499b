"""Named arrays in a file that may come from anybody: an npz, or a safetensors file.

Whatever is wrong with its bytes is one `ValueError` that names the file. No pickle is read and no
member is unpacked, headers have a bound, and every size is compared with that of the file before
anything is allocated: reading needs the memory of one array beyond those that the caller keeps.
"""

import contextlib
import errno
import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jax.numpy as jnp
import numpy as np

MAX_TEXT = 1 << 22
"""Longest header, or directory of a zip, in bytes: as Python objects it is many times as large."""
_PIECE = 1 << 18  # of an array, read at a time

# As safetensors names them.
_NAMES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip
_ENCRYPTED = 0x1 | 0x20 | 0x40  # or patched, which zipfile does not read


class Archive(Protocol):
    """What `open_archive` gives; damage that is found later is a `ValueError` too."""

    names: tuple[str, ...]
    """Of the arrays (and of the other members of an npz)."""

    def text(self, name: str) -> bytes | None:
        """Return a member that is text, or None; in safetensors an entry of the metadata."""
        ...

    def array(self, name: str) -> np.ndarray:
        """Return an array, in the byte order of this machine."""
        ...


class _DamagedError(Exception):
    """What was read is no such file, or no whole one."""


@contextlib.contextmanager
def open_archive(
    path: str | os.PathLike, expected: str = "an npz or safetensors file of arrays"
) -> Iterator[Archive]:
    """Open an npz, or with the ending `.safetensors` such a file.

    Args:
        path: the file.
        expected: what messages say that it should be.

    Raises:
        ValueError: it is something else, or damaged; names the file.
        OSError: it cannot be read.
    """
    path = Path(path)
    size = file_size(path, expected)
    reader = _Safetensors if path.suffix == ".safetensors" else _Npz
    try:
        with _File(path) as file:
            yield reader(file)
    except _DamagedError as error:
        torn = f"{size} bytes that end too early or are something else ({error})"
        got = torn if size else "an empty file"
        raise ValueError(f"{path}: expected {expected}, got {got}") from None


def file_size(path: Path, expected: str) -> int:
    """Return the size of a file; `ValueError` for a folder or a device, which may have no end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ValueError(f"{path}: expected {expected}, got {kind}")
    return status.st_size


def parse_json(text: bytes | str) -> Any:
    """Parse JSON in which no name comes twice and every number is finite, or raise `ValueError`."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice in one object")
    return dict(pairs)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


class _File(io.FileIO):
    """A file of which no single read is long: parsers ask for as much as the bytes tell them."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > MAX_TEXT:
            raise _DamagedError(f"one of its headers has {size} bytes")
        return super().read(size) or b""


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Turn what a parser says about the bytes into `_DamagedError`, but no failure of reading."""
    try:
        yield
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # a place that there is not in the file
            raise
        raise _DamagedError(str(error)) from None
    except (MemoryError, _DamagedError):
        raise
    except Exception as error:  # zipfile and numpy name no complete list of theirs
        reason = " ".join(str(error).split())[:200]
        raise _DamagedError(reason or type(error).__name__) from None


def _read_into(array: np.ndarray, source: Any) -> None:
    """Fill a contiguous array from a stream, a piece at a time."""
    left = array.reshape(-1).view(np.uint8).data
    while left:
        piece = source.read(min(len(left), _PIECE))
        if not piece:
            raise _DamagedError(f"{len(left)} bytes of an array are missing")
        left[: len(piece)] = piece
        left = left[len(piece) :]


class _Npz:
    def __init__(self, file: _File):
        size = os.fstat(file.fileno()).st_size
        with _parsing():
            self._zip = zipfile.ZipFile(file)
            file.seek(-22, os.SEEK_END)
            last = file.read(4)
        infos = self._zip.infolist()
        if any(i.compress_type or i.flag_bits & _ENCRYPTED for i in infos):
            raise _DamagedError("its members are packed or encrypted")
        if any(i.file_size != i.compress_size for i in infos):
            raise _DamagedError("a member has two sizes")
        if sum(i.file_size for i in infos) > size:
            raise _DamagedError("its members are longer than the file")
        if last != b"PK\5\6" or min((i.header_offset for i in infos), default=0):
            raise _DamagedError("there are bytes before or behind its members")
        self._infos = {i.filename.removesuffix(".npy"): i for i in infos}
        self.names = tuple(self._infos)
        if len(self.names) < len(infos):
            raise _DamagedError("two members have one name")

    def text(self, name: str) -> bytes | None:
        if name not in self._infos:
            return None
        with _parsing():
            if self._infos[name].file_size > MAX_TEXT:
                raise _DamagedError(f"{name} is longer than {MAX_TEXT} bytes")
            return self._zip.read(self._infos[name])

    def array(self, name: str) -> np.ndarray:
        info = self._infos[name]
        with _parsing(), self._zip.open(info) as member:
            array = self._array(name, member, info.file_size)
            if member.read(1):  # which compares the checksum of the zip too
                raise _DamagedError(f"{name}: bytes behind the array")
        return array

    @staticmethod
    def _array(name: str, member: Any, size: int) -> np.ndarray:
        version = np.lib.format.read_magic(member)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise _DamagedError(f"{name}: npy version {version}")
        try:
            shape, by_columns, dtype = readers[version](member)
        except MemoryError:  # of Python's parser, where expressions are nested deep
            raise _DamagedError(f"{name}: its header is too deep") from None
        if dtype.name not in _NAMES.values() or not dtype.isnative:
            raise _DamagedError(f"{name}: expected numbers, got the dtype {dtype}")
        if math.prod(shape) * dtype.itemsize != size - member.tell() or min(shape, default=0) < 0:
            raise _DamagedError(f"{name}: {size - member.tell()} bytes for the shape {shape}")
        array = np.empty(shape[::-1] if by_columns else shape, dtype)
        _read_into(array, member)
        return array.T if by_columns else array


class _Safetensors:
    def __init__(self, file: _File):
        size = os.fstat(file.fileno()).st_size
        self._file, self._entries = file, {}
        with _parsing():
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(length))
            metadata = header.pop("__metadata__", {})
            self._metadata = {name: text.encode() for name, text in metadata.items()}
            start = end = 8 + length
            # They must fill the rest of the file, without gap or overlap.
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                dtype, shape = jnp.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
                begin, stop = (start + offset for offset in entry["data_offsets"])
                if any(type(n) is not int or n < 0 for n in shape):
                    raise _DamagedError(f"{name}: the shape {shape}")
                if begin != end or stop - begin != math.prod(shape) * dtype.itemsize:
                    raise _DamagedError(f"{name}: {stop - begin} bytes for the shape {shape}")
                self._entries[name], end = (begin, shape, dtype), stop
            if end != size:
                raise _DamagedError(f"its arrays end at byte {end}")
        self.names = tuple(self._entries)

    def text(self, name: str) -> bytes | None:
        return self._metadata.get(name)

    def array(self, name: str) -> np.ndarray:
        begin, shape, dtype = self._entries[name]
        array = np.empty(shape, dtype)
        with _parsing():
            self._file.seek(begin)
            _read_into(array, self._file)
        return array
