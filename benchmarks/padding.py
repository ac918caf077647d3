"""Test the demo's segmentor on crops of its images, with and without padding to multiples of 32.

    make demo
    python benchmarks/padding.py --out name

Writes OUT.csv: the mIoU of the 40 held-out images, cropped to small sizes, and of two mosaics of
sixteen, cropped to large sizes.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from csv_rows import ORIGIN, origin, write_row

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "demo" / "fpn_xcit-n12-p16_shapes-quick.py"
MODEL = ROOT / "work_dirs" / "demo" / "fpn_xcit-n12-p16_shapes"
DATA = ROOT / "data" / "shapes"
FOLDERS = ("images", "annotations")
SIZES = (160, 150, 145, 640, 625)  # pixels a side
OPTIONS = {"yes": [], "no": ["model.data_preprocessor.test_cfg=None"]}
"""Options of the config, by whether it pads, which is the default."""
CASE = ("size", "padded")
COSTS = ("miou", *ORIGIN)


def read_images(folder: str) -> list[np.ndarray]:
    paths = sorted((DATA / folder / "validation").iterdir())
    return [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in paths]


def join(images: list[np.ndarray]) -> np.ndarray:
    """Join sixteen images to a mosaic of four rows."""
    return np.vstack([np.hstack(images[first : first + 4]) for first in range(0, 16, 4)])


def write_crops(root: Path, side: int) -> None:
    """Write images and maps, or mosaics of them, cropped to squares."""
    for folder in FOLDERS:
        images = read_images(folder)
        if side > len(images[0]):
            images = [join(images[:16]), join(images[16:32])]
        target = root / folder / "validation"
        target.mkdir(parents=True)
        for number, image in enumerate(images):
            cv2.imwrite(str(target / f"{number:02}.png"), image[:side, :side])


def test(data: Path, work_dir: Path, options: list[str]) -> float:
    """Return the mIoU of the demo's segmentor on a data set."""
    dataset = "test_dataloader.dataset"
    options = [f"{dataset}.data_root={data}", f"{dataset}.img_suffix=.png", *options]
    checkpoint = (MODEL / "last_checkpoint").read_text()
    command = ["test", CONFIG, checkpoint, "--work-dir", work_dir, "--cfg-options", *options]
    subprocess.run([sys.executable, "-m", "xcit_mm", *map(str, command)], check=True)
    (scores,) = work_dir.glob("*/2*.json")
    return json.loads(scores.read_text())["mIoU"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        root = Path(name)
        for side in SIZES:
            write_crops(root / f"{side}", side)
            for padded, options in OPTIONS.items():
                score = test(root / f"{side}", root / padded / f"{side}", options)
                row = dict(size=side, padded=padded, miou=round(score, 1)) | origin()
                print(row, flush=True)
                write_row(Path(f"{args.out}.csv"), row, CASE, COSTS)


if __name__ == "__main__":
    main()
