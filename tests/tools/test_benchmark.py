"""tools/benchmark.py measures what it says."""

import csv


def test_tables_and_pictures(tool, tmp_path):
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
    for picture in ("name.png", "name-table.png"):
        assert (out.parent / picture).read_bytes().startswith(b"\x89PNG")


def test_training_counts_what_is_kept_for_backward(tool, tmp_path):
    models = ("--models", "xcit-auto", "xcit-plain", "xcit-auto-cp", "resnet-50")
    small = ("--arch", "n12", "--sizes", "256", "--repeats", 1, "--mode", "train", "--batch", 2)
    run = tool("benchmark", *models, *small, "--out", tmp_path / "name")
    assert run.returncode == 0, run.stderr[-2000:]
    saved = {row["model"]: float(row["saved_mb"]) for row in csv.DictReader((tmp_path / "name.csv").open())}
    assert saved["xcit-auto-cp"] < saved["xcit-auto"] < saved["xcit-plain"]
