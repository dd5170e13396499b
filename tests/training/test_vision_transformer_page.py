"""The page about the vision transformer runs, and its network learns."""

import re
from pathlib import Path

import jax

PAGE = Path(__file__).parents[2] / "docs" / "vision_transformer.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_runs_and_its_network_learns(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    short = "".join(BLOCKS).replace("epochs=40", "epochs=6")
    assert "epochs=6" in short
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        exec(compile(short, str(PAGE), "exec"), names)
    assert names["summary"]["test_accuracy"] > 0.3  # chance is 0.1
    assert names["after"].max() - names["after"].min() < 0.5 * names["before"].max()
    assert capsys.readouterr().out.endswith("(2, 3)\n")
