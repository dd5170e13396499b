"""Compiled models on disk: what is written is read, and what is damaged is refused in one line."""

import functools
import json
import os
import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import nn
from lorentz_jax.inference import (
    Compiled,
    compile_cached_v,
    is_compiled,
    load,
    refuse_compiled,
    save,
)

pytestmark = pytest.mark.slow  # whole networks are compiled here

INFO = {"dataset": "digits", "test_accuracy": 0.99}


@functools.cache
def network(classes=10, width=4, **kwargs) -> Compiled:
    common = {"kappa": 0.5, "rngs": nnx.Rngs(0)}
    layer, head = nn.LorentzLinear(3, width, **common), nn.LorentzMLR(width, classes, **common)
    model = nnx.Sequential(layer, nn.LorentzBatchNorm(width, **common), jax.nn.relu, head)
    return compile_cached_v(model, info=INFO, **kwargs)


@pytest.fixture
def compiled() -> Compiled:
    return network()


@pytest.fixture
def path(tmp_path, compiled):
    save(compiled, tmp_path / "model.npz")
    return tmp_path / "model.npz"


def assert_same(got: Compiled, want: Compiled):
    assert (got.layers, got.network, got.dtype, got.info) == (
        want.layers, want.network, want.dtype, want.info,
    )  # fmt: skip
    assert got.params.keys() == want.params.keys()
    for key, value in want.params.items():
        assert got.params[key].dtype == value.dtype
        np.testing.assert_array_equal(got.params[key], value)


def test_round_trip(path, compiled):
    got = load(path, kappa=0.5, like=network())
    assert_same(got, compiled)
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(got(x), compiled(x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_round_trip_of_half_precision(tmp_path, dtype):
    half = network(dtype=dtype, fold=False)
    save(half, tmp_path / "m.npz")
    assert_same(load(tmp_path / "m.npz"), half)


def test_float64_needs_x64(tmp_path):
    with jax.enable_x64(True):
        layer = nn.LorentzLinear(2, 3, kappa=1.0, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        double = compile_cached_v(layer)
        save(double, tmp_path / "m.npz")
        assert_same(load(tmp_path / "m.npz"), double)
    with pytest.raises(ValueError, match=r"m\.npz: it holds float64 arrays.*jax_enable_x64"):
        load(tmp_path / "m.npz")


def test_the_file_is_ordinary(path, compiled, tmp_path):
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
    assert header["version"] == 1
    assert header["kappa"] == 0.5
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["3/time"], compiled.params["3/time"])
    save(compiled, tmp_path / "again.npz")
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_save_is_atomic(path, compiled, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(np.lib.format, "write_array", _disk_full)
    with pytest.raises(OSError, match="No space left"):
        save(compiled, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(TypeError, match="expected a Compiled, got LorentzLinear"):
        save(nn.LorentzLinear(2, 2, kappa=1.0, rngs=nnx.Rngs(0)), path)


def _disk_full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 0.9999])
def test_a_torn_file(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(
        ValueError, match=r"model\.npz: expected a lorentz_jax compiled model.*got \d+ bytes"
    ):
        load(path)
    assert not is_compiled(path)


def test_an_empty_file(path):
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.npz: expected a lorentz_jax .*got an empty file"):
        load(path)


def test_a_changed_byte(path, compiled):
    content = bytearray(path.read_bytes())
    at = content.index(np.asarray(compiled.params["3/space"]).tobytes()) + 5
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"model\.npz: expected whole arrays, got a damaged file .*CRC"
    ):
        load(path)


def test_what_is_no_compiled_model(tmp_path):
    for name, write, message in [
        ("weights.npz", lambda p: np.savez(p, a=np.zeros(2)), "got an archive of a.npy"),
        ("state.pkl", lambda p: p.write_bytes(pickle.dumps([1] * 99)), "something else"),
        ("folder", lambda p: p.mkdir(), "got a folder"),
    ]:
        write(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name}: expected a lorentz_jax .*{message}"):
            load(tmp_path / name)
        assert not is_compiled(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        load(tmp_path / "none.npz")


def rewrite(path, change_header=None, change_members=None):
    """The same archive with another header or other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if change_header is not None:
        header = json.loads(members["header.json"])
        change_header(header)
        members["header.json"] = json.dumps(header).encode()
    if change_members is not None:
        change_members(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def refused_after(path, message, change_header=None, change_members=None):
    rewrite(path, change_header, change_members)
    with pytest.raises(ValueError, match=rf"model\.npz: .*{message}"):
        load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "expected format version 1, got 2"),
        ("version", None, "expected format version 1, got None"),
        ("format", "orbax", "got the format 'orbax'"),
        ("network", {"kind": "tree"}, "unknown kind of network 'tree'"),
        ("layers", {}, "arrays of no layer"),
        ("layers", 3, "'layers' to be an object, got 3"),
        ("arrays", {}, "is unknown"),
        ("dtype", "int8", "dtype"),
    ],
)
def test_another_header(path, key, value, message):
    refused_after(path, message, lambda header: header.update({key: value}))


def test_a_header_without_a_key(path):
    for key in ("layers", "arrays", "info"):
        save(network(), path)
        message = f"'{key}' to be an object, got None"
        refused_after(path, message, lambda header, key=key: header.pop(key))
    save(network(), path)
    refused_after(path, "header is damaged", None, lambda m: m.update({"header.json": b"{"}))


def npy(array):
    from io import BytesIO

    file = BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


OTHER_ARRAYS = [
    ("4/time", np.zeros(3), "4/time is unknown"),
    ("3/time", np.zeros(3, "f"), r"3/time: expected.*\[10\].*got.*\[3\]"),
    ("3/time", np.zeros(10, "i4"), r"3/time: expected.*float32.*got.*int32"),
    ("3/time", np.array([{}]), "allow_pickle=False"),
]


@pytest.mark.parametrize(("name", "array", "message"), OTHER_ARRAYS)
def test_other_arrays(path, name, array, message):
    refused_after(path, message, None, lambda m: m.update({f"{name}.npy": npy(array)}))


def test_missing_and_damaged_arrays(path):
    refused_after(path, "3/time is missing", None, lambda m: m.pop("3/time.npy"))
    save(network(), path)
    refused_after(path, "magic", None, lambda m: m.update({"3/time.npy": b"text"}))


def test_another_kappa(path):
    with pytest.raises(
        ValueError, match=r"model\.npz: expected kappa 1\.0, got a model of kappa 0\.5"
    ):
        load(path, kappa=1.0)
    load(path, kappa=0.5 * (1 + 1e-7))  # what float32 makes of it


def test_another_network(path):
    # Ten classes are not a hundred, and a narrower network is another one.
    with pytest.raises(ValueError, match=r"3/space: expected \(4, 100\), got \(4, 10\)"):
        load(path, like=network(classes=100))
    with pytest.raises(ValueError, match=r"0/space: expected \(3, 8\), got \(3, 4\)"):
        load(path, like=network(width=8))
    with pytest.raises(ValueError, match="1/mean is missing"):
        load(path, like=network(fold=False))


def test_training_refuses_a_compiled_file(path, tmp_path):
    assert is_compiled(path)
    with pytest.raises(
        ValueError,
        match=r"model\.npz is a lorentz_jax compiled model.*Expected a training checkpoint",
    ):
        refuse_compiled(path)
    rewrite(path, lambda header: header.update(version=99))
    with pytest.raises(ValueError, match="compiled model"):
        refuse_compiled(path)  # a later version is of that kind too
    refuse_compiled(tmp_path)
