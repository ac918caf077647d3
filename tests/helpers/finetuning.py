"""Options of `train --from` for a training of two iterations."""

QUICK = ["train_cfg.max_iters=2", "train_cfg.val_interval=2", "default_hooks.checkpoint.interval=2"]
QUICK += [
    f"{split}_dataloader.{key}"
    for split in ("train", "val", "test")
    for key in ("num_workers=0", "persistent_workers=False")
]
