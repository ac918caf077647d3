"""What `pip install` and a source distribution bring along: all that is needed and nothing else."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

from xcit_mm import __version__

FOLDERS = ("configs", "docs", "requirements", "tests", "tools")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md")
FILES += ("model-index.yml", "pyproject.toml", "setup.py")
JUNK = (
    "data/coco/image.jpg",
    "shared/notes.md",
    "work_dirs/demo/iter_300.pth",
    "tools/__pycache__/infer.cpython-311.pyc",
    "build/lib/xcit_mm/removed.py",
)
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
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


def python(*args: object, cwd: Path, **env: str) -> str:
    command = [sys.executable, *map(str, args)]
    run = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def files(root: Path, *folders: str) -> set[str]:
    """Files of a checkout's folders, less what Python leaves there."""
    found = {path for folder in folders for path in (root / folder).rglob("*") if path.is_file()}
    return {path.relative_to(root).as_posix() for path in found if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the sources, with what work leaves in it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in (*FOLDERS, "xcit_mm"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".mim"))
    for name in FILES:
        shutil.copy(ROOT / name, root)
    for name in JUNK:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("junk")
    # An editable install, but for its last step, which would change this environment.
    python("-c", f"from setuptools import build_meta; build_meta.build_editable({str(root / 'dist')!r})", cwd=root)
    return root


@pytest.fixture(scope="module")
def sdist(checkout) -> Path:
    python("setup.py", "--quiet", "sdist", cwd=checkout)
    return next((checkout / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(checkout) -> Path:
    python(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", "wheels", ".", cwd=checkout)
    return next((checkout / "wheels").glob("*.whl"))


def test_sdist_holds_the_sources(checkout, sdist):
    with tarfile.open(sdist) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    found = {name for name in found if not name.startswith("xcit_mm.egg-info/")}
    modules = {path for path in files(checkout, "xcit_mm") if path.endswith(".py")}
    assert found - made == files(checkout, *FOLDERS) | set(FILES) | modules


def test_wheel_holds_the_package_its_configs_and_tools(checkout, wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA"))
    modules = {path for path in files(checkout, "xcit_mm") if path.endswith(".py")}
    shipped = {*files(checkout, "configs", "tools"), "model-index.yml"}
    assert found == modules | {f"xcit_mm/.mim/{name}" for name in shipped}
    for line in ("License: Apache-2.0", "License-File: LICENSE", "Provides-Extra: mm", "Provides-Extra: dev"):
        assert line in metadata.splitlines()


def test_citation_and_changelog_are_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_from_the_sdist_is_the_same(tmp_path, sdist, wheel):
    python(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, sdist, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as rebuilt:
        assert {(f.filename, f.CRC) for f in ours.infolist() if "dist-info" not in f.filename} == {
            (f.filename, f.CRC) for f in rebuilt.infolist() if "dist-info" not in f.filename
        }


def test_installed_wheel_registers_and_finds_its_configs(tmp_path, wheel):
    python(*PIP, "install", "--no-deps", "--no-index", "--target", "site", wheel, cwd=tmp_path)
    package = tmp_path / "site" / "xcit_mm"
    module, config = python("-W", "ignore", "-c", USE, cwd=tmp_path, PYTHONPATH=str(package.parent)).splitlines()
    assert Path(module).parent == package
    assert package / ".mim" / "configs" in Path(config).parents


def test_editable_install_finds_the_configs_of_the_checkout(tmp_path, checkout):
    mim = checkout / "xcit_mm" / ".mim"
    for name in ("configs", "tools", "model-index.yml"):
        assert (mim / name).samefile(checkout / name)
    module, config = python("-W", "ignore", "-c", USE, cwd=tmp_path, PYTHONPATH=str(checkout)).splitlines()
    assert Path(module).parent == checkout / "xcit_mm"
    assert mim / "configs" in Path(config).parents
