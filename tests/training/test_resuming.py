"""Training resumes after a kill, SIGTERM or a full disk, bit for bit, also within an epoch."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, assert_same_state, cfg_options
from helpers.paths import CONFIGS
from helpers.processes import arrange_death, end_with_the_parent, in_two_processes, run_tool
from helpers.tiny_recipes import tiny
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.runner import Runner
from torch.multiprocessing import ProcessExitedException

from xcit_mm.weights.reader import load_from_file

SEG, _ = SCORES
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
EPOCHS, PER_EPOCH = 3, 4
CHANCE = random.Random(1)
ITERATIONS = sorted(CHANCE.sample(range(2, EPOCHS * PER_EPOCH), 9) * 2 + [1, EPOCHS * PER_EPOCH])
# Calls at which a process is killed: the n-th call of a method of hooks, or of os.replace, by which
# a checkpoint gets its name. Checkpoints of the segmentor are two iterations apart.
CALLS = ("before_train_iter", "after_train_iter")
SAVING = ("before_save_checkpoint", "before_replace", "after_replace")
STARTUP = ("before_run", 1)
ITERATION = ("before_train_iter", 4)
POINTING = ("after_replace", 2)
OFTEN = [(CHANCE.choice(CALLS + SAVING), CHANCE.randint(1, 3)) for _ in range(18)]


@pytest.fixture(scope="module")
def config(shapes, tmp_path_factory) -> Path:
    """Mask R-CNN's recipe, shortened, with drop path, EMA, warm-up, checkpoints within epochs."""
    folder = tmp_path_factory.mktemp("recipe")
    photos = folder / "photos"
    shutil.copytree(shapes, photos)
    path = photos / "annotations" / "instances_training.json"
    coco = json.loads(path.read_text())
    for image in coco["images"][::2]:
        image["height"] += 32  # for AspectRatioBatchSampler, which reads the json
    path.write_text(json.dumps(coco))
    cfg = tiny(MASK_RCNN, photos)
    cfg.model.backbone.drop_path_rate = 0.2
    cfg.model.roi_head.bbox_head.num_classes = cfg.model.roi_head.mask_head.num_classes = 4
    cfg.train_dataloader.update(num_workers=2, persistent_workers=True)
    cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None)
    cfg.update(test_dataloader=None, test_cfg=None, test_evaluator=None)
    cfg.train_cfg.max_epochs = EPOCHS
    cfg.param_scheduler[0].end = 6
    cfg.param_scheduler[1].milestones = [1, 2]
    cfg.custom_hooks.append(dict(type="EMAHook", momentum=0.1))
    save = dict(type="ResumableCheckpointHook", by_epoch=False, interval=3, max_keep_ckpts=2)
    cfg.default_hooks.checkpoint = save
    cfg.randomness = dict(seed=0)
    cfg.dump(folder / "recipe.py")
    return folder / "recipe.py"


def train(config: Path, work: Path, workers: int = 2, **death: tuple[str, int]) -> int:
    """Train, or resume. Without a seed in the config, the seed of the checkpoint is used."""
    options = [
        "find_unused_parameters=False",
        f"train_dataloader.num_workers={workers}",
        f"train_dataloader.persistent_workers={workers > 0}",
        f"randomness.seed={None if (work / 'last_checkpoint').exists() else 0}",
    ]
    arguments = ("--work-dir", work, "--resume", "--skip-checks", "--cfg-options", *options)
    run = run_tool("train", config, *arguments, cwd=config.parent, **death)
    assert run.returncode in (0, -signal.SIGKILL), run.stderr[-2000:]
    return run.returncode


@pytest.mark.parametrize(
    "iterations",
    [
        pytest.param([7], id="once"),
        pytest.param(ITERATIONS, id="20_kills", marks=pytest.mark.slow),
    ],
)
def test_resume_within_an_epoch_is_bit_identical(iterations, config, tmp_path):
    whole = tmp_path / "whole"
    work = tmp_path / "work"
    assert train(config, whole) == 0
    for iteration in iterations:
        done = 0
        if (work / "last_checkpoint").exists():
            done = load_from_file((work / "last_checkpoint").read_text())["meta"]["iter"]
        kill = (CHANCE.choice(CALLS), max(1, iteration - done))
        assert train(config, work, CHANCE.choice([0, 1, 2]), kill_at=kill) == -signal.SIGKILL
    assert train(config, work, workers=0) == 0
    last = f"iter_{EPOCHS * PER_EPOCH}.pth"
    assert_same_state(whole / last, work / last)


def train_rank(
    rank: int, config: Path, work: Path, store: Path, death: tuple[str, int] | None
) -> None:
    """Train in one of two processes, of which the second may be killed."""
    torch.set_num_threads(1)
    end_with_the_parent()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    if death and rank == 1:
        arrange_death(*death)
    cfg = Config.fromfile(config)
    cfg.update(work_dir=str(work), resume=True)
    cfg.train_dataloader.num_workers = 1
    # SyncBN does not run on a CPU under a process group.
    cfg.model.backbone.norm_cfg = dict(type="BN")
    runner = Runner.from_cfg(cfg)
    runner.model = MMDistributedDataParallel(
        runner.model, find_unused_parameters=True, broadcast_buffers=False
    )
    runner.train()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_after_20_kills_are_bit_identical(config, tmp_path):
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    in_two_processes(train_rank, config, whole, tmp_path / "store", None)
    for number in range(20):
        kill = (CHANCE.choice(CALLS), CHANCE.randint(1, 3))
        with pytest.raises(ProcessExitedException):
            in_two_processes(train_rank, config, broken, tmp_path / f"store{number}", kill)
    in_two_processes(train_rank, config, broken, tmp_path / "last", None)
    last = f"iter_{EPOCHS * PER_EPOCH // 2}.pth"  # each process takes half of the batches
    assert_same_state(whole / last, broken / last)


def segmentor(shapes: Path, length: int) -> tuple:
    """Return the arguments of a training with two workers, a validation of each three iterations,
    and the best checkpoint.
    """
    options = cfg_options(SEG, shapes, length, 2)
    more = ("train_cfg.val_interval=3", "default_hooks.checkpoint.save_best=mIoU")
    return ("train", DEMO / f"{SEG}.py", *options, *more, "model.backbone.drop_path_rate=0.2")


EPOCH_LOOP = (
    "train_cfg._delete_=True",
    "train_cfg.type=EpochBasedTrainLoop",
    "train_cfg.max_epochs=2",
    "train_cfg.val_interval=1",
    "train_dataloader.sampler._delete_=True",
    "train_dataloader.sampler.type=DefaultSampler",
    "train_dataloader.sampler.shuffle=True",
)


@pytest.fixture(scope="module")
def iterations(shapes, tmp_path_factory) -> tuple[tuple, Path]:
    """The command of a training of six iterations, and the folder of one that was not stopped."""
    folder = tmp_path_factory.mktemp("iterations")
    command = segmentor(shapes, 6)
    assert run_tool(*command, "--work-dir", folder, cwd=folder).returncode == 0
    return command, folder


@pytest.fixture(scope="module")
def epochs(shapes, tmp_path_factory) -> tuple[tuple, Path]:
    """As `iterations`, of two epochs of four iterations."""
    folder = tmp_path_factory.mktemp("epochs")
    command = [argument for argument in segmentor(shapes, 6) if "train_cfg" not in str(argument)]
    command += EPOCH_LOOP
    assert run_tool(*command, "--work-dir", folder, cwd=folder).returncode == 0
    return tuple(command), folder


@pytest.mark.forks
def test_resume_after_kill_is_bit_identical(iterations, tmp_path):
    kill_and_compare(*iterations, tmp_path / "work", [POINTING, ITERATION])


@pytest.mark.slow
@pytest.mark.forks
def test_resume_after_20_kills_is_bit_identical(shapes, tmp_path):
    whole = tmp_path / "whole"
    command = segmentor(shapes, 80)
    assert run_tool(*command, "--work-dir", whole, cwd=tmp_path).returncode == 0
    kill_and_compare(command, whole, tmp_path / "work", [STARTUP, *OFTEN, STARTUP])


def kill_and_compare(command: tuple, whole: Path, work: Path, kills: list) -> None:
    """Kill a training several times, resume it, and compare it with one that was not stopped."""
    last = Path((whole / "last_checkpoint").read_text()).name
    pointer = work / "last_checkpoint"
    arguments = (*command, "--work-dir", work, "--resume")
    for kill in kills:
        run = run_tool(*arguments, cwd=work.parent, kill_at=kill)
        assert run.returncode == -signal.SIGKILL
        assert not (work / last).exists()
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if the file is incomplete
    run = run_tool(*arguments, cwd=work.parent)
    assert run.returncode == 0, run.stderr[-2000:]
    assert_same_state(whole / last, work / last)
    assert not list(work.glob(".unfinished"))
    assert len(list(work.glob("iter_*.pth"))) <= 3


@pytest.mark.parametrize(
    "loop, call, count",
    [
        ("iterations", "after_train_iter", 2),
        ("epochs", "after_val_iter", 1),
        pytest.param("iterations", "after_val_iter", 1, marks=pytest.mark.slow),
        pytest.param("epochs", "before_train_iter", 2, marks=pytest.mark.slow),
    ],
)
def test_a_terminated_training_saves_and_resumes_bit_identically(
    loop, call, count, tmp_path, request
):
    """SIGTERM goes to the process group of a run, as torchrun sends it."""
    command, whole = request.getfixturevalue(loop)
    work = tmp_path / "work"
    death = (call, count, signal.SIGTERM)
    run = run_tool(*command, "--work-dir", work, cwd=tmp_path, kill_at=death)
    assert run.returncode == 128 + signal.SIGTERM
    line = run.stderr.splitlines()[-1]
    assert line.startswith("stopped by SIGTERM after iteration ")
    assert f"{work / 'stopped.pth'} is saved: --resume continues" in line
    assert (work / "last_checkpoint").read_text() == str(work / "stopped.pth")
    run = run_tool(*command, "--work-dir", work, "--resume", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (last,) = {Path((folder / "last_checkpoint").read_text()).name for folder in (whole, work)}
    assert_same_state(whole / last, work / last)
    best = {path.name for path in whole.glob("best_*.pth")}
    assert {path.name for path in work.glob("best_*.pth")} == best and len(best) == 1
    assert not (work / "stopped.pth").exists()


def test_full_disk_leaves_the_last_checkpoint(iterations, tmp_path):
    command, whole = iterations
    shutil.copytree(whole, tmp_path / "work")
    work = tmp_path / "work"
    last = work / "iter_4.pth"
    for path in work.glob("*iter_6.pth"):
        path.unlink()
    (work / "last_checkpoint").write_text(str(last))
    size = last.stat().st_size // 2
    arguments = (*command, "--work-dir", work, "--resume")
    run = run_tool(*arguments, cwd=tmp_path, file_size=size)
    assert run.returncode == 1
    assert "File too large" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stdout + run.stderr
    assert (work / "last_checkpoint").read_text() == str(last)
    load_from_file(str(last))
    assert not list(work.glob("*iter_6*")) + list(work.glob(".unfinished"))
