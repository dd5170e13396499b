"""Find a dataset's files, in this order: prepared directory, official archive, download."""

import os
import threading
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from lorentz_jax._src.output import write_atomic
from lorentz_jax.data import prepared
from lorentz_jax.data.archives import SOURCES, Archive, Source, locate, verify
from lorentz_jax.data.dataset import DataError, DataNotFoundError, Splits


def default_data_dir() -> Path:
    """Return `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`, as tensorflow-datasets does."""
    return Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def read_splits(
    name: str,
    data_dir: Path,
    *,
    check: bool,
    download: bool,
    size: tuple[int, int] | None = None,
    memory: int | None = None,
    limit: int | None = None,
) -> Splits:
    """Return the arrays of a dataset from the first source that has it.

    A source that is there but damaged is an error: no other one stands in for it.

    Args:
        name: an official dataset in `SOURCES`, or any prepared one.
        data_dir: where to look, and where a download goes.
        check: compare official archives with their checksums.
        download: fetch archives that are missing.
        size, memory, limit: as for `prepared.read`.

    Raises:
        ValueError: an unknown name that is not prepared in `data_dir` either, or a `size` for an
            official archive.
        DataNotFoundError: no source has it.
        DataError: a damaged or incomplete source.
    """
    directory = prepared.find(data_dir, name)
    if directory is not None:
        return prepared.read(directory, size, memory, limit)
    if name not in SOURCES:
        known = ", ".join(sorted({*SOURCES, "digits"}))
        raise ValueError(
            f"unknown dataset {name!r}; known: {known}, or any image dataset that "
            f"tensorflow-datasets has prepared in {data_dir}"
        )
    if size is not None:
        raise ValueError(f"image_size is for folders and prepared datasets, not for {name}")
    source = SOURCES[name]
    folder = _complete(name, source, data_dir, download)
    if check:
        for archive in source.archives:
            path = locate(folder, archive)
            assert path is not None
            verify(path, archive)
    return source.read(folder)


def _complete(name: str, source: Source, data_dir: Path, download: bool) -> Path:
    """Return the folder that holds all archives of a source, after fetching the missing ones."""
    folders = [data_dir / folder for folder in source.folders]
    started = (f for f in folders if any(locate(f, archive) for archive in source.archives))
    folder = next(started, data_dir / source.target)
    missing = [archive for archive in source.archives if not locate(folder, archive)]
    if not missing:
        return folder
    obstacle = unreachable(missing[0].url) if download else "downloads are switched off"
    if obstacle:
        raise _not_found(name, source, data_dir, obstacle)
    for archive in missing:
        fetch(archive, folder)
    return folder


def _not_found(name: str, source: Source, data_dir: Path, obstacle: str) -> DataError:
    """Return the error that says where the dataset was looked for and how to provide it."""
    folders = [data_dir / folder for folder in source.folders]
    for folder in folders:
        lacking = [a.name for a in source.archives if not locate(folder, a)]
        if len(lacking) < len(source.archives):
            return DataNotFoundError(
                f"{folder} holds only a part of {name}, it lacks {', '.join(lacking)}, "
                f"and they cannot be downloaded ({obstacle})"
            )
    names = ", ".join(archive.name for archive in source.archives)
    url = source.archives[0].url.rpartition("/")[0]
    return DataNotFoundError(
        f"no {name} in {data_dir}: neither {data_dir / name / source.version}, as prepared by "
        f"tensorflow-datasets, nor {names} in {' or '.join(map(str, folders))}; a download is not "
        f"possible ({obstacle}). Copy one of them there (archives from {url}/), name another data "
        "directory, or prepare it where there is a network: pip install 'lorentz-jax[prepare]', "
        f"then tensorflow_datasets.builder({name!r}).download_and_prepare()"
    )


PROBE_SECONDS = 5.0
STALL_SECONDS = 30.0  # the longest silence in the middle of a download


def unreachable(url: str) -> str | None:
    """Return why the file cannot be fetched, or None when the server offers it.

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

    def write(file: Any) -> None:
        _copy(archive, file)
        file.flush()
        verify(Path(file.name), archive)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / archive.name, write)
    except DataError as error:
        raise DataError(f"the download of {archive.url} failed: {error}") from error
    except (OSError, HTTPException) as error:
        raise DataError(f"the download of {archive.url} to {folder} failed: {error}") from error


def _copy(archive: Archive, file: Any) -> None:
    from tqdm import tqdm

    with urllib.request.urlopen(archive.url, timeout=STALL_SECONDS) as response:
        total = int(response.headers.get("Content-Length") or 0) or None
        with tqdm(total=total, desc=archive.name, unit="B", unit_scale=True) as bar:
            while block := response.read(1 << 18):
                file.write(block)
                bar.update(len(block))
