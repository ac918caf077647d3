"""Packaging of xcit_mm."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "xcit_mm" / "__init__.py").read_text()).group(1)

setup(
    name="xcit_mm",
    version=VERSION,
    description="The XCiT backbone for OpenMMLab detection and segmentation",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["xcit_mm", "xcit_mm.*"]),
    python_requires=">=3.10",
    install_requires=(ROOT / "requirements" / "runtime.txt").read_text().splitlines(),
)
