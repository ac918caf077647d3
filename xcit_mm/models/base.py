"""The base class of backbones: `init_cfg`, frozen stages, BatchNorm, and pixels without data."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from torch import Tensor, nn

from ..utils.compat import BatchNorm
from ..utils.config_parts import part_class
from ..weights.layouts import Weights, describe
from ..weights.matching import load_pretrained

MIN_SIZE = 32  # pixels; the map of stride 32 then has one cell


def to_increasing(name: str, values: Iterable[int], choices: Sequence[int]) -> tuple[int, ...]:
    """Return increasing integers, out of some choices, as a tuple, or raise ValueError.

    In a range, negative integers count from its end.
    """
    wanted = list(values)
    shown = ", ".join(map(str, choices))
    if isinstance(choices, range):
        size = len(choices)
        wanted = [value + size if value in range(-size, 0) else value for value in wanted]
        shown = f"{choices[0]} to {choices[-1]}"
    increasing = [choice for choice in choices if choice in wanted]
    if not increasing or increasing != wanted:
        raise ValueError(f"{name}={values!r}: choose from {shown} in increasing order")
    return tuple(increasing)


def keep_valid(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return `x` with zeros where it is not valid, or `x` itself without a mask."""
    return x if valid is None else x.masked_fill(~valid, 0)


def mask_option(valid: Tensor | None) -> dict[str, Tensor]:
    """Return a mask as a keyword argument of a layer, or no argument without a mask.

    So a layer that a user puts in place of the paper's need not have an argument for masks.
    """
    return {} if valid is None else dict(valid=valid)


def cells_with_data(valid: Tensor, size: int) -> Tensor:
    """Return which cells of `size` x `size` pixels have a valid pixel in a mask (B, 1, H, W).

    Shape: (B, 1, H, W) -> (B, 1, ceil(H / size), ceil(W / size)).
    """
    return F.max_pool2d(valid.float(), size, ceil_mode=True) > 0


class Backbone(BaseModule):
    """`BaseModule` whose `init_cfg` of type 'Pretrained' fills all of its trunk, or raises.

    The options of such an `init_cfg` are the arguments of `load_pretrained`.

    Raises:
        TypeError: If an argument is unknown, also in `init_cfg`.
        ValueError: If `init_cfg` has no type.
    """

    can_leave_out_pixels = False  # whether `valid` acts
    _valid: Sequence[Tensor] | None = None  # the masks of `valid`, in its block
    init_cfg: Any
    in_channels: int
    out_indices: tuple[int, ...]
    frozen_stages: int
    norm_eval: bool

    def __init__(self, init_cfg: dict | list[dict] | None = None, **unknown: object) -> None:
        if unknown:
            fix = "remove it, or give _delete_=True if a base config's backbone has it"
            if list(unknown) == ["pretrained"]:  # mmseg passes the model's `pretrained` on
                fix = "give model=dict(pretrained=None, ...), and the backbone an init_cfg"
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}: {fix}")
        super().__init__(init_cfg)
        self._split_init_cfg()  # raises now what would otherwise be raised after the data is read

    def stages(self) -> list[list[nn.Module]]:
        """Return the modules of the stem and the positional encoding, then those of each block."""
        raise NotImplementedError

    def frozen_modules(self) -> list[nn.Module]:
        """Return the modules that training does not change."""
        if self.frozen_stages < -1:
            raise ValueError(f"frozen_stages={self.frozen_stages}: give -1 to train all")
        return [module for stage in self.stages()[: self.frozen_stages + 1] for module in stage]

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
            ValueError: If the backbone is not `XCiT`.
            ValueError, RuntimeError: In the block: if the masks do not fit the images, or if
                gradients are enabled.
        """
        if not self.can_leave_out_pixels:
            raise ValueError(f"{type(self).__name__} cannot leave out pixels: give an XCiT")
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
        masks = x.new_zeros((batch, 1, height, width), dtype=torch.bool)
        for canvas, mask in zip(masks, self._valid, strict=True):
            rows, columns = mask.shape
            canvas[0, :rows, :columns] = mask
        return None if masks.all() else cells_with_data(masks, size)

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
        raise NotImplementedError

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
        init_cfg = self.init_cfg
        self.init_cfg, pretrained = self._split_init_cfg()
        try:
            super().init_weights()  # which warns of a second call
        finally:
            self.init_cfg = init_cfg
        if not is_complete:
            self.is_init = False  # a second call must try again if the weights cannot be loaded
            self.load_weights(pretrained)
            self.is_init = True

    def load_weights(self, pretrained: list[dict[str, Any]]) -> None:
        """Fill the whole trunk from checkpoints, or raise and change nothing.

        Args:
            pretrained: For each checkpoint the arguments of `load_pretrained`.
        """
        for options in pretrained:
            load_pretrained(self, **options)

    def _split_init_cfg(self) -> tuple[list[dict], list[dict[str, Any]]]:
        """Split `init_cfg` into configs for mmengine and arguments of `load_pretrained`.

        Raises:
            TypeError: If an argument is unknown, or the checkpoint is missing.
            ValueError: If a config has no type.
        """
        cfgs: Any = self.init_cfg or []
        by_mmengine = []
        pretrained = []
        for cfg in cfgs if isinstance(cfgs, list) else [cfgs]:
            if not isinstance(cfg, dict) or "type" not in cfg:
                fix = "for weights give dict(type='Pretrained', checkpoint=FILE)"
                raise ValueError(f"init_cfg={cfg!r} has no type: {fix}")
            if part_class(cfg, WEIGHT_INITIALIZERS) is not PretrainedInit:
                by_mmengine.append(cfg)
                continue
            options = {key: value for key, value in cfg.items() if key != "type"}
            signature(load_pretrained).bind(self, **options)  # raises for wrong options
            pretrained.append(options)
        return by_mmengine, pretrained
