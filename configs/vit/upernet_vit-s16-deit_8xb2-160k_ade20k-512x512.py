# No score has been published or measured.
_base_ = "../_base_/upernet_xcit_160k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="TimmPyramid",
        model="deit_small_patch16_224.fb_in1k",
        pretrained=True,
        drop_path_rate=0.1,  # of the last block; 0.05 on average, as in XCiT-S12/16
    ),
    decode_head=dict(in_channels=[384] * 4),
    auxiliary_head=dict(in_channels=384),
)
