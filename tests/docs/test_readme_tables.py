"""Metafiles, configs, published weights, measurements and pages agree."""

import csv
import re
import statistics

import pytest
import readme_tables
import yaml
from paths import ROOT

from configs import read_config_file
from xcit_mm.archs import SIZES
from xcit_mm.weights.published import PUBLISHED

ZOO = readme_tables.read_metafiles(ROOT)
PREFIXES = dict(mask_rcnn="maskrcnn", semantic_fpn="sem_fpn", upernet="upernet")


def test_the_shipped_tables_are_current():
    for path, text in readme_tables.render().items():
        assert text == path.read_text(), path.name


@pytest.mark.parametrize("folder", sorted({*ZOO} - {"demo"}))
def test_every_config_has_one_entry_in_its_metafile(folder):
    entries = [ROOT / model["Config"] for model in ZOO[folder]]
    assert [path.stem for path in entries] == [model["Name"] for model in ZOO[folder]]
    shipped = {*(ROOT / "configs" / folder).glob("*.py")}
    assert len(entries) == len(shipped) and set(entries) == shipped


@pytest.mark.parametrize("folder", PREFIXES)
def test_a_published_model_has_its_own_weights_and_scores_in_the_first_line_of_its_config(folder):
    for model in ZOO[folder]:
        arch, patch = re.findall(r"_xcit-(\w+)-p(\d+)_", model["Name"])[0]
        weights = f"{PREFIXES[folder]}_xcit_{SIZES[arch[0]]}_{arch[1:]}_p{patch}"
        assert model["Weights"] == PUBLISHED[weights]
        first = (ROOT / model["Config"]).read_text().partition("\n")[0]
        values = ", ".join(f"{metric} {score:.1f}" for metric, score in readme_tables.scores(model).items())
        assert first.endswith(f": {values}. Weights: xcit://{weights}")


def test_a_measured_score_is_the_mean_of_its_seeds():
    with (ROOT / "docs" / "benchmark" / "10-scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for model in ZOO["demo"]:
        for metric, score in readme_tables.scores(model).items():
            seeds = [float(row["score"]) for row in rows if (row["config"], row["metric"]) == (model["Name"], metric)]
            assert f"{statistics.mean(seeds):.1f}" == f"{score:.1f}"


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
