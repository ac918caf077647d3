import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Results must not depend on the number of cores. Processes of pytest-xdist share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or "2"


from helpers import configs  # noqa: F401  # makes mmengine parse each metafile only once

import xcit_mm  # noqa: F401  # provides mmcv.ops, so before any test imports it
from xcit_mm.__main__ import COMMANDS

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
def models(tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Config and checkpoint of an untrained segmentor and detector, which reports twenty boxes."""
    import torch
    from helpers import small_models

    folder = tmp_path_factory.mktemp("models")
    twenty_boxes = dict(rpn=dict(max_per_img=100), rcnn=dict(score_thr=0.0, max_per_img=20))
    recipes = dict(
        seg=small_models.small("demo/fpn_xcit-n12-p16_shapes.py"),
        det=small_models.mask_rcnn(test_cfg=twenty_boxes),
    )
    for name, cfg in recipes.items():
        model = small_models.build(cfg)
        torch.save(dict(meta={}, state_dict=model.state_dict()), folder / f"{name}.pth")
        cfg.dump(folder / f"{name}.py")
    return {name: (f"{folder}/{name}.py", f"{folder}/{name}.pth") for name in recipes}


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
