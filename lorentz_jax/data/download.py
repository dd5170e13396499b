"""Official archives over the network, never without having asked whether it is there."""

import contextlib
import os
import tempfile
import threading
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path

from lorentz_jax.data.archives import Archive, verify
from lorentz_jax.data.errors import DataError

PROBE_SECONDS = 5.0
STALL_SECONDS = 30.0  # the longest silence in the middle of a download


def unreachable(url: str) -> str | None:
    """Why the file cannot be fetched, or None when the server offers it.

    A thread asks, because looking up a name has no timeout of its own.
    """
    host = urllib.parse.urlsplit(url).netloc
    answer = [f"{host} did not answer within {PROBE_SECONDS:g} s"]

    def ask() -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS):
                answer.append("")
        except (OSError, HTTPException) as error:
            answer.append(f"{host}: {getattr(error, 'reason', None) or error}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answer[-1] or None


def fetch(archive: Archive, folder: Path) -> None:
    """Download the archive into the folder. It appears there whole and verified, or not at all.

    Raises:
        DataError: the connection broke, the disk refused, or the file is not the official one.
    """
    # The name keeps its ending, which says how the file is packed.
    part = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".part-", suffix=f"-{archive.name}", dir=folder)
        part = Path(name)
        with os.fdopen(handle, "wb") as file:
            _copy(archive, file)
        verify(part, archive)
        part.chmod(0o644)  # a temporary file is for its owner only
        os.replace(part, folder / archive.name)
    except DataError as error:
        raise DataError(f"the download of {archive.url} failed: {error}") from error
    except (OSError, HTTPException) as error:
        raise DataError(f"the download of {archive.url} to {folder} failed: {error}") from error
    finally:
        if part is not None:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()


def _copy(archive: Archive, file) -> None:
    from tqdm import tqdm

    with urllib.request.urlopen(archive.url, timeout=STALL_SECONDS) as response:
        total = int(response.headers.get("Content-Length") or 0) or None
        with tqdm(total=total, desc=archive.name, unit="B", unit_scale=True) as bar:
            while block := response.read(1 << 18):
                file.write(block)
                bar.update(len(block))
