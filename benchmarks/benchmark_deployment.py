"""Print a table of the milliseconds per image of a model in torch, onnxruntime and, if installed, OpenVINO.

    python benchmarks/benchmark_deployment.py CONFIG CHECKPOINT float32.onnx int8.onnx --image photo.jpg

The runtimes take turns, so that other load affects all of them alike. The table has the medians of one image, and AP
or mIoU on images of the config's test set. OpenVINO is timed in float32 and in its default precision, which is bfloat16
on a processor with AMX. Each object that a detector finds takes time, so the first line states their number.
"""

import argparse
import contextlib
import importlib.util
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmcv
import torch
from mmengine.config import Config
from torch import Tensor

from xcit_mm.deployment.detectors import ExportableDetector
from xcit_mm.deployment.evaluation import check_evaluation, evaluate_files
from xcit_mm.deployment.formats import read_onnx
from xcit_mm.deployment.quantization import milliseconds
from xcit_mm.deployment.traceable import ExportableSegmentor
from xcit_mm.models.build import model_from_config
from xcit_mm.utils.configs import normalisation, read_config, takes_rgb

HINTS = {"OpenVINO, f32": dict(INFERENCE_PRECISION_HINT="f32"), "OpenVINO": {}}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint")
    parser.add_argument("files", nargs="+", type=Path, help=".onnx files of tools/export.py without preprocessing")
    parser.add_argument("--image", type=Path, help="an image, resized to --size (default: noise)")
    parser.add_argument("--size", default="800x1344", metavar="HxW", help="size of the image (default: %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--evaluate", type=int, metavar="N", help="number of images to evaluate on (default: none)")
    return parser.parse_args()


def input_image(cfg: Config, path: Path | None, size: str) -> Tensor:
    """Return the normalised image (1, 3, H, W)."""
    height, width = map(int, size.split("x"))
    if path is None:
        return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    image = torch.from_numpy(mmcv.imresize(mmcv.imread(path), (width, height))).permute(2, 0, 1)
    mean, std = normalisation(cfg)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (mean or [0.0], std or [1.0]))
    return (((image.flip(0) if takes_rgb(cfg) else image) - mean) / std)[None].contiguous()


def in_openvino(path: Path, threads: int, settings: dict[str, str]) -> Callable[[Tensor], list[Tensor]]:
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", dict(INFERENCE_NUM_THREADS=threads) | settings)
    return lambda image: [torch.from_numpy(out.copy()) for out in compiled(dict(image=image.numpy())).values()]


def runs_of(model: Any, files: list[Path], threads: int) -> dict[str, Callable[[Tensor], Any]]:
    """Return a function of an image for each row of the table."""
    torch.set_num_threads(threads)
    runs: dict[str, Callable[[Tensor], Any]] = {"torch": model}
    for file in files:
        runs[f"onnxruntime, {file}"] = read_onnx(file, threads=threads)
        for name, settings in HINTS.items() if importlib.util.find_spec("openvino") else ():
            runs[f"{name}, {file}"] = in_openvino(file, threads, settings)
    return runs


@torch.no_grad()
def main() -> None:
    args = parse_args()
    cfg = read_config(args.config, [])
    if args.evaluate is not None:
        check_evaluation(cfg, "model", args.evaluate)
    model: Any = model_from_config(cfg, args.checkpoint).eval()
    traced = ExportableDetector(model) if cfg.default_scope == "mmdet" else ExportableSegmentor(model)
    image = input_image(cfg, args.image, args.size)
    rows: dict[str, list[str]] = {}
    for threads in args.threads:
        runs = runs_of(traced, args.files, threads)
        for name, value in zip(runs, milliseconds(list(runs.values()), image, args.repeats), strict=True):
            rows.setdefault(name, []).append(f"{value:.0f}")
    heads = ["", *(f"ms, {n} thread{'s' * (n > 1)}" for n in args.threads), "MB"]
    for name, cells in rows.items():
        file_sizes = [file.stat().st_size for file in args.files if name.endswith(f", {file}")]
        size = file_sizes[0] if file_sizes else sum(tensor.nbytes for tensor in model.state_dict().values())
        cells.append(f"{size / 1e6:.1f}")
    if args.evaluate is not None:
        logging.disable(logging.ERROR)  # mmseg's tables
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools'
            del runs["torch"]
            count, scores = evaluate_files(cfg, model, runs, args.evaluate)
        for metric, values in scores.items():
            if metric.endswith(("mAP", "mIoU")):
                heads.append(f"{metric}, {count} images")
                for cells, value in zip(rows.values(), values.values(), strict=True):
                    cells.append(f"{value:.4g}")
    if isinstance(traced, ExportableDetector):
        print(f"{args.size}, {len(traced(image)[0])} objects with a score above {traced.score_thr.item():g}\n")
    for cells in (heads, ["---"] * len(heads), *([name, *cells] for name, cells in rows.items())):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
