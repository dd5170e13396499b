"""A lock on the folder of a run: one process owns it, and a crash gives it back."""

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from lorentz_jax._src.signals import WATCH

NAME = ".lorentz_jax.lock"
# The errors of `flock` on a file system that has no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own the folder, which is made if there is none, and removed again if it stays empty.

    The system drops the lock when the process ends, however it ends. Where the file system has no
    locks, a warning says so.

    Raises:
        BlockingIOError: another process owns it; the message says which.
        OSError: the folder cannot be written.
    """
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    descriptor = None

    def release() -> None:
        if descriptor is not None:
            file.unlink(missing_ok=True)
            os.close(descriptor)
        for empty in made:
            with contextlib.suppress(OSError):  # it holds something
                empty.rmdir()

    WATCH.on_exit.append(release)
    try:
        descriptor = _acquire(file)
        yield
    finally:
        WATCH.on_exit.remove(release)
        release()


def _acquire(file: Path) -> int | None:
    """Return the descriptor that holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return _warn(file, "this system has no flock")
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise BlockingIOError(
                f"{file.parent} is in use by {owner}: wait for its end, or choose another --name"
            ) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            return _warn(file, str(error.strerror))
        # The owner before may have removed the file after this process had opened it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                break
        os.close(descriptor)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    return descriptor


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _warn(file: Path, reason: str) -> None:
    print(f"warning: {file.parent} cannot be locked ({reason}): let no other run use it")
