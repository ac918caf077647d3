"""Instances with their place on a map, as GeoJSON, written one by one."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.atomic import atomic_write
from .gdal import gdal
from .georeferencing import Scene
from .polygons import box_rings, boxed_mask, geometry, mask_rings, run_lengths

__all__ = ["Found", "write_instances"]

_LONGITUDE_LATITUDE = [("EPSG", "4326"), ("OGC", "CRS84")]


class Found(NamedTuple):
    """An instance.

    Attributes:
        id: A number of its own.
        label: Class number, from 0 on.
        score: From 0 to 1.
        box: Left, top, right and bottom in pixels.
        mask: COCO's run-length code in the whole image; None of a detector without masks.
    """

    id: int
    label: int
    score: float
    box: Sequence[float]
    mask: str | bytes | None = None


def write_instances(
    path: Path,
    scene: Scene,
    classes: Sequence[str],
    found: Iterable[Found],
    properties: dict[str, Any] | None = None,
) -> int:
    """Write a FeatureCollection of polygons, which is there when all are written; of any number in constant memory.

    Each has its id, class, label and score as properties. Coordinates are those of the scene's `crs`, which stands
    in the member `crs` as GDAL has it, but for WGS 84, where longitude and latitude are what GeoJSON means without
    it. A scene without a crs gives what its transform does, pixels if it has none either; the collection's property
    `coordinates` says which. What covers nothing, an empty mask or box, has null for a geometry.

    Args:
        path: Of the file.
        scene: Size and place of the image.
        classes: Names of the labels.
        found: The instances; they are asked for one by one.
        properties: More of them, of the collection.

    Returns:
        How many there were.

    Raises:
        ValueError: If a mask is not of an image of this size, a label of no class, or a number not finite.
        OSError: If it cannot be written; then what was there still is.
        ModuleNotFoundError: If rasterio is not installed.
    """
    head = dict(type="FeatureCollection", name=path.stem) | _crs_member(scene)
    head["properties"] = dict(coordinates=_meaning(scene)) | (properties or {})
    count = 0
    with atomic_write(path) as file:
        file.write(json.dumps(head, allow_nan=False)[:-1].encode() + b', "features": [')
        for count, one in enumerate(found, 1):
            separator = b",\n" if count > 1 else b"\n"
            file.write(separator + json.dumps(_feature(one, scene, classes), allow_nan=False).encode())
        file.write(b"\n]}\n")
    return count


def _feature(one: Found, scene: Scene, classes: Sequence[str]) -> dict[str, Any]:
    if not 0 <= one.label < len(classes):
        raise ValueError(f"instance {one.id} has the label {one.label}, of {len(classes)} classes")
    if one.mask is None:
        polygons = box_rings(one.box)
    else:
        boxed = boxed_mask(run_lengths(one.mask), scene.height, scene.width)
        with gdal("a mask"):
            polygons = mask_rings(boxed) if boxed is not None else []
    properties = {"id": one.id, "class": classes[one.label], "label": one.label, "score": one.score}
    return dict(type="Feature", id=one.id, properties=properties, geometry=geometry(polygons, scene.transform))


def _crs_member(scene: Scene) -> dict[str, Any]:
    """The member `crs`, by EPSG's number, or as well-known text, which GDAL reads too, where there is none."""
    if scene.crs is None or scene.transform.is_identity:
        return {}
    authority = scene.crs.to_authority()
    if authority is not None and type(scene.crs).from_authority(*authority) != scene.crs:
        authority = None  # it is only like it
    if authority in _LONGITUDE_LATITUDE:
        return {}
    by_number = authority is not None and authority[0] == "EPSG"
    name = f"urn:ogc:def:crs:EPSG::{authority[1]}" if by_number else scene.crs.to_wkt()
    return dict(crs=dict(type="name", properties=dict(name=name)))


def _meaning(scene: Scene) -> str:
    if scene.transform.is_identity:
        return "pixels of the image: x to the right, y down, from the outer corner of the first pixel"
    return "of the image's transform, in an unknown coordinate system" if scene.crs is None else "of the image's crs"
