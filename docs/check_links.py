"""Check the links, anchors and images within the built site.

    python docs/check_links.py build/docs

Does not follow links to other sites. Exits with 1 and a line for each broken link.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def broken(root: Path) -> list[str]:
    """Return a line for each broken link of the site in a folder.

    Raises:
        FileNotFoundError: If the folder holds no site.
    """
    if not (root / "index.html").is_file():
        raise FileNotFoundError(f"{root} holds no site: make docs")
    root = root.resolve()
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            anchor = unquote(url.fragment)
            if not target.is_relative_to(root):
                problem = "leads out of the site"
            elif not target.exists():
                problem = "does not exist"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                problem = "has a missing anchor"
            else:
                continue
            found.append(f"{path.relative_to(root)}: {link} {problem}")
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        found = broken(Path(sys.argv[1]))
    except FileNotFoundError as error:
        sys.exit(str(error))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
