"""The page about fine-tuning does what it says, from its first block to its last."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import nn
from lorentz_jax.training.state import flatten

PAGE = Path(__file__).parents[2] / "docs" / "fine_tuning.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def run(block, names):
    exec(compile(block, str(PAGE), "exec"), names)


def parameters(model):
    return flatten(nnx.state(model, nnx.Param)), flatten(nnx.state(model, nnx.BatchStat))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the blocks up to the new head leave, the folder they ran in, and the blocks to come."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = {"__name__": "page"}
        for block in BLOCKS[:2]:
            run(block, names)
    return folder, names


@pytest.mark.parametrize("head", ["as written", pytest.param("nnx.Linear", marks=pytest.mark.slow)])
def test_the_page_runs(head, trained, monkeypatch, capsys):
    folder, names = trained
    names = {**names, "model": nnx.clone(names["model"])}
    monkeypatch.chdir(folder)
    replace, load, freeze, everything, export = BLOCKS[2:]
    if head == "nnx.Linear":
        replace = replace.replace("model.head = nn.Lor", "# ").replace("# or: ", "")
    run(replace, names)
    model = names["model"]
    assert type(model.head) is (nnx.Linear if head == "nnx.Linear" else nn.LorentzMLR)
    run(load, names)
    before, statistics = parameters(model)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        run(freeze, names)
    after, same = parameters(model)
    changed = {path for path in before if (before[path] != after[path]).any()}
    assert changed == {"head/kernel", "head/bias"}
    for path, value in statistics.items():
        np.testing.assert_array_equal(same[path], value)

    before, (_, statistics) = after, parameters(model)
    with jax.numpy_dtype_promotion("standard"):
        run(everything, names)
    after, moved = parameters(model)
    assert all((before[path] != after[path]).any() for path in before)
    assert all((moved[path] != statistics[path]).any() for path in moved)
    run(export, names)
    printed = capsys.readouterr().out
    accuracies = [float(text) for text in re.findall(r"test accuracy ([\d.]+)", printed)]
    assert len(accuracies) == 3
    assert accuracies[0] > 0.75
    assert accuracies[1] == accuracies[2] > 0.85
    assert (folder / "parity.stablehlo.sha256").exists()
