# An image's features do not depend on the padding that its batch mates bring, in training and in testing.
_base_ = "./mask-rcnn_xcit-n12-p16_nuts.py"
model = dict(backbone=dict(ignore_padding=True))
