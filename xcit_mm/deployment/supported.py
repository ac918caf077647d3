"""Check of a config for parts that cannot be exported."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from ..models import TimmPyramid, XCiT
from ..models.build import check_backbone
from ..utils.configs import backbone_class, tested_metainfo, type_name
from .traceable import list_stages

# Supported types of a detector's parts, by their key in the config. Their options are not listed:
# an export compares the file with mmdet.
TYPES: dict[str, tuple[str, ...]] = dict(
    model=("MaskRCNN", "FasterRCNN", "CascadeRCNN", "RetinaNet"),
    rpn_head=("RPNHead",),
    roi_head=("StandardRoIHead", "CascadeRoIHead"),
    bbox_head=("Shared2FCBBoxHead", "Shared4Conv1FCBBoxHead", "ConvFCBBoxHead", "RetinaHead"),
    mask_head=("FCNMaskHead",),
    bbox_roi_extractor=("SingleRoIExtractor",),
    mask_roi_extractor=("SingleRoIExtractor",),
    roi_layer=("RoIAlign",),
    anchor_generator=("AnchorGenerator",),
    bbox_coder=("DeltaXYWHBBoxCoder",),
    loss_cls=("CrossEntropyLoss", "FocalLoss"),  # other losses may have an activation of their own
    shared_head=(),
    nms=("nms",),
)


def check_model(cfg: Config, part: str) -> None:
    """Raise ValueError if a model, or its backbone, cannot be exported."""
    library = cfg.get("default_scope")
    if library not in ("mmdet", "mmseg"):
        raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
    if backbone_class(cfg) not in (XCiT, TimmPyramid):
        name = cfg.model.get("backbone", {}).get("type")
        raise ValueError(f"the config's backbone is {name}: only XCiT and TimmPyramid are exported")
    check_backbone(cfg)
    tested_metainfo(cfg)  # which raises if the config tests on nothing
    if part == "model":
        check_types(cfg)


def check_types(cfg: Config) -> None:
    """Raise ValueError with the first part of a whole model whose type cannot be exported."""
    for where, name in _iter_types(cfg):
        key = where.rpartition(".")[2]
        supported = TYPES.get(key, ())
        if name not in supported:
            fix = f"only {', '.join(supported)}" if supported else "leave it out"
            backbone = "--part backbone exports the backbone"
            raise ValueError(f"{where}.type={name!r} cannot be exported: {fix}; {backbone}")


def _iter_types(cfg: Config) -> Iterator[tuple[str, str]]:
    """Yield dotted key and type of each part of a detector with a row in `TYPES`, or of each head
    of a segmentor that classifies masks instead of pixels.
    """
    if cfg.default_scope == "mmdet":
        yield from _iter_detector("model", cfg.model)
        return
    for head in list_stages(cfg.model.decode_head):
        if type_name(head).startswith("Mask"):
            yield "model.decode_head", type_name(head)


def _iter_detector(where: str, part: Any) -> Iterator[tuple[str, str]]:
    """Yield dotted key and type of each part within `part`, which is at the dotted key `where`."""
    if isinstance(part, dict):
        key = where.rpartition(".")[2]
        if key in TYPES:
            yield where, type_name(dict(type=key) | part)  # an nms without a type is 'nms'
        for name, value in part.items():
            if name not in ("backbone", "neck", "train_cfg", "data_preprocessor"):
                yield from _iter_detector(f"{where}.{name}", value)
    elif isinstance(part, (list, tuple)):
        for stage in part:
            yield from _iter_detector(where, stage)
