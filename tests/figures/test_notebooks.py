"""Every notebook runs from a clean kernel without complaint, and is stored with its outputs."""

import itertools
import json
import os
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# What a place on somebody's machine begins with, here or in a Windows path.
PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|work|tmp|private|usr|opt|var|mnt)/|[A-Z]:\\\\")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def load(path):
    return json.loads(path.read_text())


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(output):
    """What a reader sees of an output, pictures aside."""
    if output["output_type"] == "stream":
        return "".join(output["text"])
    data = output.get("data", {})
    return json.dumps({kind: value for kind, value in data.items() if kind != "image/png"})


def complaints(notebook):
    """Errors, anything on standard error, and warnings, as `(cell, text)`."""
    complaints = []
    for number, cell in enumerate(code_cells(notebook)):
        for output in cell["outputs"]:
            loud = output["output_type"] == "error" or output.get("name") == "stderr"
            if loud or "Warning" in text_of(output):
                complaints.append((number, json.dumps(output)[:500]))
    return complaints


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 4


@each
def test_outputs_are_stored_and_belong_to_no_machine(path):
    notebook = load(path)
    cells = code_cells(notebook)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures, "a notebook without a picture"
    assert complaints(notebook) == []
    for output in pictures:
        output["data"]["image/png"] = ""
    assert PATH.findall(json.dumps(notebook)) == []
    assert path.stat().st_size < 400_000


@each
def test_it_is_a_page_with_one_title_and_described_pictures(path):
    notebook = load(path)
    texts = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    levels = [len(mark) for text in texts for mark in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert texts[0].startswith("# ")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for cell in code_cells(notebook):
        if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
            assert cell["metadata"]["mystnb"]["image"]["alt"]


@each
@pytest.mark.slow
def test_it_runs_from_a_clean_kernel(path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs the extra `notebooks`")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    before = [len(cell["outputs"]) > 0 for cell in code_cells(notebook)]
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    with warnings.catch_warnings():
        # Those of Jupyter's own packages say nothing about the notebook.
        warnings.simplefilter("ignore")
        client.execute()
    assert complaints(notebook) == []
    assert [len(cell["outputs"]) > 0 for cell in code_cells(notebook)] == before
