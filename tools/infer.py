"""Run a trained detector or segmentor on images and videos: pictures, and predictions in files.

    python tools/infer.py INPUT CONFIG CHECKPOINT --out DIR

INPUT is an image, a video, a folder or a quoted glob. DIR gets

    pictures/            what was found, drawn over each image (.jpg) or video (.mp4)
    predictions.json     of a detector: a list of results, for pycocotools' COCO.loadRes
    labels/              of a segmentor: the class of every pixel (.png)
    images.json          names, sizes and ids of the images, ids and names of the classes

named as the inputs are below the folder, or below the part of the glob before its first wildcard; only inputs that
differ in nothing but the suffix keep it (a.jpg.jpg and a.png.jpg). Ids count from 1 in the order of the names, or
are those of the ground truth given by --ann-file.

In a folder or glob, what is neither image nor video is left out, as is all below DIR; a DIR with results of an earlier
run is refused without --overwrite. A file that cannot be read is reported, the others are done, and the exit code is 1.
Ctrl-C keeps what was done; the exit code is 130.
"""

import argparse
import sys
from pathlib import Path

from xcit_mm.prediction.drawing import COLOR_BY, Style
from xcit_mm.prediction.files import Writer, check_folder, predict_files
from xcit_mm.prediction.inputs import find_inputs
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.results import assign_ids, read_ids
from xcit_mm.runs.preflight import check_device


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="an image, a video, a folder or a quoted glob")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="a path, a URL or xcit://NAME")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--overwrite", action="store_true", help="first remove the results of an earlier run from --out"
    )
    parser.add_argument("--ann-file", type=Path, metavar="JSON", help="COCO json: predict its images, under its ids")
    parser.add_argument("--tile", type=int, metavar="PIXELS", help="predict large images in tiles of this side")
    parser.add_argument("--overlap", type=int, metavar="PIXELS", help="least overlap of tiles (default: tile / 4)")
    parser.add_argument("--device", help="default: a GPU if there is one")
    drawing = parser.add_argument_group("pictures")
    drawing.add_argument("--score-thr", type=float, default=0.3, help="least score drawn (default: %(default)s)")
    drawing.add_argument("--alpha", type=float, default=0.5, help="opacity of masks, 0 to 1 (default: %(default)s)")
    drawing.add_argument("--no-labels", action="store_true", help="without names and scores, or a segmentor's legend")
    drawing.add_argument("--color-by", choices=COLOR_BY, default=COLOR_BY[0], help="a colour a class or an instance")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    try:
        if not 0 <= args.alpha <= 1:
            raise ValueError(f"--alpha {args.alpha}: must be from 0 to 1")
        check_device(args.device)
        check_folder(args.out, args.overwrite)
        inputs, notes = find_inputs(args.input, args.out)
        predict = Predictor(args.config, args.checkpoint, args.device, args.tile, args.overlap)
        image_ids, category_ids = None, None
        if args.ann_file:
            if not predict.is_detector:
                raise ValueError(f"--ann-file {args.ann_file}: only a detector's predictions have ids")
            ids, category_ids = read_ids(args.ann_file, predict.metainfo["classes"])
            inputs, image_ids, more = assign_ids(inputs, ids)
            notes += more
        style = Style(args.alpha, not args.no_labels, args.color_by)
        writer = Writer(args.out, predict, style, args.score_thr, args.overwrite, image_ids, category_ids)
        for line in notes:
            print(line, file=sys.stderr)
        summary = predict_files(inputs, predict.predict, writer)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted: nothing was predicted", file=sys.stderr)
        return 130
    print(f"\n{'interrupted: ' * summary.interrupted}{summary.done} of {len(inputs)} files done: {args.out}")
    for line in summary.failed:
        print(f"skipped {line}", file=sys.stderr)
    return 130 if summary.interrupted else 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
