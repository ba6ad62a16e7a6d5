"""The documentation as a site: `make docs` builds it, and every warning is an error.

It is read without a network: fonts are the system's, scripts and search come along, formulas are MathML.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "site"), str(Path(__file__).parent.parent)]

project = "jax-diversity"
author = "the jax-diversity authors"
copyright = author
html_title = "jax-diversity"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "code_pages", "notebook_pages", "mathml"]
# The log is for maintainers; pages name its file.
exclude_patterns = ["_build", "pictures", "site", "log.md"]
nitpicky = True
# Types in signatures name what is defined elsewhere; what pages and docstrings link to must exist.
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", r"(typing|collections)\..*")]
suppress_warnings = ["misc.highlighting_failure"]  # blocks that show a shape of code, not code

# Pages are read on GitHub too: only syntax that it shows well.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# Docstrings are read by people in an editor first: a single backtick is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature shows them
napoleon_use_rtype = False
add_module_names = False

html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#6cb0fb", "color-brand-content": "#6cb0fb"},
}
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
