"""Checks of the data sets of a config: whether their files exist, and hold what the config says."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from ..datasets.coco_json import CocoJson
from ..datasets.old_headers import read_infos
from ..datasets.photo_labels import to_number
from ..utils.configs import type_name
from .classes import check_categories
from .findings import Finding, fail, listed, note, ok
from .leaks import check_leaks
from .masks import check_masks
from .objects import CheckedObjects, check_objects
from .photos import Photos, check_photos, check_sizes
from .run_config import ConfiguredData, ConfiguredSplit
from .segmentation import CheckedMaps, check_maps

_EXPORT = "export the file again with this key, or with one id for each entry"
_DROPPED = "correct or remove them: mmdet drops them"


def check_paths(splits: Iterable[ConfiguredSplit]) -> list[Finding]:
    """Find the first path of each split that does not exist."""
    keys = "data_root, data_prefix and ann_file of data set and evaluator"
    fix = f"put or link the data set there, or correct {keys}"
    missing = {split.name: split.find_missing() for split in splits}
    return [
        fail("D311", f"the {name} data are not at {path}", fix)
        for name, path in missing.items()
        if path
    ]


def check_data_sets(split: ConfiguredSplit, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check the content of the files of a split, if they exist and are scored or trained on."""
    if split.find_missing():
        return
    if split.is_only_formatted:
        problem = "with format_only nothing is scored, and labels are not checked"
        yield note("", f"{split.name}: {problem}")
        return
    for dataset in split.datasets:
        if dataset.data_format == "COCO":
            findings = _check_jsons(split, dataset)
        elif dataset.data_format == "maps":
            is_only_training_set = split.name == "train" and len(split.datasets) == 1
            findings = _check_maps(dataset, heads, is_only_training_set)
        else:
            where = " on a server" if any("://" in path for path in dataset.paths) else ""
            findings = iter([note("", f"a {type_name(dataset.options)}{where} is not checked")])
        for finding in findings:
            yield finding._replace(text=f"{split.name}: {finding.text}")


def _check_jsons(split: ConfiguredSplit, dataset: ConfiguredData) -> Iterator[Finding]:
    """Check the json and the images of a data set, and other jsons that its split is scored by."""
    for path in dict.fromkeys([dataset.json_path, *map(os.path.realpath, split.scored_jsons)]):
        try:
            coco = dataset.read_json(path)
        except ValueError as error:
            yield fail("D401", str(error), _EXPORT)
            return
        failures = check_ids(coco)
        yield from failures
        if failures or isinstance(dataset.classes, str):  # another check reports such classes
            return
        yield from check_categories(coco, dataset.classes, split.name == "train")
        count = f"of {len(coco.objects.ids)} annotations of {path}"
        problem = f"{count} have an unknown image_id or category_id"
        yield from listed("FAIL", "D408", coco.unknown, problem, _DROPPED)
        objects = CheckedObjects(
            dataset.to_split(coco),
            path,
            needs_masks=split.scores_masks or dataset.annotation_step.get("with_mask", False),
            poly2mask=dataset.annotation_step.get("poly2mask", True),
        )
        photos = None
        if path == dataset.json_path:
            photos = Photos([str(image.path) for image in objects.split.images], dataset.loading)
        yield from check_labels(objects, photos)


def check_ids(coco: CocoJson) -> list[Finding]:
    """Check the ids by which pycocotools stores matches: numbers, of which 0 means no match."""
    ids = coco.objects.ids
    wrong = [repr(value) for value in ids if not abs(to_number(value)) > 0]  # NaN for a text
    if not wrong:
        wrong = list(map(repr, (Counter(ids) - Counter(set(ids))).elements()))
    problem = f"annotations of {coco.path} have 0, a text or that of another as id, which count as"
    fix = "number the annotations 1, 2, 3, ..."
    return listed("FAIL", "D418", wrong, f"{problem} missed or are confused", fix)


def check_labels(objects: CheckedObjects, photos: Photos | None) -> Iterator[Finding]:
    """Check objects, their masks, and photos against boxes and the sizes that labels state."""
    yield from check_objects(objects)
    yield from check_masks(objects)
    if photos is None:
        return
    yield from check_photos(photos)
    split = objects.split
    stated = {str(image.path): (image.height, image.width) for image in split.images}
    yield from check_sizes("D315", photos, [(path, path, size) for path, size in stated.items()])
    yield ok(f"{len(split.images)} images; {split.count_empty()} have no object")


def _check_maps(
    dataset: ConfiguredData, heads: Mapping[str, nn.Module], is_only_training_set: bool
) -> Iterator[Finding]:
    """Check images and segmentation maps of a data set."""
    built = dataset.built
    # `train --from` links to the user's maps.
    maps = {image["img_path"]: os.path.realpath(image["seg_map_path"]) for image in built.data_list}
    if not maps:
        problem = f"no *{built.img_suffix} in {built.data_prefix['img_path']}"
        yield fail("D314", problem, "correct img_suffix")
        return
    missing = [path for path in maps.values() if not os.path.isfile(path)]
    problem = f"of {len(maps)} images have no segmentation map"
    fix = "add these files, or correct seg_map_suffix and data_prefix.seg_map_path"
    yield from listed("FAIL", "D314", missing, problem, fix)
    photos = Photos(list(maps), dataset.loading)
    if missing or dataset.has_own_step:
        yield from check_photos(photos)
        return
    paths = list(maps.values())
    infos = read_infos(paths, are_maps=True)
    classes = built.metainfo.get("classes") or ()
    yield from check_maps(
        CheckedMaps(photos, paths, infos, classes, heads, is_only_training_set, built)
    )


def check_overlaps(splits: Mapping[str, ConfiguredSplit]) -> Iterator[Finding]:
    """Compare the photos of splits with those of the training. Other checks report exceptions."""
    present = {name: split for name, split in splits.items() if not split.find_missing()}
    if "train" not in present:
        return
    with contextlib.suppress(Exception):
        trained = present.pop("train").list_photos()
        for name, split in present.items():
            yield from check_leaks(name, split.list_photos(), trained)
