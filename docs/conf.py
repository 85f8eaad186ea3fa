"""The documentation as a site: `make site` builds it, strictly, into build/site."""

import re
import sys
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
SOURCE = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"]["Source"] + "/blob/main/"
LINK = re.compile(r"\]\(((?!\w+:|#)[^)\s]+)\)")

project = "edbl"
author = "The edbl authors"
copyright = "2026, The edbl authors"
version = release = installed("edbl")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["generated/front.md"]  # which index.rst includes
html_math_renderer = "mathml"  # which browsers draw by themselves
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # the tests run them
html_theme = "furo"
html_title = "edbl"
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
autodoc_member_order = "bysource"


def setup(app: Sphinx) -> None:
    """Write the pages that come from the code, and let links out of docs/ lead to the repository."""
    from tests import reference

    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("builder-inited", lambda app: reference.write(HERE / "generated", SOURCE))
    app.connect("source-read", _outwards)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def _outwards(app: Sphinx, page: str, source: list[str]) -> None:
    """Links between pages stay; those to other files of the repository are made absolute, and absolute ones local."""
    folder = (HERE / page).parent

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = (folder / path).resolve()
        if not path or target.is_relative_to(HERE):
            return found[0]
        return f"]({SOURCE}{target.relative_to(HERE.parent)}{'#' * bool(anchor)}{anchor})"

    source[0] = LINK.sub(link, source[0])
