"""mmdet's RPN head without proposals from the padding of a batch, for backbones with `ignore_padding`."""

from typing import Any

from mmdet.models.dense_heads import RPNHead
from torch import Tensor


class UnpaddedRPNHead(RPNHead):
    """mmdet's RPNHead, but each image has proposals from its own cells alone.

    RPNHead takes the best `nms_pre` anchors of a level, and `max_per_img` proposals of an image, from all cells of the
    padded batch, so that anchors in the padding displace anchors within the image. Parameters, losses and arguments are
    those of RPNHead.
    """

    def predict_by_feat(self, *maps: list[Tensor], batch_img_metas: list[dict], **options: Any) -> list[Any]:
        """Return the proposals of each image from scores and boxes of the anchors, (B, C, h, w) for each level."""
        proposals = []
        for index, meta in enumerate(batch_img_metas):
            size = meta["img_shape"][:2]
            cropped = [self.crop_to_image([level[index, None] for level in levels], size) for levels in maps]
            proposals += super().predict_by_feat(*cropped, batch_img_metas=[meta], **options)
        return proposals

    def crop_to_image(self, maps: list[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Crop a map (B, C, H, W) for each level to the cells of an image of `size`, height and width in pixels."""
        height, width = size
        strides = self.prior_generator.strides
        # Not -(height // -y): ONNX rounds the quotient of a negative number upwards.
        return [
            m[:, :, : (height + y - 1) // y, : (width + x - 1) // x] for m, (x, y) in zip(maps, strides, strict=True)
        ]
