"""Score CamVid's segmentor on whole images and on tiles of them.

    python benchmarks/seeds.py configs/demo/fpn_xcit-n12-p16_camvid.py --work-dir work_dirs/seeds
    python benchmarks/whole_scores.py --runs work_dirs/seeds --out docs/benchmark/17-whole-scores

Images are CamVid's held-out photos as they are, the same at twice their size, and four mosaics of
nine photos. Each is predicted whole, and in tiles of the training crop's 256 pixels or larger ones,
which overlap by a quarter, all at their own pixels. Writes OUT.csv: mIoU and pixel accuracy of a
seed, in per cent.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from csv_rows import ORIGIN, origin, write_row

from xcit_mm import Predictor

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "demo" / "fpn_xcit-n12-p16_camvid.py"
VOID = 11  # the label of pixels that do not count
TILES = {"photos": (256,), "twice the size": (256, 512), "mosaics of nine": (256, 512, 1024)}
KEYS = ("seed", "images", "predicted")
COSTS = ("miou", "accuracy", *ORIGIN)

Example = tuple[np.ndarray, np.ndarray]
"""An image, BGR, and the classes of its pixels."""


def read_examples(data: Path) -> dict[str, list[Example]]:
    """Return the held-out photos, by how they are shown."""
    photos = []
    for path in sorted((data / "images" / "validation").glob("*.jpg")):
        labels = data / "annotations" / "validation" / f"{path.stem}.png"
        photos.append((cv2.imread(str(path)), cv2.imread(str(labels), cv2.IMREAD_UNCHANGED)))
    order = np.random.default_rng(0).permutation(len(photos))[:36]
    chosen = [photos[number] for number in order]
    twice = [
        (
            cv2.resize(image, None, fx=2, fy=2),
            cv2.resize(labels, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST),
        )
        for image, labels in chosen[:18]
    ]
    mosaics = [join(chosen[first : first + 9]) for first in range(0, 36, 9)]
    return {"photos": photos, "twice the size": twice, "mosaics of nine": mosaics}


def join(photos: list[Example]) -> Example:
    """Join nine photos, and their labels, in three rows."""
    images, labels = (
        np.vstack([np.hstack(parts[first : first + 3]) for first in (0, 3, 6)])
        for parts in zip(*photos, strict=True)
    )
    return images, labels


def score(predictor: Predictor, examples: list[Example]) -> dict[str, float]:
    """Return mIoU and pixel accuracy in per cent."""
    pairs = np.zeros((VOID, VOID), np.int64)  # of label and prediction
    for image, labels in examples:
        predicted = predictor(image).segmentation
        is_counted = labels < VOID
        numbers = labels[is_counted].astype(np.int64) * VOID + predicted[is_counted]
        pairs += np.bincount(numbers, minlength=VOID**2).reshape(VOID, VOID)
    right = np.diag(pairs)
    iou = right / np.maximum(pairs.sum(axis=0) + pairs.sum(axis=1) - right, 1)
    miou = 100 * iou[pairs.any(axis=1)].mean()
    accuracy = 100 * right.sum() / pairs.sum()
    return dict(miou=round(float(miou), 2), accuracy=round(float(accuracy), 2))


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    examples = read_examples(args.data)
    for seed in args.seeds:
        checkpoint = (args.runs / f"seed{seed}" / "last_checkpoint").read_text()

        def predictor(**options: Any) -> Predictor:
            return Predictor.from_pretrained(CONFIG, checkpoint, scale=1, **options)  # noqa: B023

        for images, shown in examples.items():
            names = dict(seed=seed, images=images)
            yield names | dict(predicted="whole") | score(predictor(whole=True), shown)
            for tile in TILES[images]:
                scores = score(predictor(tile=tile, overlap=tile // 4), shown)
                yield names | dict(predicted=f"tiles of {tile}") | scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=ROOT / "data" / "camvid")
    add("--runs", type=Path, required=True, help="the folder of benchmarks/seeds.py")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--out", required=True)
    args = parser.parse_args()
    for row in run(args):
        print(row, flush=True)
        write_row(Path(f"{args.out}.csv"), row | origin(), KEYS, COSTS)


if __name__ == "__main__":
    main()
