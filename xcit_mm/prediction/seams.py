"""Objects that several tiles report: kept once, and joined as polygons where the edges of tiles cut
them.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import shapely

MIN_AGREEMENT = 0.5


class Objects(NamedTuple):
    """Objects that tiles report, some of them several times, in pixels of the image.

    Attributes:
        shapes: Polygons of shapely along the edges of the mask's pixels, or boxes, (n,).
        boxes: Left, top, right and bottom, (n, 4).
        scores, labels: (n,).
        tiles: Left, top, right and bottom of the tile, (n, 4).
        open: Whether the tile's left, top, right and bottom edge may have cut the object, (n, 4),
            bool.
    """

    shapes: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    tiles: np.ndarray
    open: np.ndarray

    def select(self, which: np.ndarray) -> "Objects":
        """Select objects by their numbers or a mask."""
        return Objects(*(values[which] for values in self))


def concatenate(objects: Iterable[Objects]) -> Objects:
    """Concatenate the objects of tiles."""
    shapes = [(0,), (0, 4), (0,), (0,), (0, 4), (0, 4)]
    types = [object, float, float, int, int, bool]
    empty: Iterable[np.ndarray] = map(np.zeros, shapes, types)
    return Objects(*map(np.concatenate, zip(empty, *objects, strict=True)))


def outline(mask: np.ndarray, corner: tuple[int, int]) -> shapely.Geometry:
    """Return the polygons of a mask (h, w) at `corner`, x and y, along the edges of its pixels.

    `cv2.findContours` connects the centres of pixels instead, and loses half a pixel on all sides.
    """
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    y, left = np.nonzero(steps > 0)
    _, right = np.nonzero(steps < 0)
    shape = shapely.union_all(shapely.box(left, y, right, y + 1)).simplify(0)
    return shapely.transform(shape, lambda points: points + corner)


def merge_objects(objects: Objects) -> Objects:
    """Merge the objects of all tiles, so that each is reported once and whole, in descending order
    of scores.

    Two objects of one class in different tiles are the same if, in the area that both tiles see,
    they overlap by more than half of their union. A mask that the edge of its tile cuts also
    continues in a mask that covers more than half of it there. Tiles that only touch compare the
    lengths along their seam. The best that no edge cuts is kept; if all are cut, the object is the
    union of their shapes, with the best score.
    """
    objects = objects.select(np.argsort(-objects.scores, kind="stable"))
    shapes = objects.shapes
    boxes = objects.boxes
    tiles = objects.tiles
    groups = [[number] for number in range(len(shapes))]
    for first, second in _agreeing(objects):
        group = groups[first]
        joined = groups[second]
        # The model has found both of two objects that overlap in one tile.
        if group is not joined and not any(
            (tiles[i] == tiles[j]).all() and _overlap(boxes[i], boxes[j]) > MIN_AGREEMENT
            for i in group
            for j in joined
        ):
            group.extend(joined)
            for number in joined:
                groups[number] = group
    kept = []
    for number, members in enumerate(groups):
        if number != min(members):
            continue
        whole = [member for member in sorted(members) if not objects.open[member].any()]
        kept.append(whole[0] if whole else number)
        if not whole and len(members) > 1:
            shapes[number] = shapely.union_all(shapes[members]).simplify(0)
            boxes[number] = [*boxes[members, :2].min(axis=0), *boxes[members, 2:].max(axis=0)]
    return objects.select(np.sort(np.array(kept, int)))


def _overlap(box: np.ndarray, other: np.ndarray) -> float:
    """Return the shared area of two boxes, as a part of the smaller."""
    sides = [(corners[2:] - corners[:2]).clip(min=1e-9) for corners in (box, other)]
    shared = (np.minimum(box, other)[2:] - np.maximum(box, other)[:2]).clip(min=0)
    return float(shared.prod() / min(side.prod() for side in sides))


def _agreeing(objects: Objects) -> list[tuple[int, int]]:
    """Return the pairs that are the same object, in descending order of their agreement."""
    shapes = objects.shapes
    tiles = objects.tiles
    first, second = shapely.STRtree(shapes).query(shapes)
    is_pair = (first < second) & (objects.labels[first] == objects.labels[second])
    is_pair &= (tiles[first] != tiles[second]).any(axis=1)
    first, second = first[is_pair], second[is_pair]
    pairs, number = np.unique(np.hstack([tiles[first], tiles[second]]), axis=0, return_inverse=True)
    areas = shapely.intersection(shapely.box(*pairs[:, :4].T), shapely.box(*pairs[:, 4:].T))
    shapely.prepare(areas)
    seen = areas[number]
    shared = shapely.intersection(shapes[first], shapes[second])
    parts = [shared, _clip(shapes[first], seen), _clip(shapes[second], seen)]
    sizes = np.where(shapely.area(seen) > 0, shapely.area(parts), shapely.length(parts))
    both, first_size, second_size = sizes
    agreement = both / np.maximum(first_size + second_size - both, 1e-9)
    if (shapely.get_num_coordinates(shapes) > 5).any():  # masks
        for part, other, size in ((first, second, first_size), (second, first, second_size)):
            is_inside = (
                objects.open[part] & ((tiles[other] - tiles[part]) * [-1, -1, 1, 1] > 0)
            ).any(axis=1)
            agreement = np.maximum(agreement, is_inside * both / np.maximum(size, 1e-9))
    order = np.argsort(-agreement, kind="stable")[: np.count_nonzero(agreement > MIN_AGREEMENT)]
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _clip(shapes: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Return the parts of shapes in an area each. Most shapes lie in it, which is quick to see."""
    parts = shapes.copy()
    cut = ~shapely.covers(areas, shapes)
    parts[cut] = shapely.intersection(shapes[cut], areas[cut])
    return parts
