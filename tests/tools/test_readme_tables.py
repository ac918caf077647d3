"""docs/readme_tables.py names each mismatch between metafiles, configs, published weights, measurements and pages."""

import re
import shutil
from pathlib import Path

import pytest
import readme_speed
import readme_tables
import yaml
from paths import ROOT

from configs import read_config_file

FOLDER = "configs/semantic_fpn"
METAFILE = f"{FOLDER}/metafile.yml"
FPN = f"{FOLDER}/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
WEIGHTS = "https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_small_12_p16.pth"
SCORES, RESOLUTION = "docs/benchmark/10-scores.csv", "docs/benchmark/4-resolution.csv"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("configs", "docs/benchmark"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "model-index.yml", "docs/model-zoo.md", "docs/speed.png"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_shipped_tables_are_current():
    readme_tables.check(ROOT)


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        ("README.md", ", pyramid included,", ", pyramid excluded,", "the tables in README.md are outdated"),
        ("docs/model-zoo.md", "| CamVid |", "| CamVod |", "the tables in docs/model-zoo.md are outdated"),
        ("README.md", "<!-- end of speed -->", "", "README.md must have"),
        ("docs/benchmark/1-forward.csv", "xcit-auto,800x1344,", "xcit-auto,800x1344,9", "the tables in README.md"),
        (RESOLUTION, "resnet-50,512x512,", "resnet-50,512x512,9", "docs/speed.png is outdated"),
        (RESOLUTION, "timm-xcit,3072x3072,", "timm-deit,3072x3072,", "has no timm-xcit at 3072x3072"),
        (METAFILE, "mIoU: 43.9", "mIoU: 44.9", "begins '# Published on ADE20k.*mIoU 43.9"),
        (METAFILE, f"Config: {FPN}", "Config: configs/none.py", "should be configs/sem"),
        (METAFILE, "fpn_xcit-s12-p16_", "fpn_xcit-s13-p16_", "which does not exist"),
        (METAFILE, f"Config: {FPN}", "Epochs: 3", "has no Config"),
        (METAFILE, "small_12_p16.pth", "small_13_p16.pth", "not published"),
        (METAFILE, "small_12_p16.pth", "small_12_p8.pth", "another model's"),
        (METAFILE, WEIGHTS, WEIGHTS.replace("sem_fpn", "upernet"), "another model's"),
        (METAFILE, "fpn_xcit-s12-p8_", "fpn_xcit-s12-p16_", "has 2 entries|has 0 entries"),
        (METAFILE, "Parameters: ", "Params: ", "has no number of Parameters"),
        ("configs/upernet/metafile.yml", "Parameters: 54", "Parameters: 55", "the tables in docs/model-zoo.md"),
        ("configs/demo/metafile.yml", "mIoU: ", "mIoU: 7", "mIoU 7.*, not the mean of"),
        (SCORES, "mIoU,", "mIoU,7", "mIoU .*, not the mean of"),
        ("model-index.yml", "  - configs/upernet/metafile.yml\n", "", "model-index.yml lists"),
        (FPN, "mIoU 43.9", "mIoU 44.9", "begins '# Published on ADE20k.*mIoU 44.9"),
    ],
)
def test_a_mismatch_is_named(copy, file, old, new, message):
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


@pytest.mark.parametrize("file, block", [("README.md", "speed"), ("docs/model-zoo.md", "measured")])
def test_only_the_tables_are_rewritten(copy, file, block):
    shipped = (copy / file).read_text()
    (copy / file).write_text(readme_tables.with_block(shipped, block, "emptied", file))
    assert readme_tables.render(copy, readme_tables.read_metafiles(copy))[file] == shipped


def test_a_measured_score_has_the_range_of_its_seeds(copy):
    name = "fpn_xcit-n12-p16_shapes"
    lines = [f"{name},{seed},as configured,mIoU,{seed}.04" for seed in (7, 8, 9)]
    (copy / SCORES).write_text("\n".join(["config,seed,test,metric,score", *lines]))
    metadata = {"Training Data": "shapes", "Iterations": 9}
    model = dict(Name=name, Config="a.py", Metadata=metadata, Results=[dict(Metrics=dict(mIoU=8.0))])
    assert "| shapes | 9 | mIoU 8.0 (7.0 to 9.0) |" in readme_tables.measured_table(copy, [model])


def test_the_plot_is_drawn_from_the_csv(copy):
    (copy / "docs" / "speed.png").unlink()
    assert not readme_speed.is_current(copy)
    readme_speed.draw(copy)
    assert readme_speed.is_current(copy)


def test_parameters_are_counted_into_the_metafiles(copy, monkeypatch):
    monkeypatch.setattr(readme_tables, "count_parameters", lambda config: 12345678)
    readme_tables.write_parameters(copy)
    for task in readme_tables.TASKS:
        text = (copy / "configs" / task.folder / "metafile.yml").read_text()
        shipped = (ROOT / "configs" / task.folder / "metafile.yml").read_text()
        assert re.sub(r"(Parameters:) \d+", r"\1 12345678", shipped) == text


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*/metafile.yml")), ids=lambda path: path.parent.name)
def test_a_metafile_has_one_collection_and_the_schedule_of_its_configs(path):
    metafile = yaml.safe_load(path.read_text())
    (collection,) = metafile["Collections"]
    assert {model["In Collection"] for model in metafile["Models"]} == {collection["Name"]}
    # The leaves of a folder have one base, but for these.
    models = metafile["Models"] if path.parent.name in ("demo", "linear", "mask2former") else metafile["Models"][:1]
    for model in models:
        cfg, metadata = read_config_file(ROOT / model["Config"]), model["Metadata"]
        gpus = 8 if metadata["Training Data"] in ("COCO", "ADE20K") else 1
        assert metadata["Batch Size"] == gpus * cfg.train_dataloader.batch_size
        assert metadata.get("Epochs") == cfg.train_cfg.get("max_epochs")
        assert metadata.get("Iterations") == cfg.train_cfg.get("max_iters")
