"""Two processes, on CPU or GPUs, train every task as a single process does, with find_unused_parameters=False."""

import copy
import logging
import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from devices import on_each_device
from mmengine.config import Config
from mmengine.model import BaseModel, MMDistributedDataParallel, stack_batch
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from paths import CONFIGS, ROOT
from processes import in_two_processes
from torch import Tensor, nn

from configs import read_config_file
from xcit_mm import NonFiniteHook, XCiT

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


class SumOverProcesses(torch.autograd.Function):
    """A sum that communicates forwards and backwards. SyncBN does so too, but not on CPU."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return SumOverProcesses.forward(ctx, gradient)


class SumNorm(nn.BatchNorm2d):
    """SyncBN for CPU."""

    def forward(self, x: Tensor) -> Tensor:
        sums = [x.sum(dim=(0, 2, 3)), x.square().sum(dim=(0, 2, 3)), x.new_tensor([x[:, 0].numel()])]
        total, squares, count = SumOverProcesses.apply(torch.cat(sums)).split([self.num_features] * 2 + [1])
        mean = total / count
        scale = self.weight * (squares / count - mean.square() + self.eps).rsqrt()
        return (x - mean[:, None, None]) * scale[:, None, None] + self.bias[:, None, None]


UNPADDED = (
    (((96, 128), (61, 75)), ((128, 33), (64, 96))),  # sizes of the images of each process
    (((96, 128), (61, 75)), ((64, 96), (64, 96))),  # the second process has no padding
)


def assert_padding_is_ignored(rank: int, cfg: Config | None, device: str) -> None:
    """Two batches of two images, padded to different sizes, give the gradients of a batch of four images."""
    torch.manual_seed(0)
    options = dict(arch=dict(embed_dim=32, depth=6, num_heads=4, eta=1.0), ignore_padding=True)
    synchronised = dict(type=SumNorm if device == "cpu" else "SyncBN")
    single = XCiT(norm_cfg=dict(type="BN"), **options).double().train().to(device)
    model = XCiT(norm_cfg=synchronised, **options).double().train().to(device)
    model.load_state_dict(single.state_dict())
    model = MMDistributedDataParallel(model, find_unused_parameters=False, broadcast_buffers=False)
    for sizes in UNPADDED:
        images = [[torch.randn(3, *size, dtype=torch.float64).to(device) for size in pair] for pair in sizes]
        for net, batch in ((single, images[0] + images[1]), (model, images[rank])):
            net.zero_grad()
            sum(m.square().sum() for m in net(stack_batch(batch))).backward()
        largest = max(p.grad.abs().max() for p in single.parameters())
        for (name, p), (_, q) in zip(single.named_parameters(), model.module.named_parameters(), strict=True):
            assert (2 * q.grad - p.grad).abs().max() <= 1e-10 * largest, name


class Overflow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return SumOverProcesses.apply(x * 1e30) * 1e30


class Communicating(BaseModel):
    """Modules before and after a communication, and a loss that depends on the kind of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = Overflow()

    def forward(self, inputs: Tensor, kind: str, mode: str = "loss") -> dict[str, Tensor]:
        if kind == "error":
            self.scale(inputs)
            raise ValueError("no match")
        x = self.last(SumOverProcesses.apply(self.first(inputs)))
        loss = x.square().mean()
        if kind == "gradient":  # the root's derivative at 0 is infinite
            loss = (loss * 0).sqrt()
        return dict(loss=loss * float("inf") if kind == "output" else loss)


def runner_of(model: nn.Module, folder: str) -> SimpleNamespace:
    """Return the attributes of mmengine's Runner that NonFiniteHook uses."""
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-3))
    config = SimpleNamespace(filename="config.py")
    return SimpleNamespace(
        model=model, optim_wrapper=wrapper, iter=0, work_dir=folder, cfg=config, logger=logging.getLogger()
    )


FOUND = dict(
    input="in process 1 the input holds values that are not finite;",
    parameter="in process 1 the parameter first.weight holds values that are not finite;",
    output=r"in process 1 the loss is inf, first in the output of the model \(Communicating\);",
    gradient="in process 1 the loss is 0, but gradients are not finite, first that of last.(weight|bias);",
)


def assert_both_name_the_value(rank: int, cfg: Config | None, device: str) -> None:
    """All processes name the non-finite value of one process, and no process hangs."""
    for kind, message in FOUND.items():
        torch.manual_seed(0)
        model = MMDistributedDataParallel(Communicating().train().to(device))
        with tempfile.TemporaryDirectory() as folder:
            runner = runner_of(model, folder)
            hook = NonFiniteHook()
            hook.before_train(runner)
            batch = dict(inputs=torch.ones(2, 4, device=device), kind=kind if rank == 1 else "good")
            if rank == 1 and kind == "input":
                batch["inputs"][0, 0] = float("nan")
            if rank == 1 and kind == "parameter":
                model.module.first.weight.data[0, 0] = float("nan")
            with pytest.raises(FloatingPointError, match=message) as error:
                model.train_step(batch, runner.optim_wrapper)
            assert Path(folder, f"non_finite_iter_0_rank{rank}.pth").is_file(), error.value
            torch.distributed.barrier()


def assert_one_stops_alone(rank: int, cfg: Config | None, device: str) -> None:
    """A process whose forward pass raises searches alone, without an answer of the other process."""
    model = Communicating().train().to(device)
    with tempfile.TemporaryDirectory() as folder:
        runner = runner_of(model, folder)
        NonFiniteHook("skip").before_train(runner)
        batch = dict(inputs=torch.ones(2, 4, device=device), kind="error")
        if rank == 0:
            model.scale(batch["inputs"])  # the communication of the first attempt
            return
        message = r"iteration 0: the forward pass raised ValueError: no match after the output of scale \(Overflow\);"
        with pytest.raises(FloatingPointError, match=message):
            model.train_step(batch, runner.optim_wrapper)
        assert Path(folder, "non_finite_iter_0_rank1.pth").is_file()


def assert_both_skip(rank: int, cfg: Config, device: str) -> None:
    """All processes skip the step if the loss of one process is not finite."""
    torch.manual_seed(0)
    model = MMDistributedDataParallel(build(cfg, device).train(), find_unused_parameters=False, broadcast_buffers=False)
    with tempfile.TemporaryDirectory() as folder:
        runner = runner_of(model, folder)
        hook = NonFiniteHook("skip")
        hook.before_train(runner)
        before = {name: value.clone() for name, value in model.module.state_dict().items()}
        batch = make_batch(cfg)
        if rank == 1:
            batch["inputs"] = [image.float() * float("nan") for image in batch["inputs"]]
        model.train_step(batch, runner.optim_wrapper)
        hook.after_train_iter(runner, 0)
        assert hook.skips == 1
        torch.testing.assert_close(dict(model.module.state_dict()), before, rtol=0, atol=0)


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


@on_each_device
@pytest.mark.parametrize(
    "checks, task",
    [
        (["assert_padding_is_ignored"], None),
        (["assert_both_name_the_value", "assert_one_stops_alone"], None),
        (["assert_both_skip"], "semantic_fpn"),
    ],
    ids=["ignore_padding", "name_non_finite", "skip_non_finite"],
)
def test_two_processes_act_as_one(checks, task, device, tmp_path):
    assert_in_two_processes(checks, task, device, tmp_path)


@pytest.fixture
def shims(tmp_path) -> dict[str, str]:
    """An environment with a python that prints its arguments, and a Slurm of two nodes."""
    files = dict(
        python='printf "%s|" "$@"',
        scontrol="printf 'n1\\nn2\\n'",
        srun='echo "srun $*"; while [ "$1" != bash ]; do shift; done\n'
        'SLURM_JOB_NUM_NODES=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-2] exec "$@"',
    )
    for name, text in files.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def shown(environment: dict[str, str], script: str, *arguments: str) -> str:
    command = ["bash", ROOT / "tools" / script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_dist_scripts_start_torchrun(shims):
    train = shown(shims, "dist_train.sh", "a b.py", "8", "--amp")
    single = "--nnodes|1|--node_rank|0|--nproc_per_node|8|--master_addr|127.0.0.1|--master_port|29500|"
    assert train.startswith(f"-m|torch.distributed.run|{single}")
    assert train.endswith("tools/train.py|a b.py|--launcher|pytorch|--amp|")
    several = dict(shims, NNODES="4", NODE_RANK="2", MASTER_ADDR="n1", PORT="29501")
    test = shown(several, "dist_test.sh", "a b.py", "x.pth", "8", "--tta")
    assert "--nnodes|4|--node_rank|2|--nproc_per_node|8|--master_addr|n1|--master_port|29501|" in test
    assert test.endswith("tools/test.py|a b.py|x.pth|--launcher|pytorch|--tta|")


def test_slurm_scripts_start_torchrun_on_every_node(shims):
    environment = dict(shims, NODES="2", GPUS_PER_NODE="4")
    for tool, end in dict(train="a b.py|--work-dir|LAST|", test="a b.py|LAST|").items():
        out = shown(environment, f"slurm_{tool}.sh", "part", "job", "a b.py", "LAST", "--amp")
        asked = "srun --partition part --job-name job --nodes 2 --ntasks-per-node 1 --gres gpu:4 --cpus-per-task 20"
        assert out.startswith(asked)
        started = "-m|torch.distributed.run|--nnodes|2|--nproc_per_node|4|--rdzv_backend|c10d|--rdzv_id|7|"
        assert f"{started}--rdzv_endpoint|n1:29500|" in out
        assert out.endswith(f"tools/{tool}.py|{end}--launcher|pytorch|--amp|")
