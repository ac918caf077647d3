"""`xcit-mm tool` runs the scripts of mmdet and mmseg, which need no compiled mmcv then."""

import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "ignore", "-m", "xcit_mm", "tool", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("script", ["mmdet/test.py", "mmseg/analysis_tools/confusion_matrix.py"])
def test_a_script_of_a_library_runs_with_its_own_arguments(script):
    result = run(script, "--help")
    assert result.returncode == 0, result.stderr
    assert script.rpartition("/")[2] in result.stdout and "config" in result.stdout


def test_an_error_of_a_script_is_one_line(tmp_path):
    result = run("mmdet/test.py", str(tmp_path / "none.py"), "none.pth")
    assert result.returncode == 1
    assert result.stderr.strip().count("\n") == 0 and "none.py" in result.stderr


def test_without_a_path_the_scripts_are_listed_and_another_path_is_refused(call, capsys):
    code, printed = call("tool")[:2]
    assert not code and "mmdet/analysis_tools/get_flops.py" in printed.splitlines()
    with pytest.raises(SystemExit):
        call("tool", "mmdet/../../setup.py")
    assert "no script mmdet/../../setup.py is installed" in capsys.readouterr().err
