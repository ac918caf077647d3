import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.paths import CONFIGS

# Results must not depend on the number of cores. Processes of pytest-xdist share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or "2"


from helpers import configs  # noqa: F401  # makes mmengine parse each metafile only once

import xcit_mm  # noqa: F401  # provides mmcv.ops, so before any test imports it
from xcit_mm.__main__ import COMMANDS

TWENTY_BOXES = """
_base_ = {!r}
model = dict(
    test_cfg=dict(rpn=dict(max_per_img=100), rcnn=dict(score_thr=0.0, max_per_img=20))
)
"""

# `make test` passes its variables to each make that a test runs, where a user has none.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(_name, None)


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs, except for `pytest -m gpu`, so that other tests give the same results."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before any fixture costs time
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            reason = "torch.cuda.is_available() is False"
            pytest.skip(f"{reason}; without `-m gpu` (make test-gpu) it always is")
        # By default a GPU computes float32 convolutions in TF32, with errors of a thousandth.
        torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory) -> None:
    """Weights that the user has downloaded change no test, also in processes of tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shapes(tmp_path_factory) -> Path:
    """A data set of 12 images of shapes."""
    from make_shapes import write_dataset

    root = tmp_path_factory.mktemp("data") / "shapes"
    write_dataset(root, train=8, val=4, size=96)
    return root


@pytest.fixture(scope="session")
def models(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Config and checkpoint of an untrained segmentor and detector.

    The detector reports twenty boxes per image. The biases of the segmentor make all classes about
    equally likely.
    """
    import cv2
    import torch
    from demo import save_untrained
    from mmengine.config import Config
    from mmseg.apis import inference_model

    from xcit_mm.models.build import load_model

    folder = tmp_path_factory.mktemp("models")
    base = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes.py"
    save_untrained(base, folder / "det.pth")
    (folder / "few.py").write_text(TWENTY_BOXES.format(str(base)))

    segmentor = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
    file = folder / "seg.pth"
    save_untrained(segmentor, file)
    image = cv2.imread(str(shapes / "images" / "validation" / "00000.jpg"))
    cfg = Config.fromfile(segmentor)
    model = load_model(cfg, file)
    model.cfg = cfg
    sample = inference_model(model, image)
    checkpoint = torch.load(file)
    means = sample.seg_logits.data.mean(dim=(1, 2))
    checkpoint["state_dict"]["decode_head.conv_seg.bias"] -= means
    torch.save(checkpoint, file)
    detector = (str(folder / "few.py"), str(folder / "det.pth"))
    return dict(seg=(str(segmentor), str(file)), det=detector)


def run_command(name: str, *args: object) -> int:
    """Run a command of `xcit-mm`, or tools/NAME.py, in this process, and return its exit code."""
    module = f"xcit_mm.commands.{name}" if name in COMMANDS else name
    return importlib.import_module(module).main([str(argument) for argument in args])


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Runs a command in this process and returns its error, which must be one line."""

    def run(name: str, *args: object) -> str:
        with pytest.raises(SystemExit) as end:
            run_command(name, *args)
        message = end.value.code  # which Python prints, and exits with 1
        assert isinstance(message, str) and "\n" not in message
        return message

    return run


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process and returns its exit code, stdout and stderr."""

    def run(name: str, *args: object) -> tuple[int, str, str]:
        # Loggers of earlier tests write to closed streams.
        monkeypatch.setattr(logging, "raiseExceptions", False)
        capsys.readouterr()
        code = run_command(name, *args)
        return code, *capsys.readouterr()

    return run
