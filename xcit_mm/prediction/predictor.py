"""Trained detectors and segmentors on images in memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from torch import Tensor, nn

from ..checks.inputs import check_sizes
from ..models.build import load_model
from ..utils.config_data import tested_metainfo
from ..utils.configs import read_config
from ..utils.errors import ArgumentError
from ..utils.model_input import ModelInput
from ..utils.output import say
from ..utils.palettes import Palette
from ..utils.ranks import rank_device
from ..version import __version__
from ..weights.lookup import find_model
from ..weights.published import PUBLISHED, published_name
from .masks import to_detections
from .network import Network
from .prediction import Prediction, label_type
from .preprocessing import ImageLike, Preprocessing
from .seen import InTiles, Seen
from .sources import ImageSource, Source, check_mask
from .view import View, choose_view
from .whole import SeenWhole, check_whole


class Predictor:
    """A detector of mmdet or a segmentor of mmseg that predicts images.

    Args:
        model: A model of mmdet or mmseg with its weights, which stays as it is.
        cfg: The model's config, whose test pipeline preprocesses images.
        device: A device of torch. Default: that of the model.
        tile: Side of the tiles in which images are predicted, in pixels. Default: whole images.
        overlap: Minimum overlap of tiles, or of the windows of a detector, in pixels. Default: a
            quarter of the tile. Windows share 256 pixels at least.
        batch_size: Number of images, or of tiles of an image, that the model predicts together.
            Windows of a whole image are predicted one by one.
        dtype: 'float32', 'float16', 'bfloat16', or 'auto' for `fast_dtype` of the device. Half
            precision is by autocast. Boxes are decoded in float32.
        min_score: Minimum score of a detector's instances, from 0 to 1. Default: `score_thr` in the
            `test_cfg` of the model. A lower one leaves no more objects, which a message says.
        whole: Whether the trunk sees an image of any size whole, and neck and heads in windows. The
            model's backbone must be XCiT.
        scale: Factor by which images in tiles or whole are resized. Default: `large =
            dict(scale=...)` of the config.
        window: Side of what a window of neck and heads adds to the result of a whole image, in
            pixels as the model sees them. Default: 1024, or 768 for UPerNet and PSPNet; for a
            detector, the side of its training images.

    Attributes:
        model: The model after `prepare_for_inference`.
        metainfo: `classes` and, if defined, `palette` of the config's test set.
        names: Name of each class, by its number in labels and maps.
        palette: Color of each class, RGB, if the config has colors.
        arguments: Arguments of `from_pretrained` that build the same predictor on another device.

    Example:
        >>> from xcit_mm import Predictor
        >>> predictor = Predictor.from_pretrained("maskrcnn_xcit_tiny_12_p16")
        >>> prediction = predictor("photo.jpg")
        >>> prediction.boxes.shape[1]  # left, top, right and bottom of each object
        4
    """

    def __init__(
        self,
        model: nn.Module,
        cfg: Config,
        device: str | None = None,
        tile: int | None = None,
        overlap: int | None = None,
        batch_size: int = 1,
        dtype: str = "float32",
        min_score: float | None = None,
        whole: bool = False,
        scale: float | None = None,
        window: int | None = None,
    ) -> None:
        scope = cfg.get("default_scope")
        if scope not in ("mmdet", "mmseg"):
            raise ValueError(f"default_scope={scope!r}: must be one of mmdet, mmseg")
        self.is_detector = scope == "mmdet"
        if batch_size < 1:
            raise ArgumentError("batch_size", f"{batch_size}: must be positive")
        self.cfg = cfg
        if min_score is not None:
            self._check_min_score(min_score)
        self.batch_size = batch_size
        self.min_score = min_score
        self.metainfo = tested_metainfo(cfg)
        self.names: Sequence[str] = self.metainfo["classes"]
        self.palette: Palette | None = self.metainfo.get("palette")
        self.arguments: dict[str, Any] | None = None
        self.preprocess = Preprocessing(cfg)
        sizes: Any = dict(scale=scale, overlap=overlap, window=window)
        is_large = whole or tile is not None
        for name, value in sizes.items():
            if value is not None and not is_large:
                raise ArgumentError(name, f"{value} is for large images: give tile or whole too")
        self._checksum = _checksum(model)  # of the weights before they are folded
        self.device = str(device or next((part.device for part in model.parameters()), "cpu"))
        self.network = Network(model, self.device, dtype)
        self.model = self.network.model
        if not whole:
            for finding in check_sizes(cfg, self.model):
                say(str(finding))
        self.view = self._choose_view(whole, tile=tile, **sizes) if is_large else None

    def _check_min_score(self, score: float) -> None:
        """Raise ArgumentError unless it is a score, and say if the config's is higher."""
        if not self.is_detector:
            raise ArgumentError("min_score", f"{score}: only detectors have scores: leave it out")
        if not 0 <= score <= 1:
            raise ArgumentError("min_score", f"{score} is not a score from 0 to 1")
        least = self._test_cfg.get("score_thr", 0)
        if score < least:
            say(f"min_score={score} finds no more objects than score_thr={least} of the config")

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        checkpoint: str | Path | None = None,
        device: str | None = None,
        **options: Any,
    ) -> "Predictor":
        """Build the predictor of a model, whose checkpoint must have all of its weights.

        Args:
            model: Name of a published model, the folder of a training run or the path of a config.
            checkpoint: A path, a URL or `xcit://NAME`, in place of the model's own checkpoint. A
                config requires it.
            device: A device of torch. Default: the GPU of this process of torchrun, or a GPU if
                there is one.
            options: Other arguments of the class, such as `tile` and `dtype`.

        Raises:
            ArgumentError: If an option does not fit the model.
            OSError: If a file is missing, or a download fails.
            ValueError: If the name is unknown, the model has no backbone of this package, or the
                checkpoint does not have all of its weights.
        """
        config, weights = find_model(model, checkpoint)
        # Tasks of Ray have another current folder.
        config = os.path.abspath(config)
        if "://" not in weights:
            weights = os.path.abspath(weights)
        cfg = read_config(config)
        published = PUBLISHED.get(published_name(weights))
        if published and "large" not in cfg:
            cfg.large = dict(scale=published.scale)
        predictor = cls(
            load_model(cfg, weights), cfg, device or rank_device() or get_device(), **options
        )
        predictor.arguments = dict(model=config, checkpoint=weights) | options
        return predictor

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the predictions, except for rounding, for run.json."""
        model_input = ModelInput(self.cfg)
        # Folders, batch sizes and the schedule of a training change no prediction.
        parts = [self.cfg.model, model_input.preprocessor, model_input.pipeline, self.metainfo]
        config = f"{Path(self.cfg.filename or '').name} ({crc32(repr(parts).encode()):08x})"
        other_config = "the config has another model, other classes or another preprocessing"
        return dict(
            config=dict(value=config.strip(), change=other_config),
            weights=dict(value=f"{self._checksum:08x}", change="the weights are others"),
            **(self.view.settings if self.view else {}),
            dtype=str(self.network.dtype).removeprefix("torch."),
            min_score=self.min_score,
            xcit_mm=__version__,
        )

    def __call__(self, images: ImageLike | Sequence[ImageLike], valid: Any = None) -> Any:
        """Predict an image, or a sequence of images.

        Images of one size that follow each other are predicted together, `batch_size` at a time.

        Args:
            images: Paths of images, or arrays (H, W, 3), uint8, BGR as OpenCV reads them. If an
                array is RGB, give `array[..., ::-1]`. For a config that loads other images, give
                arrays as its loading step returns them: for `LoadRasterFromFile`, (H, W, bands) in
                the file's type or float32, with values as they are stored.
            valid: Which pixels of each image have data, (H, W), bool; by default all. XCiT sees the
                others as it sees what lies beyond the border of an image (`Backbone.valid`); other
                backbones, and windows of mmseg's `mode="slide"`, see their values. In tiles or
                whole, a detector reports no object whose centre has no data.

        Returns:
            A `Prediction`, or a list of them for a sequence.

        Raises:
            OSError: If a file cannot be opened.
            ValueError: If a file is not an image that can be read, an image has another number of
                channels than the model takes, or values that are NaN or infinite, a mask has
                another size or type than its image needs, or there are not as many masks as images.
        """
        if isinstance(images, str | np.ndarray) or not isinstance(images, Sequence):
            return self([images], None if valid is None else [valid])[0]
        masks = [None] * len(images) if valid is None else valid
        arrays = map(self.preprocess.read, images)
        if self.view is None:
            return list(self.predict_arrays(arrays, masks))
        predictions = []
        for array, mask in zip(arrays, masks, strict=True):
            with self.see(array, mask) as seen:
                predictions.append(seen.result())
        return predictions

    def see(
        self,
        image: ImageLike | Source,
        valid: np.ndarray | None = None,
        folder: str | Path | None = None,
    ) -> Seen:
        """Read a large image once, to predict parts of it.

        A predictor with a `tile` sees it in tiles, each when it is asked for. Others run the trunk
        over the whole image at the beginning of the block.

        Args:
            image: A path, an array or a `Source`, such as a `Raster`.
            valid: Which pixels of a path or an array have data, (H, W), bool. Default: all.
            folder: Folder for the trunk's output, if that needs more than 256 MiB. It takes 16
                bytes for each channel of each token, and gets a folder of its own inside `folder`.
                The end of the block removes this inner folder, unless there was an error: then the
                next call continues with it. Default: a temporary folder, which a message names.

        Raises:
            ArgumentError: If `valid` is given for a `Source`.
            ValueError: If the model cannot see whole images, or the scale is not known.

        Example:
            >>> from xcit_mm import Predictor
            >>> predictor = Predictor.from_pretrained("work_dirs/nuts")
            >>> with predictor.see("panorama.jpg") as seen:
            ...     part = seen.predict(slice(0, 100), slice(0, 100))
            ...     everything = seen.result()
        """
        if isinstance(image, str | Path | np.ndarray):
            image = ImageSource(self.preprocess.read(image), valid)
        elif valid is not None:
            raise ArgumentError("valid", "a Source has its own mask: leave it out")
        view = self.view or self._whole_view
        if view.whole:
            return SeenWhole(self, image, view, folder)
        return InTiles(self, image, view)

    def _choose_view(self, whole: bool, **sizes: Any) -> View:
        view = choose_view(self, whole, **sizes)
        if whole:
            check_whole(self.model)
        say(str(view))
        return view

    @cached_property
    def _whole_view(self) -> View:
        """The view in which a model for photos predicts a large image whole."""
        return self._choose_view(whole=True)

    def predict_arrays(
        self,
        images: Iterable[np.ndarray],
        masks: Iterable[np.ndarray | None],
        resizes: bool = True,
    ) -> Iterator[Prediction]:
        """Predict arrays in batches, each as one image, whatever its size.

        Args:
            masks: Which pixels of each image have data, (H, W), bool, or None for all.
            resizes: Whether the test pipeline resizes the images.

        Raises:
            ValueError: If a mask has another size or type, or an image cannot be preprocessed.
        """
        pairs = zip(images, masks, strict=True)
        while batch := list(islice(pairs, self.batch_size)):
            inputs = []
            for image, mask in batch:
                if mask is not None:
                    check_mask(mask, image)
                has_gaps = self.network.leaves_out and mask is not None and not mask.all()
                inputs.append(self.preprocess(image, mask if has_gaps else None, resizes))
            samples: list[Any] = []
            # Images that leave pixels out leave out their padding too, others do not.
            for _, alike in groupby(inputs, lambda data: (data["inputs"].shape, "valid" in data)):
                samples += self.network.predict(list(alike))
            for (image, _), sample in zip(batch, samples, strict=True):
                yield self.to_prediction(image, sample)

    @property
    def most_objects(self) -> int | None:
        """Number of objects that a detector returns at most, if it has a limit."""
        limit = self._test_cfg.get("max_per_img")
        return limit if limit and limit > 0 else None

    @property
    def _test_cfg(self) -> dict[str, Any]:
        """The options by which a detector selects its objects."""
        test_cfg = self.cfg.model.get("test_cfg") or {}
        return test_cfg.get("rcnn") or test_cfg

    def to_prediction(self, image: np.ndarray, sample: Any) -> Prediction:
        """Convert the library's data sample of an image, or the classes of its pixels, to NumPy."""
        if not self.is_detector:
            classes = sample if isinstance(sample, Tensor) else sample.pred_sem_seg.data[0]
            labels = classes.cpu().numpy().astype(label_type(self.names))
            return Prediction(image, None, labels, self.names, self.palette)
        detections = to_detections(sample.pred_instances, image.shape[:2])
        prediction = Prediction(image, detections, None, self.names, self.palette)
        return prediction if self.min_score is None else prediction.above(self.min_score)


def as_predictor(
    model: str | Path | Predictor, checkpoint: str | Path | None, device: str | None
) -> Predictor:
    """Return a predictor as it is, or build one by `Predictor.from_pretrained`.

    Raises:
        ArgumentError: If a predictor is given with a checkpoint or a device.
    """
    if isinstance(model, str | Path):
        return Predictor.from_pretrained(model, checkpoint, device)
    for name, value in dict(checkpoint=checkpoint, device=device).items():
        if value is not None:
            raise ArgumentError(name, "a Predictor has its own: leave it out")
    return model


def _checksum(model: nn.Module) -> int:
    checksum = 0
    for name, tensor in model.state_dict().items():
        stored = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = crc32(stored, crc32(name.encode(), checksum))
    return checksum
