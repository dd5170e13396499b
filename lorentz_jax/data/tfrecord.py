"""TFRECORD files, read without TensorFlow."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from lorentz_jax.data.images import DataError

_HEADER = struct.Struct("<QI")  # length, its checksum
_FOOTER = struct.Struct("<I")  # checksum of the record
_MASK_DELTA = 0xA282EAD8


def read_tfrecord(path: Path) -> Iterator[bytes]:
    """Yield the records of a TFRECORD file, with their checksums verified.

    Raises:
        DataError: the file is torn or altered.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while header := file.read(_HEADER.size):
            position = file.tell() - len(header)
            if len(header) < _HEADER.size:
                raise DataError(f"{path} ends in the middle of the record at byte {position}")
            length, checksum = _HEADER.unpack(header)
            if masked_crc(header[:8]) != checksum:
                raise DataError(f"{path} is damaged at byte {position}: wrong checksum of a length")
            # Whoever alters a length can alter its checksum too: no memory beyond the file.
            record, footer = file.read(min(length, size)), file.read(_FOOTER.size)
            if len(record) < length or len(footer) < _FOOTER.size:
                raise DataError(f"{path} ends in the middle of the record at byte {position}")
            if masked_crc(record) != _FOOTER.unpack(footer)[0]:
                raise DataError(f"{path} is damaged at byte {position}: wrong checksum of a record")
            yield record


def masked_crc(content: bytes) -> int:
    """Return the format's checksum: CRC-32C, rotated by 15 bits, plus a constant."""
    import google_crc32c

    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
