"""What programs leave behind: files that are whole or absent, and errors of one line."""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PART = ".part-"
_parts: set[str] = set()


def write_atomic(path: Path, write: Callable[[Any], object]) -> None:
    """Call `write(file)` on a binary file beside `path`, and rename it when it is whole.

    A link is followed, and what it points to is replaced. The temporary name ends in that of
    `path`, and `file.name` has it as text. If `write` raises, `path` stays as it was and nothing
    else is left.

    Raises:
        ValueError: `path` is there and no regular file: a device must not be replaced.
    """
    target = _target(path)
    descriptor, temporary = tempfile.mkstemp(prefix=PART, suffix=f"-{path.name}", dir=target.parent)
    os.close(descriptor)
    _parts.add(temporary)
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # a temporary file is for its owner only
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        _parts.discard(temporary)


def discard_parts(folder: Path | None = None, names: str = "") -> None:
    """Remove unfinished files.

    Without a folder they are those of this process, which is about to end. With one they are those
    that killed processes left there on the way to a name that the pattern `names` matches.
    """
    if folder is None:
        files = [Path(part) for part in tuple(_parts)]
    else:
        pattern = re.compile(rf"{re.escape(PART)}[a-z0-9_]{{8}}-(?:{names})")
        files = [file for file in folder.iterdir() if pattern.fullmatch(file.name)]
    for file in files:
        file.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise what `write_atomic` would, before the work whose result it should write.

    Raises:
        ValueError: `path` is there and no regular file.
        OSError: nothing can be written into its folder.
    """
    try:
        with tempfile.TemporaryFile(prefix=PART, dir=_target(path).parent):
            pass
    except OSError as error:
        raise type(error)(f"cannot write {path}: {error.strerror}") from None


def _target(path: Path) -> Path:
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        got = "a folder" if target.is_dir() else "a device, a pipe or a socket"
        raise ValueError(f"cannot write {path}: expected a file or a new name, got {got}")
    return target


def report_error(program: str, reason: object, status: int) -> int:
    """Print in one line on standard error why a program stops; returns its exit status."""
    print(f"{program}: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return status


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
