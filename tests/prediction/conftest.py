from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from xcit_mm.commands import predict as command_module
from xcit_mm.prediction import Predictor, whole
from xcit_mm.prediction.network import Network


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Folder of twelve images of three sizes. Image 07 is white."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(12):
        height, width = [(96, 160), (160, 96), (96, 96)][number % 3]
        blocks = rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)
        image = cv2.resize(blocks, (width, height), interpolation=cv2.INTER_CUBIC)
        if number == 7:
            image[:] = 255
        cv2.imwrite(str(folder / f"{number:02}.png"), image)
    return folder


@pytest.fixture(scope="session")
def turned(photos, tmp_path_factory) -> Path:
    """A photo that EXIF turns by 90 degrees, (160, 96) after turning."""
    exif = Image.Exif()
    exif[0x112] = 6
    path = tmp_path_factory.mktemp("turned") / "turned.jpg"
    Image.open(photos / "00.png").save(path, exif=exif, quality=95)
    return path


_build_once = cache(Predictor.from_pretrained)


@pytest.fixture(scope="session")
def predictors(models) -> dict[str, Predictor]:
    return {kind: _build_once(*model, device="cpu") for kind, model in models.items()}


@pytest.fixture(autouse=True)
def builds_once(monkeypatch) -> None:
    """Let commands in this process share the predictors of equal options."""
    monkeypatch.setattr(command_module, "Predictor", SimpleNamespace(from_pretrained=_build_once))


@pytest.fixture
def out(tmp_path) -> Path:
    """Folder of the results of `command`."""
    return tmp_path / "out"


@pytest.fixture
def command(models, out) -> Callable[..., tuple]:
    """Returns the command that predicts inputs with the segmentor, or `kind="det"` the detector."""

    def build(*inputs: object, kind: str = "seg", model: tuple = (), out: Path = out) -> tuple:
        config, checkpoint = model or models[kind]
        return ("predict", config, *inputs, "--checkpoint", checkpoint, "--out", out)

    return build


@pytest.fixture
def taps_in_files(monkeypatch) -> None:
    """Taps of all images that are seen whole are in files."""
    monkeypatch.setattr(whole, "MEMORY", 0)


@pytest.fixture
def before_forward(monkeypatch) -> Callable[[Callable[[list[torch.Tensor]], None]], None]:
    """Lets a function see the preprocessed images of each batch before the model does."""
    predict = Network.predict

    def hook(function: Callable[[list[torch.Tensor]], None]) -> None:
        def replaced(self: Network, batch: list[dict]) -> Sequence:
            function([data["inputs"] for data in batch])
            return predict(self, batch)

        monkeypatch.setattr(Network, "predict", replaced)

    return hook


@pytest.fixture
def stop_at(before_forward) -> Callable[..., list[int]]:
    """Lets a function, by default Ctrl+C, stop the batch of a number, from 1.

    It returns the sizes of the batches that the model sees from then on.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    def stop_at(number: int, stop: Callable[[], None] = interrupt) -> list[int]:
        seen: list[int] = []

        def see(inputs: list[torch.Tensor]) -> None:
            seen.append(len(inputs))
            if len(seen) == number:
                stop()

        before_forward(see)
        return seen

    return stop_at
