"""Two processes, on CPU or GPUs, train every task as a single process does, with find_unused_parameters=False."""

import copy

import pytest
import torch
from devices import on_each_device
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from paths import CONFIGS
from processes import in_two_processes

from configs import read_config_file
from xcit_mm.utils.compat import BatchNorm

pytestmark = pytest.mark.forks

TASKS = {
    "mask_rcnn": "_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py",
    "semantic_fpn": "_base_/fpn_xcit_80k_ade20k-512x512.py",
    "upernet": "_base_/upernet_xcit_160k_ade20k-512x512.py",
}


def build(cfg: Config, device: str = "cpu", **backbone) -> torch.nn.Module:
    cfg = copy.deepcopy(cfg)
    init_default_scope(cfg.default_scope)
    arch = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
    # SyncBN does not run on CPU under a process group.
    norm_cfg = dict(type="BN" if device == "cpu" else "SyncBN")
    cfg.model.backbone.update(arch=arch, norm_cfg=norm_cfg, **backbone)
    if cfg.default_scope == "mmdet":
        cfg.model.train_cfg.rcnn.sampler.num = 16
        cfg.model.roi_head.bbox_head.fc_out_channels = 32
        cfg.model.roi_head.mask_head.num_convs = 1
    else:
        cfg.model.data_preprocessor.size = (64, 64)  # instead of padding to 512
    if "neck" in cfg.model:
        cfg.model.neck.in_channels = [32] * 4
        if cfg.default_scope == "mmseg":
            cfg.model.neck.out_channels = 32
    for head, channels in (("decode_head", [32] * 4), ("auxiliary_head", 32)):
        if head in cfg.model:
            cfg.model[head].update(in_channels=channels, channels=32, norm_cfg=norm_cfg)
    return MODELS.build(cfg.model).to(device)


def make_batch(cfg: Config) -> dict:
    if cfg.default_scope == "mmdet":
        from mmdet.testing import demo_mm_inputs

        return demo_mm_inputs(2, [(3, 64, 96)] * 2, num_items=[3, 3], num_classes=80, with_mask=True)
    from mmseg.structures import SegDataSample

    size = dict(img_shape=(64, 64), ori_shape=(64, 64))
    maps = [PixelData(data=torch.randint(0, 150, (1, 64, 64))) for _ in range(2)]
    samples = [SegDataSample(metainfo=size, gt_sem_seg=each) for each in maps]
    return dict(inputs=[torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)] * 2, data_samples=samples)


def assert_same_gradients(rank: int, cfg: Config, device: str, store: str) -> None:
    """In one of two processes, compare the gradients with those of a single process on the batches of both."""
    torch.set_num_threads(1)
    backend = "gloo"
    if device == "cuda":
        # NCCL needs a GPU for each process. With gloo two processes share a GPU.
        gpus = torch.cuda.device_count()
        backend = "nccl" if gpus > 1 else "gloo"
        torch.cuda.set_device(rank % gpus)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    # mmcv's NMS takes float32 only.
    dtype, tolerance = (torch.float32, 1e-5) if cfg.default_scope == "mmdet" else (torch.float64, 1e-10)
    single = build(cfg, device, frozen_stages=1, norm_eval=True).to(dtype).train()
    for module in single.modules():
        if isinstance(module, BatchNorm):
            module.eval()  # the processes have other batches
        elif isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d):
            module.p = 0.0
    model = MMDistributedDataParallel(copy.deepcopy(single), find_unused_parameters=False, broadcast_buffers=False)

    def backward(net: torch.nn.Module, number: int) -> None:
        torch.manual_seed(number)
        data = single.data_preprocessor(make_batch(cfg), training=True)
        data["inputs"] = data["inputs"].to(dtype)
        torch.manual_seed(number)  # of the samplers
        loss, _ = single.parse_losses(net(**data, mode="loss"))
        loss.backward()

    for step in range(2):  # DDP reports a parameter without gradient at the second step
        model.zero_grad()
        single.zero_grad()
        backward(model, 2 * step + rank)
        for number in (2 * step, 2 * step + 1):
            backward(single, number)
        largest = max(p.grad.abs().max() for p in single.parameters() if p.requires_grad)
        for (name, p), (_, q) in zip(single.named_parameters(), model.module.named_parameters(), strict=True):
            assert (p.grad is None) == (not p.requires_grad), name
            if p.requires_grad:
                assert (q.grad - p.grad / 2).abs().max() <= tolerance * largest, name
    torch.distributed.barrier()  # until both processes have released the model
    torch.distributed.destroy_process_group()


@on_each_device
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_train_like_a_single_process(task, device, tmp_path):
    cfg = read_config_file(CONFIGS / TASKS[task])
    pytest.importorskip(cfg.default_scope, exc_type=ImportError)
    start_method = "forkserver" if device == "cpu" else "spawn"
    in_two_processes(assert_same_gradients, cfg, device, str(tmp_path / "store"), start_method=start_method)
