"""How a model gets its input: the test pipeline and the data preprocessor of a config."""

from collections.abc import Sequence

from mmengine.config import Config

from .config_data import tested_dataset
from .config_parts import find_step, loading_step, type_name


class ModelInput:
    """How the test pipeline and the data preprocessor of a config turn an image file into input.

    Attributes:
        pipeline: Configs of the steps.
        loading: Config of the step that loads an image, or None.
        preprocessor: Config of the preprocessor, {} without one.
        channels: Number of channels of the backbone.

    Raises:
        ValueError: If the config tests on no data set.
    """

    def __init__(self, cfg: Config) -> None:
        self.pipeline: Sequence[dict] = tested_dataset(cfg).get("pipeline", [])
        self.loading = loading_step(self.pipeline)
        own = cfg.model.get("data_preprocessor", cfg.get("data_preprocessor"))  # as Runner does
        self.preprocessor: dict = own or {}
        self.channels: int = (cfg.model.get("backbone") or {}).get("in_channels", 3)

    @property
    def raster_step(self) -> dict | None:
        """The step that loads rasters, or None if OpenCV loads images."""
        return find_step(self.pipeline, "LoadRasterFromFile")

    @property
    def bands(self) -> int | None:
        """Number of bands of a raster, or None if OpenCV loads images."""
        if self.raster_step is None:
            return None
        bands = self.raster_step.get("bands")
        return len(bands) if bands else self.channels

    @property
    def side(self) -> int | None:
        """Shorter side of the images in pixels, or None if the config has no size.

        The size is in the first Resize, or else in `size` of mmseg's preprocessor, where it is that
        of the training crops.
        """
        scales = [step.get("scale") for step in self.pipeline if type_name(step) == "Resize"]
        size = next(filter(None, scales), self.preprocessor.get("size"))
        return min(size) if isinstance(size, Sequence) else size

    @property
    def normalisation(self) -> tuple[list[float] | None, list[float] | None]:
        """Mean and standard deviation with which the preprocessor or a step normalises."""
        step = self.preprocessor
        if step.get("mean") is None:
            step = find_step(self.pipeline, "Normalize") or {}
        return step.get("mean"), step.get("std")

    @property
    def channel_order(self) -> str | None:
        """'RGB' or 'BGR', or None for images that are not photos of three channels."""
        is_photo = self.loading is None or type_name(self.loading) == "LoadImageFromFile"
        if not is_photo or self.channels != 3:
            return None
        # mmcv loads BGR. Two swaps give BGR again.
        swaps = any(self.preprocessor.get(key) for key in ("bgr_to_rgb", "rgb_to_bgr"))
        normalize = find_step(self.pipeline, "Normalize") or dict(to_rgb=False)
        return "RGB" if swaps != normalize.get("to_rgb", True) else "BGR"
