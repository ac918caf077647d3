# Cascade Mask R-CNN + FPN on COCO: mmdet's heads with XCiT's recipe for Mask R-CNN.
_base_ = ["mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py", "./xcit_amp-ms-crop-3x_coco.py"]

model = dict(backbone=dict(_delete_=True, type="XCiT"))
