"""The doctor reports a stack that cannot run the package, and ends with the exit code 1."""

import sys

import pytest

from xcit_mm.checks import stack
from xcit_mm.commands import doctor


@pytest.fixture
def lines(capsys):
    """Return a function that returns exit code and lines of the doctor without a config."""

    def run() -> tuple[int, list[str]]:
        code = doctor.main([])
        return code, capsys.readouterr().out.splitlines()

    return run


def test_correct_installation_has_no_findings(lines):
    code, printed = lines()
    assert code == 0 and len(printed) == 3 + len(stack.NEEDED)
    assert all(line.startswith("ok         ") for line in printed)
    assert "one stack: " in printed[0] and "mmengine" in printed[0]
    assert printed[-1].endswith("on cpu")


@pytest.mark.parametrize("minimum, status", [("2.1", "ok"), ("2.10", "FAIL")])
def test_an_old_version_is_a_failure(minimum, status, tmp_path, monkeypatch, lines):
    """The version is one of NVIDIA's containers."""
    (tmp_path / "rounded.py").write_text("__version__ = '2.1.0a0+32f93b1'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rounded", raising=False)
    monkeypatch.setattr(stack, "NEEDED", dict(rounded=minimum))
    code, (_, line, *_) = lines()
    assert code == (status == "FAIL")
    assert line.startswith(status) and "rounded 2.1.0a0+32f93b1" in line


@pytest.mark.parametrize(
    "installed, named",
    [
        (["mmcv", "mmcv-lite", "mmdet"], "mmcv and mmcv-lite are both installed"),
        (["mmcv", "onedl-mmengine"], "mmcv, onedl-mmengine"),
    ],
)
def test_libraries_that_share_a_folder_are_a_failure(installed, named, monkeypatch, lines):
    modules = dict(mmcv=installed, mmengine=[])
    monkeypatch.setattr(stack, "packages_distributions", lambda: modules)
    code, (line, *_) = lines()
    assert code == 1
    assert line.startswith("FAIL D101  ImportError: ") and named in line


def test_a_device_without_kernels_is_a_failure(monkeypatch, lines):
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr("mmcv.ops.nms", refuse)
    code, printed = lines()
    assert code == 1
    assert printed[-1].startswith("FAIL D101  RuntimeError: CUDA error: no kernel image")
    assert "docs/install.md" in printed[-1]
