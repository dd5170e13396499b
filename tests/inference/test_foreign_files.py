"""Files that anybody may have made or a disk has changed: refused in one line, or as they were.

Small models make this fast; `test_inference_files.py` has whole networks.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import struct
import subprocess
import tracemalloc
import zipfile
import zlib

import jax
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import inference, nn
from lorentz_jax._src.archive import MAX_TEXT, open_archive, parse_json
from lorentz_jax._src.output import check_writable, write_atomic
from lorentz_jax.inference.__main__ import main

KINDS = ["npz", "safetensors"]


def layer(width=3):
    return nn.LorentzLinear(2, width, kappa=0.5, rngs=nnx.Rngs(0))


@functools.cache
def compiled():
    return inference.compile_cached_v(layer(), info={"classes": ["a", "b", "c"]})


def saved(path):
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors")
    inference.save(compiled(), path)
    return path


def load(path):
    return inference.load(path, like=layer())


def refused(path, message="expected"):
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: "), text
    assert "\n" not in text
    assert len(text) < 1000


def same(got):
    want = compiled()
    assert (got.layers, got.info, got.dtype) == (want.layers, want.info, want.dtype)
    for key, value in want.params.items():
        np.testing.assert_array_equal(got.params[key], value)


def damaged(content, rng, count):
    """Copies with a flipped bit or a torn end, half of them within what is no array."""
    for _ in range(count):
        copy = bytearray(content)
        copy[rng.integers(len(content))] ^= 1 << rng.integers(8)
        yield copy
        yield content[: rng.integers(len(content))]


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_damages_are_refused_or_change_nothing(tmp_path, kind):
    fuzz(saved(tmp_path / f"m.{kind}"), 100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_third_bit_flipped_is_refused_or_changes_nothing(tmp_path, kind):
    path = saved(tmp_path / f"m.{kind}")
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 3):
        copy = bytearray(content)
        copy[bit // 8] ^= 1 << bit % 8
        path.write_bytes(copy)
        with contextlib.suppress(ValueError):
            same(load(path))


def fuzz(path, count):
    content, outcomes = path.read_bytes(), [0, 0]
    for copy in damaged(content, np.random.default_rng(0), count):
        path.write_bytes(copy)
        try:
            got = load(path)
        except ValueError as error:
            named = str(error).startswith(f"{path}: ")
            outcomes[0] += 1 if named else pytest.fail(str(error))
        else:
            same(got)
            outcomes[1] += 1
    assert outcomes[0] > outcomes[1]


def rewrite(path, change, **options):
    """The same npz with other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def with_header(path, change):
    def rewritten(members):
        header = json.loads(members["header.json"])
        change(header)
        members["header.json"] = json.dumps(header)

    rewrite(saved(path), rewritten)
    return path


DEEP = "[" * 200_000
HEADERS = {
    "arrays": [[], {"time": []}, {"time": {}}, {"time": {"shape": [3], "crc32": 1}}],
    "layers": [{"": []}, {"": {"layer": "LorentzLinear"}}, {"": None}, [1]],
    "kappas": [{"kappa": "x"}, {"kappa": None}, {"kappa": True}, 7],
    "kappa": ["x", [1], {}],
    "dtype": ["int8", 3, ["bfloat16"], {}],
    "structure": [None, 3, {}],
    "info": [None, [], "x"],
}


@pytest.mark.parametrize(("field", "value"), [(k, v) for k, vs in HEADERS.items() for v in vs])
def test_a_header_with_a_field_of_another_kind(tmp_path, field, value):
    path = with_header(tmp_path / "m.npz", lambda header: header.update({field: value}))
    refused(path, f"expected '?{field}")
    with pytest.raises(ValueError, match=f"expected '?{field}"):
        inference.describe(path)


ENTRY = {"dtype": "float32", "shape": [3], "crc32": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "object"}, {"dtype": None}, {"shape": [10**13]}, {"shape": [-3]},
        {"shape": 3}, {"shape": [3.0]}, {"shape": [True]}, {"crc32": None}, {"crc32": "x"},
    ],
)  # fmt: skip
def test_an_array_that_the_header_describes_wrongly(tmp_path, change):
    refused(
        with_header(tmp_path / "m.npz", lambda h: h["arrays"]["time"].update(change)), "arrays|time"
    )


DESCRIPTIONS = [
    '["LorentzResNet", {"stages": [1000000000], "width": 2, "num_classes": 3}]',
    json.dumps(["LorentzResNet", {"stages": [2] * 1000, "width": 2, "num_classes": 3}]),
    json.dumps(["LorentzResNet", {"stages": [1], "width": 1 << 60, "num_classes": 3}]),
    json.dumps(["LorentzResNet", {"stages": [1], "width": 2, "num_classes": 1 << 40}]),
    json.dumps(["LorentzResNet", {"stages": [1], "width": 2.5, "num_classes": 3}]),
    json.dumps(["LorentzResNet", {"stages": [1], "width": 2, "num_classes": 3, "relu": "x"}]),
    json.dumps(["LorentzResNet", {"stages": [1], "width": 2, "num_classes": 3, "kappa": 10**400}]),
    '["LorentzResNet", {"width": 2, "num_classes": 3}]',
    '["LorentzResNet", {"stages": "12", "width": 2, "num_classes": 3}]',
    '["LorentzResNet", {"stages": [1], "width": 2, "num_classes": 3, "momentum": NaN}]',
    '[["LorentzResNet"], {"stages": [1], "width": 2, "num_classes": 3}]',
    '["Tree", {}]', "[]", "{}", "3", "", "null", '"', DEEP,
]  # fmt: skip


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda d: d[:60])
def test_a_description_of_no_network(tmp_path, description):
    def change(header):
        header["description"] = description
        header["arrays"] = {f"{i}": ENTRY for i in range(4000)}  # as many as large networks have

    path = with_header(tmp_path / "m.npz", change)
    with pytest.raises(ValueError, match=r"m\.npz: .*arrays of its header"):
        inference.load(path)

    with_header(path, lambda header: header.update(description=description))
    with pytest.raises(ValueError, match=r"m\.npz: no description of a network"):
        inference.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "header is damaged"),
        (DEEP.encode(), "nested too deep"),
        (b'{"format": 1, "format": 2}', "a name comes twice"),
        (b'{"format": NaN}', "NaN is no number"),
        (b"\xff\xfe", "header is damaged"),
        (b"[]", "got the format 'list'"),
        (b"9" * 5000, "header is damaged"),
        (b" " * (MAX_TEXT + 1), f"header.json is longer than {MAX_TEXT} bytes"),
    ],
)
def test_a_header_that_is_no_header(tmp_path, text, message):
    path = saved(tmp_path / "m.npz")
    rewrite(path, lambda members: members.update({"header.json": text}))
    refused(path, message)
    assert not inference.is_compiled(path)


def npy(header, content=b"", version=b"\x01\x00"):
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header.encode() + content


def fields(descr="'<f4'", shape="(3,)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


ARRAYS = {
    "of 36 TB": (npy(fields(shape="(9000000000000,)")), "12 bytes for|0 bytes for"),
    "of another shape": (npy(fields(shape="(2,)"), bytes(12)), "12 bytes for the shape"),
    "of a negative shape": (npy(fields(shape="(-1, -3)"), bytes(12)), "for the shape"),
    "with a tail": (npy(fields(), bytes(13)), "13 bytes for the shape"),
    "cut short": (npy(fields(), bytes(11)), "11 bytes for the shape"),
    "of objects": (npy(fields("'|O'"), bytes(24)), "expected numbers, got the dtype object"),
    "of times": (npy(fields("'<M8[s]'"), bytes(24)), "expected numbers, got the dtype datetime"),
    "of records": (npy(fields("[('a', '<f4')]"), bytes(12)), "expected numbers"),
    "of subarrays": (npy(fields("('<f4', (3,))"), bytes(36)), "expected numbers|m.npz"),
    "of another byte order": (npy(fields("'>f4'"), bytes(12)), "expected numbers, got .*>f4"),
    "without dtype": (npy("{'fortran_order': False, 'shape': (3,)}\n", bytes(12)), "m.npz"),
    "with code": (npy("__import__('os').abort()\n", bytes(12)), "m.npz"),
    "nested deep": (npy("-" * 9000 + "1\n", bytes(12)), "m.npz"),
    "with a long header": (npy(" " * 60_000, bytes(12)), "m.npz"),
    "with a header of 4 GB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "m.npz"),
    "of version 3": (npy(fields(), bytes(12), b"\x03\x00"), "npy version"),
    "without magic": (b"text", "magic"),
    "empty": (b"", "m.npz"),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array(tmp_path, name):
    content, message = ARRAYS[name]
    path = saved(tmp_path / "m.npz")
    rewrite(path, lambda members: members.update({"time.npy": content}))
    refused(path, message)


def test_an_array_by_columns_and_of_the_second_version(tmp_path):
    x = np.asarray(np.arange(6.0).reshape(2, 3), order="F")
    second = io.BytesIO()
    np.lib.format.write_array(second, x, version=(2, 0))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("second.npy", second.getvalue())
        for key, value in {"none": np.zeros((0, 3)), "number": np.float64(3.0)}.items():
            with archive.open(f"{key}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(value))
    with open_archive(tmp_path / "m.npz") as archive:
        np.testing.assert_array_equal(archive.array("second"), x)
        assert archive.array("none").shape == (0, 3)
        assert archive.array("number") == 3


def zip_field(path, signature, offset, value):
    content = bytearray(path.read_bytes())
    at = content.rindex(signature) + offset
    content[at : at + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (6, b"\xff", "zip file version"),  # needs a reader of the future
        (8, b"\x01", "packed or encrypted"),
        (8, b"\x20", "packed or encrypted"),
        (8, b"\x40", "packed or encrypted"),
        (10, b"\x08", "packed or encrypted"),  # deflated
        (10, b"\x63", "packed or encrypted"),
        (20, b"\x00\x00\x00\x7f", "two sizes"),
        (24, b"\x00\x00\x00\x7f", "two sizes"),
        (42, b"\xff\xff\xff\x7f", "m.npz"),  # begins behind the end
        (46, b"\xff\xff", "m.npz"),  # a name that is no text
    ],
)
def test_the_directory_of_a_zip(tmp_path, offset, value, message):
    path = saved(tmp_path / "m.npz")
    zip_field(path, b"PK\x01\x02", offset, value)
    refused(path, message)
    assert not inference.is_compiled(path) or message == "m.npz"


def test_bytes_around_and_between(tmp_path):
    path = saved(tmp_path / "m.npz")
    content = path.read_bytes()
    for other in (b"#!/bin/sh\n" + content, content + b"tail"):
        path.write_bytes(other)
        refused(path)
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x" * 60_000
    refused(path, "before or behind")


@pytest.mark.parametrize("name", ["time.npy", "time", "header.json.npy"])
def test_two_members_of_one_name(tmp_path, name):
    path = saved(tmp_path / "m.npz")
    again = (
        pytest.warns(UserWarning, match="Duplicate")
        if name == "time.npy"
        else contextlib.nullcontext()
    )
    with zipfile.ZipFile(path, "a") as archive, again:
        archive.writestr(zipfile.ZipInfo(name), npy(fields(), bytes(12)))
    refused(path, "two members have one name")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite(tmp_path, kind, bad):
    path, content = saved(tmp_path / f"m.{kind}"), np.zeros(3, np.float32)
    old, content[1] = np.asarray(compiled().params["time"]).tobytes(), bad
    crcs = [f'"crc32": {zlib.crc32(c)}' for c in (old, content.tobytes())]

    def change(members):
        members["time.npy"] = npy(fields(), content.tobytes())
        members["header.json"] = members["header.json"].replace(*(c.encode() for c in crcs))

    if kind == "npz":
        rewrite(path, change)
    else:
        from safetensors.numpy import save

        with open_archive(path) as archive:
            text = archive.text("header").decode().replace(*crcs)
            arrays = {name: archive.array(name) for name in archive.names}
        metadata = {"header": text, "crc32": str(zlib.crc32(text.encode()))}
        path.write_bytes(save(arrays | {"time": content}, metadata))
    refused(path, "time holds values that are not finite")


def safetensors(header, content=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def tensor(begin=0, end=12, shape=(3,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_the_text_of_a_safetensors_header_has_a_checksum(tmp_path):
    path = saved(tmp_path / "m.safetensors")
    content = path.read_bytes()
    assert content.count(b'\\"b\\"') == 1  # the name of a class
    path.write_bytes(content.replace(b'\\"b\\"', b'\\"x\\"'))
    refused(path, "its header is damaged: it has another checksum")


def read_all(path):
    with open_archive(path) as archive:
        return {name: archive.array(name) for name in archive.names}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x08", safetensors(b"{"), safetensors({}, length=1 << 62), safetensors([]),
        safetensors({}, length=MAX_TEXT + 1) + b" " * (MAX_TEXT + 1), safetensors(DEEP.encode()),
        safetensors({"a": tensor()}), safetensors({"a": tensor()}, bytes(13)),
        safetensors({"a": tensor(1, 13)}, bytes(13)), safetensors({"a": tensor(-12, 0)}),
        safetensors({"a": tensor(), "b": tensor()}, bytes(12)),
        safetensors({"a": tensor(), "b": tensor(8, 20)}, bytes(20)),
        safetensors({"a": tensor(shape=(9 * 10**12,))}, bytes(12)),
        safetensors({"a": tensor(shape=(-1, -3))}, bytes(12)),
        safetensors({"a": tensor(dtype="O")}, bytes(12)), safetensors({"a": 3}, bytes(12)),
        safetensors({"a": {"shape": [3], "data_offsets": [0, 12]}}, bytes(12)),
        safetensors({"__metadata__": []}), safetensors({"__metadata__": {"header.json": 3}}),
        safetensors(b'{"a": %b, "a": %b}' % ((json.dumps(tensor()).encode(),) * 2), bytes(12)),
    ],
    ids=map(str, range(21)),
)  # fmt: skip
def test_a_safetensors_file_that_is_none(tmp_path, content):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    message = r"m\.safetensors: expected an npz or safetensors file of arrays, got"
    with pytest.raises(ValueError, match=message):
        read_all(path)


def test_reading_safetensors_needs_no_package(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    same(load(path))
    with pytest.raises(ValueError, match=r"needs the package safetensors.*convert"):
        inference.save(compiled(), path)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_takes_little_memory_beyond_the_arrays(tmp_path, kind):
    """JAX's own copies are not counted; with them it is less than twice the file."""
    if kind == "safetensors":
        pytest.importorskip("safetensors")
    large = nn.LorentzLinear(1024, 2048, kappa=0.5, rngs=nnx.Rngs(0))
    path = tmp_path / f"m.{kind}"
    inference.save(inference.compile_cached_v(large), path)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        inference.load(path, like=large)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 8_000_000
    assert peak < 1.3 * size


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(saved(path), "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", bytes(100_000_000))
    tracemalloc.start()
    try:
        refused(path, "packed or encrypted")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_what_is_no_file_of_its_own_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for path, kind in [
        (tmp_path / "pipe.npz", "no regular file"),
        (tmp_path, "a folder"),
        ("/dev/zero", "no regular file"),
    ]:
        with pytest.raises(ValueError, match=f"got {kind}"):
            inference.load(path)
        with pytest.raises(ValueError, match=f"got {kind}"):
            inference.load_exported(path)
    with pytest.raises(FileNotFoundError):
        inference.load_exported(tmp_path / "none")


def test_an_error_of_the_disk_is_no_damage(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.npz")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load(path)


# Writing


def test_a_link_is_followed_and_its_target_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real.npz", tmp_path / "link.npz"
    link.symlink_to(target)
    for _ in range(2):  # a new name, then one that is there
        inference.save(compiled(), link)
        assert link.is_symlink()
        same(load(link))
        assert sorted(os.listdir(tmp_path / "far")) == ["real.npz"]
    assert sorted(os.listdir(tmp_path)) == ["far", "link.npz"]


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    before = os.stat("/dev/null")
    for name, got in [("pipe", "a device"), ("folder", "a folder"), ("null", "a device")]:
        path = tmp_path / name
        for write in (
            lambda path: inference.save(compiled(), path),
            lambda path: inference.export(compiled(), (2,), path),
            lambda path: write_atomic(path, lambda file: file.write(b"x")),
            check_writable,
        ):
            with pytest.raises(ValueError, match=rf"cannot write {path}: expected a file .*{got}"):
                write(path)
    assert sorted(os.listdir(tmp_path)) == ["folder", "null", "pipe"]
    assert os.stat("/dev/null").st_rdev == before.st_rdev


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    check_writable(tmp_path / "new")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError, match=r"cannot write .*no/new: No such file"):
        check_writable(tmp_path / "no" / "new")
    monkeypatch.setattr(jax.export, "export", pytest.fail)
    with pytest.raises(OSError, match="cannot write"):
        inference.export(compiled(), (2,), tmp_path / "no" / "m")


def test_a_long_info_is_refused_when_written_not_when_read(tmp_path):
    long = inference.compile_cached_v(layer(), info={"text": "x" * MAX_TEXT})
    with pytest.raises(ValueError, match="shorten `info`"):
        inference.save(long, tmp_path / "m.npz")
    assert os.listdir(tmp_path) == []


# Exported models


@pytest.fixture
def exported(tmp_path):
    path = tmp_path / "m.stablehlo"
    inference.export(compiled(), (2,), path)
    return path


def test_an_exported_model_has_a_checksum_beside_it(exported):
    beside = exported.with_name("m.stablehlo.sha256")
    digest = hashlib.sha256(exported.read_bytes()).hexdigest()
    assert beside.read_text() == f"{digest}  m.stablehlo\n"
    x = np.ones((4, 2), np.float32)
    want = compiled()(x)
    np.testing.assert_allclose(inference.load_exported(exported).call(x), want, rtol=1e-6)
    alone = jax.export.deserialize(exported.read_bytes())
    np.testing.assert_allclose(alone.call(x), want, rtol=1e-6)
    done = subprocess.run(["sha256sum", "--check", beside.name], cwd=beside.parent, check=False)
    assert done.returncode == 0


def test_a_damaged_export_is_never_believed(exported):
    beside = exported.with_name("m.stablehlo.sha256")
    rng = np.random.default_rng(0)
    content, checksum = exported.read_bytes(), beside.read_bytes()
    for copy in damaged(content, rng, 50):
        exported.write_bytes(copy)
        with pytest.raises(ValueError, match=r"m\.stablehlo: expected an exported model with"):
            inference.load_exported(exported)
    exported.write_bytes(content)
    x = np.ones((1, 2), np.float32)
    want = inference.load_exported(exported).call(x)
    for copy in damaged(checksum, rng, 20):  # its name is not compared
        beside.write_bytes(copy)
        with contextlib.suppress(ValueError):
            np.testing.assert_array_equal(inference.load_exported(exported).call(x), want)
    beside.unlink()
    with pytest.raises(ValueError, match=r"expected its checksum in .*m\.stablehlo\.sha256"):
        inference.load_exported(exported)
    assert inference.load_exported(exported, verify=False).call(x).shape == (1, 3)
    exported.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"m\.stablehlo: expected an exported model, got 4 bytes"):
        inference.load_exported(exported, verify=False)


def test_json_of_others():
    assert parse_json('{"a": [1, {"a": null}]}') == {"a": [1, {"a": None}]}
    for text in ('{"a": 1, "a": 1}', "[Infinity]", DEEP, "", b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_json(text)


@pytest.mark.parametrize("command", ["describe", "evaluate", "export"])
def test_the_command_says_in_one_line_what_is_wrong(command, tmp_path, capsys, monkeypatch):
    path = with_header(tmp_path / "m.npz", lambda header: header.update(arrays={"a": {}}))
    more = [str(tmp_path / "out"), "--sample", "2"] if command == "export" else []
    arguments = [command, str(path), *more]
    for error, status, text in [
        (None, 2, "m.npz: expected arrays['a']"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "MemoryError"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED:\n3 TB"), 1, "RESOURCE_EXHAUSTED: 3 TB"),
    ]:
        if error is not None:
            monkeypatch.setattr(inference, "load", fail_with(error))
            monkeypatch.setattr(inference, "describe", fail_with(error))
        assert main(arguments) == status
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("lorentz_jax.inference: error: ")
        assert text in line
    assert sorted(os.listdir(tmp_path)) == ["m.npz"]


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail
