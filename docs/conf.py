"""The documentation site: `make docs` builds it into `build/docs`, without a network."""

import sys
from pathlib import Path

import matplotlib as mpl

import quadlin

mpl.use("agg")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "quadlin"
author = "The quadlin developers"
copyright = author
version = release = quadlin.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "generated_pages",
    "standalone",
]
exclude_patterns = ["_ext", "reproduction/**/*.md"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the types are in the numpydoc sections
add_module_names = False
numpydoc_show_class_members = False  # the template of a class lists its methods
numpydoc_xref_param_type = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "copyfile_regex": r".*\.rst",
    "backreferences_dir": "reference/generated/backreferences",
    "doc_module": ("quadlin",),
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "quadlin"
html_static_path = ["_static"]
html_css_files = ["quadlin.css"]
html_show_sourcelink = False
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "logo": {"text": "quadlin"},
}
html_context = {"default_mode": "auto"}
