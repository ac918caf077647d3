"""Extract features of images from a frozen XCiT with class attention, classify by them and find neighbours.

    python tools/features.py extract IMAGES WEIGHTS --out FEATURES.npz
    python tools/features.py knn FOLDER WEIGHTS
    python tools/features.py neighbours IMAGES FEATURES.npz --out SHEET.png

`extract` writes the names of the images below a folder and three descriptors of each: the CLS token, and the mean and
generalised mean (GeM) of the patches. `knn` classifies the images of FOLDER/val/CLASS/ by their nearest neighbours in
FOLDER/train/CLASS/. `neighbours` draws images beside the most similar images. WEIGHTS may have any layout. Files that
cannot be read are reported, the other files are used, and the exit code is 1. Ctrl-C keeps the features of completed
images; the exit code is 130.
"""

import argparse
import sys
from pathlib import Path

from xcit_mm.batch.features import DESCRIPTORS, extract_features, load_classifier, read_descriptors
from xcit_mm.batch.neighbours import contact_sheet, evaluate_knn
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.figures import check_figure, save_figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("folder", type=Path, help="folder of images; for knn with train/CLASS/ and val/CLASS/")
    model.add_argument("weights", help="path, URL or xcit://NAME of weights of ImageNet or DINO")
    model.add_argument("--size", type=int, default=224, help="side of the crop in pixels (default: %(default)s)")
    scales = "factors of the size; descriptors of several scales are averaged (default: 1)"
    model.add_argument("--scales", type=float, nargs="+", default=[1.0], help=scales)
    model.add_argument("--batch", type=int, default=32, help="images per batch (default: %(default)s)")
    model.add_argument("--workers", type=int, default=2, help="processes that read images (default: %(default)s)")
    model.add_argument("--device", help="default: a GPU if there is one")
    task = tasks.add_parser("extract", parents=[model])
    task.add_argument("--out", type=Path, required=True, help=".npz file to write")
    task.add_argument("--patches", action="store_true", help="also write the features of every patch, a large file")
    task.set_defaults(run=run_extract)
    task = tasks.add_parser("knn", parents=[model])
    task.add_argument("-k", type=int, nargs="+", default=[10, 20], help="numbers of neighbours (default: 10 20)")
    task.set_defaults(run=run_knn)
    task = tasks.add_parser("neighbours")
    task.add_argument("folder", type=Path, metavar="IMAGES", help="folder of the images")
    task.add_argument("features", type=Path, metavar="FEATURES.npz", help="file that extract wrote")
    task.add_argument("--out", type=Path, required=True, help="figure to write")
    task.add_argument("--descriptor", choices=DESCRIPTORS, default=DESCRIPTORS[0], help="default: %(default)s")
    task.add_argument("--queries", type=int, default=8, help="query images, one per row (default: %(default)s)")
    task.add_argument("--count", type=int, default=6, help="neighbours per row (default: %(default)s)")
    task.set_defaults(run=run_neighbours)
    return parser.parse_args()


def run_extract(args: argparse.Namespace) -> list[str]:
    model = load_classifier(args.weights, args.device)
    options = args.size, args.batch, args.workers, args.patches, args.out, args.scales
    features = extract_features(model, args.folder, *options)
    if features.interrupted:
        raise KeyboardInterrupt(f"{features}: {args.out}")
    print(f"{features}: {args.out}")
    return features.failures


def run_knn(args: argparse.Namespace) -> list[str]:
    model = load_classifier(args.weights, args.device)
    scores = evaluate_knn(model, args.folder, args.k, args.size, args.batch, args.workers, args.scales)
    print(scores)
    return scores.failures


def run_neighbours(args: argparse.Namespace) -> list[str]:
    check_figure(args.out)
    paths, descriptors = read_descriptors(args.features, args.descriptor)
    save_figure(contact_sheet(args.folder, paths, descriptors, args.queries, args.count), args.out)
    print(args.out)
    return []


def main() -> int:
    args = parse_args()

    def work() -> int:
        failures = args.run(args)
        for line in failures:
            print(f"skipped {line}", file=sys.stderr)
        return 1 if failures else 0

    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(work, "nothing is written", *errors)


if __name__ == "__main__":
    sys.exit(main())
