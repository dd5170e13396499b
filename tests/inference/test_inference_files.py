"""Compiled models on disk: what is written is read, and what is damaged is refused in one line."""

import contextlib
import functools
import json
import os
import pickle
import zipfile
import zlib

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
from lorentz_jax.models import LorentzResNet

pytestmark = pytest.mark.slow  # whole networks are compiled here

INFO = {"dataset": "digits", "test_accuracy": 0.99}


def model(classes=10, width=4):
    return LorentzResNet((1,), width, classes, 1, kappa=0.5, rngs=nnx.Rngs(0))


@functools.cache
def network(**kwargs) -> Compiled:
    return compile_cached_v(model(), info=INFO, **kwargs)


@pytest.fixture
def compiled() -> Compiled:
    return network()


@pytest.fixture
def path(tmp_path, compiled):
    save(compiled, tmp_path / "model.npz")
    return tmp_path / "model.npz"


def assert_same(got: Compiled, want: Compiled):
    for field in ("layers", "graphdef", "paths", "kappas", "dtype", "description", "info"):
        assert getattr(got, field) == getattr(want, field), field
    assert got.params.keys() == want.params.keys()
    for key, value in want.params.items():
        assert got.params[key].dtype == value.dtype
        np.testing.assert_array_equal(got.params[key], value)


def test_round_trip(path, compiled):
    got = load(path, kappa=0.5)
    assert_same(got, compiled)
    assert_same(load(path, like=model()), compiled)
    x = jnp.ones((2, 4, 4, 1))
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
        assert_same(load(tmp_path / "m.npz", like=layer), double)
    with pytest.raises(ValueError, match=r"m\.npz: it holds float64 arrays.*jax_enable_x64"):
        load(tmp_path / "m.npz", like=layer)


def test_the_file_is_ordinary(path, compiled, tmp_path):
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
    assert header["version"] == 2
    assert header["kappa"] == 0.5
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["head/time"], compiled.params["head/time"])
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
    at = content.index(np.asarray(compiled.params["head/space"]).tobytes()) + 5
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.npz: expected a lorentz_jax .*Bad CRC"):
        load(path)


def test_what_is_no_compiled_model(tmp_path):
    for name, write, message in [
        ("weights.npz", lambda p: np.savez(p, a=np.zeros(2)), "got an archive of a"),
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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 3, "expected format version 2, got 3"),
        ("version", None, "expected format version 2, got None"),
        ("format", "orbax", "got the format 'orbax'"),
        ("description", '["Tree", {}]', "no description of a network"),
        (
            "description",
            '["LorentzResNet", {"stages": [1000000000]}]',
            "no description of a network",
        ),
        ("description", "[" * 200_000, "no description of a network"),
        ("description", None, "load it with like="),
        ("structure", "0" * 16, "differs from the one that was compiled"),
        ("layers", {}, "the arrays are not those of the model"),
        ("layers", {"tail": {"layer": "X", "kappa": 1, "folded": False}}, "the model has nothing"),
        ("kappas", {"kappa": 1.0}, "no learned kappa at 'kappa'"),
        ("layers", 3, "'layers' to be an object, got 3"),
        ("arrays", {}, "is unknown"),
        ("dtype", "int8", "dtype"),
    ],
)
def test_another_header(path, key, value, message):
    rewrite(path, lambda header: header.update({key: value}))
    with pytest.raises(ValueError, match=rf"model\.npz: .*{message}"):
        load(path)


def test_a_header_without_a_key(path):
    for key in ("layers", "kappas", "arrays", "info"):
        save(network(), path)
        rewrite(path, lambda header, key=key: header.pop(key))
        with pytest.raises(ValueError, match=rf"model\.npz: .*'{key}' to be an object, got None"):
            load(path)
    save(network(), path)
    rewrite(path, change_members=lambda members: members.update({"header.json": b"{"}))
    with pytest.raises(ValueError, match=r"model\.npz: .*header is damaged"):
        load(path)


def npy(array):
    from io import BytesIO

    file = BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


OTHER_ARRAYS = [
    ("tail/time", np.zeros(3), "tail/time is unknown"),
    ("head/time", np.zeros(3, "f"), r"head/time: expected.*\[10\].*got.*\[3\]"),
    ("head/time", np.zeros(10, "i4"), r"head/time: expected.*float32.*got.*int32"),
    ("head/time", np.array([{}]), "head/time: expected numbers, got the dtype object"),
]


@pytest.mark.parametrize(("name", "array", "message"), OTHER_ARRAYS)
def test_other_arrays(path, name, array, message):
    rewrite(path, change_members=lambda members: members.update({f"{name}.npy": npy(array)}))
    with pytest.raises(ValueError, match=rf"model\.npz: .*{message}"):
        load(path)


def test_missing_and_damaged_arrays(path):
    rewrite(path, change_members=lambda members: members.pop("head/time.npy"))
    with pytest.raises(ValueError, match=r"model\.npz: .*head/time is missing"):
        load(path)
    save(network(), path)
    rewrite(path, change_members=lambda members: members.update({"head/time.npy": b"text"}))
    with pytest.raises(ValueError, match=r"model\.npz: .*magic"):
        load(path)


def test_another_kappa(path):
    with pytest.raises(
        ValueError, match=r"model\.npz: expected kappa 1\.0, got a model of kappa 0\.5"
    ):
        load(path, kappa=1.0)
    load(path, kappa=0.5 * (1 + 1e-7))  # what float32 makes of it


def test_another_network(path):
    # Ten classes are not a hundred, and a narrower network is another one.
    for other in (model(classes=100), model(width=8)):
        with pytest.raises(ValueError, match="differs from the one that was compiled"):
            load(path, like=other)


def test_two_members_of_one_name(path):
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(zipfile.ZipInfo("head/time.npy"), npy(np.zeros(10, "f")))
    with pytest.raises(ValueError, match="two members have one name"):
        load(path)


def test_a_packed_member_is_refused(path):
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", b"0" * 10_000_000)
    with pytest.raises(ValueError, match="packed or encrypted"):
        load(path)


def test_values_that_are_not_finite_are_refused(path, compiled):
    value = np.asarray(compiled.params["head/time"]).copy()
    value[1] = np.nan
    rewrite(
        path,
        lambda header: header["arrays"]["head/time"].update(crc32=zlib.crc32(value.tobytes())),
        lambda members: members.update({"head/time.npy": npy(value)}),
    )
    with pytest.raises(ValueError, match="not finite"):
        load(path)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, compiled, ending):
    if ending == "safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"m.{ending}"
    save(compiled, path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for bit in rng.integers(0, 8 * len(content), 60):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        with contextlib.suppress(ValueError):  # refused
            assert_same(load(path), compiled)


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
