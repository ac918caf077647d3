"""What the Makefile removes, builds on and refuses, without doing any of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import doctor
import pytest
from paths import ROOT


def dry(*arguments: str) -> str:
    """The commands that `make` would run."""
    command = ["make", "--dry-run", "--always-make", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    "stack, removed",
    [
        ("mm", [".venv", ".venv-docs", ".venv-mmpretrain", ".venv-compiled"]),
        ("onedl", [".venv-onedl", ".venv-docs-onedl"]),
    ],
)
def test_clean_leaves_the_environments_of_the_other_stack(stack, removed):
    assert dry("clean", f"STACK={stack}").split() == ["rm", "-rf", *removed]


def test_what_the_doctor_says_removes_the_environment_that_it_makes():
    first, then = doctor.REINSTALL.split(" && ")
    venv = dry(*first.split()[1:]).split()[2]
    assert f" -m venv {venv}\n" in dry(*then.split()[1:])


@pytest.mark.parametrize(
    "stack, venv, site", [("mm", ".venv", ".venv-docs"), ("onedl", ".venv-onedl", ".venv-docs-onedl")]
)
def test_each_stack_has_a_site_of_its_own(stack, venv, site):
    assert (
        f"{venv}/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))' > $(echo {site}/lib"
        in dry("docs", f"STACK={stack}")
    )


def test_bench_without_peers_measures_nothing(tmp_path):
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "ready").touch()
    alone = f"{sys.executable} -I -S"  # without site-packages
    command = ["make", "bench", "READY=ready", f"BIN={Path(sys.executable).parent}", f"BENCH_PYTHON={alone}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and run.stdout == ""
    line, of_make = run.stderr.splitlines()
    assert (
        "has no timm, mmpretrain, mmdet, with" in line and "BENCH_PYTHON=" in line and of_make.startswith("make: ***")
    )
