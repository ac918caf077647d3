"""Training resumes after a kill or SIGTERM, bit for bit, also within an epoch."""

import json
import random
import shutil
import signal
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES, assert_same_state, cfg_options
from helpers.paths import CONFIGS
from helpers.processes import arrange_death, end_with_the_parent, in_two_processes, run_tool
from helpers.small_models import tiny
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.runner import Runner
from torch.multiprocessing import ProcessExitedException

from xcit_mm.weights.reader import load_from_file

SEG, _ = SCORES
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
LENGTH = 12  # iterations of the recipe, in three epochs
CHANCE = random.Random(1)
ITERATIONS = sorted([1, LENGTH, *CHANCE.choices(range(2, LENGTH), k=18)])
# Calls at which a process is killed: the n-th call of a method of hooks, or of os.replace, by which
# a checkpoint gets its name. Checkpoints of the segmentor are two iterations apart.
CALLS = ("before_train_iter", "after_train_iter")
SAVING = ("before_save_checkpoint", "before_replace", "after_replace")
STARTUP = ("before_run", 1)
ITERATION = ("before_train_iter", 4)
POINTING = ("after_replace", 2)
BY_BANDS = ("model.backbone.with_cp=bands", "model.backbone.norm_eval=True")
OFTEN = [(CHANCE.choice(CALLS + SAVING), CHANCE.randint(1, 3)) for _ in range(18)]


def start(
    command: tuple, work: Path, workers: int = 2, kill_at: tuple | None = None
) -> CompletedProcess[str]:
    """Start or resume a training. Without a seed it takes that of the checkpoint."""
    more = [
        f"train_dataloader.num_workers={workers}",
        f"train_dataloader.persistent_workers={workers > 0}",
        f"randomness.seed={None if (work / 'last_checkpoint').exists() else 0}",
    ]
    arguments = (*command, *more, "--work-dir", work, "--resume")
    return run_tool("train", *arguments, cwd=work.parent, kill_at=kill_at)


def train(command: tuple, work: Path, workers: int = 2, kill_at: tuple | None = None) -> None:
    run = start(command, work, workers, kill_at=kill_at)
    assert run.returncode == (-signal.SIGKILL if kill_at else 0), run.stderr[-2000:]


def assert_same_end(whole: Path, work: Path) -> None:
    last = Path((whole / "last_checkpoint").read_text()).name
    assert_same_state(whole / last, work / last)


@pytest.fixture(scope="module")
def recipe(shapes, tmp_path_factory) -> tuple[tuple, Path]:
    """Mask R-CNN's recipe, shortened, with drop path, EMA, warm-up, checkpoints within epochs: its
    command, and the folder of a training that was not stopped.
    """
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
    for split in ("val", "test"):
        cfg.update({f"{split}_{part}": None for part in ("dataloader", "cfg", "evaluator")})
    cfg.train_cfg.max_epochs = 3
    cfg.param_scheduler[0].end = 6
    cfg.param_scheduler[1].milestones = [1, 2]
    cfg.custom_hooks.append(dict(type="EMAHook", momentum=0.1))
    save = dict(type="ResumableCheckpointHook", by_epoch=False, interval=3, max_keep_ckpts=2)
    cfg.default_hooks.checkpoint = save
    cfg.dump(folder / "recipe.py")
    command = (folder / "recipe.py", "--skip-checks", "--cfg-options")
    train(command, folder / "whole")
    return command, folder / "whole"


def segmentor(shapes: Path, length: int) -> tuple:
    """Return the command of a training with a validation of each three iterations, and the best
    checkpoint.
    """
    more = ("train_cfg.val_interval=3", "default_hooks.checkpoint.save_best=mIoU")
    options = (*cfg_options(SEG, shapes, length, 2), *more, "model.backbone.drop_path_rate=0.2")
    return (DEMO / f"{SEG}.py", *options)


@pytest.fixture(scope="module")
def demo(shapes, tmp_path_factory) -> tuple[tuple, Path]:
    """As `recipe`, of a segmentor that trains for six iterations."""
    whole = tmp_path_factory.mktemp("demo") / "whole"
    command = segmentor(shapes, 6)
    train(command, whole)
    return command, whole


def kill_in(work: Path, iteration: int) -> tuple[str, int]:
    """Return at which call a training that resumes is killed in an iteration of its run."""
    pointer = work / "last_checkpoint"
    done = load_from_file(pointer.read_text())["meta"]["iter"] if pointer.exists() else 0
    return CHANCE.choice(CALLS), max(1, iteration - done)


@pytest.mark.parametrize(
    "iterations",
    [
        pytest.param([7], id="once"),
        pytest.param(ITERATIONS, id="20_kills", marks=pytest.mark.slow),
    ],
)
def test_resume_within_an_epoch_is_bit_identical(iterations, recipe, tmp_path):
    command, whole = recipe
    work = tmp_path / "work"
    for iteration in iterations:
        train(command, work, CHANCE.choice([0, 1, 2]), kill_at=kill_in(work, iteration))
    train(command, work, workers=0)
    assert_same_end(whole, work)


def train_rank(rank: int, config: Path, work: Path, store: Path, death: tuple | None) -> None:
    """Train in one of two processes, of which the second may be killed."""
    torch.set_num_threads(1)
    end_with_the_parent()
    store = f"file://{store}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    if death and rank == 1:
        arrange_death(*death)
    cfg = Config.fromfile(config)
    cfg.update(work_dir=str(work), resume=True, randomness=dict(seed=0))
    cfg.train_dataloader.num_workers = 1
    cfg.train_cfg.max_epochs = 6  # each process takes half of the batches
    # SyncBN does not run on a CPU under a process group.
    cfg.model.backbone.norm_cfg = dict(type="BN")
    runner = Runner.from_cfg(cfg)
    runner.model = MMDistributedDataParallel(
        runner.model, find_unused_parameters=True, broadcast_buffers=False
    )
    runner.train()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_after_20_kills_are_bit_identical(recipe, tmp_path):
    (config, *_), _ = recipe
    whole = tmp_path / "whole"
    work = tmp_path / "work"
    in_two_processes(train_rank, config, whole, tmp_path / "store", None)
    for number, iteration in enumerate(ITERATIONS):
        store = tmp_path / f"store{number}"
        with pytest.raises(ProcessExitedException):
            in_two_processes(train_rank, config, work, store, kill_in(work, iteration))
    in_two_processes(train_rank, config, work, tmp_path / "last", None)
    assert_same_end(whole, work)


def kill_and_compare(command: tuple, whole: Path, work: Path, kills: list) -> None:
    """Kill a training several times, resume it, and compare it with one that was not stopped."""
    pointer = work / "last_checkpoint"
    for kill in kills:
        train(command, work, kill_at=kill)
        if pointer.exists():
            load_from_file(pointer.read_text())  # raises if the file is incomplete
    train(command, work)
    assert_same_end(whole, work)
    assert not list(work.glob(".unfinished*"))
    assert len(list(work.glob("iter_*.pth"))) <= 3


@pytest.mark.forks
def test_resume_after_kill_is_bit_identical(demo, tmp_path):
    kill_and_compare(*demo, tmp_path / "work", [POINTING, ITERATION])


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.parametrize(
    "length, more, kills",
    [(80, (), [STARTUP, *OFTEN, STARTUP]), (6, BY_BANDS, [POINTING, ITERATION])],
    ids=["20_kills", "by_bands"],
)
def test_a_longer_training_and_one_by_bands_resume_too(length, more, kills, shapes, tmp_path):
    command = (*segmentor(shapes, length), *more)
    train(command, tmp_path / "whole")
    kill_and_compare(command, tmp_path / "whole", tmp_path / "work", kills)


@pytest.mark.parametrize(
    "run, call, count",
    [
        ("demo", "after_val_iter", 1),
        ("recipe", "after_train_iter", 2),
    ],
)
def test_a_terminated_training_saves_and_resumes_bit_identically(
    run, call, count, tmp_path, request
):
    """SIGTERM goes to the process group of a run, as torchrun sends it."""
    command, whole = request.getfixturevalue(run)
    work = tmp_path / "work"
    stopped = start(command, work, kill_at=(call, count, signal.SIGTERM))
    assert stopped.returncode == 128 + signal.SIGTERM
    line = stopped.stderr.splitlines()[-1]
    assert line.startswith("stopped by SIGTERM after iteration ")
    assert f"{work / 'stopped.pth'} is saved, and the run can be resumed" in line
    assert (work / "last_checkpoint").read_text() == str(work / "stopped.pth")
    train(command, work)
    assert_same_end(whole, work)
    kept, expected = ({path.name for path in folder.glob("*.pth")} for folder in (work, whole))
    assert kept == expected  # the best, and none of the stop


def test_a_training_without_our_checkpoint_hook_saves_when_it_is_terminated(shapes, tmp_path):
    """Its loop over iterations starts the workers before the training."""
    command = (*segmentor(shapes, 80), "default_hooks.checkpoint.type=CheckpointHook")
    stopped = start(command, tmp_path, kill_at=("after_train_iter", 2, signal.SIGTERM))
    assert stopped.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "stopped.pth").exists()
