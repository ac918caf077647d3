"""Run a detector or segmentor that tools/export.py has written, with numpy, onnxruntime and pillow alone.

    python run.py model.onnx photo.jpg --out drawn.png --json results.json

This file and the folder `runtime` beside it use nothing else of their package: copy both to the target machine.
"""

import argparse
import json
import os
import sys
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

# As a script, here or on the target machine, this file has no package.
runtime: Any = import_module(".runtime" if __package__ else "runtime", __package__)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _list_images(path: Path) -> list[Path]:
    """Return the images of a folder, without its subfolders, or the one image."""
    if not path.is_dir():
        return [path]
    suffixes = Image.registered_extensions()
    images = sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)
    if not images:
        raise FileNotFoundError(f"no image in {path}")
    return images


def _targets(given: Path | None, suffix: str, images: list[Path], is_folder: bool) -> list[Path | None]:
    """Return the file to write for each image: the given one, or with a folder of images files in the given folder."""
    if given and is_folder:
        given.mkdir(exist_ok=True)
        return [given / f"{image.name}{suffix}" for image in images]
    if given and given.suffix.lower() != suffix:
        raise ValueError(f"{given}: name it {suffix}")
    if given and not given.parent.is_dir():
        raise FileNotFoundError(f"no folder {given.parent}: make it first")
    return [given] * len(images)


def _predict(model: Any, path: Path, options: dict[str, Any], png: Path | None, json_file: Path | None) -> str:
    """Predict an image, write its files and return a summary."""
    image = runtime.read_image(path)
    results = model(image, **options)
    if png:
        drawn = BytesIO()
        Image.fromarray(runtime.draw(image, results, model.classes)).save(drawn, "PNG")
        _write(png, drawn.getvalue())
    if json_file:
        _write(json_file, json.dumps(runtime.to_json(results, model.classes)).encode())
    lines = "\n".join(runtime.summarize(results, model.classes))
    return lines or f"no detection with a score above {options['score_thr']}"


def _run(args: argparse.Namespace) -> int:
    """Predict all images and return the exit code. An image of a folder that fails does not stop the others."""
    images, is_folder, code = _list_images(args.image), args.image.is_dir(), 0
    pngs, jsons = (_targets(*given, images, is_folder) for given in ((args.out, ".png"), (args.json, ".json")))
    options = dict(score_thr=args.score_thr, iou_threshold=args.iou_threshold, max_per_img=args.max_per_img)
    model = runtime.Model(args.model, args.threads, args.device, args.runtime)
    for image, png, json_file in zip(images, pngs, jsons, strict=True):
        try:
            summary = _predict(model, image, options, png, json_file)
        except (OSError, ValueError, RuntimeError) as error:
            if not is_folder:
                raise
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 1
        else:
            print(f"{image}\n{summary}" if is_folder else summary, flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file of tools/export.py")
    parser.add_argument("image", type=Path, help="an image or a folder of images")
    parser.add_argument(
        "--out", type=Path, metavar="PNG", help="draw the results over the image; for a folder, a folder"
    )
    parser.add_argument("--json", type=Path, metavar="JSON", help="write the results as JSON; for a folder, a folder")
    parser.add_argument("--score-thr", type=float, default=0.3, help="minimum score (default: %(default)s)")
    parser.add_argument("--iou-threshold", type=float, help="maximum IoU of two detections (default: the config's)")
    parser.add_argument("--max-per-img", type=int, help="maximum number of detections (default: the config's)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--runtime", choices=("onnxruntime", "openvino"), default="onnxruntime", help="default: %(default)s"
    )
    parser.add_argument("--threads", type=int, help="number of threads (default: the runtime's choice)")
    args = parser.parse_args()
    try:
        return _run(args)
    except BrokenPipeError:  # the reader of the output has gone, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return 141  # exit code of SIGPIPE
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
