"""The benchmark measures the models and sizes that it is given, and reports its results."""

import csv

import benchmark


def test_time_and_the_memory_kept_for_backward_are_reported(call, tmp_path):
    models = ("--models", "xcit-auto", "xcit-plain", "xcit-auto-cp")
    small = ("--arch", "n12", "--sizes", "256", "256x320", "--repeats", 2, "--mode", "train", "--batch", 2)
    call("benchmark", *models, *small, "--out", tmp_path / "v1.2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1.2.csv", "v1.2.md", "v1.2.png"]
    rows = list(csv.DictReader((tmp_path / "v1.2.csv").open()))
    assert [row["size"] for row in rows] == ["256x256"] * 3 + ["256x320"] * 3
    for row in rows:
        assert 0 < float(row["min_ms"]) <= float(row["median_ms"]) <= float(row["max_ms"])
    saved = {row["model"]: float(row["saved_mb"]) for row in rows}
    assert saved["xcit-auto-cp"] < saved["xcit-auto"] < saved["xcit-plain"]


def test_missing_libraries_are_named_before_measuring(refusal, monkeypatch):
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    line = refusal("benchmark", "--models", "xcit-auto", "timm-xcit", "--sizes", 32)
    assert line == "timm-xcit needs timm: pip install timm"
