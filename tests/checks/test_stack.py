"""tools/doctor.py reports a stack that cannot run the package, and ends with the exit code 1."""

import re
import subprocess
import sys

import doctor
import pytest
from helpers.paths import ROOT


@pytest.fixture
def lines(monkeypatch, capsys):
    """Returns a function that runs the doctor without a config, and returns its exit code and
    lines.
    """

    def run() -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["doctor.py"])
        code = doctor.main()
        return code, capsys.readouterr().out.splitlines()

    return run


def test_correct_installation_has_no_findings(lines):
    code, found = lines()
    assert code == 0 and len(found) == 2 + len(doctor.NEEDED)
    assert all(line.startswith("ok         ") for line in found)
    assert found[-1].endswith("no GPU, training runs on CPU")


@pytest.fixture
def library(tmp_path, monkeypatch) -> str:
    """A library that prints while it is imported, with a version of NVIDIA's containers."""
    (tmp_path / "talkative.py").write_text("print('hello')\n__version__ = '2.1.0a0+32f93b1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "talkative", raising=False)
    return "talkative"


@pytest.mark.parametrize("minimum, suits", [("2.1", True), ("2.1.1", False), ("2.10", False)])
def test_old_version_is_a_failure_and_output_of_libraries_stays_out(
    library, monkeypatch, lines, minimum, suits
):
    monkeypatch.setattr(doctor, "NEEDED", {library: minimum})
    code, (_, line, _) = lines()
    assert code == (not suits)
    if suits:
        assert line == "ok         talkative 2.1.0a0+32f93b1"
    else:
        assert re.match(
            rf"FAIL D101  ImportError: talkative 2.1.0a0\+32f93b1 .*>= {minimum} -- fix: install",
            line,
        )


def test_mix_of_both_stacks_is_a_failure(tmp_path, monkeypatch, lines):
    name = (
        "mmengine"
        if any(each.startswith("onedl-") for each in doctor.stack())
        else "onedl-mmengine"
    )
    folder = tmp_path / f"{name.replace('-', '_')}-0.10.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.10.7\n")
    (folder / "top_level.txt").write_text("mmengine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, (line, *_) = lines()
    assert (
        code == 1
        and line.startswith("FAIL D101  ImportError: ")
        and f" {name}" in line.replace(",", " ")
    )


def test_two_mmcv_in_one_folder_are_a_failure(monkeypatch, lines):
    monkeypatch.setattr(doctor, "stack", lambda: ["mmcv", "mmcv-lite", "mmdet"])
    code, (line, *_) = lines()
    assert (
        code == 1
        and "mmcv and mmcv-lite are both installed" in line
        and "pip uninstall mmcv mmcv-lite" in line
    )


def test_doctor_runs_without_mmengine():
    code = "import sys; sys.modules['mmengine'] = None; import doctor; sys.exit(doctor.main())"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "FAIL D101  ModuleNotFoundError: " in run.stdout and "Traceback" not in run.stderr
