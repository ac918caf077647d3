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
    assert "mmdet/.mim/tools/none.py" in refusal("tool", "mmdet/none.py")
