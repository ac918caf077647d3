"""Packaging of xcit_mm."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "xcit_mm" / "version.py").read_text("utf-8")
).group(1)
# Address of the public repository, for example "https://HOST/OWNER/xcit_mm". If empty, metadata and
# documentation contain no link to a repository.
REPOSITORY = ""
EXTRAS = ("mm", "onedl", "classification", "export", "ray", "raster", "hub", "timm", "dev")
NOT_SHIPPED = ("demo.py", "get_data.py", "make_shapes.py")  # tools of a clone
README = (ROOT / "README.md").read_text(encoding="utf-8")


def requirements(name: str) -> list[str]:
    return (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()


def with_absolute_links(page: str, repository: str) -> str:
    """Make relative links absolute, or replace them with their text if `repository` is empty."""

    def replace(match: re.Match[str]) -> str:
        image, label, path = match.groups()
        if repository:
            return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/main/{path})"
        return "" if image else label

    return re.sub(r"(!?)\[([^]]*)\]\((?!https?://)([^)]+)\)", replace, page)


def project_urls(repository: str) -> dict[str, str]:
    urls = {"Paper": "https://arxiv.org/abs/2106.09681"}
    if repository:
        urls["Documentation"] = f"{repository}/tree/main/docs"
        urls["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
    return urls


class BuildWithMim(build_py):
    """Also puts configs, tools and model index into `xcit_mm/.mim`, where mmengine and mim look."""

    def run(self) -> None:
        package = ROOT / "xcit_mm" if self.editable_mode else Path(self.build_lib) / "xcit_mm"
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # it may hold modules of an earlier build
        super().run()
        mim = package / ".mim"
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir()
        for name in ("configs", "tools", "model-index.yml"):
            if self.editable_mode:
                (mim / name).symlink_to(Path("../..") / name)
            elif (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", *NOT_SHIPPED)
                shutil.copytree(ROOT / name, mim / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, mim)


setup(
    name="xcit_mm",
    version=VERSION,
    description="The XCiT backbone for OpenMMLab detection and segmentation",
    long_description=with_absolute_links(README, REPOSITORY),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    **({"url": REPOSITORY} if REPOSITORY else {}),
    project_urls=project_urls(REPOSITORY),
    keywords=[
        "XCiT",
        "backbone",
        "object detection",
        "instance segmentation",
        "semantic segmentation",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    packages=find_packages(include=["xcit_mm", "xcit_mm.*"]),
    package_data={"xcit_mm.weights": ["published.csv"]},
    python_requires=">=3.10",
    install_requires=requirements("runtime"),
    extras_require={name: requirements(name) for name in EXTRAS},
    entry_points={"console_scripts": ["xcit-mm = xcit_mm.__main__:main"]},
    cmdclass={"build_py": BuildWithMim},
)
