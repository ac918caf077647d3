"""What `pip install` and a source distribution bring along: all that is needed and nothing else."""

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
from paths import ROOT

from xcit_mm import __version__

FOLDERS = ("benchmarks", "configs", "docs", "requirements", "tests", "tools")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md")
FILES += ("model-index.yml", "pyproject.toml", "setup.py")
JUNK = (
    "data/coco/image.jpg",
    "shared/notes.md",
    "work_dirs/demo/iter_300.pth",
    "tools/__pycache__/infer.cpython-311.pyc",
    "build/lib/xcit_mm/removed.py",
)
# What pip runs, in its own words, without its start: each kind into a folder of its name.
BUILD = "from setuptools import build_meta\nfor kind in {0!r}: getattr(build_meta, 'build_' + kind)(kind)"
# What each part of the package may ask for beyond `pip install xcit_mm`: an extra of setup.py. The libraries come
# from OpenMMLab or are its OneDL forks.
STACKS = ("mm", "onedl")
EXTRAS = dict(
    ops=STACKS,
    models=STACKS,
    checks=STACKS,
    prediction=STACKS,
    geo=("raster",),
    batch=(*STACKS, "parquet", "ray", "raster"),
    deployment=(*STACKS, "export"),
    tools=(*STACKS, "export", "parquet", "raster", "classification", "bench", "dev"),
)
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
    # An editable install, but for its last step, which would change this environment; then all that is released.
    python("-c", BUILD.format(("editable", "sdist", "wheel")), cwd=root)
    return root


@pytest.fixture(scope="module")
def sdist(checkout) -> Path:
    return next((checkout / "sdist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(checkout) -> Path:
    return next((checkout / "wheel").glob("*.whl"))


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


def imported(source: str) -> set[str]:
    """Top-level names of all that a module imports, wherever in it, but for its own package and Python's."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"xcit_mm"}


def required(wheel: Path) -> dict[str, set[str]]:
    """Names of the distributions that a wheel asks for: "" for all users, and by extra."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA"))
    found: dict[str, set[str]] = {}
    for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE):
        extra = re.search(r"extra == [\"'](\w+)[\"']", line)
        found.setdefault(extra[1] if extra else "", set()).add(re.match(r"[\w.-]+", line)[0].lower())
    return found


def test_what_is_imported_is_asked_for(wheel):
    asked, installed = required(wheel), packages_distributions()
    assert "mmengine" in asked["mm"] and "onedl-mmengine" in asked["onedl"]
    with zipfile.ZipFile(wheel) as archive:
        sources = {Path(name): archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    scripts = {path.stem for path in sources if "tools" in path.parts}
    parts = set()
    for path, source in sources.items():
        if "configs" in path.parts:
            continue
        part = "tools" if "tools" in path.parts else path.parts[1].removesuffix(".py")
        parts.add(part)
        # mmengine comes with either stack, which to choose is left to the user.
        asked_for = (asked[extra] for extra in EXTRAS.get(part, ()))
        allowed = {"mmengine", "onedl-mmengine"}.union(asked[""], *asked_for)
        for module in imported(source) - scripts:
            names = {name.lower() for name in installed.get(module, [module])}
            assert names & allowed, f"{path} imports {module}, which {part} does not ask for"
    assert set(EXTRAS) <= parts


ALONE = "import xcit_mm, torch; xcit_mm.XCiT('n12').eval()(torch.zeros(1, 3, 64, 64))"
# RPN needs NMS, the heads need RoIAlign.
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
def test_installed_from_nothing_it_runs(tmp_path, wheel, extra, code):
    """In an environment that holds what the wheel asks for and nothing else, where nothing can be compiled."""
    python("-m", "venv", "fresh", cwd=tmp_path)
    own = tmp_path / "fresh" / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CC": "no", "CXX": "no"}
    asked_for = [f"{wheel}{extra}"] if extra else [wheel, "mmengine"]
    for command in (
        [
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
            "-c",
            ROOT / "requirements/torch.txt",
            *asked_for,
        ],
        ["-W", "ignore", "-c", code],
    ):
        run = subprocess.run([own, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
        assert run.returncode == 0, run.stderr[-2000:]


def test_paths_that_contributing_names_are_there():
    named = set(
        re.findall(
            r"`((?:xcit_mm|tests|tools|configs|requirements|\.ci)/[\w./-]*)`", (ROOT / "CONTRIBUTING.md").read_text()
        )
    )
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_citation_and_changelog_are_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_from_the_sdist_is_the_same(tmp_path, sdist, wheel):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    python("-c", BUILD.format(("wheel",)), cwd=root)
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(next((root / "wheel").glob("*.whl"))) as rebuilt:
        assert {(f.filename, f.CRC) for f in ours.infolist() if "dist-info" not in f.filename} == {
            (f.filename, f.CRC) for f in rebuilt.infolist() if "dist-info" not in f.filename
        }


def test_installed_wheel_registers_and_finds_its_configs(tmp_path, wheel):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
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
