"""Open every page of the built site in headless Chromium, as wide as a desktop and as a phone.

    python docs/check_browser.py build/docs

Exits with 1 and a line for each page that scrolls sideways or has an image that does not load, and if the search does
not find `ResumableCheckpointHook`. Needs Chromium (`chromium` or `google-chrome` on the path).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WIDTHS = (1280, 390)  # pixels
WANTED = "ResumableCheckpointHook"
TIMEOUT = 300  # seconds
# Without access to the network.
OFF = ("gpu", "quic", "background-networking", "component-update", "sync")
OPTIONS = ["--headless", "--no-sandbox", "--no-first-run", "--window-size=1400,1000", *(f"--disable-{x}" for x in OFF)]

# Runs in the browser: opens each page in a frame of each width, then the search, and posts the problems to the server.
SCRIPT = """<!doctype html><body><script type="module">
const frame = document.body.appendChild(document.createElement("iframe"));
frame.style.height = "900px";
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
async function open(url, width) {
  frame.style.width = width + "px";
  const loaded = new Promise((done) => frame.addEventListener("load", done, {once: true}));
  frame.src = url;
  await loaded;
  return frame.contentDocument;
}
const found = [];
for (const page of PAGES) {
  for (const width of WIDTHS) {
    const shown = await open(page, width);
    for (const image of shown.images) image.loading = "eager";
    await Promise.all([...shown.images].map((image) => image.decode().catch(() => 0)));
    const reach = shown.scrollingElement.scrollWidth;
    if (reach > width) found.push(`${page} is ${reach} pixels wide in a window of ${width}`);
    for (const image of shown.images)
      if (!image.naturalWidth) found.push(`${page}: ${image.getAttribute("src")} does not load`);
  }
}
const results = await open("search.html?q=" + WANTED, WIDTHS[0]);
let hits = 0;
for (let tries = 0; tries < 100 && !hits; tries++) {
  await wait(100);
  hits = results.querySelectorAll("#search-results li a").length;
}
if (!hits) found.push("the search does not find " + WANTED);
await fetch("/report", {method: "POST", body: JSON.stringify(found)});
</script></body>"""


class Site(SimpleHTTPRequestHandler):
    """Serves the site and the script, and receives the report."""

    script = b""
    report: list[str] | None = None
    reported = threading.Event()

    def do_GET(self) -> None:
        if self.path != "/check":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.script)

    def do_POST(self) -> None:
        Site.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.reported.set()

    def log_message(self, *args: Any) -> None:
        """Log no requests."""


def check(root: Path, browser: str) -> list[str]:
    """Return a line for each problem of the site in a folder.

    Raises:
        RuntimeError: If the browser does not open all pages in time.
    """
    pages = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.html")) if "_modules" not in path.parts]
    names = dict(PAGES=pages, WIDTHS=WIDTHS, WANTED=WANTED)
    constants = "".join(f"const {name} = {json.dumps(value)};" for name, value in names.items())
    Site.script = SCRIPT.replace('type="module">', f'type="module">{constants}').encode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        address = f"http://127.0.0.1:{server.server_port}/check"
        command = [browser, *OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            end = time.monotonic() + TIMEOUT
            while not Site.reported.wait(1) and running.poll() is None and time.monotonic() < end:
                pass
            status = running.poll()
            running.terminate()
    server.shutdown()
    if Site.report is None:
        ended = f"took more than {TIMEOUT} s" if status is None else f"ended with {status}"
        raise RuntimeError(f"{browser} {ended} before it had opened all pages")
    return Site.report


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("chromium and google-chrome are not on the path: install one")
    if not (root / "index.html").is_file():
        sys.exit(f"{root} holds no site: make docs")
    try:
        found = check(root, browser)
    except RuntimeError as error:
        sys.exit(str(error))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
