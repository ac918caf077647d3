"""tools/doctor.py reports a stack that cannot run the package, and ends with the exit code 1."""

import subprocess
import sys

import doctor
import pytest
from helpers.paths import ROOT


@pytest.fixture
def lines(monkeypatch, capsys):
    """Return a function that returns exit code and lines of the doctor without a config."""

    def run() -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["doctor.py"])
        code = doctor.main()
        return code, capsys.readouterr().out.splitlines()

    return run


def test_correct_installation_has_no_findings(lines):
    code, printed = lines()
    assert code == 0 and len(printed) == 2 + len(doctor.NEEDED)
    assert all(line.startswith("ok         ") for line in printed)
    assert "no GPU" in printed[-1]


@pytest.fixture
def library(tmp_path, monkeypatch) -> str:
    """A library that prints while it is imported, with a version of NVIDIA's containers."""
    (tmp_path / "talkative.py").write_text("print('hello')\n__version__ = '2.1.0a0+32f93b1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "talkative", raising=False)
    return "talkative"


@pytest.mark.parametrize("minimum, status", [("2.1", "ok"), ("2.1.1", "FAIL"), ("2.10", "FAIL")])
def test_old_version_is_a_failure_and_output_of_libraries_stays_out(
    library, monkeypatch, lines, minimum, status
):
    monkeypatch.setattr(doctor, "NEEDED", {library: minimum})
    code, (_, line, _) = lines()
    assert code == (status == "FAIL")
    assert line.startswith(status) and "talkative 2.1.0a0+32f93b1" in line


def test_mix_of_both_stacks_is_a_failure(tmp_path, monkeypatch, lines):
    name = "onedl-mmengine"
    if name in doctor.stack():
        name = "mmengine"
    folder = tmp_path / f"{name.replace('-', '_')}-0.10.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.10.7\n")
    (folder / "top_level.txt").write_text("mmengine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, (line, *_) = lines()
    assert code == 1
    assert line.startswith("FAIL D101  ImportError: ") and name in line


def test_two_mmcv_in_one_folder_are_a_failure(monkeypatch, lines):
    monkeypatch.setattr(doctor, "stack", lambda: ["mmcv", "mmcv-lite", "mmdet"])
    code, (line, *_) = lines()
    assert code == 1
    assert "mmcv and mmcv-lite" in line and "pip uninstall mmcv mmcv-lite" in line


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
