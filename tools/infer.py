"""Run a trained detector or segmentor on images and videos: pictures, and predictions in files.

    python tools/infer.py INPUT CONFIG CHECKPOINT --out DIR

INPUT is an image, a video, a folder or a quoted glob. DIR gets `pictures/`, and of a detector
`predictions.json` in COCO's format, of a segmentor `labels/` with the class of every pixel. A file that
cannot be read is reported, the others are done, and the exit code is 1.
"""

import argparse
import sys
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.utils import ProgressBar

from xcit_mm.prediction.coco_results import CocoFile
from xcit_mm.prediction.inputs import VIDEOS, find_inputs, read_frames
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.runs.preflight import check_device


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="an image, a video, a folder or a quoted glob")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="a path, a URL or xcit://NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--score-thr", type=float, default=0.3, help="least score that is drawn (default: %(default)s)")
    parser.add_argument("--tile", type=int, metavar="PIXELS", help="predict large images in tiles of this side")
    parser.add_argument("--overlap", type=int, metavar="PIXELS", help="least overlap of tiles (default: tile / 4)")
    parser.add_argument("--device", help="default: a GPU if there is one")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    try:
        check_device(args.device)
        paths = find_inputs(args.input)
        args.out.mkdir(parents=True, exist_ok=True)
        predict = Predictor(args.config, args.checkpoint, args.device, args.tile, args.overlap)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    root = Path(args.input) if Path(args.input).is_dir() else None
    coco = CocoFile(predict.metainfo["classes"])
    failed = []
    progress = ProgressBar(len(paths))
    for path in paths:
        name = str(path.relative_to(root) if root else path.name)
        try:
            process(path, name, predict, coco, args)
        except Exception as error:  # decoders and transforms raise nearly anything: the other files are done
            failed.append(f"{path}: {' '.join(str(error).split())}")
        progress.update()
    if predict.is_detector:
        coco.write(args.out / "predictions.json")
    print(f"\n{len(paths) - len(failed)} of {len(paths)} files done: {args.out}")
    for line in failed:
        print(f"skipped {line}", file=sys.stderr)
    return 1 if failed else 0


def process(path: Path, name: str, predict: Predictor, coco: CocoFile, args: argparse.Namespace) -> None:
    """Predict a file; nothing of it is written if it fails before its first frame."""
    is_video = path.suffix.lower() in VIDEOS
    writer = None
    for number, frame in enumerate(read_frames(path)):
        label = f"{name}#{number}" if is_video else name
        sample = predict(frame)
        picture = predict.draw(frame, sample, args.score_thr)
        if predict.is_detector:
            coco.add(label, sample)
        else:
            depth = np.uint8 if len(predict.metainfo["classes"]) <= 256 else np.uint16
            labels = sample.pred_sem_seg.data[0].cpu().numpy().astype(depth)
            mmcv.imwrite(labels, str(args.out / "labels" / f"{label}.png"))
        if not is_video:
            mmcv.imwrite(picture, str(args.out / "pictures" / f"{name}.jpg"))
            return
        if writer is None:
            target = args.out / "pictures" / f"{name}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            rate = mmcv.VideoReader(str(path)).fps or 25
            writer = cv2.VideoWriter(str(target), cv2.VideoWriter_fourcc(*"mp4v"), rate, picture.shape[1::-1])
        writer.write(np.ascontiguousarray(picture))
    if writer is not None:
        writer.release()


if __name__ == "__main__":
    sys.exit(main())
