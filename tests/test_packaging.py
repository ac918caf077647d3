"""Wheel and source distribution: complete, with the requirements of every import, and usable after
installation.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from helpers.paths import ROOT

FOLDERS = ("benchmarks", "configs", "docs", "requirements", "tests", "tools")
FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
)
FILES += ("model-index.yml", "pyproject.toml", "setup.py")
# The calls of pip, without its start. Each kind is built into a folder of its name.
BUILD = "from setuptools import build_meta\nfor kind in {0!r}: getattr(build_meta, 'build_' + kind)(kind)"
USE = """
import xcit_mm
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS

assert MODELS.get("XCiT") is xcit_mm.XCiT
name = "semantic_fpn/fpn_xcit-t12-p16_8xb2-80k_ade20k-512x512.py"
cfg = get_config(f"xcit_mm::{name}", pretrained=True)
assert cfg.model.backbone.arch == "t12"
assert cfg.model_path.endswith("ade/sem_fpn_xcit_tiny_12_p16.pth")
open("own.py", "w").write(f"_base_ = 'xcit_mm::{name}'")
assert Config.fromfile("own.py").model == cfg.model
print(xcit_mm.__file__, cfg.filename, sep="\\n")
"""


def python(*args: object, cwd: Path, executable: object = sys.executable, **env: str) -> str:
    """Run Python in a folder and return its output."""
    command = [str(executable), *map(str, args)]
    run = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def files(root: Path, *folders: str) -> set[str]:
    """Return the relative paths of the files in folders of a checkout, without byte code."""
    found = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in found if path.suffix != ".pyc"}


def modules(root: Path) -> set[str]:
    return {path for path in files(root, "xcit_mm") if path.endswith(".py")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the sources with files that must not be packed, in which both distributions are
    built.
    """
    root = tmp_path_factory.mktemp("checkout")
    for name in (*FOLDERS, "xcit_mm"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".mim")
        )
    for name in FILES:
        shutil.copy(ROOT / name, root)
    for name in ("data/image.jpg", "work_dirs/iter_300.pth", "build/lib/xcit_mm/removed.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    python("-c", BUILD.format(("sdist", "wheel")), cwd=root)
    return root


@pytest.fixture(scope="module")
def wheel(checkout) -> Path:
    return next((checkout / "wheel").glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return next(
            archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")
        )


def test_the_sdist_contains_all_sources(checkout):
    with tarfile.open(next((checkout / "sdist").glob("*.tar.gz"))) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    found = {name for name in found if not name.startswith("xcit_mm.egg-info/")} - {
        "PKG-INFO",
        "setup.cfg",
    }
    assert found == files(checkout, *FOLDERS) | set(FILES) | modules(checkout)


def test_the_wheel_contains_the_package_its_configs_and_tools(checkout, wheel, metadata):
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    shipped = {*files(checkout, "configs", "tools"), "model-index.yml"}
    assert found == modules(checkout) | {f"xcit_mm/.mim/{name}" for name in shipped}
    lines = metadata.splitlines()
    assert {"License: Apache-2.0", "License-File: LICENSE", "Provides-Extra: mm"} <= set(lines)
    assert (
        re.findall(r"\]\((?!https?://)", metadata) == []
    )  # links of the README, relative on PyPI to nothing


def imported(source: str) -> set[str]:
    """Return the top-level names of all imports of a module, without the standard library and
    xcit_mm.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"xcit_mm"}


def test_every_import_is_a_requirement(wheel, metadata):
    required, installed = (
        set(re.findall(r"^Requires-Dist: ([\w-]+)", metadata, re.MULTILINE)),
        packages_distributions(),
    )
    # The stack brings these, and the user chooses the stack.
    allowed = {name.lower().replace("_", "-") for name in required} | {
        "mmcv-lite",
        "onedl-mmcv",
        "xcit-mm",
    }
    with zipfile.ZipFile(wheel) as archive:
        sources = {
            Path(name): archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(".py")
        }
    scripts = {path.stem for path in sources if "tools" in path.parts}
    for path, source in sources.items():
        for module in imported(source) - scripts if "configs" not in path.parts else ():
            names = {name.lower().replace("_", "-") for name in installed.get(module, [module])}
            assert names & allowed, f"{path} imports {module}, which is not a requirement"


def test_an_installed_wheel_registers_the_backbone_and_finds_its_configs(tmp_path, wheel):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    package = tmp_path / "site" / "xcit_mm"
    module, config = python(
        "-W", "ignore", "-c", USE, cwd=tmp_path, PYTHONPATH=str(package.parent)
    ).splitlines()
    assert Path(module).parent == package
    assert package / ".mim" / "configs" in Path(config).parents


ALONE = "import xcit_mm, torch; xcit_mm.XCiT('n12').eval()(torch.zeros(1, 3, 64, 64))"
# Needs non-maximum suppression and RoIAlign.
DETECTOR = """
from importlib.resources import files
import numpy, xcit_mm, mmdet, mmseg.models
from mmdet.apis import DetInferencer
from mmengine.config import Config
cfg = Config.fromfile(
    files("xcit_mm") / ".mim/configs/mask_rcnn/mask-rcnn_xcit-t12-p16_fpn_amp-ms-crop-3x_coco.py",
)
cfg.model.backbone.init_cfg = None
DetInferencer(cfg, None, device="cpu", show_progress=False)(numpy.zeros((99, 99, 3), "uint8"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra, code", [("", ALONE), ("[mm]", DETECTOR), ("[onedl]", DETECTOR)])
def test_it_runs_in_a_new_environment_without_a_compiler(tmp_path, wheel, monkeypatch, extra, code):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python("-m", "venv", "new", cwd=tmp_path)
    executable = tmp_path / "new" / "bin" / "python"
    wanted = [f"{wheel}{extra}"] if extra else [wheel, "mmengine", "mmcv-lite"]
    options = (
        "--disable-pip-version-check",
        "install",
        "-q",
        "-c",
        ROOT / "requirements/torch.txt",
    )
    python("-m", "pip", *options, *wanted, cwd=tmp_path, executable=executable, CC="no", CXX="no")
    python("-W", "ignore", "-c", code, cwd=tmp_path, executable=executable)
