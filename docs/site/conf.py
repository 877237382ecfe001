"""Settings of Sphinx; `python docs/site/build.py` copies this file beside the pages that it collects."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import diffsparse

project, author, release = "diffsparse", "The diffsparse developers", diffsparse.__version__
copyright = author  # noqa: A001
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_math_renderer = "as_written"
default_role = "literal"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["myst.header"]
pygments_style, pygments_dark_style = "tango", "monokai"
html_theme, html_title = "furo", f"diffsparse {release}"
html_static_path: list[str] = []
html_show_sphinx = False


def _show_formula(writer: Any, node: nodes.Element) -> None:
    writer.body.append(f"<code>{writer.encode(node.astext())}</code>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Formulas in docstrings are few and short: they are shown as they are written, and no script is loaded."""
    app.add_html_math_renderer("as_written", (_show_formula, None), (_show_formula, None))
