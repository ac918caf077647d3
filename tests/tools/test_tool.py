"""`xcit-mm tool` runs the scripts of mmdet and mmseg, which need no compiled mmcv then."""

import pytest


@pytest.fixture(autouse=True)
def arguments_stay(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["xcit-mm"])


@pytest.mark.parametrize("script", ["mmdet/test.py", "mmseg/analysis_tools/confusion_matrix.py"])
def test_a_script_of_a_library_runs_with_its_own_arguments(script, call, capsys):
    with pytest.raises(SystemExit) as end:
        call("tool", script, "--help")
    printed = capsys.readouterr().out
    assert not end.value.code
    assert script.rpartition("/")[2] in printed and "config" in printed


def test_an_error_of_a_script_is_one_line(refusal, tmp_path):
    assert "none.py" in refusal("tool", "mmdet/test.py", tmp_path / "none.py", "none.pth")


def test_without_a_path_the_scripts_are_listed_and_another_path_is_refused(call, capsys):
    code, printed = call("tool")[:2]
    assert not code and "mmdet/analysis_tools/get_flops.py" in printed.splitlines()
    with pytest.raises(SystemExit):
        call("tool", "mmdet/../../setup.py")
    assert "no script mmdet/../../setup.py is installed" in capsys.readouterr().err
