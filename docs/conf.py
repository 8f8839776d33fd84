"""The documentation site: `make docs` builds it, strictly and without the network."""

import sys
from pathlib import Path

import stategraph

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "stategraph"
version = release = stategraph.__version__
copyright = "the authors of stategraph"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "public_names",  # extensions/: the API pages
    "command_help",  # the page of the commands
    "repository_links",  # links to files that are not pages
    "offline",  # nothing is loaded from elsewhere
    "llms",  # llms.txt
    "notebooks",  # as pages
    "pictures",  # light and dark
    "search",  # words that pages are found by, excerpts
]
exclude_patterns = ["_build", "pictures"]
source_suffix = {".md": "markdown", ".notebook": "markdown"}
nitpicky = True
# Where a field of a record has this type, Sphinx cuts it at the comma.
nitpick_ignore = [("py:class", "tuple[~stategraph.visualize.trace.diff.Change")]

# -- Markdown --------------------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# -- API pages -------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# -- the pages' looks ------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"stategraph {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "footer_icons": [],
    "light_css_variables": {"color-brand-primary": "#1f5fbf", "color-brand-content": "#1f5fbf"},
    "dark_css_variables": {"color-brand-primary": "#7fb0ff", "color-brand-content": "#7fb0ff"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
