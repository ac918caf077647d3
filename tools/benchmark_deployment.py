"""Milliseconds an image of a model in torch and of its exported files in onnxruntime and, if installed, OpenVINO.

    python tools/benchmark_deployment.py CONFIG CHECKPOINT model.onnx int8.onnx --size 800x1344 [--score-thr 0]

The image is noise, all take turns, and medians are printed as a table. With --score-thr 0 a detector finds as many
objects as it may, trained or not, so that its masks are timed too.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from mmengine.config import Config
from onnxruntime import InferenceSession, SessionOptions

from xcit_mm.deployment.detectors import Detections
from xcit_mm.deployment.traceable import Logits
from xcit_mm.models.factory import model_from_config


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint")
    parser.add_argument("files", nargs="+", type=Path, help=".onnx files of tools/export.py that take images")
    parser.add_argument("--size", default="800x1344", metavar="HxW")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--score-thr", type=float, help="of a detector; default: the config's")
    return parser.parse_args()


def with_threshold(path: Path, threshold: float, folder: str) -> Path:
    """A copy of a detector's file with another score threshold."""
    model = onnx.load(path)
    (constant,) = (one for one in model.graph.initializer if one.name == "score_threshold")
    constant.CopyFrom(onnx.numpy_helper.from_array(np.array([threshold], np.float32), constant.name))
    copy = Path(folder) / path.name
    onnx.save(model, copy)
    return copy


def in_onnxruntime(path: Path, threads: int, image: np.ndarray) -> Callable[[], object]:
    options = SessionOptions()
    options.intra_op_num_threads = threads
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(image=image))


def in_openvino(path: Path, threads: int, image: np.ndarray) -> Callable[[], object]:
    import openvino

    settings = dict(INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT="f32")  # not bfloat16
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    return lambda: compiled(dict(image=image))


@torch.no_grad()
def main() -> None:
    args = parse_args()
    cfg = Config.fromfile(args.config)
    if args.score_thr is not None:
        cfg.model.test_cfg.rcnn.score_thr = args.score_thr
    model = model_from_config(cfg, args.checkpoint).eval()
    traced = Detections(model) if cfg.default_scope == "mmdet" else Logits(model)
    image = torch.randn(1, 3, *map(int, args.size.split("x")), generator=torch.Generator().manual_seed(0))
    print("| | MB |" + "".join(f" ms, {n} thread{'s' * (n > 1)} |" for n in args.threads))
    print("|---|---|" + "---|" * len(args.threads))
    with TemporaryDirectory() as folder:
        thr = args.score_thr
        files = args.files if thr is None else [with_threshold(file, thr, folder) for file in args.files]
        sizes = {"torch": f"{Path(args.checkpoint).stat().st_size / 1e6:.1f}"}
        times: dict[str, list[str]] = {"torch": []}
        for threads in args.threads:
            torch.set_num_threads(threads)
            ways: dict[str, Callable[[], object]] = {"torch": lambda: traced(image)}
            for file in files:
                ways[f"onnxruntime, {file.name}"] = in_onnxruntime(file, threads, image.numpy())
                if importlib.util.find_spec("openvino"):
                    ways[f"OpenVINO, {file.name}"] = in_openvino(file, threads, image.numpy())
                sizes |= {name: f"{file.stat().st_size / 1e6:.1f}" for name in ways if name.endswith(file.name)}
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(1 + args.repeats):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way()
                    seconds[name].append(time.perf_counter() - start)
            for name, values in seconds.items():
                times.setdefault(name, []).append(f"{1000 * median(values[1:]):.0f}")  # the first warms up
    for name, values in times.items():
        print(f"| {name} | {sizes[name]} | " + " | ".join(values) + " |")


if __name__ == "__main__":
    main()
