"""Test-time augmentation of detectors with masks."""

from typing import Any

import torch
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi, bbox_flip
from mmengine.config import ConfigDict
from torch import Tensor, nn

_FLIPPED_DIMS = dict(horizontal=(3,), vertical=(2,), diagonal=(2, 3))


class MaskTTAModel(DetTTAModel):
    """Test Mask R-CNN or Cascade Mask R-CNN in several views of each image.

    NMS merges the boxes of all views within each class. Then the mask head predicts the merged boxes in every view, and
    the mean of its probabilities is thresholded and pasted. This is the procedure of detectron2's
    GeneralizedRCNNWithTTA, except that the views' feature pyramids are kept instead of computed twice. With 256
    channels in float32, they take 85 MB per megapixel of each view. The views pass through the detector in turn.

    A detector without masks is tested as by `DetTTAModel`.

    Args:
        module: The detector, or its config.
        tta_cfg: `nms` and `max_per_img` of the merging. Default: the detector's own, with which a single view equals
            testing without augmentation.
        data_preprocessor: Replacement of the detector's data preprocessor.

    Raises:
        ValueError: If the masks do not come from a StandardRoIHead or a CascadeRoIHead.
    """

    def __init__(
        self, module: dict | nn.Module, tta_cfg: dict | None = None, data_preprocessor: dict | None = None
    ) -> None:
        super().__init__(module=module, data_preprocessor=data_preprocessor)
        head = getattr(self.module, "roi_head", None)
        # RoI heads that predict masks differently (points, semantic branches, mask scores) override these methods.
        supported = (StandardRoIHead.predict_mask, CascadeRoIHead.predict_mask)
        if self.module.with_mask and getattr(type(head), "predict_mask", None) not in supported:
            raise ValueError(
                f"{type(self.module).__name__} predicts masks by {type(head or self.module).__name__}: test-time "
                "augmentation supports StandardRoIHead and CascadeRoIHead; test without it"
            )
        self.tta_cfg = ConfigDict(tta_cfg or (head or self.module).test_cfg)

    def test_step(self, data: dict) -> list[DetDataSample]:
        """Predict the `inputs` and `data_samples` of each view, in pixels of the original images.

        Raises:
            ValueError: If the views lack the metainfo of their resizing and flipping.
        """
        for view in data["data_samples"]:
            missing = {"ori_shape", "scale_factor", "flip", "flip_direction"} - set(view[0].metainfo_keys())
            if missing:
                raise ValueError(
                    f"the views lack {', '.join(sorted(missing))}: TestTimeAug needs a Resize and a RandomFlip "
                    "(prob=0.0 for none), and PackDetInputs these names among its meta_keys"
                )
        if not self.module.with_mask:
            return super().test_step(data)
        pyramids, views = [], []
        for inputs, samples in zip(data["inputs"], data["data_samples"], strict=True):
            view = self.module.data_preprocessor(dict(inputs=inputs, data_samples=samples))
            pyramids.append(self.module.extract_feat(view["inputs"]))
            views.append(self._detect(pyramids[-1], view["data_samples"]))
        metas = [[sample.metainfo for sample in view] for view in views]
        merged = self.merge_preds(list(zip(*views, strict=True)))
        self._add_masks(merged, pyramids, metas)
        return merged

    def _detect(self, pyramid: tuple[Tensor, ...], samples: list[DetDataSample]) -> list[DetDataSample]:
        """Predict boxes of one view, in pixels of the original images, but flipped as the view."""
        head = self.module.roi_head
        metas = [sample.metainfo for sample in samples]
        proposals = self.module.rpn_head.predict(pyramid, samples, rescale=False)
        # NMS gets pixels of the view, so that the same boxes remain as without augmentation.
        results = head.predict_bbox(pyramid, metas, proposals, rcnn_test_cfg=head.test_cfg, rescale=False)
        for instances, meta in zip(results, metas, strict=True):
            instances.bboxes = instances.bboxes / _scale(instances.bboxes, meta)
        return self.module.add_pred_to_datasample(samples, results)

    def _add_masks(
        self, merged: list[DetDataSample], pyramids: list[tuple[Tensor, ...]], metas: list[list[dict]]
    ) -> None:
        """Add `masks` to the merged instances; `pyramids` and `metas` are by view."""
        results = [sample.pred_instances for sample in merged]
        counts = [len(instances) for instances in results]
        total = torch.zeros(())
        for pyramid, view in zip(pyramids, metas, strict=True):
            rois = bbox2roi([_to_view(found.bboxes, meta) for found, meta in zip(results, view, strict=True)])
            masks = self._mask_probabilities(pyramid, rois).split(counts)
            total = total + torch.cat([_unflip(mask, meta) for mask, meta in zip(masks, view, strict=True)])
        head = self.module.roi_head.mask_head
        last: Any = head[-1] if isinstance(head, nn.ModuleList) else head
        last.predict_by_feat(
            (total / len(pyramids)).logit().split(counts),  # the head computes their sigmoid, the mean
            results,
            [dict(ori_shape=sample.ori_shape, scale_factor=(1.0, 1.0)) for sample in merged],
            self.module.roi_head.test_cfg,
            rescale=True,
        )

    def _mask_probabilities(self, pyramid: tuple[Tensor, ...], rois: Tensor) -> Tensor:
        """Predict masks (n, classes, 28, 28) of RoIs (n, 5), as the mean of a cascade's stages."""
        head = self.module.roi_head
        modules = head.mask_roi_extractor, head.mask_head
        stages = []
        for extractor, mask_head in zip(*modules, strict=True) if isinstance(head, CascadeRoIHead) else [modules]:
            features = extractor(pyramid[: extractor.num_inputs], rois)
            features = head.shared_head(features) if head.with_shared_head else features
            stages.append(mask_head(features).float().sigmoid())
        return torch.stack(stages).mean(dim=0)


def _scale(bboxes: Tensor, meta: dict) -> Tensor:
    """Return the factors (4,) from boxes of the original image to boxes of the view."""
    return bboxes.new_tensor(meta["scale_factor"]).repeat(2)


def _to_view(bboxes: Tensor, meta: dict) -> Tensor:
    """Return boxes (n, 4) of the original image in pixels of a view."""
    if meta["flip"]:
        bboxes = bbox_flip(bboxes, meta["ori_shape"], meta["flip_direction"])
    return bboxes * _scale(bboxes, meta)


def _unflip(masks: Tensor, meta: dict) -> Tensor:
    """Return masks (n, classes, h, w) of a view in the orientation of the original image."""
    return masks.flip(_FLIPPED_DIMS[meta["flip_direction"]]) if meta["flip"] else masks
