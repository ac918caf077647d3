"""File to export a model to, and the models that it can hold."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from torch.export import Dim

from ..checks.preflight import check_backbone
from ..models import MIN_SIZE, XCiT
from ..utils.configs import backbone_class, data_preprocessor, tested_dataset, tested_metainfo
from .preprocessing import preprocessing_steps
from .supported import check_detector, check_segmentor

PARTS = ("backbone", "model")
PRECISIONS = ("float32", "float16", "int8")


@dataclass(frozen=True)
class ExportTarget:
    """File to export a model to.

    Args:
        path: Name of the file in .onnx, or in .pt2, torch.export's format, for images from 64 pixels a side and no
            detectors.
        part: 'backbone' or 'model'.
        precision: 'float32'; 'float16', for GPUs; 'int8', for CPUs.
        preprocessing: Whether the input is an image's `pixels` (H, W, 3), RGB, uint8, which the file preprocesses as
            the config's test pipeline does. Boxes are in these pixels. A segmentor returns `segmentation_map` (H, W).
        size: Fixed height and width of one image, for devices that need them. A detector's outputs are then padded to
            `max_per_img` detections, with labels of -1.
    """

    path: Path
    part: str = "model"
    precision: str = "float32"
    preprocessing: bool = False
    size: tuple[int, int] | None = None

    @property
    def is_onnx(self) -> bool:
        return self.path.suffix == ".onnx"

    def check(self) -> None:
        """Check the file's name and folder, the precision, and the installed packages."""
        if not hasattr(Dim, "DYNAMIC"):
            raise RuntimeError(
                f"torch {torch.__version__} cannot trace images of any size: export with torch 2.6 or newer"
            )
        if self.path.suffix not in (".onnx", ".pt2"):
            raise ValueError(f"{self.path}: name it .onnx or .pt2")
        if self.part not in PARTS or self.precision not in PRECISIONS:
            allowed = f"one of {', '.join(PARTS)}, in one of {', '.join(PRECISIONS)}"
            raise ValueError(f"part={self.part!r} in precision={self.precision!r}: must be {allowed}")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"no folder {self.path.parent}: make it first")
        if self.precision == "float16" and self.part != "model":
            raise ValueError(f"{self.path}, the {self.part}: only whole models are written in float16")
        if not self.is_onnx and (self.precision != "float32" or self.preprocessing):
            raise ValueError(f"{self.path}: only .onnx files are float16, int8 or preprocess images: name it .onnx")
        if self.size and (self.part != "model" or self.precision != "float32" or self.preprocessing):
            raise ValueError(f"size={self.size}: only whole models in float32 without preprocessing have a fixed size")
        if self.size and min(self.size) < MIN_SIZE:
            raise ValueError(f"size={self.size}: must be {MIN_SIZE} or more a side")
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
        if missing and self.is_onnx:
            raise ModuleNotFoundError(f"{', '.join(missing)} not installed: pip install xcit_mm[export]")

    def check_model(self, cfg: Config) -> None:
        """Raise a ValueError if the model of a config cannot be exported to this file."""
        library = cfg.get("default_scope")
        if library not in ("mmdet", "mmseg"):
            raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
        if backbone_class(cfg) is not XCiT:
            backbone = cfg.model.get("backbone", {}).get("type")
            raise ValueError(f"the config's backbone is {backbone}: only models with this package's XCiT are exported")
        check_backbone(cfg)
        if self.part == "model" and library == "mmdet":
            if not self.is_onnx:
                raise ValueError(f"{self.path}: a whole detector is exported to .onnx only: name it .onnx")
            check_detector(cfg)
        elif self.part == "model":
            check_segmentor(cfg)
            if self.size and cfg.model.test_cfg.mode == "slide":
                raise ValueError(f"size={self.size} with test_cfg.mode='slide': leave the size out")
            divisor = (data_preprocessor(cfg).get("test_cfg") or {}).get("size_divisor") or 1
            if self.size and (self.size[0] % divisor or self.size[1] % divisor):
                raise ValueError(
                    f"size={self.size}: must be multiples of the data preprocessor's size_divisor={divisor}"
                )
        (tested_metainfo if self.part == "model" else tested_dataset)(cfg)  # raises if the config has none
        if self.size and cfg.model.backbone.get("ignore_padding"):
            raise ValueError(
                f"size={self.size} with ignore_padding=True, which needs the size of the image: leave it out"
            )
        if self.preprocessing:
            if self.part == "backbone":
                raise ValueError("preprocessing can be added to whole detectors and segmentors, not to a backbone")
            slides = (cfg.model.get("test_cfg") or {}).get("mode") == "slide"
            cause = "test_cfg.mode='slide'" if slides else preprocessing_steps(cfg).get("unknown")
            if cause:
                raise ValueError(f"preprocessing cannot be added because of {cause}: leave --with-preprocessing out")
