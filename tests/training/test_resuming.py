"""Training resumes after a kill or a full disk, bit for bit, also within an epoch."""

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
    cfg.model.roi_head.bbox_head.update(num_classes=4, fc_out_channels=32)
    cfg.model.roi_head.mask_head.update(num_classes=4, num_convs=1)
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


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> Path:
    """The last checkpoint of an undisturbed run."""
    work = tmp_path_factory.mktemp("whole")
    assert train(config, work) == 0
    return work / f"iter_{EPOCHS * PER_EPOCH}.pth"


@pytest.mark.parametrize(
    "iterations",
    [
        pytest.param([7], id="once"),
        pytest.param(ITERATIONS, id="20_kills", marks=pytest.mark.slow),
    ],
)
def test_resume_within_an_epoch_is_bit_identical(iterations, config, whole, tmp_path):
    work = tmp_path / "work"
    for iteration in iterations:
        done = 0
        if (work / "last_checkpoint").exists():
            done = load_from_file((work / "last_checkpoint").read_text())["meta"]["iter"]
        kill = (CHANCE.choice(CALLS), max(1, iteration - done))
        assert train(config, work, CHANCE.choice([0, 1, 2]), kill_at=kill) == -signal.SIGKILL
    assert train(config, work, workers=0) == 0
    assert_same_state(whole, work / whole.name)


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


@pytest.mark.forks
@pytest.mark.parametrize(
    "length, kills",
    [
        pytest.param(6, [POINTING, ITERATION], id="2_kills"),
        pytest.param(80, [STARTUP, *OFTEN, STARTUP], id="20_kills", marks=pytest.mark.slow),
    ],
)
def test_resume_after_kill_is_bit_identical(length, kills, shapes, tmp_path):
    options = [*cfg_options(SEG, shapes, length, 2), "model.backbone.drop_path_rate=0.2"]
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    train = ("train", DEMO / f"{SEG}.py", *options, "--work-dir")
    assert run_tool(*train, whole, cwd=tmp_path).returncode == 0
    last = f"iter_{length}.pth"

    pointer = broken / "last_checkpoint"
    for kill in kills:
        run = run_tool(*train, broken, "--resume", cwd=tmp_path, kill_at=kill)
        assert run.returncode == -signal.SIGKILL
        assert not (broken / last).exists()
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if the file is incomplete
    run = run_tool(*train, broken, "--resume", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]

    assert_same_state(whole / last, broken / last)
    assert not list(broken.glob(".unfinished"))
    assert len(list(broken.glob("iter_*.pth"))) <= 3


def test_full_disk_leaves_the_last_checkpoint(shapes, tmp_path):
    work = tmp_path / "work"
    train = ("train", DEMO / f"{SEG}.py", "--work-dir", work, "--resume")
    train += tuple(cfg_options(SEG, shapes, 6))
    run_tool(*train, cwd=tmp_path, kill_at=("after_train_iter", 5))
    last = work / "iter_4.pth"
    run = run_tool(*train, cwd=tmp_path, file_size=last.stat().st_size // 2)
    assert run.returncode == 1
    assert "File too large" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stdout + run.stderr
    assert (work / "last_checkpoint").read_text() == str(last)
    load_from_file(str(last))
    assert not list(work.glob("*iter_6*")) + list(work.glob(".unfinished"))
