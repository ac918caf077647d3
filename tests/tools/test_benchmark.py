"""The benchmarks run, measure the models and sizes that they are given, and report their results."""

import csv
import sys

import pytest


@pytest.mark.slow
def test_tables_and_plots_are_written(tool, tmp_path):
    out = tmp_path / "folder" / "name"
    small = ("--arch", "n12", "--sizes", "64", "96x128", "--repeats", 2)
    run = tool("benchmark", "--models", "xcit-auto", "xcit-plain", *small, "--memory", "--out", out)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = list(csv.DictReader(out.with_suffix(".csv").open()))
    assert [(row["model"], row["size"]) for row in rows] == [
        (model, size) for size in ("64x64", "96x128") for model in ("xcit-auto", "xcit-plain")
    ]
    for row in rows:
        assert 0 < float(row["min_ms"]) <= float(row["median_ms"]) <= float(row["max_ms"])
        assert 0 < float(row["peak_mb"]) < 200
    assert "| xcit-plain | 96x128 |" in out.with_suffix(".md").read_text()
    for plot in ("name.png", "name-table.png"):
        assert (out.parent / plot).read_bytes().startswith(b"\x89PNG")


def test_training_reports_the_memory_kept_for_backward(call, tmp_path):
    models = ("--models", "xcit-auto", "xcit-plain", "xcit-auto-cp")
    small = ("--arch", "n12", "--sizes", "256", "--repeats", 1, "--mode", "train", "--batch", 2)
    call("benchmark", *models, *small, "--out", tmp_path / "v1.2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.2.csv", "v1.2.md"]
    saved = {row["model"]: float(row["saved_mb"]) for row in csv.DictReader((tmp_path / "v1.2.csv").open())}
    assert saved["xcit-auto-cp"] < saved["xcit-auto"] < saved["xcit-plain"]


def test_missing_models_are_named(refusal, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    line = refusal("benchmark", "--models", "timm-xcit", "timm-deit-s", "--sizes", 32, "--out", tmp_path / "name")
    assert line.startswith("ModuleNotFoundError: timm-xcit, timm-deit-s are not installed")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_not_emptied(refusal, tmp_path):
    (tmp_path / "thesis.txt").touch()
    line = refusal("benchmark_prediction", "memory", tmp_path, "--images", 1)
    assert line.startswith(f"FileExistsError: {tmp_path} is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
