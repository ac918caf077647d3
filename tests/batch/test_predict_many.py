"""`predict_many` from Python: a whole run, its report, and resuming."""

import json
from pathlib import Path

import pytest
from batch_runs import read_records, result_files

from xcit_mm.batch import Drawing, Execution, RunError, RunOptions, predict_many

OPTIONS = RunOptions(shard_size=4)


@pytest.fixture
def folder(photos, tmp_path):
    """Ten images and a broken one."""
    (tmp_path / "in").mkdir()
    for path in sorted(photos.iterdir())[:10]:
        (tmp_path / "in" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "in" / "broken.png").touch()
    return tmp_path / "in"


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_report_and_files_of_a_whole_run(kind, models, folder, tmp_path):
    report = predict_many(folder, *map(Path, models[kind]), tmp_path / "out", OPTIONS, Execution("cpu", batch_size=2))
    assert (report.inputs, report.predicted, report.failed, report.pending) == (11, 10, 1, 0)
    assert report.out == tmp_path / "out" and not report.interrupted
    assert report.failures == [f"{folder}/broken.png: the file is empty, broken or not an image"]
    assert str(report) == f"10 of 11 inputs predicted: {tmp_path}/out"
    assert len(read_records(report.out)) == 11
    results = report.out / ("labels" if kind == "seg" else "predictions.json")
    assert len(list(results.iterdir()) if kind == "seg" else json.loads(results.read_text())) >= 10


def test_an_equal_run_resumes_and_another_is_rejected(models, folder, tmp_path, capsys):
    arguments = (folder, *models["seg"], tmp_path / "out")
    predict_many(*arguments, OPTIONS)
    before = result_files(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "shards").iterdir()}
    (tmp_path / "out" / "shards" / "shard-000001.jsonl.gz").unlink()
    report = predict_many(*arguments, OPTIONS, Execution(batch_size=3, workers=1))  # may differ
    assert report.predicted == 10 and result_files(tmp_path / "out") == before
    assert [path.stat().st_mtime_ns == time for path, time in sorted(times.items())] == [True, False, True]
    assert "resuming: 2 of 3 shards are completed" in capsys.readouterr().err
    with pytest.raises(FileExistsError, match="its tile was None, is 64"):
        predict_many(*arguments, RunOptions(shard_size=4, tile=64))


def test_an_error_after_the_start_states_what_is_completed(models, folder, tmp_path):
    with pytest.raises(RunError, match=r"does not fit the model.*\(0 of 3 shards are completed: start") as error:
        predict_many(folder, models["seg"][0], models["det"][1], tmp_path / "out", OPTIONS)
    assert isinstance(error.value.__cause__, ValueError)
    assert predict_many(folder, *models["seg"], tmp_path / "out", OPTIONS).predicted == 10  # no records were lost


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(format="csv"), "format='csv': must be one of coco, parquet"),
        (dict(dtype="int8"), "dtype='int8': must be one of float32"),
        (dict(color_by="score"), "color_by='score': must be one of class"),
        (dict(shard_size=0), "shard_size=0: must be at least 1"),
    ],
)
def test_options_out_of_range_raise(options, message):
    with pytest.raises(ValueError, match=message):
        (Drawing if "color_by" in options else RunOptions)(**options)


def test_auto_is_recorded_as_the_type_in_which_the_run_computes(models, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("xcit_mm.batch.predict.fast_dtype", lambda device: "bfloat16")
    for dtype in ("auto", "bfloat16"):  # the second run resumes the first
        predict_many(folder, *models["seg"], tmp_path / "out", RunOptions(dtype=dtype))
    assert "dtype: bfloat16" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["options"]["dtype"] == "bfloat16"
    predict_many(folder, *models["seg"], tmp_path / "float32", OPTIONS)
    assert "this device computes faster in bfloat16: --dtype auto" in capsys.readouterr().err
