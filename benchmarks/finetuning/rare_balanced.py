# A class of less than half of the images is repeated.
_base_ = "./rare.py"

train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ClassBalancedDataset",
        oversample_thr=0.5,
        dataset={{_base_.train_dataloader.dataset}},
    )
)
