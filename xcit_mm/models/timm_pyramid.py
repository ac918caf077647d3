"""A plain vision transformer of timm, such as DeiT or DINOv3, with the pyramid of XCiT."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..weights.layouts import TIMM_PREFIX, Weights
from ..weights.matching import match_backbone
from ..weights.stem import with_stem_for_bands
from .base import MIN_SIZE
from .xcit import STRIDES, Pyramid, pad_small_sides, taps_and_strides

# timm's modules of transformers whose blocks all have the stride of their patches.
MODULES = ("vision_transformer", "deit", "eva")
# What follows the final norm, with which timm classifies.
_AFTER_NORM = ("fc_norm.", "head.", "head_dist.", "attn_pool.")


def create_model(name: str, **options: Any) -> Any:
    """Create a plain vision transformer of timm without its classifier, for images of any size.

    Raises:
        ModuleNotFoundError: If timm is not installed.
        ValueError: If timm has no plain vision transformer of this name.
        RuntimeError: If timm has no weights of this name, behind the point.
    """
    import timm

    arch, _, _ = str(name).partition(".")
    if not timm.models.is_model_in_modules(arch, MODULES):
        fix = "take one such as vit_small_patch16_224"
        raise ValueError(f"model={name!r} is not a plain vision transformer of timm: {fix}")
    options |= dict(num_classes=0, dynamic_img_size=True, dynamic_img_pad=True)
    return timm.create_model(name, **options)


@MODELS.register_module()
class TimmPyramid(Pyramid):
    """A plain vision transformer of timm with the feature pyramid of XCiT.

    The maps of a ViT have one stride, that of its patches. Those after four of its blocks, without
    class and register tokens, become a pyramid, as in `XCiT`.

    Shape: (B, in_channels, H, W), H and W any sizes -> a feature map of the model's width for each
    of `strides`. Images are padded with zeros to whole patches and at least 32 pixels a side, and
    position embeddings are interpolated to their grid.

    Args:
        model: Name of a model of timm with the stride of its patches in all blocks: ViT, DeiT,
            SigLIP, DINOv3, EVA-02 and others of timm's modules `vision_transformer`, `deit` and
            `eva` with patches of 8, 16 or 32 pixels.
        pretrained: Whether timm downloads its weights when training starts.
        out_indices, strides, in_channels, norm_cfg, norm_eval, with_cp: See `XCiT`. BatchNorm is
            only in the pyramid.
        frozen_stages: -1: train all; 0: freeze what precedes the blocks; n: also the first n
            blocks. The final norm is frozen with the last block.
        drop_path_rate: Rate of stochastic depth of the last block. As usual for a ViT, the rate
            grows from zero with the depth.
        final_norm: Whether the model's final norm follows each of the blocks that are tapped.
            Default: True for DINOv3, as its authors do in segmentation, detection and depth, and
            False for other models, whose blocks detectors and segmentors take as they are.
        init_cfg: See mmengine. `dict(type='Pretrained', checkpoint=FILE)` fills the trunk from a
            file of timm, or raises.

    Raises:
        ModuleNotFoundError: If timm is not installed.
        TypeError, ValueError: If an argument is unknown, or has an invalid value.
        RuntimeError: If timm has no weights of the model's name, behind the point.
    """

    def __init__(
        self,
        model: str,
        pretrained: bool = False,
        out_indices: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
        norm_eval: bool = False,
        frozen_stages: int = -1,
        with_cp: bool = False,
        final_norm: bool | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if with_cp not in (False, True):
            raise ValueError(f"{with_cp=}: choose False or True")
        if pretrained and self.init_cfg:
            raise ValueError("pretrained=True and init_cfg both name weights: leave one out")
        self.model_name = model
        self.options = dict(in_chans=in_channels, drop_path_rate=drop_path_rate)
        self.timm_model = create_model(model, **self.options)
        patch_size, _ = self.timm_model.patch_embed.patch_size
        if patch_size not in STRIDES:
            fix = "take a model whose patches have 8, 16 or 32"
            raise ValueError(f"{model=} has patches of {patch_size} pixels: {fix}")
        self.final_norm = "dinov3" in model if final_norm is None else final_norm
        if self.final_norm and isinstance(self.timm_model.norm, nn.Identity):
            raise ValueError(f"{model=} has no norm after its blocks: give final_norm=False")
        self.pretrained = pretrained
        self.in_channels = in_channels
        self.norm_eval = norm_eval
        self.frozen_stages = frozen_stages
        self.depth = len(self.timm_model.blocks)
        self.out_indices, self.strides = taps_and_strides(self.depth, out_indices, strides)
        # Distributed training would stop at a parameter that no map depends on.
        self.timm_model.prune_intermediate_layers(self.out_indices, prune_norm=not self.final_norm)
        self.timm_model.set_grad_checkpointing(with_cp)
        norm_cfg = norm_cfg or dict(type="SyncBN", requires_grad=True)
        self.add_levels(self.timm_model.embed_dim, patch_size, norm_cfg)
        for module in self.frozen_modules():
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the pyramid of an image, finest map first.

        Raises:
            RuntimeError: If the number of the image's channels is not `in_channels`, or its type is
                not that of the weights.
        """
        padded = pad_small_sides(x, MIN_SIZE)
        taps = self.timm_model.forward_intermediates(
            padded, self.out_indices, norm=self.final_norm, intermediates_only=True
        )
        return self.apply_levels(taps, images=x)

    def stages(self) -> list[list[nn.Module]]:
        """Return the modules before the blocks, tokens included, then those of each block.

        The last block has the final norm.
        """
        parts: dict[str, Any] = dict(self.timm_model.named_children())
        blocks = [[block] for block in parts.pop("blocks")]
        blocks[-1].append(parts.pop("norm"))
        tokens = nn.ParameterList(self.timm_model.parameters(recurse=False))
        return [[tokens, *parts.values()], *blocks]

    def load_weights(self, pretrained: list[dict[str, Any]]) -> None:
        """Fill the trunk from checkpoints, or with timm's weights if `self.pretrained`."""
        super().load_weights(pretrained)
        if self.pretrained:
            published = create_model(self.model_name, pretrained=True, **self.options).state_dict()
            own = {name: published[name] for name in self.timm_model.state_dict()}
            self.timm_model.load_state_dict(own)

    def match_weights(
        self, weights: Weights, strict_heads: bool = True, fill_stem: bool = False
    ) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint that fill the backbone.

        The file of a detector or segmentor must fill the pyramid too. Other files need not. Their
        tensors are converted by timm, which interpolates the position embedding and resamples the
        filters of the patches.

        `fill_stem` converts a stem for RGB to other bands. `strict_heads` is unused.

        Raises:
            ValueError: If they do not fit.
        """
        trunk = with_stem_for_bands(weights.trunk, self.in_channels, fill_stem)
        if not weights.needs_pyramid:
            trunk = self._convert_by_timm(trunk)
        weights = replace(weights, trunk=trunk)
        unused = _AFTER_NORM if self.final_norm else ("norm.", *_AFTER_NORM)
        return match_backbone(self, weights, self.depth, unused, TIMM_PREFIX)

    def _convert_by_timm(self, trunk: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert the tensors of a file by timm to those of the model."""
        from timm.models import eva, vision_transformer

        if isinstance(self.timm_model, eva.Eva):
            return eva.checkpoint_filter_fn(trunk, self.timm_model)
        return vision_transformer.checkpoint_filter_fn(
            trunk, self.timm_model, adapt_layer_scale=True
        )

    def describe_weights(self, weights: Weights) -> str:
        """Return what weights that fill the backbone are, for a log."""
        return self.model_name
