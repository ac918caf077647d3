"""tools/benchmark.py measures what it says."""

import csv

import benchmark_forms
import pytest
import torch
from devices import on_each_device


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


class TestForms:
    """What `choose_form` is set by."""

    @on_each_device
    def test_measures_every_form_in_every_precision(self, device, call, tmp_path):
        out = tmp_path / "folder" / "forms.csv"
        small = ("--arch", "n12", "--sizes", 64, 96, "--batch", 2, "--repeats", 1)
        _, printed, _ = call("benchmark_forms", "--device", device, "--out", out, *small)
        rows = list(csv.DictReader(out.open()))
        assert len(rows) == len({(row["size"], row["dtype"], row["form"]) for row in rows}) == 2 * 3 * 3
        for row in rows:
            assert float(row["images_per_s"]) == pytest.approx(2e3 / float(row["median_ms"]))
            assert (row["torch"], row["tokens"]) == (torch.__version__, {"64": "16", "96": "36"}[row["size"]])
            assert (row["peak_mb"] == "") == (device == "cpu") and row["cuda"] == (torch.version.cuda or "")
        for dtype in benchmark_forms.DTYPES:
            assert f"{dtype}: choose_form by tokens / channels: '" in printed
            assert f"| {dtype} | covariance | " in printed

    def test_runs_each_form_in_the_precision_asked_for(self, monkeypatch):
        seen = []
        form_of = benchmark_forms.XCiTClassifier("n12").blocks[0].attn.__class__.forward

        def spy(module, x):
            seen.append((module.form, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
            return form_of(module, x)

        monkeypatch.setattr("xcit_mm.models.attention.XCA.forward", spy)
        model = benchmark_forms.XCiTClassifier("n12").eval()
        benchmark_forms.Case(model, torch.randn(1, 3, 64, 64), "bfloat16", train=False).run("gram")
        benchmark_forms.Case(model, torch.randn(1, 3, 64, 64), "float32", train=True).run("plain")
        assert set(seen) == {("gram", True, False), ("plain", False, True)}

    def test_a_batch_that_does_not_fit_is_told(self, monkeypatch):
        run = benchmark_forms.Case.run

        def fail(case, form):
            if form == "plain":
                raise torch.cuda.OutOfMemoryError
            run(case, form)

        monkeypatch.setattr(benchmark_forms.Case, "run", fail)
        model = benchmark_forms.XCiTClassifier("n12").eval()
        rows = benchmark_forms.measure(benchmark_forms.Case(model, torch.randn(1, 3, 64, 64), "float32", False), 1)
        assert [row["median_ms"] == "OOM" for row in rows] == [True, False, False]
        assert "| float32 | plain | OOM | OOM |" in benchmark_forms.table(rows)
        assert "'plain'," not in benchmark_forms.advice(rows)[0].partition("now")[0]

    def test_advice_is_the_fastest_form_by_tokens_to_channels(self):
        times = {100: dict(plain=1, gram=2), 400: dict(plain=3, gram=2), 1600: dict(plain=9, gram=6)}
        rows = [
            dict(dtype="float16", tokens=tokens, channels=100, form=form, median_ms=time, auto="plain")
            for tokens, forms in times.items()
            for form, time in forms.items()
        ]
        assert benchmark_forms.advice(rows) == [
            "float16: choose_form by tokens / channels: 'plain', 'gram' from 2 (between 1 and 4); "
            "now it is 'plain' at 1, 'plain' at 4, 'plain' at 16"
        ]

    def test_without_a_gpu(self, refusal, tmp_path):
        line = refusal("benchmark_forms", "--out", tmp_path / "forms.csv")
        assert line.startswith("ValueError: --device cuda cannot be used (")
