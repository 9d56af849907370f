"""Sphinx configuration: `make docs` builds the site from these pages and from docstrings, without a network."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from numpydoc.xref import DEFAULT_LINKS
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))
logging.getLogger("faiss").setLevel(logging.WARNING)  # it logs which of its builds it loads

project = "pucache"
author = "the pucache authors"
version = release = re.search(r'__version__ = "(.+?)"', (ROOT / "pucache/version.py").read_text())[1]
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton", "commands"]
exclude_patterns = ["_build"]
smartquotes = False  # it would turn the -- of an option into a dash
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = f"pucache {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_search_summary = False  # needs requests, which fail for a site opened from disk

myst_heading_anchors = 4  # a link to #a-heading works here as it does on a git host
highlight_language = "text"  # indented blocks are shell, trees, formulas and tables
copybutton_prompt_text = "$ "  # copy only the commands of a session

autodoc_typehints = "none"  # docstrings give types, with shapes
autodoc_member_order = "bysource"
autodoc_mock_imports = ["ray"]  # an extra
autosummary_generate = False  # numpydoc loads autosummary, which is not used
numpydoc_show_class_members = False
CLASSES = re.compile(r"auto(?:class|exception):: (pucache\.[\w.]+)")
DEFAULT_LINKS.clear()  # they point to Python's own pages, which are not part of the site
numpydoc_xref_param_type = True  # link the types that have an entry in the reference
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {
    name.rpartition(".")[2]: name
    for page in Path(__file__).parent.glob("reference/*.md")
    for name in CLASSES.findall(page.read_text())
}
default_role = "py:obj"  # of `names` in docstrings: see `soft_link`


def soft_link(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> Any:
    """Link a name in single backticks where exactly one entry of the site has it; otherwise show it as code.

    Typed links such as ``:class:`` are left to the strict check of ``-n``.
    """
    if node.get("reftype") != "obj" or node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if not (target[:1].isupper() or target.startswith("pucache.")):
        return content
    matches = env.domains["py"].find_obj(env, None, None, target.removeprefix("pucache."), "obj", 1)
    targets = {(entry.docname, entry.node_id) for _, entry in matches}
    if len(targets) != 1:
        return content
    page, anchor = targets.pop()
    return make_refnode(app.builder, node["refdoc"], page, anchor, content, target)


def setup(app: Sphinx) -> None:
    """Register `soft_link`."""
    app.connect("missing-reference", soft_link)
