"""Sphinx builds the documentation from this file: `sphinx-build -W docs docs/_build`."""

import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.util.inspect import stringify_signature

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT)]

from lorentz_jax import __version__  # noqa: E402

# Sphinx reads only what lies below `docs`. The copies are ignored by git.
NOTEBOOKS = HERE / "notebooks"
NOTEBOOKS.mkdir(exist_ok=True)
for file in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/*.png")]:
    shutil.copy2(file, NOTEBOOKS)

project = "lorentz_jax"
author = "the lorentz_jax authors"
copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# The notebooks are stored with their outputs.
nb_execution_mode = "off"
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
toc_object_entries_show_parents = "hide"
default_role = "code"

html_theme = "sphinx_book_theme"
html_title = f"lorentz_jax {version}"
html_static_path = ["_static"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_persistent": [],
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
copybutton_exclude = ".linenos, .gp"

# Docstrings are plain text with code in backticks. What follows makes reStructuredText of them.
_SECTIONS = "Args|Attributes|Returns|Yields|Raises|Note|Warning|Example|Examples|References"
_SECTION = re.compile(rf"({_SECTIONS}):$")
# Code in backticks, a doctest up to a blank line, a row of a table.
_VERBATIM = re.compile(r"(`+(?:(?!\n\n)[^`])+`+|^ *>>>.*(?:\n.+)*|^\|.*$)", re.MULTILINE)
_MARKUP = re.compile(r"(?<!\\)([|*]|(?<=\w)_(?!\w))")


def _plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape markup; keep the lines of an indented block; show code and tables as they are."""
    parts = _VERBATIM.split("\n".join(lines))
    parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    if what in ("attribute", "property", "data"):
        # Napoleon takes what stands before a colon in the first line for the type.
        parts[0] = parts[0].replace(" ", "\n", 1)
    out: list[str] = []
    owner, before = "", ""  # what an indented line belongs to, and the kind of the line before
    for line in "".join(parts).split("\n"):
        text = line.strip()
        if text and not line.startswith(" "):
            starts = {">>>": "doctest", "- ": "list", "..": "directive"}
            owner = "section" if _SECTION.match(text) else ""
            owner = next((v for k, v in starts.items() if text.startswith(k)), owner)
        kind = "literal" if line.startswith("|") else ""
        if line.startswith(" ") and not owner:
            kind = "literal" if line.startswith("    ") else "block"
        if kind != before and text:
            out += ["", "::", ""] if kind == "literal" else [""]
        if kind == "literal":
            line = "    " + re.sub(r"\\([|*_])", r"\1", line)
        out.append(f"| {text}" if kind == "block" else line)
        before = kind if text else ""
        owner = "" if owner == "doctest" and not text else owner
    lines[:] = out


def _signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Show the constructor of an NNX module, which its metaclass hides; shorten long ones."""
    if what == "class" and signature == "(*args: Any, **kwargs: Any)":
        parameters = inspect.signature(obj.__init__).parameters.values()
        own = inspect.Signature([p for p in parameters if p.name != "self"])
        signature = stringify_signature(own, unqualified_typehints=True)
    if signature and "<" in signature:  # a default that is no expression
        signature = re.sub(r"<class '[\w.]+\.(\w+)'>", r"\1", signature)
        signature = re.sub(r"~(?:\w+\.)+", "", signature).replace("<factory>", "{}")
    return ("(...)" if signature and len(signature) > 600 else signature), result


def _notebook_links(app: Any, name: str, source: list[str]) -> None:
    """Let links to notebooks, which hold in the repository too, point at the copies."""
    source[0] = source[0].replace("](../notebooks/", "](notebooks/")


def setup(app: Any) -> None:
    """Let `_plain_text` see every docstring before Napoleon does."""
    app.connect("source-read", _notebook_links)
    app.connect("autodoc-process-docstring", _plain_text, priority=100)
    app.connect("autodoc-process-signature", _signature)
