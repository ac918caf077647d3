"""Two gloo processes on CPU train each task with find_unused_parameters=False."""

import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData

CONFIGS = Path(__file__).parents[1] / "configs"
TASKS = {
    "mask_rcnn": "_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py",
    "semantic_fpn": "_base_/fpn_xcit_80k_ade20k-512x512.py",
    "upernet": "_base_/upernet_xcit_160k_ade20k-512x512.py",
}


def build(task: str) -> torch.nn.Module:
    cfg = Config.fromfile(CONFIGS / TASKS[task])
    init_default_scope(cfg.default_scope)
    arch = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
    # SyncBN does not run on CPU under a process group.
    norm_cfg = dict(type="BN")
    cfg.merge_from_dict({"model.backbone.arch": arch, "model.backbone.norm_cfg": norm_cfg})
    if task == "mask_rcnn":
        cfg.merge_from_dict(
            {
                "model.train_cfg.rcnn.sampler.num": 16,
                "model.roi_head.bbox_head.fc_out_channels": 32,
                "model.roi_head.mask_head.num_convs": 1,
            }
        )
    if task != "upernet":
        cfg.model.neck.in_channels = [32] * 4
    if task == "semantic_fpn":
        cfg.model.neck.out_channels = 32
    for head, channels in (("decode_head", [32] * 4), ("auxiliary_head", 32)):
        if head in cfg.model:
            cfg.model[head].update(in_channels=channels, channels=32, norm_cfg=norm_cfg)
    return MODELS.build(cfg.model)


def make_batch(task: str) -> dict:
    if task == "mask_rcnn":
        from mmdet.testing import demo_mm_inputs

        return demo_mm_inputs(2, [(3, 64, 96)] * 2, num_items=[3, 3], num_classes=80, with_mask=True)
    from mmseg.structures import SegDataSample

    samples = []
    for _ in range(2):
        labels = torch.randint(0, 150, (1, 64, 64))
        samples.append(
            SegDataSample(metainfo=dict(img_shape=(64, 64), ori_shape=(64, 64)), gt_sem_seg=PixelData(data=labels))
        )
    return dict(inputs=[torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)] * 2, data_samples=samples)


def train_two_steps(rank: int, task: str) -> None:
    torch.manual_seed(0)
    model = MMDistributedDataParallel(build(task).train(), find_unused_parameters=False, broadcast_buffers=False)
    optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    torch.manual_seed(rank)
    for _ in range(2):  # DDP reports a parameter without gradient at the second step
        losses = model.train_step(make_batch(task), optimizer)
        assert losses["loss"].isfinite()
    for name, p in model.named_parameters():
        mean = p.detach().clone()
        torch.distributed.all_reduce(mean)
        torch.testing.assert_close(p.detach(), mean / 2, msg=f"{name} differs between the processes")


def run_process(rank: int, task: str, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train_two_steps(rank, task)
    # The model is gone, and both processes are here, before the group they share goes.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("task", TASKS)
def test_two_processes(task, tmp_path):
    processes = mp.spawn(run_process, (task, str(tmp_path / "store")), nprocs=2, join=False)
    try:
        deadline = time.time() + 240
        while not processes.join(timeout=5):  # raises what a process raised
            assert time.time() < deadline, "the processes hang"
    finally:
        for process in processes.processes:
            process.kill()
