"""Time and memory of backbones, side by side in one process: XCiT in its forms and the peers that are installed.

    python tools/benchmark.py --models xcit-auto xcit-plain timm swin-t --sizes 512 800x1344 --out docs/benchmark/name

Runs of the models alternate, so that a machine that slows down slows all alike; the table gives the
median and the range. Memory on a GPU is the peak that torch allocated; on CPU, how far the peak of a
fresh process lies above that process with the model and the image in it. `saved` is what the
forward pass keeps for backward. Writes OUT.md, OUT.csv and, for several sizes, the pictures OUT.png
and OUT-table.png.
"""

import argparse
import csv
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import ProgressBar
from torch import Tensor, nn

from xcit_mm.archs import ARCHS, SIZES
from xcit_mm.attention import FORMS
from xcit_mm.backbone import Trunk

Result = dict[str, str | float]


def xcit(arch: str, patch_size: int, **kwargs) -> nn.Module:
    return MODELS.build(dict(type="XCiT", arch=arch, patch_size=patch_size, **kwargs))


class Features(nn.Module):
    """A classifier's trunk: what timm calls forward_features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)


def timm_xcit(arch: str, patch_size: int) -> nn.Module:
    import timm

    return Features(timm.create_model(f"xcit_{SIZES[arch[0]]}_{arch[1:]}_p{patch_size}_224"))


def timm_deit(arch: str, patch_size: int) -> nn.Module:
    import timm

    return Features(timm.create_model("deit_small_patch16_224", dynamic_img_size=True))


def mmpretrain_xcit(arch: str, patch_size: int) -> nn.Module:
    import mmpretrain.models  # noqa: F401

    shape = ARCHS[arch]
    return MODELS.build(
        dict(
            type="mmpretrain.XCiT",
            patch_size=patch_size,
            embed_dims=shape.embed_dim,
            depth=shape.depth,
            num_heads=shape.num_heads,
            layer_scale_init_value=shape.eta,
            tokens_norm=True,
            out_type="featmap",
        )
    )


def mmdet_backbone(**cfg) -> Callable[[str, int], nn.Module]:
    def build(arch: str, patch_size: int) -> nn.Module:
        import mmdet.models  # noqa: F401

        init_default_scope("mmdet")
        return MODELS.build(dict(cfg, type=f"mmdet.{cfg['type']}"))

    return build


def mmseg_vit(arch: str, patch_size: int) -> nn.Module:
    import mmseg.models  # noqa: F401

    init_default_scope("mmseg")
    return MODELS.build(
        dict(
            type="mmseg.VisionTransformer", img_size=(512, 512), embed_dims=384, num_heads=6, out_indices=(2, 5, 8, 11)
        )
    )


BUILDERS: dict[str, Callable[[str, int], nn.Module]] = {
    **{f"xcit-{form}": (lambda arch, patch, form=form: xcit(arch, patch, attn_form=form)) for form in FORMS},
    "xcit-auto-cp": lambda arch, patch: xcit(arch, patch, with_cp=True),
    "xcit-trunk": lambda arch, patch: Trunk(arch, patch),
    "timm": timm_xcit,
    "mmpretrain": mmpretrain_xcit,
    "swin-t": mmdet_backbone(type="SwinTransformer"),
    "pvt-small": mmdet_backbone(type="PyramidVisionTransformer", num_layers=[3, 4, 6, 3]),
    "resnet-50": mmdet_backbone(type="ResNet", depth=50),
    "deit-s": timm_deit,
    "vit-s": mmseg_vit,
}


def maps_of(output: object) -> list[Tensor]:
    """The tensors among a backbone's outputs."""
    if isinstance(output, Tensor):
        return [output]
    return [tensor for item in output for tensor in maps_of(item)]


class Case:
    """One model on one input, as often as asked."""

    def __init__(self, name: str, size: tuple[int, int], args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args, self.train = args, args.mode == "train"
        model = BUILDERS[name](args.arch, args.patch_size).to(args.device)
        # Not every peer's train() and eval() return the model.
        model.train(self.train)
        self.model = torch.compile(model) if args.compile else model
        self.image = torch.randn(args.batch, 3, *size, device=args.device)

    def run(self) -> None:
        half = self.args.dtype != "float32"
        with torch.autocast(self.args.device, getattr(torch, self.args.dtype), enabled=half):
            if self.train:
                loss = sum(m.float().square().mean() for m in maps_of(self.model(self.image)))
            else:
                with torch.inference_mode():
                    self.model(self.image)
        if self.train:
            loss.backward()
            self.model.zero_grad()
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def timed(self) -> float:
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def saved_bytes(self) -> int:
        """Bytes kept for backward, parameters and buffers not counted."""
        own = {t.untyped_storage().data_ptr() for t in (*self.model.parameters(), *self.model.buffers())}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            maps = maps_of(self.model(self.image))
        del maps
        return sum(kept.values())


def peak_bytes(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    """Peak memory of one run beyond the model and the image."""
    if args.device == "cuda":
        case = Case(name, size, args)
        case.run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.run()
        return torch.cuda.max_memory_allocated() - before
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_rss, (name, size, args))


def _peak_rss(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    Case(name, (64, 64), args).run()  # libraries and threads are set up
    case = Case(name, size, args)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here: Linux
    before = _memory("VmRSS")
    case.run()
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(size: tuple[int, int], args: argparse.Namespace) -> list[Result]:
    """A row a model for one image size."""
    cases = {}
    for name in args.models:
        try:
            cases[name] = Case(name, size, args)
            cases[name].run()
        except ModuleNotFoundError as error:
            print(f"{name}: not measured, {error}")
            cases.pop(name, None)
    times = {name: [] for name in cases}
    progress = ProgressBar(args.repeats * len(cases))
    for _ in range(args.repeats):
        for name, case in cases.items():
            times[name].append(case.timed())
            progress.update()
    rows = []
    for name, seconds in times.items():
        row = dict(
            model=name, size=f"{size[0]}x{size[1]}", median_ms=1e3 * statistics.median(seconds) / args.batch,
            min_ms=1e3 * min(seconds) / args.batch, max_ms=1e3 * max(seconds) / args.batch,
        )  # fmt: skip
        if args.mode == "train":
            row["saved_mb"] = cases[name].saved_bytes() / 2**20
        rows.append(row)
    cases.clear()
    if args.memory:
        for row in rows:
            row["peak_mb"] = peak_bytes(row["model"], size, args) / 2**20
    for row in rows:
        row["ratio"] = row["median_ms"] / rows[0]["median_ms"]
    return rows


def environment(args: argparse.Namespace) -> str:
    found = []
    for package in ("torch", "xcit_mm", "timm", "mmpretrain", "mmdet", "mmsegmentation"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()} CPU"
    return f"{date.today()}, {machine}, {torch.get_num_threads()} threads, {', '.join(found)}"


def markdown(rows: list[Result], args: argparse.Namespace) -> str:
    extra = [key for key in ("peak_mb", "saved_mb") if key in rows[0]]
    names = {"peak_mb": "peak memory (MB)", "saved_mb": "saved for backward (MB)"}
    header = ["model", "image", "ms an image: median (range)", f"to {rows[0]['model']}", *(names[key] for key in extra)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [row["model"], row["size"], f"{row['median_ms']:.0f} ({row['min_ms']:.0f}-{row['max_ms']:.0f})"]
        cells += [f"{row['ratio']:.2f}", *(f"{row[key]:.0f}" for key in extra)]
        lines.append(f"| {' | '.join(cells)} |")
    what = f"{args.mode}, batch {args.batch}, {args.dtype}, XCiT {args.arch}/p{args.patch_size}"
    return "\n".join([f"{what}; {args.repeats} alternating runs; {environment(args)}", "", *lines, "", ""])


def write(rows: list[Result], args: argparse.Namespace) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(markdown(rows, args))
    with args.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    if len(args.sizes) > 1:
        draw(rows, args, args.out.with_suffix(".png"))
        draw_table(rows, args.out.with_name(f"{args.out.name}-table.png"))


def draw(rows: list[Result], args: argparse.Namespace, path: Path) -> None:
    """Time, and memory where measured, against resolution (the paper's Figures D.1 and 2)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {"median_ms": "ms an image", "peak_mb": "peak memory (MB)"}
    panels = {key: label for key, label in panels.items() if key in rows[0]}
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), layout="constrained", squeeze=False)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for name in dict.fromkeys(row["model"] for row in rows):
            points = [(megapixels(row["size"]), row[key]) for row in rows if row["model"] == name]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xlabel="image (megapixels)", ylabel=label, xscale="log", yscale="log", title=f"{args.mode}: {label}")
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    figure.savefig(path, dpi=100)


def draw_table(rows: list[Result], path: Path) -> None:
    """Images a second, and memory where measured, by model and resolution (the paper's Table D.5)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("size", "model"))
    by_place = {(row["model"], row["size"]): row for row in rows}
    columns = {"im/s": lambda row: f"{1e3 / row['median_ms']:.2f}"}
    if "peak_mb" in rows[0]:
        columns["MB"] = lambda row: f"{row['peak_mb']:.0f}"
    header = [f"{size}\n{name}" for size in sizes for name in columns]
    cells = [[write(by_place[model, size]) for size in sizes for write in columns.values()] for model in models]
    figure, axis = plt.subplots(figsize=(1.2 + 0.85 * len(header), 0.8 + 0.35 * len(models)), layout="constrained")
    axis.axis("off")
    table = axis.table(cells, rowLabels=models, colLabels=header, loc="center")
    table.scale(1, 1.5)
    for column in range(len(header)):
        table[0, column].set_height(2 * table[1, column].get_height())
    figure.savefig(path, dpi=100)


def megapixels(size: str) -> float:
    height, width = map(int, size.split("x"))
    return height * width / 1e6


def parse_size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=BUILDERS, default=["xcit-auto", "xcit-plain"], metavar="MODEL",
                        help=f"of {', '.join(BUILDERS)}; ratios are to the first")  # fmt: skip
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(800, 1344)], help="HxW or a side, in pixels")
    parser.add_argument("--arch", default="s12", help="of XCiT (default: %(default)s)")
    parser.add_argument("--patch-size", type=int, default=16, help="of XCiT (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mode", choices=["forward", "train"], default="forward")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="by autocast")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile every model")
    parser.add_argument("--memory", action="store_true", help="measure the peak too, on CPU in fresh processes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write OUT.md, OUT.csv and OUT.png")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    rows = []
    for size in args.sizes:
        print(f"\n{size[0]}x{size[1]}", file=sys.stderr)
        rows += measure(size, args)
        if args.out:  # after every size: a run that is stopped keeps what it has measured
            write(rows, args)
    print(f"\n\n{markdown(rows, args)}")


if __name__ == "__main__":
    main()
