"""Content of a folder of predictions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(out: Path) -> list[dict[str, Any]]:
    """Read all complete records of images and failures, in the order of their journals."""
    lines: list[str] = []
    for path in sorted((out / "journal").glob("*.jsonl")):
        lines += path.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if "path" in record]


def write_json(path: Path, images: Mapping[int, str], categories: Mapping[str, int]) -> Path:
    """Write a COCO json of images and categories, and return its path."""
    content = dict(
        images=[dict(id=id_, file_name=name, width=9, height=9) for id_, name in images.items()],
        categories=[dict(id=id_, name=name) for name, id_ in categories.items()],
    )
    path.write_text(json.dumps(content))
    return path


def read_images(out: Path) -> list[dict[str, Any]]:
    """Read the list of images in images.json."""
    return json.loads((out / "images.json").read_text())["images"]


def merged(out: Path) -> dict[str, Any]:
    """Describe the results of a folder without ids, which depend on the order of predictions.

    Returns:
        By the name of an image its size and its results, and under `files` the names of maps and
        drawings.
    """
    images = {image["id"]: image for image in read_images(out)}
    described: dict[str, Any] = {
        image["file_name"]: [image["height"], image["width"], []] for image in images.values()
    }
    assert len(described) == len(images) == len(read_images(out)), "an image has two results"
    path = out / "predictions.json"
    for result in json.loads(path.read_text()) if path.exists() else []:
        name = images[result.pop("image_id")]["file_name"]
        described[name][2].append(result)
    files = [*out.glob("labels/**/*.*"), *out.glob("visualizations/**/*.*")]
    described["files"] = sorted(str(path.relative_to(out)) for path in files)
    return described
