"""What Windows does differently, on Linux: modules that lack, another encoding of files."""

import os
import subprocess
import sys

from helpers.paths import ROOT

WINDOWS = """
import sys
from pathlib import Path

sys.modules.update(fcntl=None, resource=None)
import torch
import xcit_mm
from xcit_mm.__main__ import main
from xcit_mm.utils.folders import lock_folder

backbone = xcit_mm.backbone("sem_fpn_xcit_tiny_12_p16", pretrained=False)
print(xcit_mm.Predictor, len(backbone(torch.zeros(1, 3, 64, 64))))
with lock_folder(Path("out")):
    pass
sys.exit(main(["weights", "list"]))
"""


def test_backbone_predictor_and_weights_need_no_modules_of_posix(tmp_path):
    (tmp_path / "program.py").write_text(WINDOWS, "utf-8")
    encodings = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning:xcit_mm")
    ended = subprocess.run(
        [sys.executable, *encodings, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("<class 'xcit_mm.prediction.predictor.Predictor'> 4\n")
    assert "xcit://" in ended.stdout
    assert "out cannot be locked (import of fcntl halted" in ended.stderr
