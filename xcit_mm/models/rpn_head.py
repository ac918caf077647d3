"""A part of mmdet's detectors that does not feel the padding of a batch, for backbones with `ignore_padding`."""

from typing import Any

from mmdet.models.dense_heads import RPNHead
from torch import Tensor

__all__ = ["UnpaddedRPNHead"]


class UnpaddedRPNHead(RPNHead):
    """mmdet's RPNHead, which proposes for each image among its own cells.

    RPNHead takes the best `nms_pre` anchors of a level, and `max_per_img` proposals of an image, from all cells of the
    padded batch: those of the padding displace some within the image. Parameters and losses are RPNHead's.

    Args: those of RPNHead.
    """

    def predict_by_feat(self, *maps: list[Tensor], batch_img_metas: list[dict], **options: Any) -> list[Any]:
        """As RPNHead's.

        Args:
            maps: Scores and boxes of the anchors, each a map (B, C, h, w) for each level.
            batch_img_metas: Of each image, with its `img_shape`.
            options: Passed on.
        """
        proposals = []
        for number, meta in enumerate(batch_img_metas):
            own = [self.own_cells([level[number, None] for level in kind], meta["img_shape"][:2]) for kind in maps]
            proposals += super().predict_by_feat(*own, batch_img_metas=[meta], **options)
        return proposals

    def own_cells(self, maps: list[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Of a map (B, C, h, w) for each level the cells of an image of `size`, height and width, without padding."""
        height, width = size
        strides = self.prior_generator.strides
        return [m[:, :, : -(height // -y), : -(width // -x)] for m, (x, y) in zip(maps, strides, strict=True)]
