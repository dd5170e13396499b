"""The page about own data does what it says, from its first block to its last."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from lorentz_jax.training import build, cli
from tests.training.tiny import build_tiny

PAGE = Path(__file__).parents[2] / "docs" / "own_data.md"
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def summary(name):
    return json.loads((Path("runs") / name / "summary.json").read_text())


def accuracy(name):
    result = summary(name)
    assert result["test_count"] == 40
    assert result["classes"] == ["circle", "cross", "horizontal", "vertical"]
    assert (Path("runs") / name / "confusion.png").read_bytes().startswith(b"\x89PNG")
    return result["test_accuracy"]


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    assert [language for language, _ in BLOCKS] == ["python", "bash", "python", "bash"]
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for language, block in BLOCKS:
        if language == "python":
            if (
                "training.train(" in block
            ):  # the network of the command before has been seen to train
                monkeypatch.setattr(build, "build_model", build_tiny)
            exec(compile(block, str(PAGE), "exec"), names)
            continue
        python, program, *arguments = shlex.split(block)
        assert (python, program) == ("python", "train.py")
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        assert cli.main() == 0, capsys.readouterr().err
    assert len([*Path("shapes").rglob("*.png")]) == 200
    assert accuracy("shapes") > 0.85
    assert accuracy("from-python") > 0
    assert accuracy("streamed") > 0
    waits = [name for name in ("shapes", "from-python", "streamed") if "data_wait" in summary(name)]
    assert waits == ["streamed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "folder:nowhere"], "no folder "),
        (["--dataset", "npz:nowhere.npz"], "/nowhere.npz"),
        (["--dataset", "digits", "--image-size", "9"], "image_size is for folders and prepared"),
        (
            ["--image-size", "9", "9", "9"],
            "image_size must be (height, width) or (side,), got (9, 9, 9)",
        ),
        (["--image-size", "0"], "every entry of image_size must be at least 1, got 0"),
        (["--workers", "-1"], "workers must be at least 0"),
        (["--data-memory", "0"], "data_memory must be finite and positive"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    assert cli.main() == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("train.py: error: ")
    assert message in err
    assert not [*tmp_path.iterdir()]
