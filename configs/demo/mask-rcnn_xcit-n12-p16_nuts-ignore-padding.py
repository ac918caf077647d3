# The features of an image are independent of the padding of its batch.
_base_ = "./mask-rcnn_xcit-n12-p16_nuts.py"
model = dict(backbone=dict(ignore_padding=True))
