"""`predict --whole`: photos as they look, in bounded memory and without files left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.configs import read_config_file
from helpers.paths import CONFIGS
from helpers.runs import read_images
from helpers.small_models import build, synthetic_photo
from pycocotools import mask as rle

from xcit_mm import Predictor
from xcit_mm.models import large
from xcit_mm.prediction import whole as whole_module
from xcit_mm.prediction.whole import SeenWhole

WHOLE = ("--whole", "--scale", "1", "--window", "128")


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_a_photo_is_seen_as_exif_turns_it(kind, models, turned, command, call, out):
    stored = cv2.imread(str(turned), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    upright = np.ascontiguousarray(np.rot90(stored, -1))  # EXIF's 6: clockwise
    options = dict(device="cpu", whole=True, scale=1, window=128)
    expected = Predictor.from_pretrained(*models[kind], **options)(upright)
    assert call(*command(turned, kind=kind), *WHOLE)[0] == 0
    (image,) = read_images(out)
    assert (image["height"], image["width"]) == (160, 96)
    (drawing,) = (out / "visualizations").iterdir()
    assert cv2.imread(str(drawing)).shape[0] == 160
    if kind == "seg":
        assert len(np.unique(expected.segmentation)) > 2
        (labels,) = (out / "labels").iterdir()
        stored = cv2.imread(str(labels), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(stored, expected.segmentation)
        return
    assert len(expected) > 5
    results = json.loads((out / "predictions.json").read_text())
    masks = [rle.decode(result["segmentation"]) for result in results]
    assert np.array_equal(masks, expected.masks)


def fail_once(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first window raise an error, when the trunk has seen the photo."""
    predict = SeenWhole._predict
    raised = []

    def fail(self, row, column) -> object:
        if not raised:
            raised.append(error)
            raise error
        return predict(self, row, column)

    monkeypatch.setattr(SeenWhole, "_predict", fail)


@pytest.mark.usefixtures("taps_in_files")
def test_the_taps_of_a_photo_that_fails_are_removed(command, photos, call, out, monkeypatch):
    fail_once(RuntimeError("a window failed"), monkeypatch)
    code, printed, _ = call(*command(photos / "00.png", photos / "03.png"), *WHOLE)
    assert code == 3 and "1 predicted, 1 failed" in printed
    assert not (out / ".taps").exists()


@pytest.mark.usefixtures("taps_in_files")
@pytest.mark.parametrize("has_scratch", [False, True])
def test_the_taps_of_a_stopped_command_serve_the_next_and_go(
    has_scratch, command, photos, call, out, tmp_path, monkeypatch
):
    """Also if the next has another folder for them."""
    arguments = (*command(photos / "00.png"), *WHOLE)
    with monkeypatch.context() as patch:
        fail_once(KeyboardInterrupt(), patch)
        assert call(*arguments)[0] == 130
    assert len([*out.glob(".taps/*/*/tap?")]) == 4
    if has_scratch:
        arguments = (*arguments, "--scratch", tmp_path / "scratch")
    else:
        monkeypatch.setattr(large, "embed_rows", None)  # the trunk does not run again
    assert call(*arguments)[0] == 0
    assert not (out / ".taps").exists() and not [*tmp_path.glob("scratch/*")]
    assert [path.name for path in (out / "labels").iterdir()] == ["00.png.png"]


# The peak of a process, which getrusage would begin at that of the process that starts it.
PREDICT = """
import re, sys
from pathlib import Path
from xcit_mm.commands import predict
code = predict.main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.slow
def test_a_large_photo_takes_at_most_1900_mb_and_leaves_no_files(out, tmp_path):
    """By Semantic FPN S12/16 with 150 classes and one thread, which took 1630 MB; 2 minutes."""
    cfg = read_config_file(CONFIGS / "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py")
    model = build(cfg)
    torch.save(dict(meta={}, state_dict=model.state_dict()), tmp_path / "fpn.pth")
    cfg.dump(tmp_path / "fpn.py")
    side = 3584
    assert (side // 16) ** 2 * 384 * 4 * 4 > whole_module.MEMORY  # so the taps are in files
    cv2.imwrite(str(tmp_path / "photo.jpg"), synthetic_photo(side, side))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", PREDICT, "fpn.py", "photo.jpg"]
    command += ["--checkpoint", "fpn.pth", "--out", out, "--whole", "--scale", "1"]
    variables = dict(os.environ, TMPDIR=str(temporary), OMP_NUM_THREADS="1")
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, env=variables
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) / 1000 < 1900
    assert [*temporary.iterdir()] == []
    names = {"images.json", "journal", "labels", "run.json", "visualizations", ".lock"}
    assert {path.name for path in Path(out).iterdir()} == names
