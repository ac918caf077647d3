"""tools/train.py and tools/test.py as users run them, on a tiny data set."""

import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config

from xcit_mm.runs import launch
from xcit_mm.weights.reader import load_from_file


def test_help_is_the_library_s(tool):
    assert "--auto-scale-lr" in tool("train", DEMO / "mask-rcnn_xcit-n12-p16_shapes.py", "--help").stdout
    assert "Train a segmentor" in tool("train", DEMO / "fpn_xcit-n12-p16_shapes.py", "--help").stdout
    assert "usage" in tool("test").stderr


@pytest.mark.parametrize(
    "change, message",
    [
        ("model.backbone.arch=s13", "unknown arch 's13': choose one of n12"),
        ("model.backbone.patch_size=7", "patch_size=7: choose one of 16, 8"),
        ("model.backbone.arch.num_heads=3", "num_heads=3 does not divide embed_dim=32: choose a divisor"),
        ("model.backbone.out_indices=(3,5,7,12)", "out_indices=(3, 5, 7, 12): must be"),
        ("train_dataloader.dataset.data_root=nowhere", "the train data are not at nowhere: put or link"),
        ("val_dataloader.dataset.data_root=nowhere", "the val data are not at nowhere: put or link"),
    ],
)
@pytest.mark.parametrize("config", SCORES)
def test_wrong_set_ups_are_one_line_and_leave_nothing(config, change, message, shapes, tool, tmp_path):
    given = [*cfg_options(config, shapes, 1), change]
    base = DEMO / f"{config}.py"
    if "num_heads" in change:
        base = tmp_path / "config.py"
        arch = "dict(_delete_=True, embed_dim=32, depth=12, num_heads=4, eta=1.0)"
        base.write_text(f"_base_ = {str(DEMO / f'{config}.py')!r}\nmodel = dict(backbone=dict(arch={arch}))\n")
    run = tool("train", base, "--work-dir", tmp_path / "work", *given)
    assert run.returncode == 1
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "work").exists()


def test_missing_config_and_checkpoint_are_one_line(shapes, tool, tmp_path):
    run = tool("train", tmp_path / "none.py")
    assert run.stderr.strip() == f"FileNotFoundError: no config at {tmp_path / 'none.py'}: see configs/"
    config = DEMO / "fpn_xcit-n12-p16_shapes.py"
    run = tool("test", config, tmp_path / "none.pth", *cfg_options(config.stem, shapes, 1))
    assert run.stderr.strip() == f"FileNotFoundError: no checkpoint at {tmp_path / 'none.pth'}: check the path"


def test_training_checkpoint_is_read_without_running_it(tmp_path):
    from mmengine.logging import HistoryBuffer

    class Exploit:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    history = HistoryBuffer([1.0, 2.0, 3.0], [1, 1, 1])
    torch.save(dict(message_hub=dict(loss=history), state_dict=dict(w=torch.ones(2))), tmp_path / "good.pth")
    read = load_from_file(str(tmp_path / "good.pth"))
    assert read["message_hub"]["loss"].mean() == 2.0
    assert torch.equal(read["state_dict"]["w"], torch.ones(2))

    torch.save(dict(state_dict=Exploit()), tmp_path / "bad.pth")
    with pytest.raises(ValueError, match=r"bad.pth.*builtins.exec"):
        load_from_file(str(tmp_path / "bad.pth"))
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_a_library_s_name_is_not_the_library(tmp_path, monkeypatch):
    (tmp_path / "libraryless").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(launch._LIBRARIES, "libraryless", "mm")
    with pytest.raises(ModuleNotFoundError, match=r"needs libraryless, which is not installed: .*/mm\.txt"):
        launch.find_script(Config(dict(default_scope="libraryless")), "own.py", "train")
