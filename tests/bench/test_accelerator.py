"""Costs of programs that are compiled for an accelerator, and how they are counted."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lorentz_jax.bench import accelerator, hlo
from lorentz_jax.bench import cli as bench
from lorentz_jax.bench.networks import Sizes

ROOT = Path(__file__).parents[2]

PROGRAM = """
HloModule jit_f

fused (a: f32[8,4]) -> f32[8] {
  ROOT inner = f32[8]{0} reduce(a, zero), dimensions={1}, to_apply=add
}

ENTRY %main (x: bf16[8,4], y: f32[8,4]) -> (f32[8], f32[8]) {
  %x = bf16[8,4]{1,0} parameter(0), metadata={op_name="x"}
  %y = f32[8,4]{1,0:T(8,128)} parameter(1)
  %zero = f32[] constant(0)
  %held = (bf16[8,4]{1,0}, f32[8,4]{1,0}) opt-barrier(%x, %y)
  %wide = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=fused
  %library = (f32[8,4]{1,0}, u8[100]{0}) custom-call(%wide, %y), custom_call_target="conv"
  %image = f32[8,4]{1,0} get-tuple-element(%library), index=0
  %p = f32[2]{0} parameter(2)
  %q = f32[3]{0} parameter(3)
  %r = f32[5]{0} parameter(4)
  %both = (f32[8]{0}, /*index=1*/pred[8]{0}) fusion(%zero, %p, %q, %wide, %wide, /*index=5*/%r)
  ROOT %out = (f32[8]{0}, f32[8]{0}) tuple(%both, %both)
}
"""


def test_kernels_move_their_operands_and_results():
    wide = 8 * 4 * (2 + 4)  # reads bfloat16, writes float32
    library = 3 * 8 * 4 * 4  # its scratch is no result
    both = 8 * 4 * 4 + 4 * (1 + 2 + 3 + 5) + 8 * (4 + 1)  # an image once, every fifth operand
    assert hlo.count(PROGRAM) == (3, wide + library + both)


def test_a_real_program_is_counted():
    x = jnp.ones((128, 64))
    compiled = jax.jit(lambda x: jnp.sum(jnp.sin(x) * x)).lower(x).compile()
    kernels, moved = hlo.count(compiled.as_text())
    assert 1 <= kernels <= 4
    assert x.nbytes < moved < 8 * x.nbytes  # these tests compile with little fusion


@pytest.mark.parametrize("part", accelerator.PARTS)
def test_programs_of_this_machine_are_timed_too(part, tmp_path):
    to, plot = tmp_path / "out.json", tmp_path / "out.png"
    line = "accelerator --target local --width 2 --batch 2 --stages 1 --precision float32"
    files = ["--seconds", "0.01", "--part", part, "--json", str(to), "--plot", str(plot)]
    assert bench.main([*line.split(), *files]) == 0
    results = json.loads(to.read_text())
    [[euclidean, lorentz, *_]] = results["tables"].values()
    ours = {"conv": "fgg", "layer": "fgg cached"}.get(part, "lorentz")
    assert (euclidean["name"], lorentz["name"]) == ("euclidean", ours)
    assert set(euclidean["ratios"].values()) - {None} == {1.0}
    names = ["kernels", "bytes", "temporary_bytes", "milliseconds"]
    if part == "layer":  # which has its result alone
        names.remove("temporary_bytes")
    for name in names:
        assert lorentz["ratios"][name] == lorentz[name] / euclidean[name] > 0
    assert plot.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--target h200", "target must be one of h100, v5e, local, got 'h200'"),
        ("--target local --part pool", "part"),
        ("--target local --precision float16", "precision"),
        ("--target local --models nope", "model"),
        ("--target local --part conv --models hcnn", "--models goes with networks"),
        ("--target local --part layer --models hcnn", "--part layer has ('euclidean', 'fgg cac"),
        ("--target local --batch 0", "--batch must be at least 1"),
    ],
)
def test_what_there_is_not_is_one_line(options, message, capsys):
    assert bench.main(["accelerator", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_missing_compiler_is_named(monkeypatch):
    from jax.experimental import topologies

    def missing(**options):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    for name in ("XLA_FLAGS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    with pytest.raises(ValueError, match=r"'jax\[cuda12\]' brings its compiler \(topology not"):
        accelerator.device_of("h100")


def test_a_program_must_have_a_part():
    with pytest.raises(ValueError, match="part must be one of training, block, inference"):
        accelerator.program("pool", "lorentz", Sizes(2, 2, (1,)), jnp.float32)


needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs the compiler for CUDA"
)


def compiled_rows(to, *arguments):
    """Rows of `bench.py accelerator` beside the Euclidean one."""
    # The tests' own flags of XLA are for a CPU.
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "bench.py", "accelerator", *arguments, "--json", str(to)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    [[_, *rows]] = json.loads(to.read_text())["tables"].values()
    return rows


@needs_cuda
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_block_costs_on_an_h100_what_a_euclidean_one_does(precision, tmp_path):
    line = f"--part block --width 64 --batch 32 --precision {precision}"
    arms = ["lorentz", "lorentz, pallas", "lorentz, bias"]
    ours = compiled_rows(tmp_path / "out.json", *line.split(), "--models", *arms)
    limits = {
        "kernels": (2.3, 1.5, 2.7),
        "bytes": (1.25, 1.1, 1.45),
        "temporary_bytes": (1.15, 1.05, 1.4),
    }
    for name, most in limits.items():
        for row, limit in zip(ours, most, strict=True):
            assert row["ratios"][name] <= limit, f"{row['name']}: {name}"


@needs_cuda
def test_a_cached_layer_reads_its_points_once_more_on_an_h100(tmp_path):
    line = "--part layer --width 4096 --batch 512 --precision float32"
    cached, _ = compiled_rows(tmp_path / "out.json", *line.split())
    assert cached["ratios"]["bytes"] <= 1.101
