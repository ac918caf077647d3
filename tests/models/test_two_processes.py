"""Two processes, on CPU or GPUs, train every task as a single process does, with find_unused_parameters=False."""

import copy
from pathlib import Path

import pytest
import torch
from devices import on_each_device
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from paths import CONFIGS
from processes import in_two_processes

from configs import read_config_file

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
        cfg.merge_from_dict(
            {
                "model.train_cfg.rcnn.sampler.num": 16,
                "model.roi_head.bbox_head.fc_out_channels": 32,
                "model.roi_head.mask_head.num_convs": 1,
            }
        )
    if "neck" in cfg.model:
        cfg.model.neck.in_channels = [32] * 4
        if cfg.default_scope == "mmseg":
            cfg.model.neck.out_channels = 32
    if cfg.default_scope == "mmseg":
        cfg.model.data_preprocessor.size = (64, 64)  # instead of padding to 512
    for head, channels in (("decode_head", [32] * 4), ("auxiliary_head", 32)):
        if head in cfg.model:
            cfg.model[head].update(in_channels=channels, channels=32, norm_cfg=norm_cfg)
    return MODELS.build(cfg.model).to(device)


def make_batch(cfg: Config) -> dict:
    if cfg.default_scope == "mmdet":
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


def assert_two_steps_train(rank: int, cfg: Config, device: str) -> None:
    torch.manual_seed(0)
    model = MMDistributedDataParallel(build(cfg, device).train(), find_unused_parameters=False, broadcast_buffers=False)
    optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    torch.manual_seed(rank)
    for _ in range(2):  # DDP reports a parameter without gradient at the second step
        losses = model.train_step(make_batch(cfg), optimizer)
        assert losses["loss"].isfinite()
    for name, p in model.named_parameters():
        mean = p.detach().clone()
        torch.distributed.all_reduce(mean)
        torch.testing.assert_close(p.detach(), mean / 2, msg=f"{name} differs between the processes")


def assert_same_gradients(rank: int, cfg: Config, device: str) -> None:
    """Compare the gradients of two processes with those of a single process on both batches."""
    torch.manual_seed(0)
    # mmcv's NMS takes float32 only.
    dtype, tolerance = (torch.float32, 1e-5) if cfg.default_scope == "mmdet" else (torch.float64, 1e-10)
    single = build(cfg, device, frozen_stages=1, norm_eval=True).to(dtype).train()
    for module in single.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
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

    backward(model, rank)
    for number in range(2):
        backward(single, number)
    largest = max(p.grad.abs().max() for p in single.parameters() if p.requires_grad)
    for (name, p), (_, q) in zip(single.named_parameters(), model.module.named_parameters(), strict=True):
        assert (p.grad is None) == (not p.requires_grad), name
        if p.requires_grad:
            assert (q.grad - p.grad / 2).abs().max() <= tolerance * largest, name


def run_process(rank: int, checks: list[str], cfg: Config | None, device: str, store: str) -> None:
    torch.set_num_threads(1)
    backend = "gloo"
    if device == "cuda":
        # NCCL needs a GPU for each process. With gloo two processes share a GPU.
        gpus = torch.cuda.device_count()
        backend = "nccl" if gpus > 1 else "gloo"
        torch.cuda.set_device(rank % gpus)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    for check in checks:
        globals()[check](rank, cfg, device)
        torch.distributed.barrier()  # until both processes have released the model
    torch.distributed.destroy_process_group()


def assert_in_two_processes(checks: list[str], task: str | None, device: str, tmp_path: Path) -> None:
    """Run functions of this file, which assert, in two processes. An assertion that fails in one of them fails here."""
    cfg = None
    if task:
        cfg = read_config_file(CONFIGS / TASKS[task])
        pytest.importorskip(cfg.default_scope, exc_type=ImportError)
    start_method = "forkserver" if device == "cpu" else "spawn"
    in_two_processes(run_process, checks, cfg, device, str(tmp_path / "store"), start_method=start_method)


@on_each_device
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_train_like_a_single_process(task, device, tmp_path):
    assert_in_two_processes(["assert_two_steps_train", "assert_same_gradients"], task, device, tmp_path)
