"""Published names, and downloads that are complete, once, and for all processes."""

import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from helpers.processes import in_two_processes
from helpers.weight_files import official, same

from xcit_mm.weights.published import PUBLISHED, PublishedFile, ensure_downloaded, local_path
from xcit_mm.weights.zoo import load_checkpoint

NAME = "xcit_nano_12_p16_224"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of downloads, which does not exist yet."""
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.mark.parametrize(
    "name, facts",
    [
        ("coco/maskrcnn_xcit_medium_24_p8", ("m24", 8, 800, "COCO, Mask R-CNN")),
        ("xcit_large_24_p16_384_dist", ("l24", 16, 384, "ImageNet, distilled")),
        ("xcit_small_12_cp8_dino", ("s12", 8, 224, "ImageNet, DINO")),
    ],
)
def test_facts_of_published_files(name, facts):
    url = f"https://dl.fbaipublicfiles.com/xcit/{name}.pth"
    assert PUBLISHED[Path(name).name] == PublishedFile(url, *facts, licence="Apache-2.0")


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="xcit_huge"):
        ensure_downloaded("xcit_huge")


def publish(monkeypatch, url: str) -> None:
    """Let the file NAME have another URL."""
    monkeypatch.setitem(PUBLISHED, NAME, PUBLISHED[NAME]._replace(url=url))


def test_file_is_downloaded_once_under_its_name(folder, tmp_path, monkeypatch):
    torch.save(dict(model=official(16)), tmp_path / "source.pth")
    publish(monkeypatch, (tmp_path / "source.pth").as_uri())
    assert ensure_downloaded(NAME) == folder / f"{NAME}.pth"
    (tmp_path / "source.pth").unlink()
    assert same(load_checkpoint(f"xcit://{NAME}")["model"], official(16))
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.pth"]


def test_error_names_where_to_put_the_file_by_hand(folder, tmp_path, monkeypatch):
    url = (tmp_path / "none.pth").as_uri()
    publish(monkeypatch, url)
    with pytest.raises(ConnectionError, match=rf"cannot download {url}.*put it at {folder}"):
        ensure_downloaded(NAME)
    assert list(folder.glob("*")) == []


def test_files_of_one_name_from_two_servers_are_stored_apart():
    assert local_path("https://a.org/model.bin") != local_path("https://b.org/model.bin")


CONTENT = b"weights" * 1000


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


def test_half_a_download_is_removed(server, folder):
    server.sent = 3000
    with pytest.raises(ConnectionError, match=r"3000 of 7000"):
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
