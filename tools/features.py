"""Features of images from a frozen XCiT with class attention: weights of ImageNet or of DINO, in any layout.

    python tools/features.py extract IMAGES WEIGHTS --out FEATURES.npz
    python tools/features.py knn FOLDER WEIGHTS
    python tools/features.py neighbours IMAGES FEATURES.npz --out SHEET.png

`extract` writes the names of the images below a folder and three descriptors of each: the CLS token, and the
patches' mean and generalised mean (GeM). `knn` classifies the images of FOLDER/val/CLASS/ by those of
FOLDER/train/CLASS/ next to them. `neighbours` shows images and the most similar others.
WEIGHTS is a path, a URL or xcit://NAME. Files that cannot be read are reported, the others are
done, and the exit code is 1. Ctrl-C keeps the features of the images that are done; the exit code is 130.
"""

import argparse
import sys
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from xcit_mm.batch.features import DESCRIPTORS, Features, contact_sheet, extract, find_images, knn_accuracy
from xcit_mm.checks.preflight import check_device
from xcit_mm.models.build import model_from_weights
from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.figures import check_figure, save_figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument("--size", type=int, default=224, help="side of the square crop, in pixels (default: %(default)s)")
    runs.add_argument("--batch", type=int, default=32, help="images at a time (default: %(default)s)")
    runs.add_argument("--workers", type=int, default=2, help="processes that read images (default: %(default)s)")
    runs.add_argument("--device", help="default: a GPU if there is one")
    task = tasks.add_parser("extract", parents=[runs])
    task.add_argument("folder", type=Path, metavar="IMAGES")
    task.add_argument("weights")
    task.add_argument("--out", type=Path, required=True, help="file in .npz")
    task.add_argument("--patches", action="store_true", help="also the features of every patch: large")
    task.set_defaults(run=run_extract)
    task = tasks.add_parser("knn", parents=[runs])
    task.add_argument("folder", type=Path, help="with train/CLASS/ and val/CLASS/")
    task.add_argument("weights")
    task.add_argument("-k", type=int, nargs="+", default=[10, 20], help="neighbours (default: 10 20)")
    task.set_defaults(run=run_knn)
    task = tasks.add_parser("neighbours")
    task.add_argument("folder", type=Path, metavar="IMAGES", help="the folder that the features are of")
    task.add_argument("features", type=Path, metavar="FEATURES.npz")
    task.add_argument("--out", type=Path, required=True, help="file of the picture")
    task.add_argument("--descriptor", choices=DESCRIPTORS, default=DESCRIPTORS[0])
    task.add_argument("--queries", type=int, default=8, help="rows (default: %(default)s)")
    task.add_argument("--count", type=int, default=6, help="neighbours a row (default: %(default)s)")
    task.set_defaults(run=run_neighbours)
    return parser.parse_args()


def main() -> int:
    args = parse_args()

    def work() -> int:
        failed = args.run(args)
        for line in failed:
            print(f"skipped {line}", file=sys.stderr)
        return 1 if failed else 0

    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(work, "nothing is written", *errors)


def load(args: argparse.Namespace) -> XCiTClassifier:
    check_device(args.device)
    model = model_from_weights(args.weights, args.device)
    if not isinstance(model, XCiTClassifier):
        raise ValueError(f"{args.weights} has no class attention: take weights of ImageNet or DINO")
    if model.in_channels != 3:
        raise ValueError(f"{args.weights} is for images of {model.in_channels} bands: take weights for RGB")
    return model


def features(model: XCiTClassifier, folder: Path, args: argparse.Namespace) -> Features:
    found = extract(model, folder, args.size, args.batch, args.workers)
    print()
    if found.interrupted:
        raise KeyboardInterrupt
    return found


def run_extract(args: argparse.Namespace) -> list[str]:
    if args.out.suffix != ".npz":
        raise ValueError(f"--out {args.out}: name it .npz")
    found = extract(load(args), args.folder, args.size, args.batch, args.workers, args.patches)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    patches = {} if found.patches is None else dict(patches=found.patches)
    with atomic_path(args.out) as partial:
        np.savez(partial, paths=np.array(found.paths), **found.descriptors, **patches)
    width = found.descriptors[DESCRIPTORS[0]].shape[1]
    written = f"{len(found.paths)} images, {', '.join(DESCRIPTORS)} of {width} numbers each: {args.out}"
    if found.interrupted:
        raise KeyboardInterrupt(written)
    print(f"\n{written}")
    return found.failed


def run_knn(args: argparse.Namespace) -> list[str]:
    classes = check_folder(args.folder)
    fewest = len(find_images(args.folder / "train"))
    if not 1 <= min(args.k) <= max(args.k) <= fewest:
        raise ValueError(f"-k {' '.join(map(str, args.k))}: must be 1 to {fewest}, the number of training images")
    model = load(args)
    train = features(model, args.folder / "train", args)
    if len(train.paths) < max(args.k):
        raise ValueError(f"-k {max(args.k)}: only {len(train.paths)} training images can be read; {train.failed[0]}")
    val = features(model, args.folder / "val", args)
    train_labels, val_labels = ([classes.index(Path(path).parts[0]) for path in found.paths] for found in (train, val))
    print(f"{len(classes)} classes, {len(train.paths)} images by which to classify {len(val.paths)}")
    print("descriptor  " + "  ".join(f"{k}-NN".rjust(7) for k in args.k))
    for name in DESCRIPTORS:
        scores = [
            knn_accuracy(train.descriptors[name], train_labels, val.descriptors[name], val_labels, k) for k in args.k
        ]
        print(f"{name:10}  " + "  ".join(f"{100 * score:6.1f}%" for score in scores))
    return train.failed + val.failed


def check_folder(folder: Path) -> list[str]:
    """Names of the classes, which folder/train/CLASS/ and folder/val/CLASS/ lay out."""
    for split in ("train", "val"):
        if not (folder / split).is_dir():
            raise FileNotFoundError(f"no folder {folder / split}: lay the images out as train/CLASS/ and val/CLASS/")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    for split in ("train", "val"):
        for path in find_images(folder / split):
            if path.relative_to(folder / split).parts[0] not in classes:
                raise ValueError(f"{path} is of no class of {folder / 'train'}, which has {', '.join(classes)}")
    return classes


def run_neighbours(args: argparse.Namespace) -> list[str]:
    check_figure(args.out)
    try:
        with np.load(args.features) as content:
            paths, descriptors = content["paths"], content[args.descriptor]
    except (KeyError, ValueError, EOFError, BadZipFile):
        raise ValueError(f"{args.features} is not a file of `tools/features.py extract`") from None
    sheet = contact_sheet(args.folder, paths, descriptors, args.queries, args.count)
    save_figure(sheet, args.out)
    print(args.out)
    return []


if __name__ == "__main__":
    sys.exit(main())
