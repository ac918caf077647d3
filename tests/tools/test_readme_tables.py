"""The model zoo says what is so: metafiles, configs, published weights, benchmark and pages agree."""

import re
import shutil
from pathlib import Path

import pytest
import readme_speed
import readme_tables
import yaml
from mmengine.config import Config
from paths import ROOT

FPN = "configs/semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
WEIGHTS = "https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_small_12_p16.pth"
MODELS = [model for models in readme_tables.read_zoo(ROOT).values() for model in models]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("configs", "docs/benchmark"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "model-index.yml", "docs/model-zoo.md", "docs/speed.png"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_what_is_shipped_is_true(tool):
    run = tool("readme_tables", "--check")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("README.md", "[43.9](", "[44.9](", "the tables in README.md are not as measured"),
        ("docs/model-zoo.md", "| CamVid |", "| CamVod |", "the tables in docs/model-zoo.md are not as measured"),
        ("README.md", "<!-- end of speed -->", "", "README.md must have"),
        ("docs/benchmark/1-forward.csv", "xcit-auto,800x1344,", "xcit-auto,800x1344,9", "the tables in README.md"),
        ("docs/benchmark/4-resolution.csv", "resnet-50,512x512,", "resnet-50,512x512,9", "docs/speed.png is not of"),
        ("configs/semantic_fpn/metafile.yml", "mIoU: 43.9", "mIoU: 44.9", "begins '# Published on ADE20k.*mIoU 43.9"),
        ("configs/semantic_fpn/metafile.yml", f"Config: {FPN}", "Config: configs/none.py", "should be configs/sem"),
        ("configs/semantic_fpn/metafile.yml", "fpn_xcit-s12-p16_", "fpn_xcit-s13-p16_", "which does not exist"),
        ("configs/semantic_fpn/metafile.yml", f"Config: {FPN}", "Epochs: 3", "has no Config"),
        ("configs/semantic_fpn/metafile.yml", "small_12_p16.pth", "small_13_p16.pth", "not published"),
        ("configs/semantic_fpn/metafile.yml", "small_12_p16.pth", "small_12_p8.pth", "another model's"),
        ("configs/semantic_fpn/metafile.yml", WEIGHTS, WEIGHTS.replace("sem_fpn", "upernet"), "another model's"),
        ("configs/semantic_fpn/metafile.yml", "fpn_xcit-s12-p8_", "fpn_xcit-s12-p16_", "has 2 entries|has 0 entries"),
        ("configs/semantic_fpn/metafile.yml", "Parameters: ", "Params: ", "has no number of Parameters"),
        ("configs/upernet/metafile.yml", "Parameters: 54", "Parameters: 55", "the tables in docs/model-zoo.md"),
        ("configs/demo/metafile.yml", "mIoU: ", "mIoU: 7", "mIoU 7.*, not the mean of"),
        ("docs/benchmark/10-scores.csv", "mIoU,", "mIoU,7", "mIoU .*, not the mean of"),
        ("model-index.yml", "  - configs/upernet/metafile.yml\n", "", "model-index.yml lists"),
        (FPN, "mIoU 43.9", "mIoU 44.9", "begins '# Published on ADE20k.*mIoU 44.9"),
    ],
)
def test_what_is_not_so_is_named(copy, file, old, new, message):
    readme_tables.check(copy)
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        readme_tables.check(copy)


def test_a_config_without_an_entry_is_named(copy):
    new = copy / "configs" / "upernet" / "upernet_xcit-l24-p16_8xb2-160k_ade20k-512x512.py"
    new.touch()
    with pytest.raises(ValueError, match=f"{new.name} has 0 entries"):
        readme_tables.check(copy)


@pytest.mark.parametrize("file, block", [("README.md", "models"), ("docs/model-zoo.md", "measured")])
def test_tables_are_put_back_and_nothing_else_is_touched(copy, file, block):
    shipped = (copy / file).read_text()
    (copy / file).write_text(readme_tables.with_block(shipped, block, "emptied", file))
    assert "emptied" in (copy / file).read_text()
    assert readme_tables.written(copy, readme_tables.read_zoo(copy))[file] == shipped


def test_scores_are_told_with_the_range_of_the_seeds(copy):
    name = "fpn_xcit-n12-p16_shapes"
    (copy / readme_tables.SEEDS).write_text(
        "config,seed,test,metric,score\n" + "".join(f"{name},{i},as configured,mIoU,{i}.04\n" for i in (7, 8, 9))
    )
    results = [dict(Metrics=dict(mIoU=8.0))]
    model = dict(Name=name, Config="a.py", Metadata={"Training Data": "shapes", "Iterations": 9}, Results=results)
    assert "| shapes | 9 | mIoU 8.0 (7.0 to 9.0) |" in readme_tables.measured_table(copy, [model])


def test_a_peer_that_was_not_measured_is_named(copy):
    path = copy / "docs" / "benchmark" / "4-resolution.csv"
    path.write_text("".join(line for line in path.open() if not line.startswith("timm-xcit")))
    with pytest.raises(ValueError, match=r"4-resolution.csv has no timm-xcit at 3072x3072: measure it as well"):
        readme_tables.check(copy)


def test_the_plot_is_drawn_from_the_csv(copy):
    (copy / "docs" / "speed.png").unlink()
    assert not readme_speed.is_drawn(copy)
    readme_speed.draw(copy)
    assert readme_speed.is_drawn(copy)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["Name"])
def test_metadata_are_the_config_s(model):
    cfg, metadata = Config.fromfile(ROOT / model["Config"]), model["Metadata"]
    gpus = 8 if "Weights" in model else 1
    assert metadata["Batch Size"] == gpus * cfg.train_dataloader.batch_size
    assert metadata.get("Epochs") == cfg.train_cfg.get("max_epochs")
    assert metadata.get("Iterations") == cfg.train_cfg.get("max_iters")
    if "Weights" in model:
        assert metadata["Parameters"] == readme_tables.count_parameters(ROOT / model["Config"])


def test_parameters_are_counted_into_the_metafiles(copy, monkeypatch):
    monkeypatch.setattr(readme_tables, "count_parameters", lambda config: 12345678)
    readme_tables.write_parameters(copy)
    for task in readme_tables.TASKS:
        text = (copy / "configs" / task.folder / "metafile.yml").read_text()
        shipped = (ROOT / "configs" / task.folder / "metafile.yml").read_text()
        assert re.sub(r"(Parameters:) \d+", r"\1 12345678", shipped) == text


@pytest.mark.parametrize("folder", [task.folder for task in readme_tables.TASKS])
def test_models_belong_to_a_collection_of_their_metafile(folder):
    metafile = yaml.safe_load((ROOT / "configs" / folder / "metafile.yml").read_text())
    names = {collection["Name"] for collection in metafile["Collections"]}
    assert {model["In Collection"] for model in metafile["Models"]} == names
