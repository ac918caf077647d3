"""The model that a file of weights is of, built and filled."""

from mmengine.runner import CheckpointLoader

from .backbone import Trunk, XCiT
from .checkpoint import fitting_trunk
from .classifier import XCiTClassifier
from .layouts import backbone_options, recognise

__all__ = ["load_model"]


def load_model(checkpoint: str, use_ema: bool = False) -> Trunk:
    """The model of a file in any layout, in eval mode.

    Args:
        checkpoint: A path, a URL or `xcit://NAME`.
        use_ema: Take the `model_ema` of a training file.

    Returns:
        An `XCiTClassifier` if the file has class attention, without a head if the file has none (DINO's); an
        `XCiT` if it has the pyramid, as detectors and segmentors do; else a `Trunk`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no whole XCiT.
    """
    try:
        weights = recognise(CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu", logger="silent"), use_ema)
        options, trunk = backbone_options(weights.trunk), weights.trunk
        if "cls_token" in trunk:
            model = XCiTClassifier(num_classes=len(trunk.get("head.weight", ())), **options)
        else:
            model = (XCiT if any(key.startswith("fpn") for key in trunk) else Trunk)(**options)
        model.load_state_dict(fitting_trunk(model, weights))
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from None
    return model.eval()
