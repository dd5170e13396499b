"""The page about sequences runs, its labels are right, and its networks learn."""

import re
from pathlib import Path

import jax
import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "sequences.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
STOPS = {"TAA", "TAG", "TGA"}


def has_stop(row, way):
    """Whether the piece, read in this way, stops before its last triple."""
    numbers = np.asarray(row).argmax(-1)
    start = way % 3
    if way > 2:  # read the other strand, from the end of the piece
        numbers, start = 3 - numbers[::-1], (len(numbers) - way) % 3
    letters = "".join("ACGT"[i] for i in numbers)
    return bool(STOPS & {letters[i : i + 3] for i in range(start, len(letters) - 5, 3)})


def test_the_page_runs_and_its_networks_learn(capsys):
    text = "".join(BLOCKS)
    assert text.endswith("results = compare()\n")
    short = text.replace("results = compare()", "results = compare((0.03,), steps=60, seeds=2)")
    short = short.replace("(7, 20, 20)", "(7, 50, 50)")
    names = {"__name__": "page"}
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules need it
        exec(compile(short, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.count(" % at rate 0.03\n") == len(names["kinds"]) == 2
    for kind, percent in names["results"].items():
        assert percent > 30, kind  # guesses have 17
    # Read in the right way a gene has no stop before its end, and in others it has many.
    rows, ways = (np.asarray(a) for a in names["test"])
    stops = [
        [has_stop(row, (way + turn) % 6) for turn in range(6)]
        for row, way in zip(rows, ways, strict=True)
    ]
    assert set(ways) == set(range(6))
    right, *wrong = np.mean(stops, axis=0)
    assert right == 0
    assert min(wrong) > 0.3
