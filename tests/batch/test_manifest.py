"""A run as a folder: what it is, what of it is done, and what must not be mixed with it."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import pytest
from mmengine.config import Config

from xcit_mm.batch import manifest as run_module
from xcit_mm.batch.inputs import Input
from xcit_mm.batch.manifest import describe, open_run, start_run
from xcit_mm.batch.shards import FORMATS, DamagedPart, Row, interrupted, part_file, read_rows
from xcit_mm.utils.atomic import atomic_write

pytest.importorskip("pyarrow")

OPTIONS = dict(format="coco", part_size=3, tile=None, overlap=None, dtype="float32")
ROWS = [
    Row(0, "/in/a.png", "a.png", 7, None, 4, 6, [[0.5, 1, 2, 3]], [0.25], [1], ["abc"]),
    Row(1, "/in/b.png", "b.png", None, 3, 4, 6, [], [], [], None),
    Row(2, "/in/c.png", "c.png", error="it is empty"),
]


def inputs_of(*names: str) -> list[Input]:
    return [Input(f"/in/{name}", name, name.split(".")[0]) for name in names]


@pytest.fixture
def identity(untrained):
    config, checkpoint = untrained("fpn_xcit-n12-p16_shapes")
    cfg = Config.fromfile(config)

    def make(inputs: list[Input], **options: object) -> dict:
        return describe(cfg, str(checkpoint), "in", inputs, OPTIONS | options)

    return make


@pytest.mark.parametrize("name", FORMATS)
def test_rows_come_back(name, tmp_path):
    path, part_format = tmp_path / f"part{FORMATS[name].suffix}", FORMATS[name]
    rows = ROWS + [ROWS[0]._replace(number=3 + number) for number in range(100)]
    if name == "parquet":
        rows[1] = rows[1]._replace(segmentation_map=b"\x00\xff")
    for copy in (path, tmp_path / "again"):
        with part_file(copy, part_format) as writer:
            for row in rows:
                writer.write(row)
            assert not copy.exists()
    assert list(read_rows(path, part_format)) == rows
    assert [(row.path, row.error) for row in read_rows(path, part_format, brief=True)] == [
        (row.path, row.error) for row in rows
    ]
    assert path.read_bytes() == (tmp_path / "again").read_bytes()  # nothing of the moment is in it
    assert sorted(os.listdir(tmp_path)) == ["again", path.name]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_part_cut_short_is_damaged(name, share, tmp_path):
    path, part_format = tmp_path / "part", FORMATS[name]
    with part_file(path, part_format) as writer:
        for row in ROWS * 50:
            writer.write(row)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DamagedPart, match="part is damaged") as raised:
        list(read_rows(path, part_format))
    assert raised.value.path == path


def test_a_missing_part_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_rows(tmp_path / "none", FORMATS["coco"]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_is_left_of_a_part(name, error, tmp_path):
    path, part_format = tmp_path / "part", FORMATS[name]
    with pytest.raises(error), part_file(path, part_format) as writer:
        writer.write(ROWS[0])
        raise error
    assert not path.exists()
    if error is KeyboardInterrupt:
        assert list(read_rows(interrupted(path), part_format)) == ROWS[:1]
        with part_file(path, part_format) as writer:
            writer.write(ROWS[2])
    assert os.listdir(tmp_path) == ["part"] * (error is KeyboardInterrupt)


def test_a_file_stays_as_it_was_if_it_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(OSError), atomic_write(tmp_path / "file") as file:
        file.write(b"after")
        raise OSError("the disk is full")
    assert (tmp_path / "file").read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_parts(identity, tmp_path):
    inputs = inputs_of("a.png", "b.png", "c.png", "d.png", "film.mp4", "e.png", "f.png")
    run = start_run(tmp_path, identity(inputs), inputs)
    assert [list(part.inputs) for part in run.parts] == [[0, 1, 2], [3], [4], [5, 6]]
    assert [part.weight for part in run.parts] == [3, 1, 1, 2]
    assert run.missing() == [0, 1, 2, 3] and run.failed() == []
    for part, rows in ((0, ROWS), (3, ROWS[:1])):
        with run.writing(part) as writer:
            for row in rows:
                writer.write(row)
    joined = open_run(tmp_path)
    assert joined.inputs == inputs and joined.identity == json.loads(json.dumps(run.identity))
    assert joined.missing() == [1, 2] and joined.failed() == [0]
    assert list(joined.rows(0)) == ROWS and list(joined.rows(1)) == []


def write_part(run) -> None:
    with run.writing(0) as writer:
        writer.write(ROWS[0])


def test_the_same_run_is_gone_on_with(identity, tmp_path):
    inputs = inputs_of("a.png")
    write_part(start_run(tmp_path, identity(inputs), inputs))
    (tmp_path / "parts" / ".0123abcd-part-000000.jsonl.gz").touch()  # as a kill leaves it
    run = start_run(tmp_path, identity(inputs), inputs)
    assert run.missing() == []
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-000000.jsonl.gz"]


def test_another_run_is_refused_with_what_differs(identity, tmp_path):
    inputs = inputs_of("a.png", "b.png")
    mine = identity(inputs)
    write_part(start_run(tmp_path, mine, inputs))
    more = inputs_of("a.png", "b.png", "c.png")
    for other, message in [
        (identity(inputs, tile=64), "its tile was None, is 64"),
        (identity(inputs, later=None), "its later was not given, is None"),
        (identity(more), "its inputs were 2 at in, are 3 at in"),
        (mine | dict(versions=mine["versions"] | dict(torch="9.9")), r"its torch was \S+, is 9\.9"),
        (
            mine | dict(checkpoint=dict(path="b.pth", sha256="0" * 64)),
            r"its checkpoint was \S+ \(\w+\), is b.pth \(0+\)",
        ),
        (
            mine | dict(config=dict(path="b.py", text=mine["config"]["text"].replace("n12", "t12"))),
            r"its config had '\S+\(arch='n12', .*', b\.py has '\S+\(arch='t12', ",
        ),
    ]:
        with pytest.raises(FileExistsError, match=message) as raised:
            start_run(tmp_path, other, inputs)
        assert "give another --out, or --overwrite to start anew" in str(raised.value)
        assert "\n" not in str(raised.value)
    assert start_run(tmp_path, mine | dict(config=dict(path="moved.py", text=mine["config"]["text"])), inputs)
    assert start_run(tmp_path, mine, inputs).missing() == []
    anew = start_run(tmp_path, identity(more), more, overwrite=True)
    assert anew.missing() == [0] and open_run(tmp_path).inputs == more


def test_a_run_without_parts_is_nobodys_loss(identity, tmp_path):
    inputs = inputs_of("a.png")
    start_run(tmp_path, identity(inputs), inputs)
    start_run(tmp_path, identity(inputs, tile=64), inputs)
    assert open_run(tmp_path).options["tile"] == 64


def test_what_is_of_no_run_is_left_alone(identity, tmp_path):
    (tmp_path / "parts").mkdir()
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="parts is not of an earlier run"):
            start_run(tmp_path, identity(inputs_of("a.png")), inputs_of("a.png"), overwrite)
    assert os.listdir(tmp_path) == ["parts"]


HOLD = """
import sys
from pathlib import Path
from xcit_mm.batch.manifest import _lock
lock = _lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_runs_at_once(identity, tmp_path):
    inputs = inputs_of("a.png")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=r"a run is at work in .*: wait for it, or give another --out"):
            start_run(tmp_path, identity(inputs), inputs)
        other.kill()
    assert start_run(tmp_path, identity(inputs), inputs)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(identity, tmp_path):
    shutil.os.chmod(tmp_path, 0o500)
    with pytest.raises(PermissionError):
        start_run(tmp_path / "out", identity(inputs_of("a.png")), inputs_of("a.png"))


def test_lines_of_a_part_can_be_read_by_anyone(tmp_path):
    with part_file(tmp_path / "a.jsonl.gz", FORMATS["coco"]) as writer:
        writer.write(ROWS[2])
    with gzip.open(tmp_path / "a.jsonl.gz", "rt") as lines:
        assert json.loads(next(lines)) == dict(number=2, path="/in/c.png", file_name="c.png", error="it is empty")


def test_names_that_are_no_text_go_into_parquet(tmp_path):
    row = ROWS[2]._replace(path="/in/\udcff.png", file_name="\udcff.png")
    with part_file(tmp_path / "part", FORMATS["parquet"]) as writer:
        writer.write(row)
    assert [one.file_name for one in read_rows(tmp_path / "part", FORMATS["parquet"])] == ["\\udcff.png"]


@pytest.mark.parametrize("name", ["run.json", "inputs.jsonl"])
def test_stopped_while_it_starts(name, identity, tmp_path, monkeypatch):
    inputs = inputs_of("a.png")
    mine = identity(inputs)

    def full(path):
        if path.name == name:
            raise OSError("the disk is full")
        return atomic_write(path)

    monkeypatch.setattr(run_module, "atomic_write", full)
    with pytest.raises(OSError, match="full"):
        start_run(tmp_path, mine, inputs)
    monkeypatch.undo()
    assert start_run(tmp_path, mine, inputs).missing() == [0]
    assert open_run(tmp_path).inputs == inputs


def test_what_a_kill_leaves_is_removed(identity, tmp_path):
    inputs = inputs_of("a.png")
    start_run(tmp_path, identity(inputs), inputs)
    for name in (".0123abcd-predictions.json", "parts/.0123abcd-part-000000.jsonl.gz", ".0123abcd-mine"):
        (tmp_path / name).touch()
    start_run(tmp_path, identity(inputs), inputs)
    assert [path.name for path in tmp_path.rglob(".0123abcd-*")] == [".0123abcd-mine"]


def test_what_ctrl_c_has_kept_is_somebodys_loss(identity, tmp_path):
    inputs = inputs_of("a.png", "b.png")
    run = start_run(tmp_path, identity(inputs), inputs)
    with pytest.raises(KeyboardInterrupt), run.writing(0) as writer:
        writer.write(ROWS[0])
        raise KeyboardInterrupt
    with pytest.raises(FileExistsError, match="its tile was None, is 64"):
        start_run(tmp_path, identity(inputs, tile=64), inputs)
    assert list(run.rows(0)) == ROWS[:1]


@pytest.mark.parametrize("content", ['{"project": "mine"}', "[]", "no json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_json_of_something_else_is_left_alone(content, overwrite, identity, tmp_path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(FileExistsError, match=r"run\.json is not of an earlier run"):
        start_run(tmp_path, identity(inputs_of("a.png")), inputs_of("a.png"), overwrite)
    assert sorted(os.listdir(tmp_path)) == ["labels", "run.json"]
