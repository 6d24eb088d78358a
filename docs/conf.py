"""The site. From the root of the repository: ``python -m sphinx -W --keep-going -c docs . site``."""

import pathlib
import re

import ldpbayes

project, author, version = "ldpbayes", "the ldpbayes developers", ldpbayes.__version__
copyright = "the ldpbayes developers"
extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
    "sphinxarg.ext",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "CHANGELOG.md"]
exclude_patterns = ["docs/_*"]
templates_path = [str(pathlib.Path(__file__).parent / "_templates")]

default_role = "py:obj"  # `name` in a docstring is a link if there is such an object, and code if not
autosummary_context = {"everyday": ldpbayes.__all__}  # documented once, under the name that people type
autosummary_ignore_module_all, autosummary_imported_members = False, True
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False  # the template of classes has their members in full

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tests/test_docs.py and tests/test_notebooks.py run them
suppress_warnings = ["misc.highlighting_failure"]  # of "%" in notebooks

sphinxarg_full_subcommand_name = True

html_theme = "pydata_sphinx_theme"
html_title = "ldpbayes"
html_static_path = ["_static"]
html_extra_path = ["_root"]  # index.html, which leads to the landing page
html_css_files = ["site.css"]
html_search_scorer = "docs/_static/scorer.js"
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"docs/index": []}

KEY = re.compile(r"(?<![\w`\])])\[((?:[A-Z][A-Za-z]*|xxHash)\d{0,2})\](?![\w`(\[])")


CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)


def plain_text(app, what, name, obj, options, lines):
    """Docstrings have code and the keys of references for markup; stars and bars are what they are."""
    parts = CODE.split("\n".join(lines))
    parts[::2] = [
        KEY.sub(r":doc:`[\1] </docs/reference/references>`", re.sub(r"([*|])", r"\\\1", part)) for part in parts[::2]
    ]
    lines[:] = "".join(parts).split("\n")


# words that lead the search to a page: names in papers and of other packages, and other words for what the page does
SEARCH_WORDS = dict(
    line.split(": ") for line in (pathlib.Path(__file__).parent / "_search_words.txt").read_text().splitlines()
)


def add_search_words(app, docname, source):
    """Put the words of a page into the index, which leads the search."""
    if docname in SEARCH_WORDS:
        words = ", ".join(f"! {word}" for word in SEARCH_WORDS[docname].split(", "))
        source[0] = f"```{{index}} {words}\n```\n\n{source[0]}"


def setup(app):
    app.connect("source-read", add_search_words)
    app.connect("autodoc-process-docstring", plain_text, priority=400)  # before numpydoc
