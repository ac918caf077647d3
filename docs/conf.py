"""The documentation site: `make docs` builds it into build/docs."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "xcit_mm"
author = "The xcit_mm authors"
copyright = author
(release,) = re.findall(r'__version__ = "(.+)"', (ROOT / "xcit_mm" / "version.py").read_text())
(repository,) = re.findall(r'^REPOSITORY = "(.*)"', (ROOT / "setup.py").read_text(), re.MULTILINE)

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"xcit_mm {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
if repository:
    html_theme_options = {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
    }

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# Pages that are notebooks are executed in an empty folder, again only when they have changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 1800  # seconds for a cell
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"
html_math_renderer = "mathml"
# The copy button leaves out the prompt of a shell.
copybutton_prompt_text = "$ "

# `name` in a docstring is a link if it can be resolved, else code.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True


def imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# Libraries that are not installed, as on Read the Docs, are mocked, so that docstrings can be read.
LIBRARIES = (
    "mmdet",
    "mmseg",
    "mmpretrain",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "rasterio",
    "pycocotools",
)
autodoc_mock_imports = [module.partition(".")[0] for module in LIBRARIES if not imports(module)]

# Names of other projects are not links, so that the build needs no network.
nitpick_ignore_regex = [("py:(class|exc)", r"(?!xcit_mm\.).*"), ("py:obj", "(?s).*")]


def write_math(translator: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers show without an external script."""
    block = node.tagname == "math_block"
    formula = convert(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise SkipNode


def skip_fields(app: Any, what: str, name: str, obj: object, skip: bool, options: object) -> bool:
    """Skip Python's docstrings of the fields of a named tuple, which its docstring describes."""
    return skip or (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("autodoc-skip-member", skip_fields)
