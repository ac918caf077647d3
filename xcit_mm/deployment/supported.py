"""Check of a config for parts and options that cannot be exported."""

from collections.abc import Iterator
from typing import Any, NoReturn

from mmengine.config import Config

from ..models import XCiT
from ..models.build import check_backbone
from ..utils.configs import backbone_class, tested_dataset, tested_metainfo, type_name
from .traceable import list_stages

# Supported types of a detector's parts, by their key in the config.
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
# Options that must have these values, their defaults, if they are set.
VALUES: dict[str, dict[str, Any]] = dict(
    roi_layer=dict(pool_mode="avg", aligned=True),
    anchor_generator=dict(use_box_type=False),
    bbox_coder=dict(add_ctr_clamp=False, use_box_type=False, clip_border=True),
    bbox_head=dict(predict_box_type="hbox", with_avg_pool=False),
)


def _refuse(setting: str, fix: str) -> NoReturn:
    raise ValueError(f"{setting} cannot be exported: {fix}; --part backbone exports the backbone")


def check_model(cfg: Config, part: str) -> None:
    """Raise ValueError if a model, or its backbone, cannot be exported."""
    library = cfg.get("default_scope")
    if library not in ("mmdet", "mmseg"):
        raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
    if backbone_class(cfg) is not XCiT:
        name = cfg.model.get("backbone", {}).get("type")
        raise ValueError(f"the config's backbone is {name}: only this package's XCiT is exported")
    check_backbone(cfg)
    if part == "backbone":
        tested_dataset(cfg)  # which raises if the config has none
        return
    if library == "mmdet":
        check_detector(cfg)
    else:
        check_segmentor(cfg)
    tested_metainfo(cfg)  # which raises without classes


def check_detector(cfg: Config) -> None:
    """Raise ValueError with the part or option that `ExportableDetector` lacks."""
    for where, part in _iter_parts("model", cfg.model):
        key = where.rpartition(".")[2]
        name = type_name(dict(type=key) | part)  # an nms without a type is 'nms'
        if name not in TYPES[key]:
            fix = f"only {', '.join(TYPES[key])}" if TYPES[key] else "leave it out"
            _refuse(f"{where}.type={name!r}", fix)
        expected = dict(VALUES.get(key, {}))
        if key == "nms":  # all other options must be unset, that is None
            expected |= dict.fromkeys(part.keys() - {"type", "iou_threshold"})
        for option, value in expected.items():
            if part.get(option, value) != value:
                _refuse(f"{where}.{option}={part[option]!r}", "leave it out")
    # A head with anchors, `model.rpn_head` or RetinaNet's `model.bbox_head`, has sigmoid scores.
    for key in ("rpn_head", "bbox_head"):
        loss = (cfg.model.get(key) or {}).get("loss_cls")
        if loss and not loss.get("use_sigmoid"):
            _refuse(f"model.{key}.loss_cls.use_sigmoid=False", "set it to True")
    test_cfg = cfg.model.get("test_cfg") or {}
    if "rpn_head" in cfg.model:
        for stage in ("rpn", "rcnn"):
            _check_selection(f"model.test_cfg.{stage}", test_cfg.get(stage) or {})
    else:
        _check_selection("model.test_cfg", test_cfg)


def _check_selection(where: str, test_cfg: dict) -> None:
    """Raise ValueError if NMS, number of objects or mask threshold of a test_cfg, which is at the
    dotted key `where`, cannot be exported.
    """
    if not test_cfg.get("nms"):
        _refuse(f"{where}.nms=None", "set it, such as nms=dict(type='nms', iou_threshold=0.5)")
    limit = test_cfg.get("max_per_img")
    if limit is None or limit < 1:
        _refuse(f"{where}.max_per_img={limit}", "set a limit for an image, such as 100")
    threshold = test_cfg.get("mask_thr_binary", 0.5)
    if threshold <= 0:  # mmdet then returns grey masks, or whole boxes
        _refuse(f"{where}.mask_thr_binary={threshold}", "give a probability, such as 0.5")


def check_segmentor(cfg: Config) -> None:
    """Raise ValueError with the part or option that `ExportableSegmentor` lacks."""
    mode = (cfg.model.get("test_cfg") or {}).get("mode")
    if mode not in ("whole", "slide"):
        raise ValueError(f"model.test_cfg.mode={mode!r}: must be one of whole, slide")
    heads = list_stages(cfg.model.decode_head)
    for head in heads:
        name = type_name(head)
        if name.startswith("Mask"):  # which classifies masks
            _refuse(f"model.decode_head.type={name!r}", "take one that classifies pixels")
    channels = heads[-1].get("out_channels") or heads[-1].get("num_classes")
    if len(heads) > 1 and channels == 1:
        _refuse("a cascade of one channel", "mmseg cannot predict with it")


def _iter_parts(where: str, part: Any) -> Iterator[tuple[str, dict]]:
    """Yield each part within `part`, which is at the dotted key `where`, that has a row in `TYPES`,
    with its dotted key first.
    """
    if isinstance(part, dict):
        if where.rpartition(".")[2] in TYPES:
            yield where, part
        for key, value in part.items():
            if key not in ("backbone", "neck", "train_cfg", "data_preprocessor"):
                yield from _iter_parts(f"{where}.{key}", value)
    elif isinstance(part, (list, tuple)):
        for stage in part:
            yield from _iter_parts(where, stage)
