"""Two gloo processes on CPU train each task as one process would, with find_unused_parameters=False."""

import copy
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from demo_runs import DEMO, cfg_options
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData

from xcit_mm import NonFiniteHook

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
TASKS = {
    "mask_rcnn": "_base_/mask-rcnn_xcit_fpn_amp-ms-crop-3x_coco.py",
    "semantic_fpn": "_base_/fpn_xcit_80k_ade20k-512x512.py",
    "upernet": "_base_/upernet_xcit_160k_ade20k-512x512.py",
}


def build(task: str, **backbone) -> torch.nn.Module:
    cfg = Config.fromfile(CONFIGS / TASKS[task])
    init_default_scope(cfg.default_scope)
    arch = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
    # SyncBN does not run on CPU under a process group.
    norm_cfg = dict(type="BN")
    cfg.model.backbone.update(arch=arch, norm_cfg=norm_cfg, **backbone)
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


def compare_gradients(rank: int, task: str) -> None:
    """Gradients of two processes are those of one that is given both batches; frozen parts have none."""
    torch.manual_seed(0)
    options = dict(frozen_stages=1, norm_eval=True)
    single = build(task, **options).double().train()
    for module in single.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()  # its statistics are of the batch, which differs
    single.data_preprocessor.double()
    dropout = [module for module in single.modules() if isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d)]
    for module in dropout:
        module.p = 0.0
    model = MMDistributedDataParallel(copy.deepcopy(single), find_unused_parameters=False, broadcast_buffers=False)

    def backward(net: torch.nn.Module, number: int) -> None:
        torch.manual_seed(number)
        data = single.data_preprocessor(make_batch(task), training=True)
        data["inputs"] = data["inputs"].double()
        torch.manual_seed(number)  # of the samplers
        loss, _ = single.parse_losses(net(**data, mode="loss"))
        loss.backward()

    backward(model, rank)
    for number in range(2):
        backward(single, number)
    for (name, one), (_, two) in zip(single.named_parameters(), model.module.named_parameters(), strict=True):
        assert (one.grad is None) == (not one.requires_grad), name
        if one.grad is not None:
            torch.testing.assert_close(two.grad, one.grad / 2, rtol=1e-9, atol=1e-12, msg=f"gradient of {name}")


def skip_together(rank: int, task: str) -> None:
    """A loss that is not finite in one process makes all skip the step."""
    torch.manual_seed(0)
    model = MMDistributedDataParallel(build(task).train(), find_unused_parameters=False, broadcast_buffers=False)
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    with tempfile.TemporaryDirectory() as folder:
        runner = SimpleNamespace(
            model=model, optim_wrapper=wrapper, iter=0, work_dir=folder, cfg=Config(), logger=logging.getLogger()
        )
        hook = NonFiniteHook("skip")
        hook.before_train(runner)
        before = {name: value.clone() for name, value in model.module.state_dict().items()}
        batch = make_batch(task)
        if rank == 1:
            batch["inputs"] = [image.float() * float("nan") for image in batch["inputs"]]
        model.train_step(batch, wrapper)
        hook.after_train_iter(runner, 0)
        assert hook.skips == 1
        torch.testing.assert_close(dict(model.module.state_dict()), before, rtol=0, atol=0)


def run_process(rank: int, check: str, task: str, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    globals()[check](rank, task)
    # The model is gone, and both processes are here, before the group they share goes.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def in_two_processes(check: str, task: str, tmp_path: Path) -> None:
    processes = mp.spawn(run_process, (check, task, str(tmp_path / "store")), nprocs=2, join=False)
    try:
        deadline = time.time() + 240
        while not processes.join(timeout=5):  # raises what a process raised
            assert time.time() < deadline, "the processes hang"
    finally:
        for process in processes.processes:
            process.kill()


@pytest.mark.parametrize("check", ["train_two_steps", "compare_gradients"])
@pytest.mark.parametrize("task", TASKS)
def test_two_processes(task, check, tmp_path):
    in_two_processes(check, task, tmp_path)


def test_two_processes_skip_together(tmp_path):
    in_two_processes("skip_together", "semantic_fpn", tmp_path)


def test_dist_train_and_dist_test(shapes, tool, tmp_path):
    config = "fpn_xcit-n12-p16_shapes"
    # SyncBN does not run on CPU.
    options = [*cfg_options(config, shapes, 2), "env_cfg.dist_cfg.backend=gloo", "model.backbone.norm_cfg.type=BN"]
    options += [f"model.{head}.norm_cfg.type=BN" for head in ("decode_head",)]

    def run(script: str, *arguments: object) -> str:
        command = ["bash", ROOT / "tools" / script, *map(str, arguments), *options]
        environment = {**os.environ, "PYTHON": sys.executable, "PORT": "29517", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run("dist_train.sh", DEMO / f"{config}.py", 2, "--work-dir", "work")
    state = torch.load(tmp_path / "work" / "iter_2.pth", weights_only=False)["random_state"]
    assert len(state) == 2  # of each process
    assert "mIoU" in run("dist_test.sh", DEMO / f"{config}.py", "work/iter_2.pth", 2, "--work-dir", "test")


def test_slurm_train_starts_torchrun_on_every_node(tmp_path):
    """With an srun that shows what it was asked and runs it here, and a torchrun that shows its arguments."""
    (tmp_path / "srun").write_text(
        '#!/bin/bash\necho "srun $*"\nwhile [ "$1" != bash ]; do shift; done\n'
        'SLURM_JOB_NUM_NODES=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-2] exec "$@"\n'
    )
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'n1\\nn2\\n'\n")
    (tmp_path / "python").write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    for name in ("srun", "scontrol", "python"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NODES": "2", "GPUS_PER_NODE": "4"}
    shown = {}
    for tool in ("train", "test"):
        command = ["bash", ROOT / "tools" / f"slurm_{tool}.sh", "part", "job", "a b.py", "LAST", "--amp"]
        shown[tool] = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        asked = "srun --partition part --job-name job --nodes 2 --ntasks-per-node 1 --gres gpu:4 --cpus-per-task 20"
        assert asked in shown[tool]
        started = "-m|torch.distributed.run|--nnodes|2|--nproc_per_node|4|--rdzv_backend|c10d|--rdzv_id|7|"
        assert f"{started}--rdzv_endpoint|n1:29500|" in shown[tool]
    assert shown["train"].endswith("tools/train.py|a b.py|--work-dir|LAST|--launcher|pytorch|--amp|")
    assert shown["test"].endswith("tools/test.py|a b.py|LAST|--launcher|pytorch|--amp|")
