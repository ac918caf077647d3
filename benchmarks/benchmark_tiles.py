"""Measure a segmentor's mIoU and seams for several sizes of tiles and overlaps, as .csv and .png.

    python benchmarks/benchmark_tiles.py CONFIG CHECKPOINT --tiles 96 160 256 --out docs/benchmark/NAME [--mosaic 4]

The images are those of the config's test set, or square mosaics of them. `seams` is the percentage of pixels in the
overlap of two neighbouring tiles whose classes differ before blending. With a tile as large as the image, the image is
predicted whole.
"""

import argparse
import csv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from mmengine.registry import DATASETS, init_default_scope

from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.tiles import windows
from xcit_mm.utils.configs import read_config

OVERLAPS = (0, 1 / 8, 1 / 4, 1 / 2)  # as parts of the tile


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint")
    parser.add_argument("--tiles", type=int, nargs="+", required=True, metavar="PIXELS")
    parser.add_argument("--mosaic", type=int, default=1, help="images per side of a mosaic (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="path of the two files, without suffix")
    return parser.parse_args()


def iter_images(config: str, mosaic: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield images (H, W, 3), BGR, of the test set with their labels (H, W), without an incomplete last mosaic."""
    cfg = read_config(config, [])
    init_default_scope(cfg.default_scope)
    cfg.test_dataloader.dataset.pipeline = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations")]
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    items = [dataset[number] for number in range(len(dataset))]
    for first in range(0, len(items) - mosaic**2 + 1, mosaic**2):
        rows = [items[first + mosaic * row :][:mosaic] for row in range(mosaic)]
        yield tuple(
            np.vstack([np.hstack([item[key] for item in row]) for row in rows]) for key in ("img", "gt_seg_map")
        )


def count_seams(predictor: Predictor, image: np.ndarray, tile: int, overlap: int) -> tuple[int, int]:
    """Count the pixels in overlaps of neighbouring tiles, and those whose classes differ between the tiles."""

    def predict(crop: np.ndarray) -> np.ndarray:
        (sample,) = predictor.predict_preprocessed([predictor.preprocess(crop)])
        return predictor.to_prediction(crop, sample).segmentation

    lines, columns = (windows(length, tile, overlap) for length in image.shape[:2])
    labels = [[predict(image[y.start : y.stop, x.start : x.stop]) for x in columns] for y in lines]
    total = differing = 0
    for row in labels:
        for (x, left), (x_right, right) in pairwise(zip(columns, row, strict=True)):
            shared = x.stop - x_right.start
            total += left.shape[0] * shared
            differing += np.count_nonzero(left[:, left.shape[1] - shared :] != right[:, :shared])
    for (y, upper), (y_lower, lower) in pairwise(zip(lines, labels, strict=True)):
        shared = y.stop - y_lower.start
        for above, below in zip(upper, lower, strict=True):
            total += above.shape[1] * shared
            differing += np.count_nonzero(above[above.shape[0] - shared :] != below[:shared])
    return total, differing


def mean_iou(confusion: np.ndarray) -> float:
    """Compute the mIoU of the present classes, in percent, from counts of pixels (true class, predicted class)."""
    both = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - both
    return float(100 * (both[either > 0] / either[either > 0]).mean())


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    pairs = list(iter_images(args.config, args.mosaic))
    predictor = Predictor(args.config, args.checkpoint, tile=args.tiles[0])
    count = len(predictor.metainfo["classes"])
    rows = []
    for tile in args.tiles:
        whole = all(tile >= max(image.shape[:2]) for image, _ in pairs)
        for overlap in (0,) if whole else (int(part * tile) for part in OVERLAPS):
            predictor.tile, predictor.overlap = tile, overlap
            confusion, shared = np.zeros((count, count), np.int64), np.zeros(2, np.int64)
            for image, truth in pairs:
                found = predictor(image).segmentation
                known = truth < count
                pixels = truth[known].astype(np.int64) * count + found[known]
                confusion += np.bincount(pixels, minlength=count**2).reshape(count, count)
                if overlap:
                    shared += count_seams(predictor, image, tile, overlap)
            row = dict(tile=tile, overlap=overlap, miou=round(mean_iou(confusion), 2))
            row["seams"] = round(100 * shared[1] / shared[0], 2) if shared[0] else ""
            print(row, flush=True)
            rows.append(row)
    return rows


def draw(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    tiles = sorted({row["tile"] for row in rows})
    whole = tiles[-1] if sum(row["tile"] == tiles[-1] for row in rows) == 1 else None
    for part in OVERLAPS:
        line = [row for row in rows if row["overlap"] == int(part * row["tile"]) and row["tile"] != whole]
        name = f"overlap {part:g} of the tile"
        color = f"C{OVERLAPS.index(part)}"
        left.plot([row["tile"] for row in line], [row["miou"] for row in line], "o-", color=color, label=name)
        if part:
            right.plot([row["tile"] for row in line], [row["seams"] for row in line], "o-", color=color, label=name)
    if whole:
        (miou,) = (row["miou"] for row in rows if row["tile"] == whole)
        left.axhline(miou, color="0.4", linestyle="--", label="whole image")
    left.set(xlabel="tile (pixels)", ylabel="mIoU (%)")
    right.set(xlabel="tile (pixels)", ylabel="pixels in overlaps that differ (%)", ylim=(0, None))
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    args = parse_args()
    rows = measure(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.with_name(f"{args.out.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, args.out.with_name(f"{args.out.name}.png"))


if __name__ == "__main__":
    main()
