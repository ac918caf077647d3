from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.model import BaseModel


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Folder of twelve images of three sizes. Image 07 is white."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(12):
        shape = [(96, 160), (160, 96), (96, 96)][number % 3]
        image = cv2.resize(
            rng.integers(0, 256, (6, 6, 3)).astype(np.uint8),
            shape[::-1],
            interpolation=cv2.INTER_CUBIC,
        )
        if number == 7:
            image[:] = 255
        cv2.imwrite(str(folder / f"{number:02}.png"), image)
    return folder


@pytest.fixture
def before_forward(monkeypatch) -> Callable[[Callable[[list[torch.Tensor]], None]], None]:
    """Lets a function see the preprocessed images of each batch before the model does."""
    test_step = BaseModel.test_step

    def hook(function: Callable[[list[torch.Tensor]], None]) -> None:
        def replaced(self: BaseModel, data: dict) -> list:
            function(data["inputs"])
            return test_step(self, data)

        monkeypatch.setattr(BaseModel, "test_step", replaced)

    return hook
