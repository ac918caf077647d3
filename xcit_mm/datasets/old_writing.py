"""Data sets written for mmdet or mmseg beside a config, and written again when their files change.

mmdet reads a COCO json, mmseg a list of photos and maps under the names of the photos.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from hashlib import blake2b, file_digest
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec

from ..utils.atomic import atomic_write
from ..utils.images import PHOTO_SUFFIXES
from .inventory import LABEL_SUFFIXES, STATE, Inventory
from .old_dataset import Dataset, Split

_CHUNK = 10_000  # entries of a json that are encoded together


def write_dataset(dataset: Dataset, source: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Write a data set for its library into a folder, and the state of its source: the file or
    folder that it was read from.

    Returns:
        The arguments by which the library reads 'train' and, if photos are held out, 'val'.
    """
    splits = {"train": dataset.training}
    if dataset.held_out:
        splits["val"] = dataset.held_out
    arguments = {}
    for name, split in splits.items():
        if split.objects is None:
            arguments[name] = _write_maps(split, folder, name)
        else:
            path = folder / f"{name}.json"
            write_coco(split, dataset.classes, path)
            arguments[name] = dict(ann_file=str(path), data_prefix=dict(img=""))
    inventory = dataset.inventory
    paths = [image.path for split in dataset.splits.values() for image in split.images]
    elsewhere = [
        str(path)
        for path in [*paths, *dataset.descriptions]
        if inventory is None or not inventory.covers(path)
    ]
    state = dict(
        source=str(source),
        roots=list(map(str, inventory.roots if inventory else ())),
        elsewhere=elsewhere,
        content=_fingerprint(inventory, elsewhere),
    )
    with atomic_write(folder / STATE) as file:
        file.write(json.dumps(state).encode())
    return arguments


def write_coco(split: Split, classes: Sequence[str], path: Path) -> None:
    """Write objects as a COCO json, with the absolute paths of their images. `xcit_mm_origin` names
    an object in the user's files.
    """
    names = enumerate(classes, start=1)
    categories = [dict(id=number, name=name) for number, name in names]
    images = (
        dict(id=number, file_name=str(image.path), width=image.width, height=image.height)
        for number, image in enumerate(split.images, start=1)
    )
    with atomic_write(path) as file:
        file.write(f'{{"categories": {json.dumps(categories)}, "images": '.encode())
        _write_list(file, images)
        file.write(b', "annotations": ')
        _write_list(file, _annotations(split))
        file.write(b"}")


def _write_list(file: IO[bytes], entries: Iterator[dict[str, Any]]) -> None:
    """Write a list in pieces, as the text of a large list takes as much memory again."""
    separator = b"["
    for first in entries:
        chunk = [first, *islice(entries, _CHUNK)]
        encoded = msgspec.json.encode(chunk)
        if b"null" in encoded:  # for NaN, which mmdet's json reads
            encoded = json.dumps(chunk).encode()
        file.write(separator + encoded[1:-1])
        separator = b", "
    file.write(b"[]" if separator == b"[" else b"]")


def _annotations(split: Split) -> Iterator[dict[str, Any]]:
    """Yield COCO's annotations. Ids are kept if COCO's evaluation can use them."""
    objects = split.objects
    assert objects is not None
    ids = objects.ids
    are_numbers = all(type(number) is int and number > 0 for number in ids)
    if not are_numbers or len(set(ids)) < len(ids):
        ids = list(range(1, len(ids) + 1))
    columns = (
        (objects.images + 1).tolist(),
        (objects.labels + 1).tolist(),
        objects.boxes.tolist(),
        objects.areas.tolist(),
        objects.is_crowd.astype(int).tolist(),
        objects.is_ignored.tolist(),
    )
    rows = zip(ids, objects.masks, *columns, strict=True)
    for row, (number, mask, image, label, box, area, is_crowd, is_ignored) in enumerate(rows):
        outlines = [part.tolist() for part in mask] if isinstance(mask, list) else mask
        annotation = dict(id=number, image_id=image, category_id=label, bbox=box, area=area)
        annotation |= dict(iscrowd=is_crowd, segmentation=outlines or [])
        if is_ignored:
            annotation["ignore"] = 1
        if objects.names[row] is not None or objects.ids[row] != number:
            annotation["xcit_mm_origin"] = split.name_object(row)
        yield annotation


def _write_maps(split: Split, folder: Path, name: str) -> dict[str, Any]:
    """Write a list of the photos, and links to the maps under the photos' names. Return the
    arguments by which mmseg's BaseSegDataset reads them.
    """
    root = Path(os.path.commonpath([image.path.parent for image in split.images]))
    names = [image.path.relative_to(root).as_posix() for image in split.images]
    shutil.rmtree(folder / name, ignore_errors=True)
    for photo, label in zip(names, split.maps, strict=True):
        link = folder / name / f"{photo}.png"  # Pillow knows a tif by its content
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(label.resolve())
    with atomic_write(folder / f"{name}.txt") as file:
        file.write("\n".join(names).encode())
    return dict(
        ann_file=str(folder / f"{name}.txt"),
        data_prefix=dict(img_path=str(root), seg_map_path=str(folder / name)),
        img_suffix="",
        seg_map_suffix=".png",
    )


def _fingerprint(inventory: Inventory | None, elsewhere: Sequence[str]) -> str:
    """Return a hash of the files of a data set: of the content of labels, and of the size and time
    of photos. Other files, such as a config beside them, do not count.
    """
    total = blake2b()
    suffixes = (*LABEL_SUFFIXES, *PHOTO_SUFFIXES)
    for path in [*(inventory.with_suffix(*suffixes) if inventory else ()), *map(Path, elsewhere)]:
        total.update(f"{path} ".encode())
        if path.suffix.lower() in LABEL_SUFFIXES:
            with path.open("rb") as file:
                total.update(file_digest(file, blake2b).digest())
        else:
            stat = path.stat()
            total.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    return total.hexdigest()


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state that `write_dataset` wrote into a folder, or None."""
    path = folder / STATE
    return json.loads(path.read_bytes()) if path.is_file() else None


def is_current(state: dict[str, Any], source: str) -> bool:
    """Return whether a state is of this source, and its files are as they were when the state was
    written.
    """
    if state.get("source") != source:
        return False
    roots = [Path(root) for root in state["roots"]]
    try:
        inventory = Inventory(roots[0], *roots) if roots else None
        return _fingerprint(inventory, state["elsewhere"]) == state["content"]
    except OSError:  # a file is missing
        return False
