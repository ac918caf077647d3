# No score has been published or measured.
_base_ = "../_base_/linear_xcit_40k_ade20k-512x512.py"

model = dict(
    backbone=dict(
        arch="s12", init_cfg=dict(type="Pretrained", checkpoint="xcit://xcit_small_12_p16_384_dist")
    )
)
