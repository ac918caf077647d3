"""tools/train.py and tools/test.py up to where mmengine's runner takes over, on a tiny data set."""

import copy
import functools
import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from urllib.error import URLError

import mmengine.runner
import pytest
import torch
from demo import save_untrained
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, init_default_scope
from paths import CONFIGS

from xcit_mm.checks import launch, start
from xcit_mm.checks.launch import run_tool
from xcit_mm.checks.preflight import check_device
from xcit_mm.weights.reader import load_from_file

SEG, DET = SCORES
COPIED = dict(mmseg="fpn_xcit-n12-p16_camvid.py", mmdet="mask-rcnn_xcit-n12-p16_nuts.py")
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
from_file = Config.fromfile


@functools.cache
def shipped(path: str) -> Config:
    return from_file(path)


class Started(Exception):
    """mmengine would run this config."""


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path) -> None:
    """In an empty folder, each shipped config parsed once, and nothing run by mmengine."""

    def start(cfg: Config) -> None:
        raise Started(cfg)

    def read(path: object, *args: object, **kwargs: object) -> Config:
        return copy.deepcopy(shipped(str(path))) if CONFIGS in Path(path).parents else from_file(path, *args, **kwargs)

    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", start)
    monkeypatch.setattr(Config, "fromfile", staticmethod(read))
    monkeypatch.setenv("LOCAL_RANK", "0")  # mmdet's and mmseg's scripts set it
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "downloads"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(tmp_path)


def started(tool: str, *args: object) -> Config:
    """The config with which the library's script, run in this process, calls mmengine."""
    with pytest.raises(Started) as run:
        run_tool(tool, list(map(str, args)))
    return run.value.args[0]


def refused(tool: str, *args: object) -> str:
    """The line with which the tool ends, with exit code 1, having written nothing."""
    before = set(Path().rglob("*"))
    with pytest.raises(SystemExit) as end:
        run_tool(tool, list(map(str, args)))
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    assert set(Path().rglob("*")) == before
    return end.value.code


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """Weights that fill the models of the two configs."""
    files = {config: tmp_path_factory.mktemp("weights") / f"{config}.pth" for config in SCORES}
    for config, path in files.items():
        save_untrained(DEMO / f"{config}.py", path)
    return files


def write_state(path: Path, **content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(dict(meta=dict(epoch=0, iter=2, seed=7), message_hub={}, state_dict={}), **content), path)
    return path


@pytest.mark.parametrize("rank, said", [("0", "\ninterrupted: --resume goes on from the last checkpoint\n"), ("1", "")])
def test_ctrl_c_is_one_line_of_the_first_process(rank, said, shapes, monkeypatch, capsys):
    def interrupt(cfg: Config) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", interrupt)
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as ended:
        run_tool("train", [str(DEMO / f"{SEG}.py"), *cfg_options(SEG, shapes, 1)])
    printed = capsys.readouterr().err
    assert ended.value.code == 130 and printed.endswith(said) and ("interrupted" in printed) == bool(said)


class TestHelp:
    def test_without_a_config_it_lists_the_common_flags_and_exits_with_0(self, tool):
        run = tool("train", "--help")
        assert run.returncode == 0  # `mim train xcit_mm` asks for it first
        assert all(flag in run.stdout for flag in ("CONFIG", "--work-dir", "--resume", "--cfg-options", "--launcher"))
        assert "--gpus" not in run.stdout  # which mim would pass on

    def test_of_testing(self, capsys):
        run_tool("test", ["-h"])
        printed = capsys.readouterr().out
        assert all(flag in printed for flag in ("CHECKPOINT", "--show-dir", "--tta"))

    @pytest.mark.parametrize("config, text", [(DET, "--auto-scale-lr"), (SEG, "Train a segmentor")])
    def test_after_a_config_it_is_the_library_s(self, config, text, capsys):
        with pytest.raises(SystemExit, match="0"):
            run_tool("train", [str(DEMO / f"{config}.py"), "--help"])
        assert text in capsys.readouterr().out

    def test_without_arguments_the_usage_is_shown(self, capsys):
        with pytest.raises(SystemExit, match="2"):
            run_tool("test", [])
        assert "usage: python tools/test.py CONFIG CHECKPOINT" in capsys.readouterr().err


def test_a_refusal_is_one_line_on_stderr(tool, tmp_path):
    run = tool("train", tmp_path / "none.py")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.strip() == f"FileNotFoundError: no config at {tmp_path / 'none.py'}: see configs/"


@pytest.mark.parametrize("config", SCORES)
class TestRefusedTraining:
    def refused(self, config: str, shapes: Path, *changes: str, base: Path | None = None) -> str:
        return refused("train", base or DEMO / f"{config}.py", *cfg_options(config, shapes, 1), *changes)

    @pytest.mark.parametrize(
        "change, message",
        [
            ("model.backbone.arch=s13", "unknown arch 's13': choose one of n12"),
            ("model.backbone.patch_size=7", "patch_size=7: choose one of 16, 8"),
            ("model.backbone.out_indices=(3,5,7,12)", "out_indices=(3, 5, 7, 12): must be"),
            (
                "model.backbone.arch=t12",
                "D602 neck.in_channels is [128, 128, 128, 128], the backbone gives [192, 192, 192",
            ),
            ("model.neck.type=FPNN", "D601 the model cannot be built: KeyError: 'FPNN is not in the"),
            ("train_dataloader.dataset.data_root=nowhere", "D311 the train data are not at nowhere -- fix: put"),
            ("val_dataloader.dataset.data_root=nowhere", "D311 the val data are not at nowhere -- fix: put"),
            ("val_dataloader.dataset.metainfo.classes=(a,b)", "the val data set has 2 classes -- fix: --cfg-options"),
            ("load_from=none.pth", "D703 load_from: no checkpoint at none.pth -- fix: check the path"),
            ("optim_wrapper.type=AmpOptimWrapper", "needs a GPU, and there is none: --cfg-options optim_wrapper.type="),
        ],
    )
    def test_what_can_be_known(self, config, change, message, shapes, monkeypatch):
        monkeypatch.setattr("xcit_mm.checks.preflight.get_device", lambda: "cpu")
        assert message in self.refused(config, shapes, change)

    def test_arch_of_ones_own(self, config, shapes, tmp_path):
        arch = "dict(_delete_=True, embed_dim=32, depth=12, num_heads=3, eta=1.0)"
        base = tmp_path / "config.py"
        base.write_text(f"_base_ = {str(DEMO / f'{config}.py')!r}\nmodel = dict(backbone=dict(arch={arch}))\n")
        assert "num_heads=3 does not divide embed_dim=32: choose a divisor" in self.refused(config, shapes, base=base)

    def test_heads_for_other_classes(self, config, shapes):
        head = "decode_head" if config == SEG else "roi_head.bbox_head"
        message = self.refused(config, shapes, f"model.{head}.num_classes=3")
        assert message.startswith(f"ValueError: D303 {head}.num_classes is 3, ")
        assert f" {5 if config == SEG else 4} classes" in message

    @pytest.mark.parametrize("option", ["load_from", "model.backbone.init_cfg.checkpoint"])
    def test_weights_that_cannot_be_downloaded(self, config, option, shapes, monkeypatch, tmp_path):
        def offline(*_: object) -> None:
            raise URLError("no network")

        monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
        (tmp_path / "downloads").mkdir()
        changes = [f"{option}=xcit://xcit_nano_12_p16_224"] + ["model.backbone.init_cfg.type=Pretrained"] * (
            option != "load_from"
        )
        message = self.refused(config, shapes, *changes)
        assert message.startswith("ConnectionError: cannot download https://dl.fbaipublicfiles.com/xcit/xcit_nano_12")

    def test_weights_of_another_model(self, config, shapes, weights):
        message = self.refused(config, shapes, "model.backbone.patch_size=8", f"load_from={weights[config]}")
        assert message.startswith("ValueError: D704 ") and "the file is n12/p16" in message


@pytest.mark.parametrize(
    "names, message",
    [
        (("circle", "square", "triangle", "stars"), "D405 train: 1 of 4 .*: stars.* -- fix: metainfo"),
        (
            ("square", "circle", "triangle", "star"),
            "D406 train: .* circle as square, square as circle -- fix: metainfo",
        ),
    ],
)
def test_classes_misspelt_or_in_another_order(names, message, shapes, monkeypatch):
    classes = ",".join(names)
    given = [f"{split}_dataloader.dataset.metainfo.classes=({classes})" for split in ("train", "val")]
    arguments = (DEMO / f"{DET}.py", *cfg_options(DET, shapes, 1), *given)
    assert re.match(f"ValueError: {message}", refused("train", *arguments))
    monkeypatch.setattr(start, "_MAX_JSON_BYTES", 0)  # a large json is the doctor's to read
    assert started("train", *arguments)


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_every_process_checks_and_one_of_a_machine_downloads(variable, shapes, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setenv(variable, "1")
    arguments = (DEMO / f"{DET}.py", *cfg_options(DET, shapes, 1))
    assert "D602 neck.in_channels" in refused("train", *arguments, "model.backbone.arch=t12")
    name = "xcit://maskrcnn_xcit_tiny_12_p16"
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *_: pytest.fail("it downloads"))
    assert started("train", *arguments, f"load_from={name}")
    monkeypatch.delenv("LOCAL_RANK")  # mmdet's script has set it
    monkeypatch.setenv(variable, "1")
    assert started("test", arguments[0], name, *arguments[1:])


@pytest.mark.parametrize("config", SCORES)
def test_correct_runs_start_with_what_is_given(config, shapes, weights):
    file = DEMO / f"{config}.py"
    cfg = started("train", file, *cfg_options(config, shapes, 5), f"load_from={weights[config]}")
    assert (cfg.train_cfg.max_iters, cfg.load_from, cfg.resume) == (5, str(weights[config]), False)
    assert cfg.work_dir.endswith(f"work_dirs/{config}")
    cfg = started("test", file, weights[config], "--work-dir", "w", *cfg_options(config, shapes, 1))
    assert (cfg.load_from, cfg.work_dir) == (str(weights[config]), "w")


def test_mixed_precision_without_a_gpu(monkeypatch):
    monkeypatch.setattr("xcit_mm.checks.preflight.get_device", lambda: "cpu")
    message = refused("train", MASK_RCNN)
    fix = message.rpartition(": ")[2].split()
    assert fix == ["--cfg-options", "optim_wrapper.type=OptimWrapper"]
    assert "D311 the train data are not at data/coco" in refused("train", MASK_RCNN, *fix)
    assert "leave --amp out" in refused("train", MASK_RCNN, *fix, "--amp")
    given = ("--cfg-options", "optim_wrapper.dtype=bfloat16")
    assert "leave out optim_wrapper.dtype, and give --cfg-options optim" in refused("train", MASK_RCNN, *given)
    monkeypatch.setattr("xcit_mm.checks.preflight.get_device", lambda: "cuda")
    assert "D311 the train data are not at data/coco" in refused("train", MASK_RCNN)


# One of each recipe: the other leaves differ in the backbone alone.
RECIPES = {path.parent.name: path for path in sorted(CONFIGS.glob("[!_]*/*xcit-[ns]12-p16_*.py"))}
del RECIPES["classification"]  # mmpretrain may not be installed


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_without_a_gpu(recipe, monkeypatch):
    """In mixed precision by itself or by `--amp`: a line with the cure, and never mmengine's assertion."""
    monkeypatch.setattr("xcit_mm.checks.preflight.get_device", lambda: "cpu")
    config = RECIPES[recipe]
    assert "--amp is mixed precision, which needs a GPU" in refused("train", config, "--amp")
    mixed = "(AmpOptimWrapper), which needs a GPU, and there is none: --cfg-options optim_wrapper.type=OptimWrapper"
    assert (mixed in refused("train", config)) == ("_amp-" in config.name)


@pytest.mark.parametrize(
    "text, message",
    [
        ("model = dict(\n    a=1,,\n)", "own.py cannot be read: invalid syntax in line 2: a=1,,"),
        ("model = undefined", "own.py cannot be read: NameError: name 'undefined' is not defined"),
        ("_base_ = 'none.py'", "own.py cannot be read: FileNotFoundError: "),
        ("_base_ = 'mmpet::a/b.py'", "own.py cannot be read: AssertionError: mmengine does not support to load mmpet"),
        ("default_scope = 'mmdet'", "own.py has no model: give the config of a whole run"),
        ("model = dict(type='A')", "default_scope=None in own.py: must be one of mmdet, mmseg"),
    ],
)
def test_configs_with_errors(text, message):
    Path("own.py").write_text(text)
    assert message in refused("train", "own.py")


@pytest.mark.parametrize("option", ["model.neck", "model.neck.in_channels=[1,2"])
def test_options_with_errors(option):
    message = refused("train", DEMO / f"{SEG}.py", "--cfg-options", "seed=1", option)
    assert message.startswith(f"ValueError: --cfg-options {option}: write KEY=VALUE")


class TestRefusedTesting:
    def refused(self, shapes: Path, checkpoint: object, *changes: str) -> str:
        return refused("test", DEMO / f"{SEG}.py", checkpoint, *cfg_options(SEG, shapes, 1), *changes)

    def test_no_checkpoint(self, shapes):
        assert self.refused(shapes, "none.pth") == "FileNotFoundError: no checkpoint at none.pth: check the path"

    def test_no_checkpoint_after_a_flag(self, shapes):
        message = refused("test", DEMO / f"{SEG}.py", "--tta", "none.pth", *cfg_options(SEG, shapes, 1))
        assert "no checkpoint at none.pth" in message

    def test_config_and_checkpoint_swapped(self, refusal, shapes, weights):
        line = f"ValueError: {weights[SEG]} is not a config (*.py): the config comes before the checkpoint"
        assert refused("test", weights[SEG], DEMO / f"{SEG}.py") == line
        images = shapes / "images" / "validation"
        assert refusal("infer", images, weights[SEG], DEMO / f"{SEG}.py", "--out", "o") == line

    def test_checkpoint_of_another_model(self, shapes, weights):
        message = self.refused(shapes, weights[DET])
        assert message.startswith(f"ValueError: {weights[DET]}: the checkpoint does not fit the model: ")

    def test_model_whose_parts_do_not_fit(self, shapes, weights):
        assert "D602 neck.in_channels" in self.refused(shapes, weights[SEG], "model.backbone.arch=t12")


@pytest.mark.parametrize("config", SCORES)
class TestResume:
    """`--resume` as mmengine gets it: from the checkpoint given, else the last, else as if it were not there."""

    def resumed(self, config: str, shapes: Path, weights: dict[str, Path], *flags: object) -> Config:
        given = (*cfg_options(config, shapes, 4), f"load_from={weights[config]}", "randomness.seed=None")
        return started("train", DEMO / f"{config}.py", "--work-dir", "work", *flags, *given)

    def test_nothing_saved_yet_starts_from_load_from(self, config, shapes, weights, capsys):
        cfg = self.resumed(config, shapes, weights, "--resume")
        assert (cfg.resume, cfg.load_from) == (False, str(weights[config]))
        assert capsys.readouterr().err == "nothing was saved in work yet: the run starts at the first iteration\n"

    def test_the_weights_of_such_a_start_are_checked(self, config, shapes):
        given = (*cfg_options(config, shapes, 4), "load_from=none.pth")
        message = refused("train", DEMO / f"{config}.py", "--resume", *given)
        assert "D703 load_from: no checkpoint at none.pth" in message

    def test_the_last_checkpoint_and_its_seed(self, config, shapes, weights):
        work = Path("work, of today")
        work.mkdir()
        (work / "last_checkpoint").write_text(str(write_state(work / "iter_2.pth")))
        cfg = self.resumed(config, shapes, weights, "--resume", "--work-dir", work)
        assert (cfg.resume, cfg.load_from, cfg.work_dir, cfg.randomness.seed) == (True, None, str(work), 7)

    def test_load_from_may_be_gone_by_then(self, config, shapes):
        Path("work").mkdir()
        Path("work/last_checkpoint").write_text(str(write_state(Path("work/iter_2.pth"))))
        given = ("--work-dir", "work", *cfg_options(config, shapes, 4), "load_from=none.pth")
        assert started("train", DEMO / f"{config}.py", "--resume", *given).resume

    def test_a_path_with_a_blank(self, config, shapes, weights):
        path = write_state(Path("a run.pth"))
        if config == SEG:  # whose script takes it by --cfg-options only, which drops blanks
            given = cfg_options(config, shapes, 4)
            assert "--resume 'a run.pth': mmseg takes no" in refused(
                "train", DEMO / f"{SEG}.py", "--resume", path, *given
            )
        else:
            assert self.resumed(config, shapes, weights, "--resume", path).load_from == str(path)

    @pytest.mark.parametrize("form", ["--resume PATH", "--resume=PATH"])
    def test_a_path(self, config, form, shapes, weights):
        path = write_state(Path("elsewhere.pth"))
        cfg = self.resumed(config, shapes, weights, *form.replace("PATH", str(path)).split())
        assert (cfg.resume, cfg.load_from, cfg.randomness.seed) == (True, str(path), 7)

    def test_a_url(self, config, shapes, weights):
        url = "https://example.com/run.pth"
        write_state(Path("downloads") / f"run-{sha256(url.encode()).hexdigest()[:8]}.pth")
        cfg = self.resumed(config, shapes, weights, "--resume", url)
        assert (cfg.resume, cfg.load_from, cfg.randomness.seed) == (True, url, 7)

    @pytest.mark.parametrize(
        "content",
        [dict(meta=None), dict(message_hub=None), dict(meta=dict(seed=7))],
        ids=["without meta", "of mmcv 1", "without iteration"],
    )
    def test_a_file_of_weights_alone(self, config, content, shapes):
        path = write_state(Path("work/weights.pth"), **content)
        whole = write_state(Path("work/iter_2.pth"))
        file = DEMO / f"{config}.py"
        message = refused("train", file, "--work-dir", "work", "--resume", path, *cfg_options(config, shapes, 4))
        assert message == (
            f"ValueError: cannot resume from {path}: it holds weights, not the state of a training run of mmengine: "
            f"start from it with load_from; go on from {whole}: --resume {whole}"
        )

    def test_no_such_file(self, config, shapes):
        message = refused("train", DEMO / f"{config}.py", "--resume", "none.pth", *cfg_options(config, shapes, 4))
        assert "cannot resume from none.pth: no checkpoint at none.pth: check the path; no whole checkpoint" in message


class TestDevice:
    def test_those_that_torch_has(self):
        check_device(None)
        check_device("cpu")
        with pytest.raises(ValueError, match=r"^--device gpu cannot be used \(.*\): leave it out, or take cpu$"):
            check_device("gpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    @pytest.mark.parametrize(
        "line", ["infer I C X --out o", "visualize I C.py X --out o.png", "features extract I W --out o.npz"]
    )
    def test_every_tool_refuses_one_that_is_not_there(self, line, refusal):
        assert refusal(*line.split(), "--device", "cuda").startswith("ValueError: --device cuda cannot be used (")


def test_tiles_of_no_size(refusal, shapes, weights):
    images = shapes / "images" / "validation"
    message = refusal("infer", images, DEMO / f"{SEG}.py", weights[SEG], "--out", "o", "--tile", "0")
    assert message.startswith("ValueError: tiles of 0 pixels")


@pytest.mark.parametrize("config", SCORES)
def test_a_base_of_this_package_leaves_classes_to_the_library(config, shapes):
    name = f"{config}.py"
    Path("own.py").write_text(f"_base_ = 'xcit_mm::demo/{name}'\nown = _base_.dataset\n")
    given = cfg_options(config, shapes, 3)
    cfg, same = started("train", "own.py", *given), started("train", DEMO / name, *given)
    assert cfg.own.type == same.dataset.type
    init_default_scope(cfg.default_scope)
    assert len(DATASETS.build(cfg.train_dataloader.dataset)) == 8
    assert METRICS.build(cfg.val_evaluator)
    for one in (cfg, same):
        for key in ("own", "work_dir"):
            one.pop(key, None)
    assert cfg.to_dict() == same.to_dict()


@pytest.mark.parametrize("name", COPIED.values())
def test_configs_to_copy_stand_alone(name, tmp_path):
    """For mmdet's and mmseg's own scripts too, which know no `xcit_mm::`."""
    copied = shutil.copy(DEMO / name, tmp_path)
    assert "xcit_mm::" not in Path(copied).read_text()
    assert Config.fromfile(copied).to_dict() == Config.fromfile(DEMO / name).to_dict()


def test_mmseg_s_inference_runs_on_the_config_to_copy():
    import numpy as np
    from mmseg.apis import inference_model, init_model

    model = init_model(str(DEMO / COPIED["mmseg"]), device="cpu")
    assert inference_model(model, np.zeros((48, 64, 3), np.uint8)).pred_sem_seg.data.shape == (1, 48, 64)


@pytest.mark.parametrize("config, folder", [(SEG, "pictures/vis_data/vis_image"), (DET, "work/*/pictures")])
def test_pictures_of_all_tested_images(config, folder, shapes, weights, tool, tmp_path):
    given = ("--work-dir", "work", "--show-dir", "pictures", *cfg_options(config, shapes, 1))
    given += ("test_dataloader.dataset.indices=2",)
    run = tool("test", DEMO / f"{config}.py", weights[config], *given)
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(list(tmp_path.glob(f"{folder}/*.*g"))) == 2


def test_training_checkpoint_is_read_without_running_it(tmp_path):
    from mmengine.logging import HistoryBuffer

    class Exploit:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    history = HistoryBuffer([1.0, 2.0, 3.0], [1, 1, 1])
    torch.save(dict(message_hub=dict(loss=history), state_dict=dict(w=torch.ones(2))), tmp_path / "good.pth")
    read = load_from_file(str(tmp_path / "good.pth"))
    assert read["message_hub"]["loss"].mean() == 2.0
    assert torch.equal(read["state_dict"]["w"], torch.ones(2))

    torch.save(dict(state_dict=Exploit()), tmp_path / "bad.pth")
    with pytest.raises(ValueError, match=r"bad.pth.*builtins.exec"):
        load_from_file(str(tmp_path / "bad.pth"))
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_a_library_s_name_is_not_the_library(tmp_path, monkeypatch):
    (tmp_path / "libraryless").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(launch._LIBRARIES, "libraryless", "mm")
    with pytest.raises(ModuleNotFoundError, match=r"needs libraryless, which is not installed: .*/mm\.txt"):
        launch.find_script(Config(dict(default_scope="libraryless")), "own.py", "train")
