"""Environments that the Makefile creates and removes, and its error messages. Nothing is installed or removed."""

import shutil
import subprocess
import sys
from pathlib import Path

import doctor
import pytest
from paths import ROOT


def dry_run(*arguments: str) -> str:
    """Return the commands that `make` would run."""
    command = ["make", "--dry-run", "--always-make", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    "stack, venv, site, removed",
    [
        ("mm", ".venv", ".venv-docs", [".venv", ".venv-docs", ".venv-mmpretrain", ".venv-compiled"]),
        ("onedl", ".venv-onedl", ".venv-docs-onedl", [".venv-onedl", ".venv-docs-onedl"]),
    ],
)
def test_a_stack_keeps_the_environments_of_the_other_stack(stack, venv, site, removed):
    assert dry_run("clean", f"STACK={stack}").split() == ["rm", "-rf", *removed]
    on_top = next(line for line in dry_run("docs", f"STACK={stack}").splitlines() if line.endswith("/venv.pth"))
    assert on_top.startswith(f"{venv}/bin/python -c ") and f"$(echo {site}/lib" in on_top


def test_the_doctor_reinstalls_the_environment_that_it_removes():
    clean, setup = doctor.REINSTALL.split(" && ")
    venv = dry_run(*clean.split()[1:]).split()[2]
    assert f" -m venv {venv}\n" in dry_run(*setup.split()[1:])


def test_bench_without_the_compared_libraries_measures_nothing(tmp_path):
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "ready").touch()
    without_packages = f"{sys.executable} -I -S"
    command = ["make", "bench", "READY=ready", f"BIN={Path(sys.executable).parent}", f"BENCH_PYTHON={without_packages}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and run.stdout == ""
    line, _ = run.stderr.splitlines()
    assert "lacks timm, mmpretrain, mmdet: set BENCH_PYTHON" in line
