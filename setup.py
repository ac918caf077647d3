"""Packaging of xcit_mm."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "xcit_mm" / "version.py").read_text()).group(1)


def requirements(name: str) -> list[str]:
    return (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()


class BuildWithMim(build_py):
    """Puts configs, tools and model index into the package's folder `.mim` as well: mmengine and mim look there."""

    def run(self) -> None:
        package = ROOT / "xcit_mm" if self.editable_mode else Path(self.build_lib) / "xcit_mm"
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # or modules of an earlier build would be packed too
        super().run()
        mim = package / ".mim"
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir()
        for name in ("configs", "tools", "model-index.yml"):
            if self.editable_mode:
                (mim / name).symlink_to(Path("../..") / name)
            elif (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, mim)


setup(
    name="xcit_mm",
    version=VERSION,
    description="The XCiT backbone for OpenMMLab detection and segmentation",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The xcit_mm authors",
    license="Apache-2.0",
    url="https://github.com/xcit-mm/xcit_mm",
    project_urls={
        "Documentation": "https://github.com/xcit-mm/xcit_mm/tree/main/docs",
        "Changelog": "https://github.com/xcit-mm/xcit_mm/blob/main/CHANGELOG.md",
        "Paper": "https://arxiv.org/abs/2106.09681",
    },
    keywords=["XCiT", "backbone", "object detection", "instance segmentation", "semantic segmentation"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    packages=find_packages(include=["xcit_mm", "xcit_mm.*"]),
    python_requires=">=3.10",
    install_requires=requirements("runtime"),
    extras_require={
        name: requirements(name)
        for name in ("mm", "onedl", "classification", "export", "parquet", "ray", "raster", "bench", "dev")
    },
    cmdclass={"build_py": BuildWithMim},
)
