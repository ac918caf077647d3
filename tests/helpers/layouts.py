"""Folders of photos with labels, written from a text such as `images/{1,2}.jpg labels/{1,2}.txt`.

Each photo has 32x32 pixels. Each label has one object of the class `thing` with the box BOX.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from PIL import Image

BOX = [12, 12, 8, 8]
YOLO = "0 0.5 0.5 0.25 0.25\n"
POSE = "0 .5 .5 .25 .25 .4 .4 2 .6 .6 1\n"  # a box of YOLO with two keypoints


def coco(*file_names: str) -> str:
    """Return a COCO json with an object in each image."""
    size = dict(width=32, height=32)
    images = [dict(id=i, file_name=name, **size) for i, name in enumerate(file_names, start=1)]
    shape = dict(category_id=1, bbox=BOX, area=64, iscrowd=0, segmentation=[])
    annotations = [dict(shape, id=image["id"], image_id=image["id"]) for image in images]
    categories = [dict(id=1, name="thing")]
    return json.dumps(dict(images=images, annotations=annotations, categories=categories))


def annotated(change: Callable[[dict], object], *names: str) -> str:
    """Return a COCO json with an object in each image, changed."""
    content = json.loads(coco(*names))
    change(content)
    return json.dumps(content)


def expand(pattern: str) -> Iterator[str]:
    """Iterate over the names of a pattern, as a shell expands its braces."""
    braces = re.search("{(.*?)}", pattern)
    if braces is None:
        yield pattern
    else:
        for word in braces[1].split(","):
            yield from expand(pattern[: braces.start()] + word + pattern[braces.end() :])


def write_photo(path: Path, mode: str = "RGB", **options: object) -> None:
    """Write a photo, or in mode L a map of label 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (32, 32), 1 if mode == "L" else (90, 120, 60)).save(path, **options)


def write_files(root: Path, patterns: str, texts: Mapping[str, str | bytes] | None = None) -> None:
    """Write photos, labels and, marked by `map:` before a pattern, segmentation maps; then files
    with other contents.
    """
    contents = dict(texts or {})
    for pattern in patterns.split():
        for name in expand(pattern.removeprefix("map:")):
            if name.endswith(".txt"):
                contents.setdefault(name, YOLO)
            else:
                write_photo(root / name, "L" if pattern.startswith("map:") else "RGB")
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        encoded = content if isinstance(content, bytes) else content.encode()
        (root / name).write_bytes(encoded)
