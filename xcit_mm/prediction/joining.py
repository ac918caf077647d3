"""Instances that several tiles report: matched in the area that both tiles see, and joined where an edge cuts them."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import InstanceData

from ..utils.run_lengths import decode_crop, mask_areas, unite_masks

SIDES = 1, 2, 4, 8
"""Left, top, right and bottom of a box, at which the edge of a tile may have cut an instance. The sum is stored."""

MIN_AGREEMENT = 0.5
MAX_JOINED = 2**28  # pixels in the box of a joined instance, whose mask is decoded to be written as polygons
_CHUNK = 2**12  # instances whose neighbours are searched together


def merge_tiles(found: list[InstanceData]) -> InstanceData:
    """Merge the instances of tiles, from `iter_detected`, into one list in descending order of scores.

    Two instances of one class in different tiles are the same object if they agree in the area that both tiles see:
    their masks there, or their boxes for a detector without masks, overlap by more than half of their union. A mask
    that the edge of its tile cuts also continues in a mask that covers more than half of it there. Instances are joined
    in descending order of their agreement, but those of one tile only if their boxes lie apart, because the model's own
    test_cfg has selected both.

    Of the instances of an object, the best that no edge may have cut is kept. If all may be cut, the object is the
    union of their masks and boxes, with the best score.

    Returns:
        `bboxes` (n, 4), `scores`, `labels`, `masks` if the tiles have masks, and `cut` (n,), bool: whether the edge of
        a tile may have cut the object, and no other tile reports where the object continues.
    """
    merged = InstanceData.cat(found) if found else _no_instances()
    merged = select_instances(merged, merged.scores.argsort(descending=True, stable=True).numpy())
    masks = merged.get("masks")
    sides, tiles = merged.pop("sides").numpy(), merged.pop("tiles").numpy()
    boxes, labels = merged.bboxes.numpy(), merged.labels.numpy()
    fragments = _Fragments(boxes.astype(np.float64), labels, sides, tiles, masks)
    keep, cut_sides = np.ones(len(boxes), bool), fragments.cut()
    cut: np.ndarray = np.any(cut_sides, axis=1)
    for members in fragments.objects():
        whole = [number for number in members if not sides[number]]
        kept = (whole or members)[0]
        keep[members] = False
        keep[kept] = True
        if not whole:
            cut[kept] = any((cut_sides[each] & ~fragments.continues(each, members)).any() for each in members)
            boxes[kept] = [*boxes[members, :2].min(axis=0), *boxes[members, 2:].max(axis=0)]
            if masks is not None:
                masks[kept] = unite_masks([masks[number] for number in members])
    merged.cut = torch.from_numpy(cut)
    return select_instances(merged, np.flatnonzero(keep))


def select_instances(found: InstanceData, numbers: np.ndarray) -> InstanceData:
    """Select instances by their numbers. Lists of masks take linear time, unlike in mmengine; they leave `found`."""
    masks = found.pop("masks", None)
    selected = found[torch.from_numpy(numbers)]
    if masks is not None:
        selected.masks = [masks[number] for number in numbers]
    return selected


def _no_instances() -> InstanceData:
    boxes, none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    return InstanceData(bboxes=boxes, scores=boxes[:, 0], labels=none, sides=none, tiles=boxes.long())


class _Fragments(NamedTuple):
    """Instances of tiles in descending order of scores, which may be fragments of the same objects."""

    boxes: np.ndarray
    labels: np.ndarray
    sides: np.ndarray
    tiles: np.ndarray
    masks: list[dict] | None

    def cut(self) -> np.ndarray:
        """Return whether an edge may cut an instance at its left, top, right and bottom, (n, 4)."""
        # A detector's box may end a little before the edge.
        slack = 1 + 0.02 * np.tile(self.boxes[:, 2:] - self.boxes[:, :2], 2)
        return ((self.sides[:, None] & np.array(SIDES)) > 0) & (np.abs(self.boxes - self.tiles) < slack)

    def continues(self, number: int, members: list[int]) -> np.ndarray:
        """Return whether other members of its object continue an instance at its left, top, right and bottom, (4,)."""
        left, top, right, bottom = self.tiles[number]
        x, y = (self.boxes[number, :2] + self.boxes[number, 2:]) / 2
        points = np.array([(left, y), (x, top), (right, y), (x, bottom)])
        code = self.masks and self.masks[number]
        crop = decode_crop(code["counts"], *code["size"]) if code else None
        if crop is not None:  # the middle of the pixels at the edge, which may lie far from the middle of the box
            edges = crop.mask[:, 0], crop.mask[0], crop.mask[:, -1], crop.mask[-1]
            for side, edge in enumerate(map(np.flatnonzero, edges)):
                points[side, 1 - side % 2] = (crop.top, crop.left)[side % 2] + edge[len(edge) // 2] + 0.5
        others = self.tiles[members][:, None]
        return np.any(np.all((others[..., :2] < points) & (others[..., 2:] > points), axis=2), axis=0)

    def objects(self) -> list[list[int]]:
        """Return the objects of several instances, each in ascending order."""
        found: dict[int, list[int]] = {}  # the object of each instance
        for first, second in self._agreeing():
            one, two = found.get(first, [first]), found.get(second, [second])
            if one is not two and self._may_join(one, two):
                one += two
                found |= dict.fromkeys(one, one)
        return [sorted(members) for number, members in found.items() if number == min(members)]

    def _may_join(self, one: list[int], two: list[int]) -> bool:
        """Return whether two objects have no boxes in common in a tile, and a union that can be decoded."""
        low, high = self.boxes[one + two, :2].min(axis=0), self.boxes[one + two, 2:].max(axis=0)
        if (high - low).prod() > MAX_JOINED:
            return False
        pairs = [pair for pair in product(one, two) if (self.tiles[pair[0]] == self.tiles[pair[1]]).all()]
        if not pairs:
            return True
        first, second = np.array(pairs).T
        both, *areas = _box_areas(self.boxes[first], self.boxes[second], self.tiles[first])
        return bool((both <= MIN_AGREEMENT * np.minimum(*areas)).all())

    def _agreeing(self) -> list[tuple[int, int]]:
        """Return the pairs that agree, in descending order of their agreement."""
        pairs: list[tuple[float, int, int]] = []
        for first, second in self._iter_neighbours():
            tiles = self.tiles[first], self.tiles[second]
            shared = np.hstack([np.maximum(*tiles)[:, :2], np.minimum(*tiles)[:, 2:]])
            areas = _box_areas(self.boxes[first], self.boxes[second], shared)
            meet = areas[0] > 0
            first, second, shared, areas = first[meet], second[meet], shared[meet], areas[:, meet]
            if self.masks is not None:
                areas = mask_areas(self.masks, first, second, shared)
            both, one, two = areas
            agreement = both / np.maximum(one + two - both, 1e-9)
            if self.masks is not None:
                for part, area, other in ((first, one, second), (second, two, first)):
                    share = both / np.maximum(area, 1e-9) * self._is_cut_inside(part, other)
                    agreement = np.maximum(agreement, share)
            agree = agreement > MIN_AGREEMENT
            pairs += zip(*(values[agree].tolist() for values in (-agreement, first, second)), strict=True)
        return [(first, second) for _, first, second in sorted(pairs)]

    def _iter_neighbours(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pairs of instances of one class in different tiles whose boxes meet, the better first."""
        from shapely import STRtree, box

        rectangles = box(*self.boxes.T)
        tree = STRtree(rectangles)
        # Tiles follow each other, so that most masks are decoded once.
        order = np.lexsort(self.tiles.T)
        for start in range(0, len(order), _CHUNK):
            first, second = tree.query(rectangles[order[start : start + _CHUNK]])
            first = order[start + first]
            is_pair = (first < second) & (self.labels[first] == self.labels[second])
            is_pair &= (self.tiles[first] != self.tiles[second]).any(axis=1)
            yield first[is_pair], second[is_pair]

    def _is_cut_inside(self, part: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return whether the edge of a tile that may have cut an instance lies inside another instance's tile."""
        beyond = (self.tiles[other] - self.tiles[part]) * [-1, -1, 1, 1] > 0
        return (beyond & ((self.sides[part, None] & np.array(SIDES)) > 0)).any(axis=1)


def _box_areas(first: np.ndarray, second: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the area in a window (n, 4) that two boxes share, and the area of each there, (3, n)."""

    def area(*boxes: np.ndarray) -> np.ndarray:
        low = np.max([box[:, :2] for box in (window, *boxes)], axis=0)
        high = np.min([box[:, 2:] for box in (window, *boxes)], axis=0)
        return (high - low).clip(min=0).prod(axis=1)

    return np.stack([area(first, second), area(first), area(second)])
