"""The one table of the stored studies."""

import json
from pathlib import Path

from notebooks.figures import evidence

ROOT = Path(__file__).parents[2]


def stored(name):
    return json.loads((ROOT / "notebooks" / f"evidence_{name}.json").read_text())


def test_the_table_is_the_one_on_the_page():
    page = (ROOT / "docs" / "evidence.md").read_text()
    found = evidence.rows(stored("mammals"), stored("images"))
    assert [row[:2] for row in found[:4]] == [
        ["mammals, known pairs, MAP", dim] for dim in ("2", "5", "10", "50")
    ]
    assert f"| measure | D | {' | '.join(evidence.METHODS)} |" in page
    for row in found:
        assert "-" not in row, "a method without results"
        assert f"| {' | '.join(row)} |" in page


def test_cells_are_those_of_the_two_pages():
    """By the pages' own tables, which the tests of the studies compare with the files."""
    pages = {
        name: (ROOT / "docs" / f"evidence_{name}.md").read_text() for name in ("mammals", "images")
    }
    for row in evidence.rows(stored("mammals"), stored("images")):
        page = pages["mammals" if row[0].startswith("mammals") else "images"]
        assert all(cell in page for cell in row[2:])


def test_the_command(capsys, tmp_path):
    assert evidence.main(ROOT / "notebooks") == 0
    printed = capsys.readouterr().out
    for row in evidence.rows(stored("mammals"), stored("images")):
        assert all(cell in printed for cell in row[2:])
    assert evidence.main(tmp_path) == 2
    assert "evidence_mammals.json" in capsys.readouterr().err
