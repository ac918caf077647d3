"""Which models can be exported, by their configs."""

from typing import Any

from mmengine.config import Config

from ..utils.config_parts import type_name
from .traceable import list_stages

# Supported types of a detector's parts by key. Options and smaller parts are not checked: an export
# compares the file with the model.
TYPES: dict[str, tuple[str, ...]] = dict(
    model=("MaskRCNN", "FasterRCNN", "CascadeRCNN", "RetinaNet"),
    rpn_head=("RPNHead",),
    roi_head=("StandardRoIHead", "CascadeRoIHead"),
    bbox_head=("Shared2FCBBoxHead", "Shared4Conv1FCBBoxHead", "ConvFCBBoxHead", "RetinaHead"),
    mask_head=("FCNMaskHead",),
    bbox_roi_extractor=("SingleRoIExtractor",),
    mask_roi_extractor=("SingleRoIExtractor",),
    nms=("nms",),
)


def check_model(cfg: Config) -> None:
    """Raise ValueError if a model cannot be exported."""
    library = cfg.get("default_scope")
    if library not in ("mmdet", "mmseg"):
        raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
    if library == "mmdet":
        check_types(cfg.model)
        return
    for head in list_stages(cfg.model.decode_head):
        if type_name(head).startswith(("Mask", "SideAdapter")):
            fix = "only heads that classify pixels can be exported"
            raise ValueError(f"{type_name(head)} classifies masks: {fix}")


def check_types(part: Any, where: str = "model") -> None:
    """Raise ValueError if a part of a detector has a type that cannot be exported.

    Args:
        part: The part, or a list of them. Other values are ignored.
        where: Dotted key of the part, for the error.
    """
    if isinstance(part, list | tuple):
        for stage in part:
            check_types(stage, where)
    if not isinstance(part, dict):
        return
    key = where.rpartition(".")[2]
    if key in TYPES:
        name = type_name(dict(type=key) | part)  # an nms without a type is 'nms'
        if name not in TYPES[key]:
            fix = f"choose one of {', '.join(TYPES[key])}"
            raise ValueError(f"{where}.type={name!r} cannot be exported: {fix}")
    others = part.keys() - {"type", "iou_threshold"}
    if key == "nms" and others:
        raise ValueError(f"{where}.{min(others)} cannot be exported: leave it out")
    for name, value in part.items():
        if name != "train_cfg":
            check_types(value, f"{where}.{name}")
