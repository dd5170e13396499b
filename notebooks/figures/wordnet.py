"""Read the nouns of WordNet: which of them are kinds of which.

The file is `data.noun` of WordNet 3.0, as the Debian package `wordnet-base` installs it and NLTK's
folder `corpora/wordnet` has it. A line of it is a synset, a set of words for one thing (wndb(5WN)):

    offset lex_filenum ss_type w_cnt word lex_id [word lex_id ...] p_cnt [pointer ...] | gloss

w_cnt is hexadecimal, p_cnt decimal. A pointer is four fields: symbol, offset, part of speech and
the words that it is between. Symbols `@` and `@i` lead to what the synset is a kind of, or an
instance of. The licence at the top has lines that begin with two spaces.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["DEFAULT", "Synset", "Taxonomy", "parse", "read", "taxonomy"]

DEFAULT = Path("/usr/share/wordnet/data.noun")
_KIND_OF = ("@", "@i")


@dataclass(frozen=True)
class Synset:
    """One meaning.

    Attributes:
      word: the first of its words.
      kind_of: offsets of the synsets that it is directly a kind or an instance of.
    """

    word: str
    kind_of: tuple[int, ...]


@dataclass(frozen=True)
class Taxonomy:
    """All synsets below one, itself the first; N of them.

    Attributes:
      words: the first word of each; words of two meanings occur twice.
      related: `[i, j]` tells whether i is a kind of j, directly or not, bool `(N, N)`.
    """

    words: tuple[str, ...]
    related: np.ndarray


def read(path: Path = DEFAULT) -> dict[int, Synset]:
    """Return the synsets of a file by their offsets.

    Raises:
      ValueError: there is no such file, or it is not one of WordNet's nouns.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"expected WordNet's data.noun at {path}: {error}") from error
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"expected WordNet's data.noun at {path}, but {error}") from error


def parse(text: str) -> dict[int, Synset]:
    """Return the synsets of a file's text by their offsets.

    Raises:
      ValueError: a line is no noun's, or there is no line.

    >>> parse("00000007 05 n 01 cat 0 001 @ 00000001 n 0000 | it purrs")
    {7: Synset(word='cat', kind_of=(1,))}
    """
    lines = enumerate(text.splitlines(), 1)
    found = dict(_synset(line, number) for number, line in lines if not line.startswith("  "))
    if not found:
        raise ValueError("there is no synset in it")
    return found


def _synset(line: str, number: int) -> tuple[int, Synset]:
    fields = line.partition(" | ")[0].split()
    try:
        if fields[2] != "n":
            raise ValueError
        after = 4 + 2 * int(fields[3], 16)
        count = int(fields[after])
        pointers = [fields[at : at + 4] for at in range(after + 1, len(fields), 4)]
        if len(pointers) != count or any(len(pointer) != 4 for pointer in pointers):
            raise ValueError
        above = tuple(int(offset) for symbol, offset, *_ in pointers if symbol in _KIND_OF)
        return int(fields[0]), Synset(fields[4], above)
    except (IndexError, ValueError):
        raise ValueError(f"line {number} is not a noun's: {line[:60]!r}") from None


def taxonomy(synsets: Mapping[int, Synset], root: str, without: Collection[str] = ()) -> Taxonomy:
    """Return all that is a kind or an instance of the synset whose first word is `root`.

    What such a synset is besides, outside of this taxonomy, is left out.

    Args:
      synsets: by their offsets, as `read` gives them.
      root: a first word that one synset has.
      without: first words of synsets to leave out. What is below them stays.

    Raises:
      ValueError: no synset, or more than one, has this first word; or a synset is below itself.

    >>> nouns = {1: Synset("cat", ()), 2: Synset("tabby", (1,)), 3: Synset("tiger", (1,))}
    >>> taxonomy(nouns, "cat", without=["tiger"])
    Taxonomy(words=('cat', 'tabby'), related=array([[False, False],
           [ True, False]]))
    """
    roots = [offset for offset, synset in synsets.items() if synset.word == root]
    if len(roots) != 1:
        raise ValueError(f"expected one synset with first word {root!r}, there are {len(roots)}")
    children: dict[int, list[int]] = {}
    for offset, synset in synsets.items():
        for above in synset.kind_of:
            children.setdefault(above, []).append(offset)
    below = {offset: _reach(children, offset) for offset in _reach(children, roots[0]) | {*roots}}
    order = [*roots, *sorted(below.keys() - {*roots})]
    place = {offset: i for i, offset in enumerate(order)}
    related = np.zeros((len(order), len(order)), bool)
    for offset, kinds in below.items():
        related[[place[kind] for kind in kinds], place[offset]] = True
    if related.diagonal().any():
        raise ValueError(f"expected no circle of kinds below {root!r}, there is one")
    words = [synsets[offset].word for offset in order]
    kept = np.array([word not in without for word in words])
    names = tuple(word for word in words if word not in without)
    return Taxonomy(names, related[np.ix_(kept, kept)])


def _reach(children: Mapping[int, list[int]], start: int) -> set[int]:
    """Return all that a way down from `start` leads to."""
    seen: set[int] = set()
    ahead = list(children.get(start, ()))
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += children.get(node, ())
    return seen
