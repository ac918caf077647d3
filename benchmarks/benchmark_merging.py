"""Measure the time to merge the objects with masks that tiles report, for scenes of several sizes.

    OMP_NUM_THREADS=1 python benchmarks/benchmark_merging.py --objects 1000 10000 100000 1000000

The objects are ships of 30x9 pixels at 45 degrees, side by side, so that their boxes overlap, in tiles of 256 pixels.
One object in a hundred is as large as a tile. Prints the number of objects before and after merging, and CPU seconds.
"""

import argparse
import time
from itertools import product

import cv2
import numpy as np
import torch
from mmengine.structures import InstanceData

from xcit_mm.prediction.joining import merge_tiles
from xcit_mm.prediction.tiles import windows
from xcit_mm.utils.run_lengths import encode_mask

STEP, TILE = 14, 256


def report(objects: int, overlap: int) -> list[InstanceData]:
    """Return what the tiles of a square scene report, in the form of `iter_detected`."""
    side = STEP * round(objects**0.5) + TILE
    corners = cv2.boxPoints(((13.5, 13.5), (30, 9), 45)).round().astype(int)
    ship = cv2.fillConvexPoly(np.zeros((28, 28), np.uint8), corners, 1) > 0
    large = np.ones((TILE - 1, TILE - 1), bool)
    spans = [(w, (w.interior[0] - w.margin, w.interior[1] + w.margin)) for w in windows(side, TILE, overlap)]
    found, codes = [], {}
    for (rows, (top, bottom)), (columns, (left, right)) in product(spans, repeat=2):
        first, last = (
            np.clip(np.ceil((np.array(edge) - 14) / STEP), 0, side // STEP - 18).astype(int)
            for edge in ((top, left), (bottom, right))
        )
        ships = list(product(range(first[0], last[0]), range(first[1], last[1])))
        if not ships:
            continue
        places = STEP * np.array(ships)[:, ::-1]
        for y, x in ships:
            if (y, x) not in codes:
                codes[y, x] = encode_mask(ship, (STEP * y, STEP * x), (side, side))
        boxes, masks = np.hstack([places, places + 28]), [codes[place] for place in ships]
        if len(ships) > 99:
            boxes[0] = columns.start, rows.start, columns.stop - 1, rows.stop - 1
            masks[0] = encode_mask(large, (rows.start, columns.start), (side, side))
        found.append(
            InstanceData(
                bboxes=torch.from_numpy(boxes).float(),
                scores=torch.from_numpy(np.random.default_rng(len(found)).uniform(0.5, 1, len(ships))).float(),
                labels=torch.zeros(len(ships), dtype=torch.long),
                sides=torch.zeros(len(ships), dtype=torch.long),
                tiles=torch.tensor([[columns.start, rows.start, columns.stop, rows.stop]]).expand(len(ships), 4),
                masks=masks,
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, nargs="+", default=[1000, 10_000, 100_000], help="numbers of objects")
    parser.add_argument("--overlap", type=int, default=64, help="overlap of tiles in pixels (default: %(default)s)")
    args = parser.parse_args()
    for objects in args.objects:
        found = report(objects, args.overlap)
        begin = time.process_time()
        merged = merge_tiles(found)
        seconds = time.process_time() - begin
        print(f"{sum(len(tile.scores) for tile in found)} {len(merged.scores)} {seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
