"""Which models can be exported, by their configs."""

from typing import Any

from mmengine.config import Config

from ..utils.config_parts import type_name
from .traceable import list_stages

# Supported types of a detector's parts by key. Few options are checked: an export compares the file
# with the model.
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
    loss_cls=("CrossEntropyLoss", "FocalLoss"),  # others may have another activation
    shared_head=(),
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
    heads = list_stages(cfg.model.get("decode_head") or [])
    if not heads:
        raise ValueError(f"{type_name(cfg.model)} has no decode_head: give an EncoderDecoder")
    for head in heads:
        if type_name(head).startswith(("Mask", "SideAdapter")):
            fix = "only heads that classify pixels can be exported"
            raise ValueError(f"{type_name(head)} classifies masks: {fix}")


def check_types(part: Any, where: str = "model") -> None:
    """Raise ValueError if a part of a detector has a type that cannot be exported.

    Args:
        part: The part, or a list of them. Other values are ignored.
        where: Dotted key of the part, for the error.
    """
    if not isinstance(part, dict):
        for stage in part if isinstance(part, list | tuple) else ():
            check_types(stage, where)
        return
    key = where.rpartition(".")[2]
    if key in TYPES:
        name = type_name(dict(type=key) | part)  # an nms without a type is 'nms'
        if name not in TYPES[key]:
            fix = f"choose one of {', '.join(TYPES[key])}" if TYPES[key] else "leave it out"
            raise ValueError(f"{where}.type={name!r} cannot be exported: {fix}")
    if key == "bbox_coder" and (part.get("add_ctr_clamp") or not part.get("clip_border", True)):
        problem = f"{where}: boxes that are not clipped to the image cannot be exported"
        raise ValueError(f"{problem}: leave clip_border and add_ctr_clamp out")
    for name, value in part.items():
        if name not in ("backbone", "neck", "train_cfg", "data_preprocessor"):
            check_types(value, f"{where}.{name}")
