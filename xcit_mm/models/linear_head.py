"""mmseg's head of linear probing: BatchNorm and a 1x1 convolution over frozen features."""

from typing import Any

from mmcv.cnn import build_norm_layer
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor


class LinearHead(BaseDecodeHead):
    """Linear classifier of every cell of a feature map, after BatchNorm, as in DINOv2's evaluation.

    Shape: feature maps (B, C, H, W), of which `in_index` takes one
    -> logits (B, num_classes, H, W).

    Args:
        in_channels: Number of channels of the feature map.
        norm_cfg: Config of the BatchNorm layer.
        options: Other arguments of mmseg's BaseDecodeHead, such as `num_classes`.
    """

    def __init__(self, in_channels: int, norm_cfg: dict, **options: Any) -> None:
        super().__init__(in_channels, in_channels, norm_cfg=norm_cfg, dropout_ratio=0, **options)
        self.norm = build_norm_layer(norm_cfg, in_channels)[1]

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Compute the logits of the feature map."""
        return self.cls_seg(self.norm(inputs[self.in_index]))
