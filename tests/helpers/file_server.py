"""A local HTTP server with range requests, as object stores answer them."""

import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """Serves the files of a folder in a process of its own, because GDAL waits for answers without
    releasing Python.

    Attributes:
        url: Its address.
        sent: Counter of the bytes that it has sent.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.sent = folder, multiprocessing.Value("q", 0)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        path = self.server.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content, range_ = (
            path.read_bytes(),
            re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")),
        )
        size, first = len(content), 0
        if range_:
            first = int(range_[1])
            content = content[first : int(range_[2] or size) + 1]
        self.send_response(206 if range_ else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        if range_:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
            with self.server.sent.get_lock():
                self.server.sent.value += len(content)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[FileServer]:
    with FileServer(folder) as server:
        process = multiprocessing.get_context("fork").Process(
            target=server.serve_forever, daemon=True
        )
        process.start()
        try:
            yield server
        finally:
            process.kill()
            process.join()
