"""The format of a data set: which formats explain a folder, and which of these is meant."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.errors import counted
from ..utils.texts import read_lines
from .coco import CocoJson, choose_jsons, is_coco, load_json, read_coco, read_jsons
from .dataset import LAYOUTS, Dataset
from .inventory import Inventory, LeftOut
from .label_files import LabelFile, read_label_files
from .labelme import is_labelme, read_shapes
from .map_folders import read_map_folders
from .pairs import divide_photos, drop_unlabelled, find_lists, pair_labels
from .voc import is_voc, read_xml
from .yolo import find_descriptions, read_yolo

EXPECTED = (
    "a COCO json or a folder with one, YOLO's folder with data.yaml or classes.txt, "
    "Pascal VOC's xml files, or labelme's json files"
)


def read_objects(data: Path) -> Dataset:
    """Read a data set with boxes, perhaps with masks: a COCO json, a description of YOLO, or a
    folder.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If no format explains the folder, several do, or the data cannot be read.
    """
    if data.is_dir():
        return _choose(data, _find_candidates(Inventory(data)))
    if not data.is_file():
        raise FileNotFoundError(f"no folder or file at {data}: expected {EXPECTED}")
    if data.suffix == ".json":
        folder = data.parent
        root = folder.parent if "ann" in folder.name else folder
        return read_jsons({"train": read_coco(data)}, data, Inventory(root), LeftOut(root))
    return read_yolo(data, data, Inventory(data.parent))


class _Candidate(NamedTuple):
    """A format that may explain a folder.

    Attributes:
        file: A file that speaks for the format.
        read: Function that reads the folder in this format.
    """

    data_format: str
    file: Path
    read: Callable[[], Dataset]


def _find_candidates(inventory: Inventory) -> list[_Candidate]:
    """List the formats of which a folder has files."""
    candidates = []
    jsons, shapes, other_jsons = _read_jsons_of(inventory)
    if jsons:

        def read_coco_folder() -> Dataset:
            left_out = LeftOut(inventory.root)
            left_out.add_files("other file", "", other_jsons)
            splits = choose_jsons(jsons, inventory, left_out)
            return read_jsons(splits, inventory.root, inventory, left_out)

        candidates.append(_Candidate("COCO", jsons[0].path, read_coco_folder))
    description = _find_description(inventory)
    if description:
        candidates.append(
            _Candidate(
                "YOLO", description, lambda: read_yolo(description, inventory.root, inventory)
            )
        )
    xml_files = [path for path in inventory.with_suffix(".xml") if is_voc(path)]
    if xml_files:
        candidates.append(
            _Candidate(
                "Pascal VOC",
                xml_files[0],
                lambda: _read_folder("Pascal VOC", xml_files, read_xml, inventory),
            )
        )
    if shapes:
        candidates.append(
            _Candidate(
                "labelme",
                next(iter(shapes)),
                lambda: _read_folder("labelme", list(shapes), shapes.__getitem__, inventory),
            )
        )
    return candidates


def _read_jsons_of(
    inventory: Inventory,
) -> tuple[list[CocoJson], dict[Path, LabelFile], list[Path]]:
    """Read the jsons of a folder, each once: those of COCO, of labelme by path, and others."""
    keys = {path: _find_keys(path) for path in inventory.with_suffix(".json")}
    annotated = [path for path, found in keys.items() if "annotations" in found]
    # COCO also has captions and keypoints.
    preferred = [path for path in annotated if path.name.startswith("instances")] or annotated
    jsons = []
    shapes = {}
    others = []
    for path, found in keys.items():
        content: Any = load_json(path) if "shapes" in found or path in preferred else None
        if is_labelme(content):
            shapes[path] = read_shapes(path, content)
        elif path in preferred and is_coco(content):
            jsons.append(read_coco(path, content))
        else:
            others.append(path)
    return jsons, shapes, others


def _find_keys(path: Path) -> set[str]:
    """Return which words of COCO and labelme stand in a json of any encoding."""
    encoded = path.read_bytes()
    encodings = ("utf-8", "utf-16-le", "utf-16-be")
    return {
        key
        for key in ("annotations", "shapes")
        if any(f'"{key}"'.encode(encoding) in encoded for encoding in encodings)
    }


def _find_description(inventory: Inventory) -> Path | None:
    """Return the file that describes a data set of YOLO, or None.

    Raises:
        ValueError: If several files do, and they are not lists of the same names.
    """
    paths = find_descriptions(inventory)
    if not paths:
        return None
    path, *others = paths
    for other in others:
        if path.suffix in (".yaml", ".yml", ".data") or read_lines(path) != read_lines(other):
            raise ValueError(f"{inventory.root} is described by {path} and {other}: remove one")
    return path


def _read_folder(
    data_format: str,
    labels: Sequence[Path],
    read: Callable[[Path], LabelFile],
    inventory: Inventory,
) -> Dataset:
    """Read a folder with a file of labels for each photo. Other photos are left out."""
    left_out = LeftOut(inventory.root)
    # Pascal VOC's SegmentationClass and SegmentationObject hold maps.
    maps = [path for path in inventory.photos if "segmentation" in path.parent.name.lower()]
    left_out.add_files("segmentation map", "", maps)
    photos = sorted(set(inventory.photos).difference(maps))
    pairs = pair_labels(divide_photos(photos, inventory), labels, inventory, left_out)
    labelled = drop_unlabelled(pairs, inventory, left_out)
    classes, splits = read_label_files(labelled, lambda path, size: read(path), left_out)
    suffix = labels[0].suffix
    others = set(inventory.with_suffix(suffix)).difference(labels)
    left_out.add_files("other file", "", sorted(others))
    return Dataset(
        inventory.root, data_format, classes, splits, left_out, inventory, find_lists(inventory)
    )


def _choose(data: Path, candidates: Sequence[_Candidate]) -> Dataset:
    """Read the one format that explains objects.

    Raises:
        ValueError: If none does, or several do.
    """
    if len(candidates) == 1:
        return candidates[0].read()
    datasets = {candidate: candidate.read() for candidate in candidates}
    explaining = [candidate for candidate in candidates if datasets[candidate].count_objects()]
    if len(explaining) > 1:
        counts = [
            f"{counted(datasets[candidate].count_objects(), 'object')} of {candidate.data_format} "
            f"({candidate.file})"
            for candidate in explaining
        ]
        fix = "remove one, or give its file by --data"
        raise ValueError(f"{data} has {' and '.join(counts)}: {fix}")
    if not explaining:
        kinds = Counter(path.suffix.lower() for path in Inventory(data).files)
        found = ", ".join(f"{count} {suffix}" for suffix, count in kinds.most_common(5))
        raise ValueError(
            f"{data} has no labels, but {found or 'no files'}: expected {EXPECTED}; {LAYOUTS}"
        )
    (chosen,) = explaining
    dataset = datasets[chosen]
    for candidate in candidates:
        if candidate is not chosen:
            dataset.left_out.rename(candidate.file, f"of {candidate.data_format} without objects")
    return dataset


def read_maps(data: Path) -> Dataset:
    """Read a folder with photos and segmentation maps, as `read_map_folders` does."""
    if not data.is_dir():
        raise FileNotFoundError(f"no folder at {data}: expected one of images and maps; {LAYOUTS}")
    return read_map_folders(data, Inventory(data))
