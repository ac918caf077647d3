"""tools/train.py and tools/test.py up to the point where mmengine's runner starts, on a tiny data
set.
"""

import os
import re
import sys
from hashlib import sha256
from pathlib import Path

import mmengine.runner
import pytest
import torch
from demo import save_untrained
from helpers.configs import read_config_file
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.paths import CONFIGS, ROOT
from helpers.processes import run_script
from helpers.processes import run_tool as run_in_process
from mmengine.config import Config

from xcit_mm.launch import run_tool

SEG, DET = SCORES
FOLDERS = dict(train="training", val="validation")
from_file = Config.fromfile


class Started(Exception):
    """mmengine would run this config."""


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path) -> None:
    """An empty folder, a cache of the shipped configs, and a runner that does not run."""

    def start(cfg: Config) -> None:
        raise Started(cfg)

    def read(path: object, *args: object, **kwargs: object) -> Config:
        shipped = CONFIGS in Path(path).parents
        return read_config_file(Path(path)) if shipped else from_file(path, *args, **kwargs)

    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", start)
    monkeypatch.setattr(Config, "fromfile", staticmethod(read))
    monkeypatch.setenv("LOCAL_RANK", "0")  # the libraries' scripts set it
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "downloads"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)


def started(tool: str, *args: object) -> Config:
    """Return the config with which the library's script starts mmengine."""
    with pytest.raises(Started) as run:
        run_tool(tool, list(map(str, args)))
    return run.value.args[0]


def rejected(tool: str, *args: object) -> str:
    """Return the line with which the tool ends with exit code 1. The tool must not write files."""
    before = set(Path().rglob("*"))
    with pytest.raises(SystemExit) as end:
        run_tool(tool, list(map(str, args)))
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    assert set(Path().rglob("*")) == before
    return end.value.code


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """Checkpoints that fit the models of the two configs."""
    files = {config: tmp_path_factory.mktemp("weights") / f"{config}.pth" for config in SCORES}
    for config, path in files.items():
        save_untrained(DEMO / f"{config}.py", path)
    return files


def write_state(path: Path, **content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = dict(meta=dict(epoch=0, iter=2, seed=7), message_hub={}, state_dict={}, optimizer={})
    torch.save(state | content, path)
    return path


def test_ctrl_c_prints_one_line(shapes, monkeypatch, capsys):
    def interrupt(cfg: Config) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", interrupt)
    assert run_tool("train", [str(DEMO / f"{SEG}.py"), *cfg_options(SEG, shapes, 1)]) == 130
    assert capsys.readouterr().err.endswith(
        "\ninterrupted: --resume resumes from the last checkpoint\n"
    )


@pytest.mark.parametrize(
    "tool, flags",
    [
        ("train", "CONFIG --work-dir --resume --cfg-options --launcher"),
        ("test", "CHECKPOINT --tta"),
    ],
)
def test_help_lists_the_common_flags(tool, flags, capsys):
    with pytest.raises(SystemExit) as end:  # `mim train xcit_mm` asks for it first
        run_tool(tool, ["--help"])
    printed = capsys.readouterr().out
    assert end.value.code == 0 and all(flag in printed for flag in flags.split())
    assert "--gpus" not in printed  # mim would pass it on


def test_command_ends_with_one_line_on_stderr(tmp_path):
    run = run_script(ROOT / "tools" / "train.py", str(tmp_path / "none.py"), cwd=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert (
        run.stderr.strip()
        == f"FileNotFoundError: no config at {tmp_path / 'none.py'}: see configs/"
    )


@pytest.mark.parametrize(
    "config, change, message",
    [
        (
            SEG,
            "model.backbone.patch_size=7",
            "the model cannot be built: ValueError: patch_size=7: choose one of",
        ),
        (DET, "model.neck.type=FPNN", "the model cannot be built: KeyError: 'FPNN is not in the"),
        (
            SEG,
            "val_dataloader.dataset.data_root=nowhere",
            "D311 the val data are not at nowhere -- fix: put",
        ),
        (
            DET,
            "val_dataloader.dataset.metainfo.classes=(a,b)",
            "the val data set has 2 classes -- fix: --cfg-options",
        ),
    ],
)
def test_training_that_would_fail_does_not_start(config, change, message, shapes):
    assert message in rejected(
        "train", DEMO / f"{config}.py", *cfg_options(config, shapes, 1), change
    )


def test_several_processes_without_a_gpu_do_not_start():
    message = rejected("train", DEMO / f"{SEG}.py", "--launcher", "pytorch")
    assert "this machine has none: leave out --launcher" in message


def test_every_check_can_be_skipped(shapes):
    run = ("train", DEMO / f"{SEG}.py")
    wrong = (*cfg_options(SEG, shapes, 1), "model.decode_head.num_classes=3")
    assert "D303 decode_head.num_classes is 3" in rejected(*run, *wrong)
    assert started(*run, "--skip-checks", *wrong).model.decode_head.num_classes == 3


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_only_the_first_process_of_a_machine_checks_and_prints(
    variable, shapes, monkeypatch, capsys
):
    monkeypatch.delenv("LOCAL_RANK")
    arguments = (DEMO / f"{DET}.py", *cfg_options(DET, shapes, 1), "model.backbone.arch=t12")
    monkeypatch.setenv(variable, "0")
    assert "D602 neck.in_channels" in rejected("train", *arguments)
    monkeypatch.delenv("LOCAL_RANK", raising=False)  # mmdet's script has set it
    monkeypatch.setenv(variable, "1")
    capsys.readouterr()
    assert started("train", *arguments) and capsys.readouterr().err == ""


@pytest.mark.parametrize("config", SCORES)
def test_correct_runs_start_with_the_given_options(config, shapes, weights):
    file = DEMO / f"{config}.py"
    cfg = started("train", file, *cfg_options(config, shapes, 5), f"load_from={weights[config]}")
    assert (cfg.train_cfg.max_iters, cfg.load_from, cfg.resume) == (5, str(weights[config]), False)
    assert cfg.work_dir.endswith(f"work_dirs/{config}")
    cfg = started("test", file, weights[config], "--work-dir", "w", *cfg_options(config, shapes, 1))
    assert (cfg.load_from, cfg.work_dir) == (str(weights[config]), "w")


@pytest.mark.parametrize("flag", ["--amp", "AmpOptimWrapper", "mmengine.AmpOptimWrapper"])
def test_mixed_precision_on_a_cpu_is_bfloat16(flag, shapes):
    flags = [flag] if flag == "--amp" else ["--cfg-options", f"optim_wrapper.type={flag}"]
    cfg = started("train", DEMO / f"{SEG}.py", *cfg_options(SEG, shapes, 1), *flags)
    assert cfg.optim_wrapper.type == "mmengine.CPUAmpOptimWrapper"


@pytest.mark.parametrize(
    "text, message",
    [
        ("model = dict(\n    a=1,,\n)", "own.py cannot be read: invalid syntax in line 2: a=1,,"),
        ("model = undefined", "own.py cannot be read: NameError: name 'undefined' is not defined"),
        ("model = dict(type='A')", "default_scope=None in own.py: must be one of mmdet, mmseg"),
    ],
)
def test_config_with_an_error_is_named(text, message):
    Path("own.py").write_text(text)
    assert message in rejected("train", "own.py")


@pytest.mark.parametrize("option", ["model.neck", "model.neck.in_channels=[1,2"])
def test_option_with_an_error_is_named(option):
    message = rejected("train", DEMO / f"{SEG}.py", "--cfg-options", "seed=1", option)
    assert option in message and "write KEY=VALUE" in message


def test_testing_that_would_fail_does_not_start(shapes, weights):
    file, options = DEMO / f"{SEG}.py", cfg_options(SEG, shapes, 1)
    missing = "FileNotFoundError: no checkpoint at none.pth: check the path"
    assert rejected("test", file, "--tta", "none.pth", *options).startswith(missing)
    assert "D602 neck.in_channels" in rejected(
        "test", file, weights[SEG], *options, "model.backbone.arch=t12"
    )


URL = "http://127.0.0.1:9/none.pth"


@pytest.mark.parametrize(
    "checkpoint, message",
    [
        ("a detector's", "the checkpoint does not fit the model: "),
        (URL, f"cannot download {URL} ("),
    ],
)
def test_weights_that_do_not_load_end_a_test_in_one_line(
    checkpoint, message, shapes, weights, tmp_path
):
    path = checkpoint if checkpoint == URL else weights[DET]
    options = cfg_options(SEG, shapes, 1)
    run = run_in_process("test", DEMO / f"{SEG}.py", path, *options, cwd=tmp_path)
    assert run.returncode == 1 and message in run.stderr.splitlines()[-1]


def test_swapped_config_and_checkpoint_are_named(weights):
    message = rejected("test", weights[SEG], DEMO / f"{SEG}.py")
    assert "the config comes before the checkpoint" in message and str(weights[SEG]) in message


@pytest.mark.parametrize("config", SCORES)
class TestResume:
    """`--resume` resumes from the given checkpoint or the last one, and starts the run if there is
    no checkpoint.
    """

    def resumed(
        self, config: str, shapes: Path, weights: dict[str, Path], *flags: object
    ) -> Config:
        given = (
            *cfg_options(config, shapes, 4),
            f"load_from={weights[config]}",
            "randomness.seed=None",
        )
        return started("train", DEMO / f"{config}.py", "--work-dir", "work", *flags, *given)

    def test_without_a_checkpoint_the_run_starts_from_load_from(
        self, config, shapes, weights, capsys
    ):
        cfg = self.resumed(config, shapes, weights, "--resume")
        assert (cfg.resume, cfg.load_from) == (False, str(weights[config]))
        assert (
            "work has no checkpoint yet: the run starts at the first iteration\n"
            in capsys.readouterr().err
        )

    def test_last_checkpoint(self, config, shapes, weights):
        work = Path("work, of today")
        work.mkdir()
        (work / "last_checkpoint").write_text(str(write_state(work / "iter_2.pth")))
        cfg = self.resumed(config, shapes, weights, "--resume", "--work-dir", work)
        assert (cfg.resume, cfg.load_from, cfg.work_dir) == (
            True,
            str(work / "iter_2.pth"),
            str(work),
        )
        # The file of `load_from` is not needed.
        given = ("--work-dir", work, *cfg_options(config, shapes, 4), "load_from=none.pth")
        assert started("train", DEMO / f"{config}.py", "--resume", *given).resume

    def test_path(self, config, shapes, weights):
        path = write_state(Path("else, where.pth"))
        cfg = self.resumed(config, shapes, weights, f"--resume={path}")
        assert (cfg.resume, cfg.load_from) == (True, str(path))

    def test_url(self, config, shapes, weights):
        url = "https://example.com/run.pth"
        write_state(Path("downloads") / f"run-{sha256(url.encode()).hexdigest()[:8]}.pth")
        cfg = self.resumed(config, shapes, weights, "--resume", url)
        assert (cfg.resume, cfg.load_from) == (True, url)


def test_empty_pointer_of_a_killed_run_resumes_from_the_newest_checkpoint(shapes):
    work = write_state(Path("work/iter_2.pth")).parent
    (work / "last_checkpoint").write_text("")
    cfg = started(
        "train", DEMO / f"{DET}.py", "--work-dir", work, "--resume", *cfg_options(DET, shapes, 4)
    )
    assert (cfg.resume, cfg.load_from) == (True, "work/iter_2.pth")


def write_broken(path: Path) -> None:
    write_state(path)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda path: None, "state.pth"),
        (write_broken, "state.pth"),
        (
            lambda path: write_state(path, message_hub=None),
            "cannot resume from state.pth: it holds weights, not the state of a run",
        ),
    ],
    ids=["missing", "broken", "weights"],
)
def test_resume_from_what_is_not_a_state_is_refused(write, message, shapes):
    write(Path("state.pth"))
    flags = ("--resume", "state.pth", *cfg_options(SEG, shapes, 4))
    assert message in rejected("train", DEMO / f"{SEG}.py", *flags)


def write_best(path: Path) -> Path:
    write_state(path)
    content = torch.load(path)
    del content["optimizer"]
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "saved, instead",
    [
        (["iter_2.pth", "iter_4.pth"], "work/iter_2.pth"),
        (["epoch_0.pth"], "work/epoch_0.pth"),
        (["iter_4.pth"], "work/iter_4.pth"),
        ([], "a checkpoint of iterations or epochs"),
    ],
)
def test_resume_from_the_best_checkpoint_names_the_checkpoint_to_take(saved, instead, shapes):
    best = write_best(Path("work/best_mIoU_iter_2.pth"))
    for name in saved:
        write_state(Path("work") / name)
    flags = ("--resume", best, *cfg_options(SEG, shapes, 8))
    message = rejected("train", DEMO / f"{SEG}.py", *flags)
    assert f"cannot resume from {best}: it holds no optimizer" in message
    assert message.endswith(f": take {instead}")


def truncate(content: bytes) -> bytes:
    return content[:-200]


def leave_zeros(content: bytes) -> bytes:
    """As a power failure leaves what was not written. torch reads such weights."""
    place = content.index(torch.ones(1000).numpy().tobytes())
    return content[:place] + bytes(1000) + content[place + 1000 :]


@pytest.mark.parametrize("damage", [truncate, leave_zeros])
def test_a_damaged_last_checkpoint_is_named_with_the_newest_whole_one(damage, shapes):
    work = Path("work")
    for number in (1, 2, 3, 4):
        path = write_state(work / f"iter_{number}.pth", padding=torch.ones(1000))
        if number > 2:
            path.write_bytes(damage(path.read_bytes()))
        os.utime(path, (number, number))
    (work / "last_checkpoint").write_text("work/iter_4.pth")
    flags = ("--work-dir", work, "--resume", *cfg_options(SEG, shapes, 8))
    message = rejected("train", DEMO / f"{SEG}.py", *flags)
    assert re.search(r"cannot (read|resume from) work/iter_4\.pth", message)
    whole = "work/iter_2.pth"
    assert message.endswith(f"; {whole} is whole: resume from it with --resume {whole}")


@pytest.mark.parametrize(
    "unit, meta",
    [
        ("iters", dict(epoch=0, iter=3)),
        ("epochs", dict(epoch=3, iter=12)),
        ("epochs", dict(epoch=2, iter=12)),  # saved before the epoch counts
    ],
)
class TestEndOfARun:
    def options(self, unit: str, meta: dict, length: int, shapes: Path) -> list:
        """Write the state of a run of 3 iterations or epochs of 4, and return a command line."""
        info = dict(max_epochs=3, max_iters=12)
        work = write_state(
            Path("work/iter_3.pth"), meta=meta, message_hub=dict(runtime_info=info)
        ).parent
        (work / "last_checkpoint").write_text("work/iter_3.pth")
        Path("own.py").write_text(f"_base_ = {str(DEMO / f'{SEG}.py')!r}\n")
        if unit == "epochs":
            with Path("own.py").open("a") as file:
                loop = f"dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs={length})"
                file.write(f"train_cfg = {loop}\n")
        edits = [f"train_cfg.max_iters={length}"] if unit == "iters" else []
        options = [option for option in cfg_options(SEG, shapes, 3) if "train_cfg" not in option]
        return ["own.py", "--work-dir", "work", "--resume", *options, *edits]

    def test_a_complete_run_says_so_and_changes_nothing(self, unit, meta, shapes, capsys):
        options = self.options(unit, meta, 3, shapes)
        before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("*")}
        assert run_tool("train", list(map(str, options))) == 0
        assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("*")} == before
        line = f"the run is complete: work/iter_3.pth has all 3 {unit}; raise max_{unit} to extend"
        assert [line in text for text in capsys.readouterr().err.splitlines()] == [True]

    def test_a_run_that_is_longer_than_its_config_is_refused(self, unit, meta, shapes):
        message = rejected("train", *self.options(unit, meta, 2, shapes))
        assert f"max_{unit}=2, but 3 {unit} are trained: raise max_{unit}, or resume" in message

    def test_a_run_that_is_extended_resumes(self, unit, meta, shapes):
        assert started("train", *self.options(unit, meta, 4, shapes)).resume


def test_a_segmentor_resumes_from_a_path_with_spaces_and_keeps_its_options(shapes):
    """mmseg's own --resume takes no path, and its --cfg-options no spaces."""
    path = write_state(Path("my drive, 2/iter_2.pth"))
    flags = ("--work-dir", "work", "--resume", path, *cfg_options(SEG, shapes, 4))
    cfg = started("train", DEMO / f"{SEG}.py", *flags, "optim_wrapper.optimizer.lr=0.5")
    assert (cfg.resume, cfg.load_from, cfg.work_dir) == (True, str(path), "work")
    assert (cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr) == (4, 0.5)
    assert [file.name for file in Path("work").iterdir()] == [f"{SEG}.py"]


def test_a_flag_that_the_library_does_not_know_ends_before_the_checks(shapes, capsys):
    options = cfg_options(SEG, shapes, 1)
    with pytest.raises(SystemExit) as end:
        run_tool("train", [str(DEMO / f"{SEG}.py"), "--unknown", *options, "load_from=none.pth"])
    assert end.value.code == 2 and "--unknown" in capsys.readouterr().err
