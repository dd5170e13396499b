"""Where a dataset is looked for, in which order, and what is said when it is nowhere."""

import hashlib
import http.server
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.data import archives, official
from tests.data import formats

SHAPES = {"cifar10": (32, 32, 3), "cifar100": (32, 32, 3), "fashion_mnist": (28, 28, 1)}
CLASSES = {"cifar10": 10, "cifar100": 100, "fashion_mnist": 10}


def examples(name):
    return [
        formats.random_examples(i, n, SHAPES[name], CLASSES[name]) for i, n in ((1, 11), (2, 4))
    ]


def write_official(name, folder):
    if name == "fashion_mnist":
        return formats.write_idx(folder, *examples(name))
    return [formats.write_cifar(folder, *examples(name), fine=name == "cifar100")]


def write_prepared(name, folder, file_format):
    ids = name != "fashion_mnist"  # that one has none there
    splits = {
        split: formats.tfds_examples(some, split if ids else None)
        for split, some in zip(("train", "test"), examples(name), strict=True)
    }
    features = formats.image_features(SHAPES[name], CLASSES[name], ids=ids)
    return formats.write_tfds(folder, name, splits, features, file_format=file_format)


def assert_same(first, second):
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert (first.mean, first.std) == (second.mean, second.std)
    assert first.num_classes == second.num_classes


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; `breaks` makes every download end after 1000 bytes."""

    breaks = False

    def do_GET(self):
        if not self.breaks:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(bytes(1000))

    def log_message(self, format, *args):
        pass


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Serve small archives in place of the official ones; returns the name's new `Source`."""
    root = tmp_path / "published"
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("no_proxy", "*")

    def replace(name):
        write_official(name, root)
        source = archives.SOURCES[name]
        url = f"http://127.0.0.1:{server.server_port}/"
        changed = [
            a._replace(url=url + a.name, sha256=digest(root / a.name)) for a in source.archives
        ]
        monkeypatch.setitem(archives.SOURCES, name, source._replace(archives=tuple(changed)))
        return archives.SOURCES[name]

    yield replace
    server.shutdown()
    server.server_close()
    thread.join()


def digest(path):
    with archives._open(path) if "ubyte" in path.name else path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def redirect(monkeypatch, name, url):
    source = archives.SOURCES[name]
    changed = tuple(a._replace(url=url + a.name) for a in source.archives)
    monkeypatch.setitem(archives.SOURCES, name, source._replace(archives=changed))


@pytest.mark.parametrize("name", SHAPES)
def test_every_source_gives_the_same_arrays(tmp_path, publish, name):
    publish(name)
    fetched = data.load(name, data_dir=tmp_path / "new")
    write_official(name, tmp_path / "archive")
    assert_same(data.load(name, data_dir=tmp_path / "archive", download=False), fetched)
    for kind in ("array_record", "tfrecord"):
        write_prepared(name, tmp_path / kind, kind)
        assert_same(data.load(name, data_dir=tmp_path / kind, download=False), fetched)
    if name != "fashion_mnist":
        np.testing.assert_array_equal(fetched.train_images, examples(name)[0].images)


def test_a_prepared_directory_comes_first_and_is_never_passed_over(tmp_path):
    write_official("cifar10", tmp_path)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "notes").mkdir()  # nothing of tensorflow-datasets
    options = {"data_dir": tmp_path, "verify": False, "download": False}
    data.load("cifar10", **options)
    (tmp_path / "cifar10" / "3.0.2").mkdir()
    with pytest.raises(data.DataError, match=r"3\.0\.2 is incomplete: it holds no dataset_info"):
        data.load("cifar10", **options)
    (tmp_path / "cifar10" / "3.0.2").rename(tmp_path / "cifar10" / "incomplete.X_3.0.2")
    with pytest.raises(data.DataError, match=r"incomplete\.X_3\.0\.2 was never finished"):
        data.load("cifar10", **options)


def test_a_download_appears_whole_and_is_used_again(tmp_path, publish, capsys):
    source = publish("fashion_mnist")
    folder = tmp_path / "new" / "fashion-mnist"
    first = data.load("fashion_mnist", data_dir=tmp_path / "new")
    assert {path.name for path in folder.iterdir()} == {a.name for a in source.archives}
    assert "train-images-idx3-ubyte.gz: 100%" in capsys.readouterr().err
    # Only what is missing is fetched.
    kept = folder / "train-images-idx3-ubyte.gz"
    before = kept.stat().st_mtime_ns
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    assert_same(data.load("fashion_mnist", data_dir=tmp_path / "new"), first)
    assert kept.stat().st_mtime_ns == before
    assert capsys.readouterr().err.count("100%") == 1
    assert_same(data.load("fashion_mnist", data_dir=tmp_path / "new", download=False), first)


@pytest.mark.parametrize("fault", ["checksum", "connection", "gone"])
def test_a_failed_download_leaves_nothing(tmp_path, publish, monkeypatch, fault):
    source = publish("cifar10")
    archive = source.archives[0]
    if fault == "checksum":
        wrong = source._replace(archives=(archive._replace(sha256="0" * 64),))
        monkeypatch.setitem(archives.SOURCES, "cifar10", wrong)
    elif fault == "connection":
        monkeypatch.setattr(Handler, "breaks", True)
    else:
        monkeypatch.setattr(official, "unreachable", lambda url: None)
        (tmp_path / "published" / archive.name).unlink()
    # Nor does `verify=False` accept what another machine sends.
    with pytest.raises(data.DataError, match=f"the download of {archive.url} .*failed"):
        data.load("cifar10", data_dir=tmp_path / "new", verify=False)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, publish):
    publish("cifar10")
    (tmp_path / "file").touch()
    with pytest.raises(data.DataError, match=f"to {tmp_path / 'file'} failed"):
        data.load("cifar10", data_dir=tmp_path / "file")


@pytest.mark.parametrize("name", SHAPES)
def test_without_data_and_network_one_line_says_where_and_how(tmp_path, monkeypatch, name):
    redirect(monkeypatch, name, "http://host.invalid/files/")
    start = time.monotonic()
    with pytest.raises(data.DataNotFoundError) as caught:
        data.load(name, data_dir=tmp_path)
    assert time.monotonic() - start < 10
    assert isinstance(caught.value, FileNotFoundError)
    message, source = str(caught.value), archives.SOURCES[name]
    assert "\n" not in message
    assert str(tmp_path / name / source.version) in message
    for folder in source.folders:
        assert str(tmp_path / folder) in message
    for archive in source.archives:
        assert archive.name in message
    for words in ("host.invalid", "http://host.invalid/files/", "lorentz-jax[prepare]"):
        assert words in message
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_silent_or_refuses_is_given_up_in_time(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    assert official.PROBE_SECONDS == 5
    monkeypatch.setattr(official, "PROBE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        redirect(monkeypatch, "cifar10", f"http://127.0.0.1:{port}/")
        start = time.monotonic()
        with pytest.raises(
            data.DataNotFoundError, match=f"127.0.0.1:{port}(: timed|.* did not an)"
        ):
            data.load("cifar10", data_dir=tmp_path)
        assert time.monotonic() - start < 3
    with pytest.raises(data.DataNotFoundError, match="refused"):
        data.load("cifar10", data_dir=tmp_path)


def test_a_name_server_that_is_silent_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(official, "PROBE_SECONDS", 0.2)
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: done.wait(20) and [])
    start = time.monotonic()
    assert official.unreachable("http://a.invalid/b") == "a.invalid did not answer within 0.2 s"
    assert time.monotonic() - start < 3
    done.set()


def test_downloads_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr(official, "unreachable", lambda url: pytest.fail("asked the network"))
    with pytest.raises(data.DataNotFoundError, match="downloads are switched off"):
        data.load("cifar100", data_dir=tmp_path, download=False)


def test_the_default_directory_is_that_of_tensorflow_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert data.default_data_dir() == tmp_path
    write_official("cifar10", tmp_path)
    assert len(data.load("cifar10", verify=False, limit=3).train_labels) == 3
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert data.default_data_dir().name == "tensorflow_datasets"


def test_importing_is_cheap():
    """What only some datasets need is imported when they are read."""
    heavy = ["tensorflow_datasets", "sklearn", "PIL", "google_crc32c", "tqdm", "tensorflow"]
    code = f"import sys, lorentz_jax.data; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
