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

__all__ = ["main"]


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file of tools/export.py")
    parser.add_argument("image", type=Path)
    parser.add_argument("--out", type=Path, metavar="PNG", help="write the image with the results drawn over it")
    parser.add_argument("--json", type=Path, metavar="JSON", help="write the results as JSON")
    parser.add_argument("--score-thr", type=float, default=0.3, help="minimum score (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="number of threads (default: onnxruntime's choice)")
    args = parser.parse_args()
    try:
        for path, suffix in ((args.out, ".png"), (args.json, ".json")):
            if path and path.suffix.lower() != suffix:
                raise ValueError(f"{path}: name it {suffix}")
            if path and not path.parent.is_dir():
                raise FileNotFoundError(f"no folder {path.parent}: make it first")
        image = runtime.read_image(args.image)
        model = runtime.Model(args.model, args.threads)
        results = model(image, args.score_thr)
        if args.out:
            drawn = BytesIO()
            Image.fromarray(runtime.draw(image, results, model.classes)).save(drawn, "PNG")
            _write(args.out, drawn.getvalue())
        if args.json:
            _write(args.json, json.dumps(runtime.to_json(results, model.classes)).encode())
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    try:
        lines = "\n".join(runtime.summarize(results, model.classes))
        print(lines or f"no detection with a score of {args.score_thr} or more", flush=True)
    except BrokenPipeError:  # the reader of the output has gone, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return 141  # exit code of SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
