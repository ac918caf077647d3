"""Published recipes that count epochs resume within an epoch, bit for bit."""

import json
import random
import signal
from pathlib import Path

import pytest
import torch
from helpers.demo_runs import assert_same_state
from helpers.paths import CONFIGS
from helpers.processes import arrange_death, end_with_the_parent, in_two_processes, run_tool
from helpers.tiny_recipes import tiny
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.runner import Runner
from torch.multiprocessing import ProcessExitedException

from xcit_mm.weights.reader import load_from_file

MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
EPOCHS, PER_EPOCH = 3, 4
CHANCE = random.Random(1)
ITERATIONS = sorted(CHANCE.sample(range(2, EPOCHS * PER_EPOCH), 9) * 2 + [1, EPOCHS * PER_EPOCH])


@pytest.fixture(scope="module")
def config(photos, tmp_path_factory) -> Path:
    """Mask R-CNN's recipe, shortened, with drop path, EMA, warm-up, checkpoints within epochs."""
    folder = tmp_path_factory.mktemp("recipe")
    cfg = tiny(MASK_RCNN, photos)
    cfg.model.backbone.drop_path_rate = 0.2
    cfg.model.roi_head.bbox_head.update(num_classes=4, fc_out_channels=32)
    cfg.model.roi_head.mask_head.update(num_classes=4, num_convs=1)
    cfg.train_dataloader.update(num_workers=2, persistent_workers=True)
    cfg.val_dataloader = cfg.test_dataloader
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.ann_file = str(photos / "annotations" / "instances_validation.json")
    cfg.train_cfg.update(max_epochs=EPOCHS, val_interval=EPOCHS)
    cfg.param_scheduler[0].end = 6
    cfg.param_scheduler[1].milestones = [1, 2]
    cfg.custom_hooks.append(dict(type="EMAHook", momentum=0.1))
    cfg.default_hooks.checkpoint = dict(
        type="ResumableCheckpointHook",
        by_epoch=False,
        interval=3,
        max_keep_ckpts=2,
        save_best="coco/bbox_mAP",
    )
    cfg.default_hooks.logger.interval = 1
    cfg.randomness = dict(seed=0)
    cfg.dump(folder / "recipe.py")
    return folder / "recipe.py"


def workers(number: int) -> list[str]:
    return [
        f"train_dataloader.num_workers={number}",
        f"train_dataloader.persistent_workers={number > 0}",
    ]


def train(config: Path, work: Path, *options: str, **death: tuple[str, int]) -> int:
    arguments = ("--work-dir", work, "--resume", "--cfg-options", "find_unused_parameters=False")
    run = run_tool("train", config, *arguments, *options, cwd=config.parent, **death)
    assert run.returncode in (0, -signal.SIGKILL), run.stderr[-2000:]
    return run.returncode


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> Path:
    """The last checkpoint of an undisturbed run."""
    work = tmp_path_factory.mktemp("whole")
    assert train(config, work) == 0
    return work / f"iter_{EPOCHS * PER_EPOCH}.pth"


def test_resume_within_an_epoch_is_bit_identical(config, whole, tmp_path):
    assert train(config, tmp_path, kill_at=("after_train_iter", 7)) == -signal.SIGKILL
    former = load_from_file((tmp_path / "last_checkpoint").read_text())
    assert (former["meta"]["epoch"], former["meta"]["iter"]) == (1, PER_EPOCH + 2)
    # Without a seed in the config, the seed of the checkpoint is used.
    assert train(config, tmp_path, *workers(0), "randomness.seed=None") == 0
    assert_same_state(whole, tmp_path / whole.name)
    files = tmp_path.glob("2*/vis_data/scalars.json")
    logs = [json.loads(line) for log in files for line in log.open()]
    assert max(line["step"] for line in logs if "loss" in line) == EPOCHS * PER_EPOCH


@pytest.mark.slow
def test_20_kills_are_bit_identical(config, whole, tmp_path):
    deaths = 0
    for iteration in ITERATIONS:
        call = CHANCE.choice(["before_train_iter", "after_train_iter"])
        done = 0
        if (tmp_path / "last_checkpoint").exists():
            done = load_from_file((tmp_path / "last_checkpoint").read_text())["meta"]["iter"]
        kill = (call, max(1, iteration - done))
        status = train(config, tmp_path, *workers(CHANCE.choice([0, 1, 2])), kill_at=kill)
        if status != 0:
            deaths += 1
    assert deaths == len(ITERATIONS) == 20
    assert train(config, tmp_path) == 0
    assert_same_state(whole, tmp_path / whole.name)


def train_rank(
    rank: int, config: Path, work: Path, store: Path, death: tuple[str, int] | None
) -> None:
    """Train without validation in one of two processes, of which the second may be killed."""
    torch.set_num_threads(1)
    end_with_the_parent()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    if death and rank == 1:
        arrange_death(*death)
    cfg = Config.fromfile(config)
    cfg.update(
        val_dataloader=None, val_cfg=None, val_evaluator=None, work_dir=str(work), resume=True
    )
    if "iterations" in work.parent.name:
        cfg.train_cfg = dict(type="IterBasedTrainLoop", max_iters=EPOCHS * PER_EPOCH // 2)
        cfg.train_dataloader.sampler = dict(type="InfiniteSampler", shuffle=True)
    cfg.default_hooks.checkpoint.save_best = None
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
@pytest.mark.parametrize("loop", ["epochs", "iterations"])
def test_two_processes_after_20_kills_are_bit_identical(loop, config, tmp_path):
    whole = tmp_path / loop / "whole"
    broken = tmp_path / loop / "broken"
    whole.parent.mkdir()
    in_two_processes(train_rank, config, whole, tmp_path / "store", None)
    for number in range(20):
        kill = (CHANCE.choice(["before_train_iter", "after_train_iter"]), CHANCE.randint(1, 3))
        with pytest.raises(ProcessExitedException):
            in_two_processes(train_rank, config, broken, tmp_path / f"store{number}", kill)
    in_two_processes(train_rank, config, broken, tmp_path / "last", None)
    last = f"iter_{EPOCHS * PER_EPOCH // 2}.pth"
    assert_same_state(whole / last, broken / last)
