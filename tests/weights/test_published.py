"""Published names, and downloads that are complete, once, and for all processes."""

import io
import os
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from helpers.processes import in_two_processes
from helpers.weight_files import official, same

from xcit_mm.weights.published import PUBLISHED, ensure_downloaded, local_path
from xcit_mm.weights.zoo import load_checkpoint

NAME = "xcit_nano_12_p16_224"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of downloads, which does not exist yet."""
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_file_is_downloaded_once_under_its_name(folder, tmp_path, monkeypatch):
    torch.save(dict(model=official(16)), tmp_path / "source.pth")
    url = (tmp_path / "source.pth").as_uri()
    monkeypatch.setitem(PUBLISHED, NAME, PUBLISHED[NAME]._replace(url=url))
    assert ensure_downloaded(NAME) == folder / f"{NAME}.pth"
    (tmp_path / "source.pth").unlink()
    assert same(load_checkpoint(f"xcit://{NAME}")["model"], official(16))
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.pth"]


def test_a_name_of_timm_is_the_file_of_the_authors():
    names = {"224.fb_in1k": "224", "224.fb_dist_in1k": "224_dist", "384.fb_dist_in1k": "384_dist"}
    for name_of_timm, name in names.items():
        assert local_path(f"xcit_nano_12_p16_{name_of_timm}").stem == f"xcit_nano_12_p16_{name}"


@pytest.mark.peers
def test_the_names_of_timm_are_those_that_timm_lists():
    timm = pytest.importorskip("timm", reason="timm is not installed: make STACK=peers test")
    names = {file.timm_name for file in PUBLISHED.values()} - {""}
    assert names == set(timm.list_pretrained("xcit_*"))


def test_without_the_authors_server_the_error_names_the_same_weights_on_the_hub(
    tmp_path, monkeypatch
):
    url = (tmp_path / "none.pth").as_uri()
    monkeypatch.setitem(PUBLISHED, NAME, PUBLISHED[NAME]._replace(url=url))
    fix = r"take hf://timm/xcit_nano_12_p16_224\.fb_in1k, which has the same weights, or "
    with pytest.raises(ConnectionError, match=f"none.pth .*{fix}") as error:
        load_checkpoint(f"xcit://{NAME}")
    assert "\n" not in str(error.value)


_file = io.BytesIO()
torch.save(dict(model=torch.ones(1000)), _file)
CONTENT = _file.getvalue()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Sends `sent` bytes of CONTENT, slowly, and counts the times it is `asked`. Like presigned
    URLs it has no HEAD.
    """

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.asked += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            time.sleep(0.5)
            self.wfile.write(CONTENT[: self.server.sent])

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.asked = 0
        server.sent = len(CONTENT)
        server.url = f"http://127.0.0.1:{server.server_port}/file.pth?signature=1"
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_half_a_download_is_removed_and_the_error_names_where_to_put_the_file_by_hand(
    server, folder
):
    server.sent = 3000
    message = rf"cannot download {re.escape(server.url)} .* damaged.*put it at {folder}"
    with pytest.raises(ConnectionError, match=message):
        ensure_downloaded(server.url)
    assert list(folder.iterdir()) == []


def download_in_process(rank: int, url: str, folder: str) -> None:
    os.environ["XCIT_MM_WEIGHTS"] = f"{folder}/kept"  # the fork server may be an earlier test's
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    Path(folder, f"seen{rank}").write_bytes(ensure_downloaded(url).read_bytes())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_one_of_two_processes_downloads_while_the_other_waits(server, tmp_path):
    in_two_processes(download_in_process, server.url, str(tmp_path))
    assert server.asked == 1
    assert [(tmp_path / f"seen{rank}").read_bytes() for rank in range(2)] == [CONTENT] * 2
    assert len(list((tmp_path / "kept").iterdir())) == 1
