"""Write instances of a raster as GeoJSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..utils.atomic import atomic_write
from ..utils.run_lengths import decode_crop
from .gdal import gdal
from .polygons import box_rings, geometry, mask_rings
from .raster import Georeference

__all__ = ["MapInstance", "write_instances"]

_LONGITUDE_LATITUDE = [("EPSG", "4326"), ("OGC", "CRS84")]


class MapInstance(NamedTuple):
    """An instance of a raster.

    Attributes:
        id: Unique number.
        label: Class number, from 0.
        score: Score from 0 to 1.
        box: Left, top, right and bottom in pixels.
        mask: COCO's run lengths in the whole raster. None for a detector without masks.
    """

    id: int
    label: int
    score: float
    box: Sequence[float]
    mask: str | bytes | None = None


def write_instances(
    path: Path, georeference: Georeference, classes: Sequence[str], instances: Iterable[MapInstance]
) -> int:
    """Write a FeatureCollection of polygons atomically, in constant memory for any number of instances.

    Features have an id, class, label and score as properties. Coordinates are in the raster's crs, which the member
    `crs` names as in GDAL's GeoJSON. It is left out for WGS 84, whose longitude and latitude are GeoJSON's default. A
    raster without a crs has the coordinates of its transform, or pixels if there is no transform. The collection's
    property `coordinates` states the meaning. An empty mask or box has null as its geometry.

    Args:
        path: File to write.
        georeference: Size and place of the raster.
        classes: Class names by label.
        instances: The instances, which are iterated once.

    Returns:
        The number of instances.

    Raises:
        ValueError: If a mask has another size, a label has no class, or a number is not finite.
        OSError: If the file cannot be written; a former file stays.
        ModuleNotFoundError: If rasterio is not installed.
    """
    head = dict(type="FeatureCollection", name=path.stem) | _crs_member(georeference)
    head["properties"] = dict(coordinates=_describe_coordinates(georeference))
    count = 0
    with atomic_write(path) as file:
        file.write(json.dumps(head, allow_nan=False)[:-1].encode() + b', "features": [')
        for count, instance in enumerate(instances, 1):
            separator = b",\n" if count > 1 else b"\n"
            file.write(separator + json.dumps(_feature(instance, georeference, classes), allow_nan=False).encode())
        file.write(b"\n]}\n")
    return count


def _feature(instance: MapInstance, georeference: Georeference, classes: Sequence[str]) -> dict[str, Any]:
    number, label, score, box, mask = instance
    if not 0 <= label < len(classes):
        raise ValueError(f"instance {number} has the label {label}, of {len(classes)} classes")
    if mask is None:
        polygons = box_rings(box)
    else:
        crop = decode_crop(mask, georeference.height, georeference.width)
        with gdal("a mask"):
            polygons = mask_rings(crop) if crop is not None else []
    properties = {"id": number, "class": classes[label], "label": label, "score": score}
    geometry_ = geometry(polygons, georeference.transform)
    return dict(type="Feature", id=number, properties=properties, geometry=geometry_)


def _crs_member(georeference: Georeference) -> dict[str, Any]:
    """Return the member `crs` by its EPSG number or, without a number, as well-known text, which GDAL also reads."""
    crs = georeference.crs
    if crs is None or georeference.transform.is_identity:
        return {}
    authority = crs.to_authority()
    if authority is not None and type(crs).from_authority(*authority) != crs:
        authority = None  # of a similar crs
    if authority in _LONGITUDE_LATITUDE:
        return {}
    by_number = authority is not None and authority[0] == "EPSG"
    name = f"urn:ogc:def:crs:EPSG::{authority[1]}" if by_number else crs.to_wkt()
    return dict(crs=dict(type="name", properties=dict(name=name)))


def _describe_coordinates(georeference: Georeference) -> str:
    if georeference.transform.is_identity:
        return "pixels of the image: x to the right, y down, from the outer corner of the first pixel"
    unknown = georeference.crs is None
    return "of the image's transform, in an unknown coordinate system" if unknown else "of the image's crs"
