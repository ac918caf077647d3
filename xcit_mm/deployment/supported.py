"""Check of a config for parts and options of detectors that cannot be exported."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from ..utils.configs import data_preprocessor, type_name

# Supported types of a detector's parts, by their key in the config.
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
    loss_cls=("CrossEntropyLoss", "FocalLoss"),  # other losses may have an activation of their own
    shared_head=(),
    nms=("nms",),
)
# Options that must have these values, their defaults, if they are set.
VALUES: dict[str, dict[str, Any]] = dict(
    roi_layer=dict(pool_mode="avg", aligned=True),
    anchor_generator=dict(use_box_type=False),
    bbox_coder=dict(add_ctr_clamp=False, use_box_type=False, clip_border=True),
    bbox_head=dict(predict_box_type="hbox", with_avg_pool=False),
)
REMEDY = "--part backbone exports the backbone"


def check_detector(cfg: Config) -> None:
    """Check that `ExportableDetector` supports the parts of mmdet's detector and its test_cfg.

    Raises:
        ValueError: With the first unsupported type or option.
    """
    for where, part in _parts("model", cfg.model):
        key = where.rpartition(".")[2]
        kind, supported = type_name(dict(type=key) | part), TYPES[key]
        if kind not in supported:
            fix = f"only {', '.join(supported)}" if supported else "leave it out"
            raise ValueError(f"{where}.type={kind!r} cannot be exported: {fix}; {REMEDY}")
        expected = dict(VALUES.get(key, {}))
        if key == "nms":
            expected |= dict.fromkeys(part.keys() - {"type", "iou_threshold"})
        elif key == "loss_cls" and where.count(".") == 2 and not part.get("use_sigmoid"):  # of an anchor head
            raise ValueError(f"{where}.use_sigmoid=False cannot be exported: set it to True; {REMEDY}")
        for option, value in expected.items():
            if part.get(option, value) != value:
                raise ValueError(f"{where}.{option}={part[option]!r} cannot be exported: leave it out; {REMEDY}")
    stages = (".rpn", ".rcnn") if "rpn_head" in cfg.model else ("",)
    for stage in stages:
        where, options = f"model.test_cfg{stage}", cfg.model.get("test_cfg") or {}
        if stage:
            options = options.get(stage[1:]) or {}
        if not options.get("nms"):
            raise ValueError(f"{where}.nms is missing: set it, such as nms=dict(type='nms', iou_threshold=0.5)")
        max_num, threshold = options.get("max_per_img"), options.get("mask_thr_binary", 0.5)
        if max_num is None or max_num < 1:
            raise ValueError(f"{where}.max_per_img={max_num} cannot be exported: set a limit for an image, such as 100")
        if threshold <= 0:  # mmdet then returns grey masks, or whole boxes
            raise ValueError(f"{where}.mask_thr_binary={threshold} cannot be exported: give a probability, such as 0.5")


def check_segmentor(cfg: Config) -> None:
    """Check that `ExportableSegmentor` supports mmseg's segmentor, its test_cfg and its padding.

    Raises:
        ValueError: With the first unsupported option.
    """
    mode = (cfg.model.get("test_cfg") or {}).get("mode")
    if mode not in ("whole", "slide"):
        raise ValueError(f"model.test_cfg.mode={mode!r}: must be one of whole, slide")
    heads = cfg.model.get("decode_head")
    if isinstance(heads, (list, tuple)) and (heads[-1].get("out_channels") or heads[-1].get("num_classes")) == 1:
        raise ValueError("a cascade of one channel cannot be exported, since mmseg does not predict with it")
    padding = data_preprocessor(cfg).get("test_cfg") or {}
    if cfg.model.backbone.get("ignore_padding") and (padding.get("size") or (padding and mode == "slide")):
        raise ValueError(
            f"ignore_padding=True with data_preprocessor.test_cfg={dict(padding)} and {mode=} cannot be exported: set "
            "only a size_divisor, with mode='whole'"
        )


def _parts(where: str, part: Any) -> Iterator[tuple[str, dict]]:
    """Iterate over the parts of a config that have a row in `TYPES`, with their keys."""
    if isinstance(part, dict):
        if where.rpartition(".")[2] in TYPES:
            yield where, part
        for key, value in part.items():
            if key not in ("backbone", "neck", "train_cfg", "data_preprocessor"):
                yield from _parts(f"{where}.{key}", value)
    elif isinstance(part, (list, tuple)):
        for item in part:
            yield from _parts(where, item)
