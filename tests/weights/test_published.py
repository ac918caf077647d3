"""Published names, and downloads that are complete, once, and for all processes."""

import os
import time
from pathlib import Path

import pytest
import torch
from helpers.processes import in_two_processes
from helpers.weight_files import official, same

from xcit_mm.weights.lookup import load_checkpoint
from xcit_mm.weights.published import PUBLISHED, ensure_downloaded
from xcit_mm.weights.reader import load_from_file

NAME = "xcit_nano_12_p16_224"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of downloads, which does not exist yet."""
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """The file NAME on the authors' server, which does not exist yet."""
    path = tmp_path / "source.pth"
    monkeypatch.setitem(PUBLISHED, NAME, PUBLISHED[NAME]._replace(url=path.as_uri()))
    return path


def test_file_is_downloaded_once_under_its_name_also_by_that_of_timm(folder, source):
    torch.save(dict(model=official(16)), source)
    assert ensure_downloaded(f"{NAME}.fb_in1k") == folder / f"{NAME}.pth"
    source.unlink()
    assert same(load_checkpoint(f"xcit://{NAME}")["model"], official(16))
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.pth"]


def test_a_published_name_is_that_of_the_file_at_its_address():
    for name, file in PUBLISHED.items():
        assert file.url.endswith(f"/{name}.pth") and f"p{file.patch_size}" in name


@pytest.mark.peers
def test_the_names_of_timm_are_those_that_timm_lists():
    timm = pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
    names = {file.timm_name for file in PUBLISHED.values()} - {""}
    assert names == set(timm.list_pretrained("xcit_*"))


def test_half_a_download_is_removed_and_its_place_and_the_hub_are_named(folder, source):
    torch.save(dict(model=torch.ones(1000)), source)
    source.write_bytes(source.read_bytes()[:3000])
    fix = rf"take hf://timm/xcit_nano_12_p16_224\.fb_in1k, .* put it at {folder}"
    message = f"cannot download or read {source.as_uri()} .* damaged.*{fix}"
    with pytest.raises(ConnectionError, match=message):
        ensure_downloaded(NAME)
    assert list(folder.iterdir()) == []


def download_in_process(rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")  # as torchrun sets them
    os.environ["XCIT_MM_WEIGHTS"] = f"{folder}/kept"  # the fork server may be an earlier test's
    PUBLISHED[NAME] = PUBLISHED[NAME]._replace(url=(folder / "source.pth").as_uri())
    if rank == 1:
        torch.hub.download_url_to_file = None  # which it would call
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    time.sleep(1 - rank)
    load_from_file(ensure_downloaded(NAME))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_one_of_two_processes_downloads_while_the_other_waits(source):
    torch.save(dict(model=torch.ones(1000)), source)
    in_two_processes(download_in_process, source.parent)
