"""The base class of backbones: `init_cfg`, frozen stages, BatchNorm, and pixels without data."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor, nn

from ..utils.compat import BatchNorm, autocast_dtype
from ..utils.config_parts import part_class
from ..weights.layouts import Weights, describe
from ..weights.matching import load_pretrained, match_trunk

MIN_SIZE = 32  # pixels; the map of stride 32 then has one cell
DELETE_HINT = "_delete_=True if a base config's backbone has it"

InitCfg = dict | list[dict] | None


def to_increasing(
    name: str,
    values: object,
    choices: Sequence[int],
    otherwise: str = f"give {DELETE_HINT}",
) -> tuple[int, ...]:
    """Return increasing integers, out of some choices, as a tuple, or raise ValueError.

    In a range, negative integers count from its end.

    Args:
        otherwise: What else can be done, for the error.
    """
    wanted = list(values) if isinstance(values, Iterable) else []
    shown = ", ".join(map(str, choices))
    if isinstance(choices, range):
        size = len(choices)
        wanted = [value + size if value in range(-size, 0) else value for value in wanted]
        shown = f"{choices[0]} to {choices[-1]}"
    increasing = [choice for choice in choices if choice in wanted]
    if not increasing or increasing != wanted:
        fix = f"choose from {shown} in increasing order, or {otherwise}"
        raise ValueError(f"{name}={values!r}: {fix}")
    return tuple(increasing)


def keep_valid(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return `x` with zeros where it is not valid, or `x` itself without a mask."""
    return x if valid is None else x.masked_fill(~valid, 0)


def mask_option(valid: Tensor | None) -> dict[str, Tensor]:
    """Return a mask as a keyword argument of a layer, or no argument without a mask.

    A user's own layer in place of one of the paper's need not take a mask.
    """
    return {} if valid is None else dict(valid=valid)


def cells_with_data(valid: Tensor, size: int) -> Tensor:
    """Return which cells of `size` x `size` have a valid place, of a mask (B, 1, H, W).

    Shape: (B, 1, H, W) -> (B, 1, ceil(H / size), ceil(W / size)).
    """
    return F.max_pool2d(valid.float(), size, ceil_mode=True) > 0


class Backbone(BaseModule):
    """`BaseModule` whose `init_cfg` of type 'Pretrained' fills all of its trunk, or raises.

    The options of such an `init_cfg` are the arguments of `load_pretrained`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If `init_cfg` has no type.
    """

    can_leave_out_pixels = False  # whether `valid` acts
    _valid: Sequence[Tensor] | None = None  # the masks of `valid`, in its block
    in_channels: int
    out_indices: tuple[int, ...]
    frozen_stages: int
    norm_eval: bool

    def __init__(self, init_cfg: InitCfg = None, **unknown: object) -> None:
        if unknown:
            fix = f"remove it, or give {DELETE_HINT}"
            if list(unknown) == ["pretrained"]:  # mmseg passes the model's `pretrained` on
                fix = "give model=dict(pretrained=None, ...), and the backbone an init_cfg"
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}: {fix}")
        by_mmengine = []
        self.pretrained_cfgs: list[dict[str, Any]] = []
        cfgs: Any = init_cfg or []
        for cfg in cfgs if isinstance(cfgs, list) else [cfgs]:
            if not isinstance(cfg, dict) or "type" not in cfg:
                fix = "for weights give dict(type='Pretrained', checkpoint=FILE)"
                raise ValueError(f"init_cfg={cfg!r} has no type: {fix}")
            if part_class(cfg, WEIGHT_INITIALIZERS) is PretrainedInit:
                self.pretrained_cfgs.append(cfg)
            else:
                by_mmengine.append(cfg)
        super().__init__(by_mmengine)

    def stages(self) -> list[list[nn.Module]]:
        """Return the modules of the stem and the positional encoding, then those of each block."""
        raise NotImplementedError

    def frozen_modules(self) -> list[nn.Module]:
        """Return the modules that training does not change."""
        return [module for stage in self.stages()[: self.frozen_stages + 1] for module in stage]

    def set_trunk(
        self,
        depth: int,
        out_indices: Sequence[int],
        in_channels: int,
        frozen_stages: int,
        drop_path_rate: float,
    ) -> None:
        """Check the arguments of a trunk of `depth` blocks, and set the attributes that they give.

        These are `in_channels`, `out_indices` and `frozen_stages`.

        Raises:
            ValueError: If an argument is out of its range.
        """
        if in_channels < 1:
            raise ValueError(f"{in_channels=}: must be the number of an image's channels")
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f"{drop_path_rate=}: must be at least 0 and below 1")
        taps = to_increasing("out_indices", out_indices, range(depth))
        in_use = taps[-1] + 1
        if frozen_stages not in range(-1, in_use + 1):
            raise ValueError(
                f"{frozen_stages=}: must be -1 (none) to {in_use} (the stem and all blocks in use)"
            )
        self.in_channels = in_channels
        self.out_indices = taps
        self.frozen_stages = frozen_stages

    @contextmanager
    def valid(self, masks: Sequence[Tensor]) -> Iterator[None]:
        """Leave out the pixels without data in images that are predicted inside this block.

        A token is valid if one of its pixels is. Other tokens are treated like the area beyond the
        border of an image: they are zero in the input of each convolution, in what follows the
        trunk and in the feature maps, and attention does not see them. So a part of an image has
        the same maps as if it were alone, except for the positional encoding of the whole image.

            with model.backbone.valid(masks), torch.no_grad():
                model.predict(...)

        Sides below 32 pixels are padded with zeros, which count as data without a mask, but not
        with one. So a mask that is True everywhere changes the maps of such an image, by some per
        cent. The recipes of mmdet and mmseg pad images before, so this concerns calls by hand.

        Args:
            masks: For each image of the batch (h, w), True where it has data. What an image has to
                the right of its mask and below is padding without data.

        Raises:
            ValueError: If the backbone is not `XCiT`. In the block: if the masks do not fit the
                images.
            RuntimeError: In the block: if gradients are enabled.
        """
        if not self.can_leave_out_pixels:
            raise ValueError(f"{type(self).__name__} sees all pixels: XCiT can leave pixels out")
        former = self._valid
        self._valid = masks
        try:
            yield
        finally:
            self._valid = former

    def valid_cells(self, x: Tensor, size: int) -> Tensor | None:
        """Return which cells of `size` pixels of images have data, or None if all pixels have.

        `cells_with_data` defines the cells, and `valid` lists the errors.
        """
        if self._valid is None:
            return None
        if torch.is_grad_enabled():
            raise RuntimeError("masks work in inference only: call the model under torch.no_grad()")
        batch, _, height, width = x.shape
        shapes = [tuple(mask.shape) for mask in self._valid]
        fit = [len(size) == 2 and size[0] <= height and size[1] <= width for size in shapes]
        if len(fit) != batch or not all(fit):
            raise ValueError(f"masks {shapes}: give one (h, w) for each image of {tuple(x.shape)}")
        masks = x.new_zeros((batch, 1, height, width), dtype=torch.bool)
        for canvas, mask, (rows, columns) in zip(masks, self._valid, shapes, strict=True):
            canvas[0, :rows, :columns] = mask
        return None if masks.all() else cells_with_data(masks, size)

    def check_image(self, x: Tensor) -> None:
        """Raise ValueError if images have no batch or other channels."""
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            expected = f"(B, {self.in_channels}, H, W)"
            raise ValueError(
                f"image of shape {tuple(x.shape)}: give {expected}, or set in_channels"
            )

    def check_type(self, x: Tensor) -> None:
        """Raise TypeError if images have another type than the weights.

        Only what torch has refused is checked: FSDP and layers of a user convert types, as autocast
        does.
        """
        expected = next(self.parameters()).dtype
        if x.dtype != expected and autocast_dtype(x.device.type) is None:
            fix = f"give normalised pixels, converted by .to({expected})"
            raise TypeError(f"image of {x.dtype}, but weights of {expected}: {fix}")

    def match_weights(
        self, weights: Weights, strict_heads: bool = True, fill_stem: bool = False
    ) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint that fill the backbone.

        Args:
            strict_heads: False leaves out a head for other classes.
            fill_stem: Whether to convert a stem for RGB.

        Raises:
            ValueError: If the checkpoint does not fill the backbone.
        """
        return match_trunk(self, weights, strict_heads, fill_stem)

    def describe_weights(self, weights: Weights) -> str:
        """Return what weights that fill the backbone are, for a log."""
        return f"{describe(weights.trunk)} ({weights.layout} layout)"

    def train(self, mode: bool = True) -> "Backbone":
        """Set the mode, but keep frozen modules, and BatchNorm under `norm_eval`, in eval mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Initialise by `init_cfg`; a second call changes nothing, as in mmengine."""
        is_complete = self.is_init  # type: ignore[has-type]  # BaseModule's
        super().init_weights()  # which warns of a second call
        if not is_complete:
            self.is_init = False  # a second call must try again if the weights cannot be loaded
            self.load_weights()
            self.is_init = True

    def load_weights(self) -> None:
        """Fill the whole trunk from the checkpoint of `init_cfg`, or raise and change nothing."""
        for cfg in self.pretrained_cfgs:
            load_pretrained(self, **{key: value for key, value in cfg.items() if key != "type"})
