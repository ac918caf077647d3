"""Train a segmentor in crops and on whole images, where a class depends on the whole image.

    python benchmarks/whole_training.py --data data/camvid --out docs/benchmark/14-whole-training

An image is a mosaic of nine photos of CamVid at 240x180, drawn by chance, and made darker as a
whole by a random factor. In photos that are darker than the median of their mosaic, all pixels are
of one class more. No crop of a photo tells whether it is darker than others, but the mosaic does.

Semantic FPN with XCiT-N12/16 is trained from scratch, in random crops of 256x256 pixels from six
mosaics an iteration, or on one whole mosaic, which has as many pixels. All else is the same:
BatchNorm of the backbone is in eval mode, as bands need it. Each model predicts mosaics of held-out
photos whole, and in tiles of 256 pixels. Writes OUT.csv, in which the rows of other seeds stay:
mIoU of the 12 classes, IoU of the class that depends on the whole, and accuracy, in per cent.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from csv_rows import ORIGIN, origin, write_row
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from torch import Tensor

from xcit_mm import read_config
from xcit_mm.models.windows import tiles_along
from xcit_mm.utils.output import quiet

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "demo" / "fpn_xcit-n12-p16_camvid.py"
PHOTO = (240, 180)  # width and height in pixels
CLASSES = 11  # of CamVid. The next number is that of darker photos.
IGNORED = 255
CROP = 256
CROPS = 6  # have the pixels of a mosaic
OVERLAP = 64  # of tiles
KEYS = ("seed", "trained", "predicted")
COSTS = ("miou", "darker_iou", "accuracy", "cpu_seconds", *ORIGIN)


class Photo(NamedTuple):
    """A photo, BGR, and the classes of its pixels."""

    pixels: np.ndarray
    labels: np.ndarray


def read_photos(data: Path, split: str) -> list[Photo]:
    photos = []
    for path in sorted((data / "images" / split).glob("*.jpg")):
        label_path = data / "annotations" / split / f"{path.stem}.png"
        labels = cv2.imread(str(label_path), cv2.IMREAD_UNCHANGED)
        labels = cv2.resize(labels, PHOTO, interpolation=cv2.INTER_NEAREST)
        labels[labels >= CLASSES] = IGNORED
        pixels = cv2.resize(cv2.imread(str(path)), PHOTO, interpolation=cv2.INTER_AREA)
        photos.append(Photo(pixels, labels))
    return photos


def draw_mosaic(photos: list[Photo], rng: np.random.Generator) -> Photo:
    """Join nine photos, and give those that are darker than their median the class CLASSES."""
    chosen = [photos[number] for number in rng.choice(len(photos), 9, replace=False)]
    means = np.array([photo.pixels.mean() for photo in chosen])
    maps = [
        np.full_like(photo.labels, CLASSES) if is_darker else photo.labels
        for photo, is_darker in zip(chosen, means < np.median(means), strict=True)
    ]
    pixels = join([photo.pixels for photo in chosen]) * rng.uniform(0.4, 1.0)
    return Photo(pixels.round().astype(np.uint8), join(maps))


def join(images: list[np.ndarray]) -> np.ndarray:
    """Join nine images in three rows."""
    return np.vstack([np.hstack(images[first : first + 3]) for first in (0, 3, 6)])


def draw_crop(photo: Photo, rng: np.random.Generator) -> Photo:
    height, width = photo.labels.shape
    top = rng.integers(height - CROP + 1)
    left = rng.integers(width - CROP + 1)
    place = slice(top, top + CROP), slice(left, left + CROP)
    return Photo(photo.pixels[place], photo.labels[place])


def build(trained: str) -> Any:
    """Build the segmentor of the demo for one class more, trained 'whole' or in 'crops'."""
    config = read_config(CONFIG)
    init_default_scope(config.default_scope)
    model = config.model
    model.data_preprocessor.update(size=None, size_divisor=32, seg_pad_val=IGNORED)
    model.backbone.update(norm_eval=True, norm_cfg=dict(type="BN"))
    model.neck.norm_cfg = None
    model.decode_head.update(
        num_classes=CLASSES + 1, ignore_index=IGNORED, norm_cfg=dict(type="BN")
    )
    if trained == "whole":
        model.type = "xcit_mm.WholeImageEncoderDecoder"
        model.window = 1024  # one, so that BatchNorm of heads sees a mosaic as it sees six crops
        model.backbone.with_cp = "bands"
    with quiet():
        model = MODELS.build(model)
        model.init_weights()
    return model.train()


def to_batch(model: Any, photos: list[Photo]) -> dict[str, Any]:
    """Return normalised images and their labels, padded to multiples of 32 pixels."""
    from mmseg.structures import SegDataSample

    samples = []
    for photo in photos:
        labels = torch.from_numpy(photo.labels.astype(np.int64))[None]
        sample = SegDataSample(metainfo=dict(img_shape=labels.shape[1:]))
        sample.gt_sem_seg = PixelData(data=labels)
        samples.append(sample)
    images = [torch.from_numpy(photo.pixels.copy()).permute(2, 0, 1) for photo in photos]
    return model.data_preprocessor(dict(inputs=images, data_samples=samples), training=True)


def train(trained: str, photos: list[Photo], iterations: int, seed: int) -> Any:
    """Train a model, and return it in eval mode. Both kinds draw the same first mosaics."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = build(trained)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    for iteration in range(iterations):
        if trained == "whole":
            images = [draw_mosaic(photos, rng)]
        else:
            images = [draw_crop(draw_mosaic(photos, rng), rng) for _ in range(CROPS)]
        batch = to_batch(model, images)
        loss = model.loss(batch["inputs"], batch["data_samples"])["decode.loss_ce"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if iteration % 10 == 0:
            print(f"{trained}, seed {seed}, {iteration}: loss {loss.item():.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def predict(model: Any, photo: Photo, predicted: str) -> np.ndarray:
    """Return the class of each pixel, seen 'whole' or in 'tiles'."""
    height, width = photo.labels.shape
    labels = np.empty((height, width), np.int64)
    side, overlap = (CROP, OVERLAP) if predicted == "tiles" else (max(height, width), 0)
    for rows, columns in product(
        tiles_along(height, side, overlap), tiles_along(width, side, overlap)
    ):
        tile = Photo(*(part[rows.span, columns.span] for part in photo))
        logits = logits_of(model, to_batch(model, [tile])["inputs"])
        inside = (
            slice(rows.inside.start - rows.start, rows.inside.stop - rows.start),
            slice(columns.inside.start - columns.start, columns.inside.stop - columns.start),
        )
        labels[rows.inside, columns.inside] = logits.argmax(dim=0)[inside].numpy()
    return labels


def logits_of(model: Any, images: Tensor) -> Tensor:
    """Return the logits of one image at its padded size, (classes, H, W)."""
    meta = dict(img_shape=images.shape[2:], pad_shape=images.shape[2:])
    return model.encode_decode(images, [meta])[0]


def score(model: Any, mosaics: list[Photo], predicted: str) -> dict[str, float]:
    """Return the scores of predictions in per cent."""
    count = CLASSES + 1
    pairs = np.zeros((count, count), np.int64)  # of label and prediction
    for mosaic in mosaics:
        labels = predict(model, mosaic, predicted)
        is_counted = mosaic.labels != IGNORED
        numbers = mosaic.labels[is_counted].astype(np.int64) * count + labels[is_counted]
        pairs += np.bincount(numbers, minlength=count**2).reshape(count, count)
    right = np.diag(pairs)
    union = pairs.sum(axis=0) + pairs.sum(axis=1) - right
    iou = 100 * right / np.maximum(union, 1)
    scores = dict(miou=iou[pairs.any(axis=1)].mean(), darker_iou=iou[CLASSES])
    scores["accuracy"] = 100 * right.sum() / pairs.sum()
    return {name: round(float(value), 2) for name, value in scores.items()}


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train and score the models, and yield the rows of the csv."""
    photos = read_photos(args.data, "training")
    held_out = read_photos(args.data, "validation")
    rng = np.random.default_rng(0)
    mosaics = [draw_mosaic(held_out, rng) for _ in range(args.mosaics)]
    for seed, trained in product(args.seeds, args.trained):
        start = time.process_time()
        model = train(trained, photos, args.iterations, seed)
        seconds = round(time.process_time() - start)
        for predicted in ("whole", "tiles"):
            names = dict(seed=seed, trained=trained, predicted=predicted)
            yield names | score(model, mosaics, predicted) | dict(cpu_seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=ROOT / "data" / "camvid")
    add("--trained", nargs="+", choices=["crops", "whole"], default=["crops", "whole"])
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--iterations", type=int, default=300)
    add("--mosaics", type=int, default=12, help="mosaics of held-out photos to score")
    add("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for row in run(args):
        print(row, flush=True)
        write_row(Path(f"{args.out}.csv"), row | origin(), KEYS, COSTS)


if __name__ == "__main__":
    main()
