"""Objects that several tiles report: each is kept once, and joined where edges of tiles cut it."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np
import shapely

MIN_AGREEMENT = 0.5  # of two reports of one object


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
        return Objects(*(array[which] for array in self))


def concatenate(objects: Iterable[Objects]) -> Objects:
    """Concatenate the objects of tiles."""
    no_objects = Objects(
        shapes=np.zeros(0, object),
        boxes=np.zeros((0, 4)),
        scores=np.zeros(0),
        labels=np.zeros(0, int),
        tiles=np.zeros((0, 4), int),
        open=np.zeros((0, 4), bool),
    )
    return Objects(*map(np.concatenate, zip(no_objects, *objects, strict=True)))


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
    """Merge the objects of all tiles: each is reported once and whole, the best scores first.

    Two objects of one class in different tiles are the same if, in the area that both tiles see,
    they overlap by more than half of their union. A mask that the edge of its tile cuts also
    continues in a mask that covers more than half of it there. Tiles that only touch compare the
    lengths along their seam. The best that no edge cuts is kept; if all are cut, the object is the
    union of their shapes, with the best score.
    """
    objects = objects.select(np.argsort(-objects.scores, kind="stable"))
    shapes = objects.shapes
    boxes = objects.boxes
    groups = [[number] for number in range(len(shapes))]
    for first, second in _find_same(objects):
        group = groups[first]
        joined = groups[second]
        if group is joined or _are_told_apart(objects, group, joined):
            continue
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


def _are_told_apart(objects: Objects, group: list[int], other_group: list[int]) -> bool:
    """Return whether a tile tells two groups apart.

    It does if it reports an object of each, and they share more than half of the smaller box: the
    detector has removed doubles in its tile, so two boxes that it kept are two objects. Parts that
    lie apart may belong to one object.
    """
    for pair in product(group, other_group):
        tile, other_tile = objects.tiles[list(pair)]
        if (tile == other_tile).all():
            box, other_box = shapely.box(*objects.boxes[list(pair)].T)
            smaller = max(min(box.area, other_box.area), 1e-9)
            if box.intersection(other_box).area > MIN_AGREEMENT * smaller:
                return True
    return False


def _find_same(objects: Objects) -> list[tuple[int, int]]:
    """Return the pairs that are the same object, in descending order of their agreement.

    The agreement is the IoU in the area that both tiles see. For a mask that its tile may cut, it
    is the share of it that the other covers, if that is more.
    """
    shapes = objects.shapes
    tiles = objects.tiles
    first, second = shapely.STRtree(shapes).query(shapes)
    is_pair = first < second
    is_pair &= objects.labels[first] == objects.labels[second]
    is_pair &= (tiles[first] != tiles[second]).any(axis=1)
    first = first[is_pair]
    second = second[is_pair]
    # Few pairs of tiles are different.
    pairs, number = np.unique(np.hstack([tiles[first], tiles[second]]), axis=0, return_inverse=True)
    areas = shapely.intersection(shapely.box(*pairs[:, :4].T), shapely.box(*pairs[:, 4:].T))
    shapely.prepare(areas)
    seen = areas[number]
    shared = shapely.intersection(shapes[first], shapes[second])
    parts = [shared, _clip(shapes[first], seen), _clip(shapes[second], seen)]
    # Tiles that only touch see a line together.
    sizes = np.where(shapely.area(seen) > 0, shapely.area(parts), shapely.length(parts))
    both, first_size, second_size = sizes
    agreement = both / np.maximum(first_size + second_size - both, 1e-9)
    has_masks = (shapely.get_num_coordinates(shapes) > 5).any()  # a box has five
    if has_masks:
        for part, other, size in ((first, second, first_size), (second, first, second_size)):
            # A tile may cut an object at an edge beyond which the other tile reaches.
            is_beyond = (tiles[other] - tiles[part]) * [-1, -1, 1, 1] > 0
            continues = (objects.open[part] & is_beyond).any(axis=1)
            covered = both / np.maximum(size, 1e-9)
            agreement = np.where(continues, np.maximum(agreement, covered), agreement)
    order = np.argsort(-agreement, kind="stable")
    order = order[agreement[order] > MIN_AGREEMENT]
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _clip(shapes: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Return the part of each shape in its area. Most shapes lie inside, as a quick test shows."""
    parts = shapes.copy()
    cut = ~shapely.covers(areas, shapes)
    parts[cut] = shapely.intersection(shapes[cut], areas[cut])
    return parts
