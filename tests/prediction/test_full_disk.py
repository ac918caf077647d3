"""`predict` on a full disk ends in one line, and the same command goes on when there is room."""

import errno
import json
import re
from types import SimpleNamespace

import pytest
from helpers.full_disk import room_for
from helpers.runs import merged

from xcit_mm.models.token_stores import TokensInFile
from xcit_mm.prediction import Item
from xcit_mm.prediction.journal import Journal, read_journals

WHOLE = ("--whole", "--scale", "1", "--window", "128")


@pytest.mark.parametrize(
    ("kind", "size", "file"),
    [
        ("seg", 4000, r"visualizations/03\.png\.jpg"),
        ("seg", 400, r"labels/03\.png\.png"),
        ("det", 30_000, r"journal/[^/]*\.jsonl"),  # at the second record
        ("det", 72_000, r"predictions\.json"),  # which has the objects of both journals
    ],
)
def test_it_is_one_line_and_earlier_results_stay(
    kind, size, file, command, photos, call, refusal, tmp_path, out
):
    draws = [] if "visualizations" in file else ["--no-visualizations"]
    assert call(*command(photos / "00.png", kind=kind), *draws)[0] == 0
    former = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    former.pop(out / "images.json")  # written before predictions.json, which has ids in it
    arguments = (*command(*sorted(photos.glob("0[0369].png")), kind=kind), *draws)
    with room_for(size):
        message = refusal(*arguments)
    assert re.fullmatch(rf"OSError: \[Errno \d+\] File too large: '.*/{file}'", message)
    assert {path: path.read_bytes() for path in former} == former
    code, printed, errors = call(*arguments)
    assert code == 0 and "4 predicted: " in printed and "failed" not in errors
    undisturbed = command(*sorted(photos.glob("0[0369].png")), kind=kind, out=tmp_path / "all")
    assert call(*undisturbed, *draws)[0] == 0
    assert merged(out) == merged(tmp_path / "all")


def test_the_end_of_a_process_does_not_follow_a_part_of_a_line(tmp_path):
    """There may be room again when it ends."""
    journal = Journal(tmp_path)
    item = Item("/photos/a.jpg", "a.jpg", 1)
    journal.start(item)
    with room_for(100), pytest.raises(OSError, match=r"File too large: '.*\.jsonl'"):
        journal.add(item, objects=[dict(score=0.5)] * 1000)
    journal.end()
    assert read_journals(tmp_path) == ({}, {})
    lines = journal.path.read_text().splitlines()
    assert [list(json.loads(line)) for line in lines] == [["start"], ["end"]]


@pytest.mark.usefixtures("taps_in_files")
def test_a_disk_without_room_for_taps_fails_no_photo(
    command, photos, call, refusal, tmp_path, out, monkeypatch
):
    """The same command goes on after the last finished tap."""
    assert call(*command(photos / "00.png", out=tmp_path / "undisturbed"), *WHOLE)[0] == 0
    written = []
    write = TokensInFile.write

    def fill_the_disk(self, rows: slice, tokens: object) -> None:
        written.append(self.path)
        if len(written) == 4:  # the first tap is finished
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        write(self, rows, tokens)

    arguments = (*command(photos / "00.png", photos / "03.png"), *WHOLE)
    with monkeypatch.context() as patch:
        patch.setattr(TokensInFile, "write", fill_the_disk)
        message = refusal(*arguments)
    assert re.fullmatch(r"OSError: \[Errno 28\] No space left on device: '.*/\.taps/.*'", message)
    assert not read_journals(out).records and not read_journals(out).deaths
    code, printed, _ = call(*arguments)
    assert code == 0 and "2 predicted: " in printed
    assert not (out / ".taps").exists()
    labels = "labels/00.png.png"
    assert (out / labels).read_bytes() == (tmp_path / "undisturbed" / labels).read_bytes()


@pytest.mark.usefixtures("taps_in_files")
def test_a_photo_whose_taps_are_larger_than_the_disk_fails_alone(
    command, photos, call, out, monkeypatch
):
    """Others may fit. The photo can be tried again."""
    rooms = iter([9, 10**9])
    arguments = (*command(photos / "00.png", photos / "03.png"), *WHOLE)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=next(rooms)))
        code, printed, errors = call(*arguments)
    assert code == 3 and "1 predicted, 1 failed" in printed
    assert re.search(r"00\.png: OSError: the tokens take .* on the disk of .*/\.taps/", errors)
    assert "predict in tiles" in errors and not (out / ".taps").exists()
    code, printed, _ = call(*arguments, "--retry-failed")
    assert code == 0 and "2 predicted: " in printed
