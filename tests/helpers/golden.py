"""The deterministic parameters and images behind the golden values in tests/data/golden.

The values were computed in float64 (positional encoding in float32), those of 'pico' in float32, by
the code that the paper's authors released, with every parameter a function of its published name
and shape alone.
"""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from helpers.paths import GOLDEN

PICO = dict(embed_dim=32, depth=12, num_heads=4, eta=1.0)  # the architecture of small golden files


def parameter(key: str, shape: tuple[int, ...]) -> Tensor:
    """Value of the parameter or buffer of a published name."""
    noise = np.asarray(
        np.random.RandomState(zlib.crc32(key.encode())).standard_normal(shape or None)
    )
    if key.endswith("num_batches_tracked"):
        return torch.tensor(7)
    if key.endswith("running_var"):
        noise = 0.5 + np.abs(noise)
    elif key.endswith("temperature"):
        noise = 1 + 3 * np.abs(noise)
    elif "gamma" in key:
        noise = 0.5 + 0.1 * noise
    elif key.endswith("cls_token"):
        noise = 0.02 * noise
    elif key.endswith(("running_mean", "bias")):
        noise = 0.1 * noise
    elif len(shape) == 1:
        noise = 1 + 0.1 * noise
    else:
        noise = noise / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(noise)


def fill(model: nn.Module) -> nn.Module:
    """Give every parameter and buffer its golden value; returns the model in eval mode."""
    model.load_state_dict(
        {key: parameter(key, tuple(value.shape)) for key, value in model.state_dict().items()}
    )
    return model.eval()


def image(height: int, width: int, batch: int = 1) -> Tensor:
    return torch.from_numpy(np.random.RandomState(0).standard_normal((batch, 3, height, width)))


def keys(arch: str, patch_size: int) -> dict[str, list[int]]:
    """Published names and shapes of a dense backbone."""
    return json.loads((GOLDEN / f"keys_{arch}_p{patch_size}.json").read_text())


def deviation(tensors: Sequence[Tensor], file: Path, size: str = "") -> float:
    """Largest difference from the golden values of a file, or of one of its sizes ('64x96').

    Shapes must be equal. The unit is the mean magnitude of a tensor.
    """
    golden = np.load(file)
    prefix = f"{size}/" if size else ""
    deviations = []
    for number, tensor in enumerate(tensors):
        assert list(tensor.shape) == golden[f"{prefix}shape{number}"].tolist()
        samples = tensor.detach().double().flatten().numpy()[golden[f"{prefix}index{number}"]]
        difference = np.abs(samples - golden[f"{prefix}value{number}"]).max()
        deviations.append(difference / float(golden[f"{prefix}abs_mean{number}"]))
    return max(deviations)


def assert_close(maps: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Check shapes, types and values, these within a part of the largest of a map."""
    for tensor, other in zip(maps, expected, strict=True):
        atol = 1e-5 * float(other.abs().max())
        torch.testing.assert_close(tensor, other, rtol=0, atol=atol)
