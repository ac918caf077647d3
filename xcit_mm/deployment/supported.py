"""Which detectors of mmdet can be exported whole."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from ..utils.configs import type_name

__all__ = ["check_detector"]

# Parts of a detector by their key in the config, and the types whose predictions `Detections` computes.
TYPES: dict[str, tuple[str, ...]] = dict(
    model=("MaskRCNN", "FasterRCNN", "CascadeRCNN", "RetinaNet"),
    rpn_head=("RPNHead", "UnpaddedRPNHead"),
    roi_head=("StandardRoIHead", "CascadeRoIHead"),
    bbox_head=("Shared2FCBBoxHead", "Shared4Conv1FCBBoxHead", "ConvFCBBoxHead", "RetinaHead"),
    mask_head=("FCNMaskHead",),
    bbox_roi_extractor=("SingleRoIExtractor",),
    mask_roi_extractor=("SingleRoIExtractor",),
    roi_layer=("RoIAlign",),
    anchor_generator=("AnchorGenerator",),
    bbox_coder=("DeltaXYWHBBoxCoder",),
    loss_cls=("CrossEntropyLoss", "FocalLoss"),  # others may bring an activation
    shared_head=(),
    nms=("nms",),
)
# Options of parts that must have these values, which are the defaults, if they are given.
VALUES: dict[str, dict[str, Any]] = dict(
    roi_layer=dict(pool_mode="avg", aligned=True),
    anchor_generator=dict(use_box_type=False),
    bbox_coder=dict(add_ctr_clamp=False, use_box_type=False),
    bbox_head=dict(predict_box_type="hbox", with_avg_pool=False),
)


def check_detector(cfg: Config) -> None:
    """Check that each part of mmdet's detector is known, and what its test_cfg wants.

    Raises:
        ValueError: With the first that is not.
    """
    for where, part in _parts("model", cfg.model):
        key = where.rpartition(".")[2]
        kind, known = type_name(dict(type=key) | part), TYPES[key]
        if kind not in known:
            fix = f"one of {', '.join(known)} is, and" if known else "leave it out;"
            raise ValueError(f"{where}.type={kind!r} cannot be exported: {fix} --part backbone exports the backbone")
        expected = {**VALUES.get(key, {})}
        if key == "nms":
            expected |= dict.fromkeys(part.keys() - {"type", "iou_threshold"})
        elif key == "loss_cls" and where.count(".") == 2:  # of an anchor head
            expected["use_sigmoid"] = True
        for option, value in expected.items():
            if part.get(option, value) != value:
                raise ValueError(
                    f"{where}.{option}={part[option]!r} cannot be exported: leave it out, or export the backbone with "
                    "--part backbone"
                )
    test_cfg = cfg.model.test_cfg
    for name in ("rpn", "rcnn") if "rcnn" in test_cfg else ("",):
        _check_test_cfg(f"model.test_cfg.{name}".rstrip("."), test_cfg[name] if name else test_cfg)


def _check_test_cfg(where: str, options: dict) -> None:
    """Check that a number of boxes is set, and that masks are cut: mmdet gives grey ones below a threshold of 0."""
    most, threshold = options.get("max_per_img"), options.get("mask_thr_binary", 0.5)
    if most is None or most < 1:
        raise ValueError(f"{where}.max_per_img={most} cannot be exported: give the most boxes of an image, such as 100")
    if threshold < 0:
        raise ValueError(f"{where}.mask_thr_binary={threshold} cannot be exported: give a probability, such as 0.5")


def _parts(where: str, part: Any) -> Iterator[tuple[str, dict]]:
    """The parts of a config that have a row in `TYPES`, with their places in it."""
    if isinstance(part, dict):
        if where.rpartition(".")[2] in TYPES:
            yield where, part
        for key, value in part.items():
            if key not in ("backbone", "neck", "train_cfg", "data_preprocessor"):
                yield from _parts(f"{where}.{key}", value)
    elif isinstance(part, (list, tuple)):
        for one in part:
            yield from _parts(where, one)
