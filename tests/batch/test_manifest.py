"""A run's folder: manifest, shard files, their states, and protection from other runs."""

import gzip
import json
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from mmengine.config import Config
from processes import CONTEXT

from xcit_mm.batch import manifest as manifest_module
from xcit_mm.batch import run as run_module
from xcit_mm.batch.inputs import Input
from xcit_mm.batch.manifest import ModelInfo, create_manifest
from xcit_mm.batch.options import Execution, RunOptions
from xcit_mm.batch.run import lock_folder, open_run, start_run
from xcit_mm.batch.shards import FORMATS, DamagedShard, Record, interrupted_path, read_records, write_records
from xcit_mm.utils.atomic import atomic_write

pytest.importorskip("pyarrow")

RECORDS = [
    Record(0, "/in/a.png", "a.png", 7, None, 4, 6, [[0.5, 1, 2, 3]], [0.25], [1], ["abc"]),
    Record(1, "/in/b.png", "b.png", None, 3, 4, 6, [], [], [], None),
    Record(2, "/in/c.png", "c.png", error="the file is empty"),
]
ONE = [Input("/in/a.png", "a.png", "a")]


def inputs_of(*names: str) -> list[Input]:
    return [Input(f"/in/{name}", name, name.split(".")[0]) for name in names]


def write(path, name, records) -> None:
    with write_records(path, FORMATS[name]) as writer:
        for record in records:
            writer.write(record)


def lock(folder: Path, connection: Connection) -> None:
    file = lock_folder(folder)
    connection.send("locked")
    connection.recv()
    file.close()


@pytest.fixture(scope="module")
def manifest(untrained):
    config, checkpoint = untrained("fpn_xcit-n12-p16_shapes")
    cfg = Config.fromfile(config)

    def create(inputs: list[Input] = ONE, **options: object) -> dict:
        options = RunOptions(**(dict(shard_size=3) | options))
        return create_manifest(cfg, str(checkpoint), "in", inputs, options, ModelInfo.from_config(cfg))

    return create


@pytest.mark.parametrize("name", FORMATS)
class TestShardFiles:
    def test_records_are_read_as_they_were_written(self, name, tmp_path):
        records = RECORDS + [RECORDS[0]._replace(number=3 + number) for number in range(100)]
        if name == "parquet":
            records[1] = records[1]._replace(segmentation_map=b"\x00\xff")
        path = tmp_path / "shard"
        with write_records(path, FORMATS[name]) as writer:
            for record in records:
                writer.write(record)
            assert not path.exists()
        assert list(read_records(path, FORMATS[name])) == records
        brief = [(record.path, record.error) for record in read_records(path, FORMATS[name], brief=True)]
        assert brief == [(record.path, record.error) for record in records]
        write(tmp_path / "again", name, records)
        assert path.read_bytes() == (tmp_path / "again").read_bytes()  # without a file name or time
        assert sorted(os.listdir(tmp_path)) == ["again", "shard"]

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
    def test_a_truncated_file_is_damaged(self, share, name, tmp_path):
        write(tmp_path / "shard", name, RECORDS * 50)
        content = (tmp_path / "shard").read_bytes()
        (tmp_path / "shard").write_bytes(content[: int(share * len(content))])
        with pytest.raises(DamagedShard, match="shard is damaged") as raised:
            list(read_records(tmp_path / "shard", FORMATS[name]))
        assert raised.value.path == tmp_path / "shard"

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
    def test_only_ctrl_c_keeps_the_records_of_an_incomplete_file(self, error, name, tmp_path):
        path = tmp_path / "shard"
        with pytest.raises(error), write_records(path, FORMATS[name]) as writer:
            writer.write(RECORDS[0])
            raise error
        assert not path.exists()
        if error is KeyboardInterrupt:
            assert list(read_records(interrupted_path(path), FORMATS[name])) == RECORDS[:1]
            write(path, name, RECORDS[2:])
        assert os.listdir(tmp_path) == ["shard"] * (error is KeyboardInterrupt)


def test_a_missing_shard_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_records(tmp_path / "missing", FORMATS["coco"]))


def test_json_lines_have_no_null_fields(tmp_path):
    write(tmp_path / "a.jsonl.gz", "coco", RECORDS[2:])
    with gzip.open(tmp_path / "a.jsonl.gz", "rt") as lines:
        expected = dict(number=2, path="/in/c.png", file_name="c.png", error="the file is empty")
        assert json.loads(next(lines)) == expected


def test_parquet_stores_names_that_are_not_utf_8(tmp_path):
    write(tmp_path / "shard", "parquet", [RECORDS[2]._replace(path="/in/\udcff.png", file_name="\udcff.png")])
    assert [record.file_name for record in read_records(tmp_path / "shard", FORMATS["parquet"])] == ["\\udcff.png"]


class TestStates:
    def test_shards_are_pending_completed_or_failed(self, manifest, tmp_path):
        inputs = inputs_of("a.png", "b.png", "c.png", "d.png", "video.mp4", "e.png", "f.png")
        run = start_run(tmp_path, manifest(inputs), inputs)
        assert [list(shard.inputs) for shard in run.shards] == [[0, 1, 2], [3], [4], [5, 6]]
        assert [shard.size for shard in run.shards] == [3, 1, 1, 2]
        assert run.pending() == [0, 1, 2, 3] and run.failed() == []
        for shard, records in ((0, RECORDS), (3, RECORDS[:1])):
            write(run.shard_path(shard), "coco", records)
        opened = open_run(tmp_path)
        assert opened.inputs == inputs and opened.manifest == run.manifest and opened.options == run.options
        assert opened.pending() == [1, 2] and opened.failed() == [0]
        assert list(opened.records(0)) == RECORDS and list(opened.records(1)) == []
        assert list(opened.kept_records(0)) == [0, 1]

    def test_a_resumed_run_keeps_shards_and_removes_unfinished_files(self, manifest, tmp_path):
        run = start_run(tmp_path, manifest(), ONE)
        write(run.shard_path(0), "coco", RECORDS[:1])
        for name in (".0123abcd-predictions.json", "shards/.0123abcd-shard-000000.jsonl.gz", ".0123abcd-mine"):
            (tmp_path / name).touch()  # as a kill leaves them, but for the last
        assert start_run(tmp_path, manifest(), ONE).pending() == []
        assert [path.name for path in tmp_path.rglob(".0123abcd-*")] == [".0123abcd-mine"]
        assert os.listdir(tmp_path / "shards") == ["shard-000000.jsonl.gz"]

    @pytest.mark.parametrize("name", ["run.json", "inputs.jsonl"])
    def test_a_start_that_fails_can_be_repeated(self, name, manifest, tmp_path, monkeypatch):
        def full(path):
            if path.name == name:
                raise OSError("the disk is full")
            return atomic_write(path)

        for module in (manifest_module, run_module):
            monkeypatch.setattr(module, "atomic_write", full)
        with pytest.raises(OSError, match="full"):
            start_run(tmp_path, manifest(), ONE)
        monkeypatch.undo()
        assert start_run(tmp_path, manifest(), ONE).pending() == [0]
        assert open_run(tmp_path).inputs == ONE


class TestOtherRuns:
    def test_another_run_is_rejected_with_the_first_difference(self, manifest, tmp_path):
        inputs, more = inputs_of("a.png", "b.png"), inputs_of("a.png", "b.png", "c.png")
        mine = manifest(inputs)
        write(start_run(tmp_path, mine, inputs).shard_path(0), "coco", RECORDS[:1])
        text = mine["config"]["text"]
        for other, message in [
            (manifest(inputs, tile=64), "its tile was None, is 64"),
            (mine | dict(options=mine["options"] | dict(later=None)), "its later was not given, is None"),
            (mine | dict(versions=mine["versions"] | dict(torch="9.9")), r"its torch was \S+, is 9\.9"),
            (mine | dict(checkpoint=dict(path="b.pth", sha256="0" * 64)), r"was \S+ \(\w{8}\), is b.pth \(0{8}\)"),
            (
                mine | dict(config=dict(path="b.py", text=text.replace("n12", "t12"))),
                r"its config had '\S+\(arch='n12', .*', b\.py has '\S+\(arch='t12', ",
            ),
        ]:
            with pytest.raises(FileExistsError, match=message) as raised:
                start_run(tmp_path, other, inputs)
            assert "--overwrite to start again" in str(raised.value) and "\n" not in str(raised.value)
        others = inputs_of("c.png")
        for update in (False, True):
            with pytest.raises(FileExistsError, match="its inputs were 2 at in, are 1 at in; give another --out"):
                start_run(tmp_path, manifest(others), others, Execution(update=update))
        assert start_run(tmp_path, mine | dict(config=dict(path="moved.py", text=text)), inputs).pending() == []
        assert start_run(tmp_path, manifest(more), more, Execution(overwrite=True)).pending() == [0]
        assert open_run(tmp_path).inputs == more

    def test_a_run_without_records_is_replaced(self, manifest, tmp_path):
        run = start_run(tmp_path, manifest(), ONE)
        start_run(tmp_path, manifest(tile=64), ONE)
        assert open_run(tmp_path).options.tile == 64
        with (
            pytest.raises(KeyboardInterrupt),
            write_records(run.shard_path(0), run.format) as writer,
        ):  # records that Ctrl-C kept count
            writer.write(RECORDS[0])
            raise KeyboardInterrupt
        with pytest.raises(FileExistsError, match="its tile was 64, is None"):
            start_run(tmp_path, manifest(), ONE)

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("content", [None, '{"project": "mine"}', "[]", "not json"])
    def test_files_of_another_origin_are_not_touched(self, content, overwrite, manifest, tmp_path):
        (tmp_path / "labels").mkdir()
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        message = "labels does not belong to a run" if content is None else "run.json is not the manifest of a run"
        with pytest.raises(FileExistsError, match=message):
            start_run(tmp_path, manifest(), ONE, Execution(overwrite=overwrite))
        assert sorted(os.listdir(tmp_path)) == ["labels", *["run.json"] * (content is not None)]

    def test_two_processes_cannot_run_in_one_folder(self, manifest, tmp_path):
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=lock, args=(tmp_path, theirs))
        process.start()
        assert ours.recv() == "locked"
        with pytest.raises(BlockingIOError, match=r"another run uses .*: wait until it ends, or give another"):
            start_run(tmp_path, manifest(), ONE)
        process.kill()
        process.join()
        assert start_run(tmp_path, manifest(), ONE)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_cannot_be_written(self, manifest, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError):
            start_run(tmp_path / "out", manifest(), ONE)
