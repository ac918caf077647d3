"""The models of benchmarks/benchmark.py: XCiT with each implementation of its attention, and installed peers."""

from collections.abc import Callable

from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from xcit_mm.archs import ARCHS, SIZES
from xcit_mm.models import Trunk
from xcit_mm.models.fast import IMPLEMENTATIONS

__all__ = ["BUILDERS"]


def xcit(arch: str, patch_size: int, **kwargs) -> nn.Module:
    return MODELS.build(dict(type="XCiT", arch=arch, patch_size=patch_size, **kwargs))


class Features(nn.Module):
    """The trunk of a classifier: its `forward_features` of timm."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)


def timm_trunk(name: str, **kwargs) -> Callable[[str, int], nn.Module]:
    def build(arch: str, patch_size: int) -> nn.Module:
        import timm

        full_name = name.format(size=SIZES[arch[0]], depth=arch[1:], patch_size=patch_size)
        return Features(timm.create_model(full_name, **kwargs))

    return build


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
    **{
        f"xcit-{name}": (lambda arch, patch, name=name: xcit(arch, patch, attn_implementation=name))
        for name in IMPLEMENTATIONS
    },
    "xcit-auto-cp": lambda arch, patch: xcit(arch, patch, with_cp=True),
    "xcit-trunk": lambda arch, patch: Trunk(arch, patch),
    "timm-xcit": timm_trunk("xcit_{size}_{depth}_p{patch_size}_224"),
    "mmpretrain-xcit": mmpretrain_xcit,
    "swin-t": mmdet_backbone(type="SwinTransformer"),
    "convnext-t": timm_trunk("convnext_tiny"),
    "pvt-small": mmdet_backbone(type="PyramidVisionTransformer", num_layers=[3, 4, 6, 3]),
    "resnet-50": mmdet_backbone(type="ResNet", depth=50),
    "timm-deit-s": timm_trunk("deit_small_patch16_224", dynamic_img_size=True),
    "mmseg-vit-s": mmseg_vit,
}
