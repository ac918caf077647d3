"""Write instances of a raster as GeoJSON: polygons along the edges of pixels."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..utils.atomic import atomic_write
from ..utils.run_lengths import MaskCrop, decode_crop
from .gdal import gdal
from .ground import AreaMeasure
from .raster import Georeference

Rings = list[np.ndarray]
"""A polygon: its outline, then its holes, each (k, 2) of x and y, closed."""
_MASKS, _MASK_PIXELS = 1000, 2**22  # that GDAL gets at once


class MapInstance(NamedTuple):
    """An instance of a raster: its box in pixels, and for a detector with masks COCO's run lengths in the raster."""

    id: int
    label: int
    score: float
    box: Sequence[float]
    mask: str | bytes | None = None
    cut: bool = False  # whether the edge of a tile may have cut the instance


def write_instances(
    path: Path,
    georeference: Georeference,
    classes: Sequence[str],
    instances: Iterable[MapInstance],
    crs: str | None = None,
) -> None:
    """Write a FeatureCollection of polygons atomically, in constant memory for any number of instances.

    Features have the properties id, class, label, score and cut. Coordinates are in the raster's crs, which the member
    `crs` names as in GDAL's GeoJSON. It is left out for WGS 84, whose longitude and latitude are GeoJSON's default. A
    raster without a crs has the coordinates of its transform, or pixels if there is no transform. The collection's
    property `coordinates` states the meaning. An empty mask or box has null as its geometry. The property `area` is in
    square metres, null without a crs. Longitudes are from -180 to 180, except across the antimeridian.

    Args:
        crs: Coordinate system of the polygons, as rasterio reads it. Default: the raster's.

    Raises:
        ValueError: If a mask has another size, a label has no class, a number is not finite, or a raster without a crs
            cannot be converted.
        OSError: If the file cannot be written; a former file stays.
    """
    target = georeference if crs is None else georeference._replace(crs=parse_crs(crs, georeference))
    head = dict(type="FeatureCollection", name=path.stem) | _crs_member(target)
    head["properties"] = dict(coordinates="of the crs" if crs else _describe_coordinates(georeference))
    has_longitudes = target.crs is not None and "crs" not in head and not target.transform.is_identity
    measure = AreaMeasure(georeference.crs, georeference.transform, (georeference.height, georeference.width))
    separator = b"\n"
    with atomic_write(path) as file:
        file.write(json.dumps(head, allow_nan=False)[:-1].encode() + b', "features": [')
        for instance, polygons in _iter_polygons(instances, (georeference.height, georeference.width)):
            feature = _feature(instance, polygons, georeference, classes)
            if crs is not None and feature["geometry"]:
                feature["geometry"] = _convert(feature["geometry"], georeference.crs, target.crs)
            if has_longitudes and feature["geometry"]:
                feature["geometry"]["coordinates"] = _wrap(feature["geometry"]["coordinates"])
            feature["properties"]["area"] = measure(instance.box, instance.mask)
            file.write(separator + json.dumps(feature, allow_nan=False).encode())
            separator = b",\n"
        file.write(b"\n]}\n")


def parse_crs(crs: str, georeference: Georeference) -> Any:
    """Return rasterio's coordinate system for the polygons of a raster, or raise ValueError if they have no place."""
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    if georeference.crs is None or georeference.transform.is_identity:
        raise ValueError(f"--crs {crs}: the raster has no coordinate system to convert from: leave it out")
    try:
        return CRS.from_user_input(crs)
    except CRSError:
        raise ValueError(f"--crs {crs}: not a coordinate system: give an EPSG number, such as EPSG:4326") from None


def _convert(geometry: dict[str, Any], source: Any, target: Any) -> dict[str, Any]:
    from rasterio.warp import transform_geom

    with gdal("a polygon"):
        return transform_geom(source, target, geometry)


def _wrap(coordinates: Any) -> Any:
    """Move polygons beyond a longitude of 180 degrees to the other side of the antimeridian."""
    polygons = [coordinates] if isinstance(coordinates[0][0][0], float) else coordinates
    xs = [x for polygon in polygons for x, _ in polygon[0]]
    turns = 360 * (int(min(xs) >= 180) - int(max(xs) <= -180))
    if not turns:
        return coordinates
    moved = [[[[x - turns, y] for x, y in ring] for ring in polygon] for polygon in polygons]
    return moved[0] if polygons[0] is coordinates else moved


def _iter_polygons(
    instances: Iterable[MapInstance], shape: tuple[int, int]
) -> Iterator[tuple[MapInstance, list[Rings]]]:
    """Iterate over instances and their polygons in pixels. GDAL gets many masks at once, which is faster."""
    waiting: list[tuple[MapInstance, MaskCrop | None]] = []
    height = width = 0
    for instance in instances:
        crop = None if instance.mask is None else decode_crop(instance.mask, *shape)
        waiting.append((instance, crop))
        rows, columns = (0, 0) if crop is None else crop.mask.shape
        height, width = height + rows, max(width, columns)
        if height * width > _MASK_PIXELS or len(waiting) == _MASKS:
            yield from _polygons(waiting, height, width)
            waiting, height, width = [], 0, 0
    yield from _polygons(waiting, height, width)


def _feature(
    instance: MapInstance, polygons: list[Rings], georeference: Georeference, classes: Sequence[str]
) -> dict[str, Any]:
    number, label, score, _, _, cut = instance
    if not 0 <= label < len(classes):
        raise ValueError(f"instance {number} has the label {label}, of {len(classes)} classes")
    properties = {"id": number, "class": classes[label], "label": label, "score": score, "cut": cut}
    geometry = _geometry(polygons, georeference.transform)
    return dict(type="Feature", id=number, properties=properties, geometry=geometry)


def _crs_member(georeference: Georeference) -> dict[str, Any]:
    """Return the member `crs` by its EPSG number or, without a number, as well-known text, which GDAL also reads."""
    crs = georeference.crs
    if crs is None or georeference.transform.is_identity:
        return {}
    authority = crs.to_authority()
    if authority is not None and type(crs).from_authority(*authority) != crs:
        authority = None  # of a similar crs
    if authority in [("EPSG", "4326"), ("OGC", "CRS84")]:
        return {}
    by_number = authority is not None and authority[0] == "EPSG"
    name = f"urn:ogc:def:crs:EPSG::{authority[1]}" if by_number else crs.to_wkt()
    return dict(crs=dict(type="name", properties=dict(name=name)))


def _describe_coordinates(georeference: Georeference) -> str:
    if georeference.transform.is_identity:
        return "pixels of the image: x to the right, y down, from the outer corner of the first pixel"
    unknown = georeference.crs is None
    return "of the image's transform, in an unknown coordinate system" if unknown else "of the image's crs"


def _polygons(
    instances: list[tuple[MapInstance, MaskCrop | None]], height: int, width: int
) -> list[tuple[MapInstance, list[Rings]]]:
    """Return instances with their polygons. Holes run in the opposite direction of outlines.

    The polygons follow the edges of pixels, so areas are exact. `cv2.findContours` would connect the centres of border
    pixels, and so lose half a pixel on all sides and the space between a hole and its surroundings. Pixels that only
    touch at a corner belong to separate polygons, since a ring must not cross itself.

    Args:
        height: Sum of the heights of the masks, which are stacked.
        width: Width of the widest mask.
    """
    from rasterio.features import shapes

    stacked = np.zeros((height, width), np.int32)
    found: list[list[Rings]] = []
    corners, top = [], 0
    for number, (instance, crop) in enumerate(instances, start=1):
        found.append(_box_rings(instance.box) if instance.mask is None else [])
        corners.append(None if crop is None else np.array([crop.left, crop.top - top], np.float64))
        if crop is not None:
            rows, columns = crop.mask.shape
            stacked[top : top + rows, :columns][crop.mask] = number
            top += rows
    if top:
        with gdal("a mask"):
            for polygon, number in shapes(stacked, mask=stacked > 0, connectivity=4):
                index = int(number) - 1
                found[index].append([np.array(ring) + corners[index] for ring in polygon["coordinates"]])
    return [(instance, rings) for (instance, _), rings in zip(instances, found, strict=True)]


def _box_rings(box: Sequence[float]) -> list[Rings]:
    """Return a box (left, top, right, bottom) as a polygon, or an empty list for a box without an area."""
    left, top, right, bottom = box
    if not (left < right and top < bottom):
        return []
    return [[np.array([(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], np.float64)]]


def _geometry(polygons: list[Rings], transform: Any) -> dict[str, Any] | None:
    """Return polygons in pixels as a GeoJSON geometry in the coordinates of an affine transform, or None if empty.

    Outlines are counterclockwise and holes clockwise, also if the transform mirrors.
    """
    coordinates = [
        [_transform_ring(ring, transform, clockwise=number > 0) for number, ring in enumerate(rings)]
        for rings in polygons
    ]
    if not coordinates:
        return None
    if len(coordinates) == 1:
        return dict(type="Polygon", coordinates=coordinates[0])
    return dict(type="MultiPolygon", coordinates=coordinates)


def _transform_ring(ring: np.ndarray, transform: Any, clockwise: bool) -> list[list[float]]:
    x, y = ring.T
    # The area is exact in pixels. Far from the origin, products of coordinates are not.
    area = (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() * transform.determinant
    a, b, c, d, e, f = transform[:6]
    points = np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)
    return (points if (area < 0) == clockwise else points[::-1]).tolist()
