"""The models of benchmarks/benchmark.py: XCiT by each implementation, and installed peers."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from xcit_mm.models import Trunk
from xcit_mm.models.covariance import IMPLEMENTATIONS
from xcit_mm.models.large import large_taps
from xcit_mm.models.windows import tiles_along

__all__ = ["BUILDERS", "TIMM"]

# Sizes in the names of timm's XCiT, by the first letter of an architecture.
SIZES = dict(n="nano", t="tiny", s="small", m="medium", l="large")

Builder = Callable[[str, int], nn.Module]
"""Makes a model from an architecture and a patch size of XCiT."""


def xcit(**options: Any) -> Builder:
    def build(arch: str, patch_size: int) -> nn.Module:
        return MODELS.build(dict(type="XCiT", arch=arch, patch_size=patch_size, **options))

    return build


class Features(nn.Module):
    """The trunk of a classifier: its `forward_features` of timm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)


class Bands(nn.Module):
    """The trunk over the whole image by bands of rows, with its maps in files."""

    def __init__(self, arch: str, patch_size: int) -> None:
        super().__init__()
        self.trunk = Trunk(arch, patch_size)

    def forward(self, x: Tensor) -> None:
        def read(start: int, stop: int) -> tuple[Tensor, None]:
            return x[0, :, start:stop], None

        with tempfile.TemporaryDirectory() as folder:
            large_taps(self.trunk.eval(), read, *x.shape[2:], Path(folder), memory=0)


class Tiles(Trunk):
    """The trunk over tiles of 512 pixels, which overlap by a quarter."""

    def forward(self, x: Tensor) -> None:
        for rows in tiles_along(x.shape[2], 512, 128):
            for columns in tiles_along(x.shape[3], 512, 128):
                super().forward(x[..., rows.start : rows.stop, columns.start : columns.stop])


def xcit_p8(arch: str, patch_size: int) -> nn.Module:
    return xcit()(arch, 8)


def vit(model: str) -> Builder:
    def build(arch: str, patch_size: int) -> nn.Module:
        return MODELS.build(dict(type="TimmPyramid", model=model))

    return build


def timm_trunk(name: str) -> Builder:
    def build(arch: str, patch_size: int) -> nn.Module:
        import timm

        model = name.format(size=SIZES[arch[0]], depth=arch[1:], patch_size=patch_size)
        return Features(timm.create_model(model))

    return build


def mmdet_backbone(**options: Any) -> Builder:
    def build(arch: str, patch_size: int) -> nn.Module:
        import mmdet.models  # noqa: F401

        init_default_scope("mmdet")
        return MODELS.build(options)

    return build


BUILDERS: dict[str, Builder] = {
    **{f"xcit-{name}": xcit(attn_implementation=name) for name in IMPLEMENTATIONS},
    "xcit-auto-cp": xcit(with_cp=True),
    "xcit-trunk": Trunk,
    "xcit-bands": Bands,
    "xcit-tiles": Tiles,
    "xcit-p8": xcit_p8,
    "vit-s16": vit("vit_small_patch16_224"),
    "timm-xcit": timm_trunk("xcit_{size}_{depth}_p{patch_size}_224"),
    "swin-t": mmdet_backbone(type="mmdet.SwinTransformer"),
    "convnext-t": timm_trunk("convnext_tiny"),
    "efficientvit-b3": timm_trunk("efficientvit_b3"),
    "efficientvit-l1": timm_trunk("efficientvit_l1"),
    "resnet-50": mmdet_backbone(type="mmdet.ResNet", depth=50),
}
TIMM = ("timm-xcit", "convnext-t", "efficientvit-b3", "efficientvit-l1", "vit-s16")
"""The models that need timm."""
