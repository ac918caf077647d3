"""Measure the accuracy of a classifier at several sizes of the test images (paper, Figure 3).

    python benchmarks/benchmark_test_sizes.py evaluate IMAGES WEIGHTS --out docs/benchmark/11-test-sizes.csv

IMAGES has a folder for each class, whose sorted names are the labels, as ImageNet's val/. WEIGHTS are a classifier's in
any layout, such as xcit://xcit_small_12_p16_224. Writes a table in CSV, and a plot beside it in PNG. The plot shows the
accuracy relative to that at the training size, also of DeiT-S by the paper's Table A.2. The paper does not print the
values of Figure 3.

A small data set of gray images, and a classifier of them, without downloads:

    python benchmarks/benchmark_test_sizes.py data data/gray-shapes
    python benchmarks/benchmark_test_sizes.py train data/gray-shapes/train gray.pth
    python benchmarks/benchmark_test_sizes.py evaluate data/gray-shapes/val gray.pth
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from make_shapes import CLASSES, draw_image
from torch import Tensor

from xcit_mm import XCiTClassifier
from xcit_mm.archs import MEAN, STD
from xcit_mm.models.build import model_from_weights
from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.images import read_image

SIZES = (128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
DEIT = {160: 75.9, 224: 79.9, 256: 80.4, 288: 80.4, 320: 80.1}
"""Top-1 accuracy on ImageNet of DeiT-S trained at 224 (paper, Table A.2)."""
DEIT_TRAINED = 224


def write_data(root: Path, train: int = 300, val: int = 24) -> None:
    """Write gray crops of the shapes of synthetic images as SPLIT/CLASS/, without the hues that tell classes apart."""
    for split, count in dict(train=train, val=val).items():
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
        for number in range(count):
            image, instances, labels = draw_image(np.random.default_rng((11, split == "val", number)), 480)
            gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
            for instance, label in enumerate(labels, start=1):
                x, y, width, height = cv2.boundingRect((instances == instance).astype(np.uint8))
                half = round(0.75 * max(width, height))
                left, top = x + width // 2 - half, y + height // 2 - half
                padded = np.pad(gray, 480, mode="reflect")
                crop = padded[top + 480 : top + 480 + 2 * half, left + 480 : left + 480 + 2 * half]
                cv2.imwrite(str(root / split / CLASSES[label] / f"{number:04}-{instance}.png"), crop)


def list_images(folder: Path) -> tuple[list[Path], list[int], list[str]]:
    """Return paths, labels and the names of the classes."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    paths = [path for path in sorted(folder.rglob("*.*")) if path.parent != folder]
    if not paths:
        raise ValueError(f"{folder} has no folders of images: give a folder with one folder for each class")
    return paths, [classes.index(path.relative_to(folder).parts[0]) for path in paths], classes


def read_crop(path: Path, size: int) -> Tensor:
    """Read an image, resize its shorter side to 8/7 of `size`, and return the central crop, (3, size, size), RGB."""
    image = torch.from_numpy(read_image(path)[..., ::-1].copy()).permute(2, 0, 1)[None].float()
    scale = round(size * 8 / 7) / min(image.shape[2:])
    shape = [max(size, round(side * scale)) for side in image.shape[2:]]
    image = F.interpolate(image, shape, mode="bicubic", antialias=True).clamp(0, 255)
    top, left = ((side - size) // 2 for side in shape)
    return normalize(image[0, :, top : top + size, left : left + size])


def normalize(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def iter_batches(images: list[Tensor], labels: Tensor, steps: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random batches of random crops, some of them turned or mirrored."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch_size,), generator=rng).tolist()
        batch = []
        for number in chosen:
            image, (area, y, x) = images[number], torch.rand(3, generator=rng).tolist()
            side = round((0.5 + 0.5 * area) ** 0.5 * image.shape[1])
            top, left = round(y * (image.shape[1] - side)), round(x * (image.shape[2] - side))
            crop = image[:, top : top + side, left : left + side]
            turns, mirrored = torch.randint(4, (2,), generator=rng).tolist()
            batch.append(torch.rot90(crop.flip(2) if mirrored % 2 else crop, turns, (1, 2)))
        resized = [F.interpolate(crop[None], (224, 224), mode="bilinear", antialias=True)[0] for crop in batch]
        yield torch.stack(resized), labels[chosen]


def train(folder: Path, out: Path, arch: str, steps: int, batch_size: int) -> None:
    """Train a classifier of patches of 16 pixels from scratch, on images of 224 pixels."""
    paths, labels, classes = list_images(folder)
    images = [read_crop(path, 256) for path in paths]
    torch.manual_seed(0)
    model = XCiTClassifier(arch, 16, num_classes=len(classes), drop_path_rate=0.0)
    model.init_weights()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for step, (batch, targets) in enumerate(iter_batches(images, torch.tensor(labels), steps, batch_size), start=1):
        loss = F.cross_entropy(model(batch), targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"{step} of {steps}: loss {loss.item():.3f}", flush=True)
    with atomic_path(out) as unfinished:
        torch.save(dict(model=model.state_dict()), unfinished)


@torch.no_grad()
def accuracy(model: XCiTClassifier, paths: list[Path], labels: list[int], size: int, batch_size: int) -> float:
    """Return the percentage of images whose class has the highest score."""
    device, correct = next(model.parameters()).device, 0
    for start in range(0, len(paths), batch_size):
        crops = torch.stack([read_crop(path, size) for path in paths[start : start + batch_size]])
        found = model(crops.to(device)).argmax(dim=1).cpu()
        correct += int((found == torch.tensor(labels[start : start + batch_size])).sum())
    return 100 * correct / len(paths)


def evaluate(folder: Path, weights: str, sizes: list[int], trained: int, out: Path, batch_size: int) -> None:
    """Write the accuracy at each size as a table and a plot."""
    if out.suffix != ".csv":
        raise ValueError(f"--out {out}: name it .csv")
    model = model_from_weights(weights)
    paths, labels, classes = list_images(folder)
    if len(classes) != model.num_classes:
        raise ValueError(f"{weights} has {model.num_classes} classes, {folder} {len(classes)}: give the same classes")
    found = {}
    for size in sorted({*sizes, trained}):
        found[size] = accuracy(model, paths, labels, size, batch_size)
        print(f"{size:4} {found[size]:6.2f}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as unfinished, open(unfinished, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["test_size", "accuracy", "relative_to_training_size", "images"])
        for size, score in found.items():
            writer.writerow([size, f"{score:.2f}", f"{score - found[trained]:.2f}", len(paths)])
    draw(found, trained, f"{Path(weights).name}, {len(paths)} images", out.with_suffix(".png"))


def draw(found: dict[int, float], trained: int, name: str, path: Path) -> None:
    """Draw the accuracy relative to that at the training size."""
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for values, base, label, style in (
        (found, trained, f"XCiT, {name}", "o-"),
        (DEIT, DEIT_TRAINED, "DeiT-S, ImageNet (paper, Table A.2)", "s--"),
    ):
        axis.plot(list(values), [score - values[base] for score in values.values()], style, label=label)
    axis.axvline(trained, color="0.7", linewidth=1, zorder=0)
    axis.set(xlabel="side of the test images in pixels", ylabel=f"accuracy relative to that at {trained} (points)")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("evaluate")
    task.add_argument("images", type=Path, help="folder with a folder of images for each class")
    task.add_argument("weights", help="path, URL or xcit://NAME of a classifier")
    task.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sides in pixels (default: %(default)s)")
    task.add_argument("--train-size", type=int, default=224, help="size of training (default: %(default)s)")
    task.add_argument("--batch", type=int, default=32, help="images per batch (default: %(default)s)")
    task.add_argument("--out", type=Path, default=Path("test-sizes.csv"), help="table (default: %(default)s)")
    task = tasks.add_parser("train")
    task.add_argument("images", type=Path, help="folder with a folder of images for each class")
    task.add_argument("out", type=Path, help="file of the weights")
    task.add_argument("--arch", default="n12", help="default: %(default)s")
    task.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    task.add_argument("--batch", type=int, default=12, help="images per batch (default: %(default)s)")
    task = tasks.add_parser("data")
    task.add_argument("root", type=Path, help="folder to write")
    args = parser.parse_args()

    def work() -> None:
        if args.task == "data":
            write_data(args.root)
        elif args.task == "train":
            train(args.images, args.out, args.arch, args.steps, args.batch)
        else:
            evaluate(args.images, args.weights, args.sizes, args.train_size, args.out, args.batch)

    return cli_main(work, "nothing is written", ValueError, OSError)


if __name__ == "__main__":
    sys.exit(main())
