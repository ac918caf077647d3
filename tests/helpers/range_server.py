"""Serve the files of a folder, also parts of them, as GDAL asks for: python range_server.py FOLDER.

The first line of its output is the port.
"""

import functools
import http.server
import sys
from pathlib import Path


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and parts of files."""

    def do_GET(self) -> None:
        requested = self.headers.get("Range")
        if requested is None:
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        first, _, last = requested.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last or len(content)) + 1]
        self.send_response(206)
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        self.send_header("Content-Range", span)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    handler = functools.partial(RangeHandler, directory=sys.argv[1])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
