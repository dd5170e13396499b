"""WordNet's file of nouns: what is a kind of what, and files that are something else."""

import numpy as np
import pytest

from notebooks.figures import wordnet

CAT = "00000020 05 n 0a " + " ".join(f"cat{i or ''} 0" for i in range(10))
NOUNS = "\n".join([
    "  1 the licence, 05 n 01 mammal 0 000 | none  ",
    "00000001 03 n 01 thing 0 001 ~ 00000010 n 0000 | a thing",
    "00000010 05 n 02 mammal 0 mammalian 1 001 @ 00000001 n 0000 | it has | in its gloss  ",
    CAT + " 003 @ 00000010 n 0000 ~ 00000030 n 0000 + 00000030 a 0101 | it purrs",
    "00000021 05 n 01 pet 0 001 @ 00000010 n 0000 | it is fed",
    "00000030 05 n 01 tabby 0 003 @ 00000020 n 0000 @ 00000021 n 0000 @ 00000001 n 0000 | striped",
    "00000040 18 n 01 Tom 0 001 @i 00000030 n 0000 | a cat",
    "00000050 05 n 01 stone 0 002 @ 00000001 n 0000 #m 00000010 n 0000 | no mammal",
])  # fmt: skip


def test_all_that_is_a_kind_of_something_or_an_instance():
    synsets = wordnet.parse(NOUNS)
    assert len(synsets) == 7
    assert synsets[30] == wordnet.Synset("tabby", (20, 21, 1))
    found = wordnet.taxonomy(synsets, "mammal")
    assert found.words == ("mammal", "cat", "pet", "tabby", "Tom")
    want = [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    np.testing.assert_array_equal(found.related, want)
    less = wordnet.taxonomy(synsets, "mammal", without=("pet",))
    assert less.words == ("mammal", "cat", "tabby", "Tom")
    np.testing.assert_array_equal(less.related, np.delete(np.delete(want, 2, 0), 2, 1))


@pytest.mark.parametrize(
    "line",
    [
        "00000001 29 v 01 run 0 000 | a verb",
        "00000001 03 n 02 thing 0 001 ~ 00000010 n 0000 | a word is missing",
        "00000001 03 n 01 thing 0 002 ~ 00000010 n 0000 | a pointer is missing",
        "00000001 03 n 01 thing 0 001 ~ 00000010 n | a field is missing",
        "entity",
    ],
)
def test_a_line_of_another_kind_is_named(line, tmp_path):
    path = tmp_path / "data.noun"
    path.write_text(f"  1 licence\n{line}\n")
    with pytest.raises(ValueError, match=r"data\.noun at .*, but line 2 is not a noun's: '"):
        wordnet.read(path)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"expected WordNet's data\.noun at .*No such file"):
        wordnet.read(tmp_path / "none")
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ValueError, match=r"expected WordNet's data\.noun at .*decode"):
        wordnet.read(tmp_path / "picture")
    with pytest.raises(ValueError, match="no synset in it"):
        wordnet.parse("  1 licence\n")
    nouns = {1: wordnet.Synset("cat", (2,)), 2: wordnet.Synset("dog", (1,))}
    with pytest.raises(ValueError, match="first word 'cow', there are 0"):
        wordnet.taxonomy(nouns, "cow")
    with pytest.raises(ValueError, match="first word 'cat', there are 2"):
        wordnet.taxonomy(nouns | {3: wordnet.Synset("cat", ())}, "cat")
    with pytest.raises(ValueError, match="no circle of kinds below 'cat'"):
        wordnet.taxonomy(nouns, "cat")
