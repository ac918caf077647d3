"""A local HTTP server with range requests, as object stores answer them."""

import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """Serves the files of a folder in a process of its own: GDAL waits without releasing Python.

    Attributes:
        url: Its address.
        sent: Counter of the bytes that it has sent.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.sent = multiprocessing.Value("q", 0)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        path = self.server.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        size = len(data)
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            first = int(asked[1])
            data = data[first : int(asked[2] or size) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
            with self.server.sent.get_lock():
                self.server.sent.value += len(data)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[FileServer]:
    with FileServer(folder) as server:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=server.serve_forever, daemon=True)
        process.start()
        try:
            yield server
        finally:
            process.kill()
            process.join()
