"""Fine-tune a model on your own data: write a config, check it, and train it."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..datasets import Dataset, read_dataset, write_dataset
from ..utils.atomic import restored_on_error
from ..utils.configs import check_keys
from ..utils.errors import ArgumentError
from ..utils.folders import check_output, lock_folder
from ..utils.output import say
from ..utils.ranks import rank_and_size
from ..weights.class_names import configured_classes
from .finetuning_config import adapt, check_model, read_model, write_config
from .runner import read_run
from .training import check_is_new, prepare, run

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles

_TILE = 512
"""Side in pixels of the tiles in which a raster that was trained whole is predicted in tiles."""
_SOURCE = dict.fromkeys(("data", "val", "images", "val_images", "folder", "raster"))
"""All keys of `source` in a config. mmengine keeps those of the base that a config leaves out."""


def finetune(
    model: str | Path,
    data: str | Path,
    *,
    checkpoint: str | Path | None = None,
    val: str | Path | None = None,
    images: str | Path | None = None,
    val_images: str | Path | None = None,
    boxes: bool = False,
    labels: Any = None,
    class_column: str | None = None,
    class_name: str | None = None,
    layer: str | None = None,
    aoi: Any = None,
    hold_out: bool = True,
    whole: bool = False,
    tile: int | None = None,
    overlap: int | None = None,
    bands: Any = None,
    bounds: Any = None,
    nodata: float | None = None,
    config: str | Path | None = None,
    overwrite: bool = False,
    work_dir: str | Path | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    cfg_options: Mapping[str, Any] | None = None,
    skip_checks: bool = False,
) -> Path:
    """Fine-tune a detector or a segmentor on your own data.

    The function writes a config first, which you can edit and train again with `train`. Then it
    checks the run and trains it. If a check fails, config and data are as they were before.

    If no annotation has a mask, a detector with masks is trained to find boxes only.

    Args:
        model: A published model's name, a work folder, or a config.
        data: A COCO json, a data.yaml of YOLO, a folder of images and segmentation maps, or, with
            `labels`, a raster that GDAL reads.
        checkpoint: Weights to start from. Default: the model's own.
        val: The COCO json for the validation. Default: none.
        images: Folder with the images in a COCO json. Default: the folder of the json.
        val_images: Folder with the images in `val`. Default: `images`.
        boxes: Whether to train boxes only, with a model that could predict masks.
        labels: Polygons of the raster's objects or classes: a vector file, or a GeoDataFrame.
        class_column: Column of the labels' classes. Default: `class`.
        class_name: Class of all labels, in place of a column.
        layer: Layer of the labels. Default: the only one.
        aoi: Polygons within which the labels are complete: a vector file, or a GeoDataFrame.
            Default: the whole raster.
        hold_out: Whether to hold out a fifth of a raster's labels for the validation.
        whole: Whether a segmentor trains on whole images of any size, without crops: on the raster
            as one image, or on each image of a folder. Validations need more memory.
        tile: Side of the tiles that are cut from a raster, in pixels. Default: as in the config,
            which has one if the model was trained on a raster. With `whole` no tiles are cut, but
            the model may later predict in tiles of this side, by default 512.
        overlap: Pixels that tiles share. Default: a quarter of the tile.
        bands: Numbers of the raster's bands, from 1. Default: those that the file names red, green
            and blue, or all but alpha.
        bounds: Values that become 0 and 255: a pair, or a pair for each band. A raster of more than
            8 bits needs them, unless the model takes values as they are stored.
        nodata: A value without data, in addition to what the raster declares.
        config: The config to write. Default: the name of the data, in the current folder.
        overwrite: Whether to replace an existing config, and the jsons or tiles of its data.
        work_dir: Folder of the run. Default: `work_dirs/NAME_OF_CONFIG`.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate to the batch size.
        cfg_options: Values that replace values in the config, by dotted key.
        skip_checks: Whether to start without checks.

    Returns:
        The work folder. `Predictor.from_pretrained`, `evaluate` and `export` take it as a model.

    Raises:
        FileExistsError: If the config or files of its data exist, without `overwrite`, or the work
            folder has a checkpoint.
        OSError: If a file of the data is missing.
        ValueError: If a file is not what its format says, the model cannot be fine-tuned on the
            data, an argument does not fit the others, a check fails, or torchrun has started
            several processes.

    Example:
        >>> from xcit_mm import Predictor, finetune
        >>> finetune("maskrcnn_xcit_tiny_12_p16", "figs/data.yaml")
        PosixPath('work_dirs/figs')
        >>> predictor = Predictor.from_pretrained("work_dirs/figs")
    """
    if rank_and_size()[1] > 1:
        raise ValueError("finetune takes one process: stop it, and train its config in several")
    check_keys(cfg_options or ())
    path = Path(config or f"{_name_of(data)}.py")
    if path.suffix != ".py":
        raise ArgumentError("config", f"{path}: give a name that ends in .py")
    cfg = read_model(model, checkpoint)
    check_model(cfg, boxes, whole)
    reading = dict(tile=tile, overlap=overlap, bands=bands, bounds=bounds, nodata=nodata)
    columns = dict(class_column=class_column, class_name=class_name, layer=layer)
    photos = dict(val=val, images=images, val_images=val_images)
    if labels is None:
        given = reading | columns | dict(aoi=aoi, hold_out=None if hold_out else False)
        _refuse(given, "it is for a labelled raster: give its labels too")
        files = photos | dict(data=data)
        paths = {name: os.path.abspath(file) for name, file in files.items() if file}
        own_data = _photos(path.resolve().with_name(f"{path.stem}-coco"), paths)
    else:
        from ..rasters.labels import LabelFile  # these need the extra `raster`
        from ..rasters.settings import resolve_settings

        _refuse(photos, "it is for a COCO json, and the data are a labelled raster")
        if whole and tile is None:
            reading["tile"] = _TILE
        own_data = _labelled_raster(
            path.resolve().with_name(f"{path.stem}-tiles"),
            str(data),
            LabelFile(labels, **columns),
            resolve_settings(cfg, reading, trains=True),
            aoi=aoi,
            hold_out=hold_out,
            whole=whole,
        )
    written = [path, *own_data.outputs]
    for output in written:
        check_output(output, [cfg.filename, data], "config")
        if output.exists() and not overwrite:
            fix = f"overwrite it, give another config, or train {path}"
            raise FileExistsError(f"{output} exists: {fix}")
    chosen = work_dir or (cfg_options or {}).get("work_dir")
    work = Path(chosen or f"work_dirs/{path.stem}")
    with lock_folder(work):
        check_is_new(work)
        with restored_on_error(written):
            is_detector = cfg.default_scope == "mmdet"
            dataset, tiles = own_data.write(is_detector, configured_classes(cfg) or ())
            values = adapt(cfg, dataset, tiles, boxes, whole)
            values["source"] = _SOURCE | own_data.source
            values["work_dir"] = chosen and str(chosen)  # where the run resumes
            write_config(path, cfg, dataset, own_data.folder, values)
            say(f"{path.stem}: {dataset.describe()}")
            run_cfg = read_run(path, work, cfg_options)
            runner = prepare(run_cfg, None, amp, auto_scale_lr, skip_checks)
        say(f"written: {path}; to train again, edit it and give another work folder")
        run(runner)
    return work


class _OwnData(NamedTuple):
    """The user's data, and what a fine-tuning makes of them.

    Attributes:
        folder: Folder of what is made.
        outputs: Files or folders that `write` makes.
        source: Where the data come from, for the config.
        write: Function that makes the data set of a detector, or of a segmentor, and returns it
            with its tiles, if there are any. Its second argument is a model's classes: if the
            labels have the same, they take their order.
    """

    folder: Path
    outputs: list[Path]
    source: dict[str, str]
    write: Callable[[bool, Sequence[str]], tuple[Dataset, "Tiles | None"]]


def _photos(folder: Path, files: dict[str, str]) -> _OwnData:
    """Return labelled photos: a COCO json, a data.yaml, or a folder with maps.

    Args:
        files: The user's files, by the names of arguments.
    """

    def write(is_detector: bool, classes: Sequence[str]) -> tuple[Dataset, None]:
        paths = {name: Path(file) for name, file in files.items()}
        dataset = read_dataset(is_detector=is_detector, order=classes, **paths)
        write_dataset(dataset, folder)
        return dataset, None

    outputs = [folder / "train.json", folder / "val.json"]
    return _OwnData(folder, outputs, files | dict(folder=str(folder)), write)


def _labelled_raster(
    folder: Path, path: str, labels: Any, reading: Mapping[str, Any], **options: Any
) -> _OwnData:
    """Return a raster and polygons on it, which become tiles.

    Args:
        labels: The polygons, a `LabelFile`.
        reading, options: As in `cut_raster`.

    Raises:
        ValueError: If the folder has something else than tiles.
    """
    from ..rasters.cutting import check_folder, cut_raster

    def write(is_detector: bool, classes: Sequence[str]) -> tuple[Dataset, "Tiles"]:
        kind: dict[str, Any] = dict(is_detector=is_detector, model_classes=classes)
        tiles = cut_raster(path, labels, folder, reading, **kind, **options)
        return tiles.dataset, tiles

    check_folder(folder)
    return _OwnData(folder, [folder], dict(raster=path), write)


def _refuse(options: Mapping[str, Any], problem: str) -> None:
    """Raise ArgumentError for the first of these options that the user has set."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(name, problem)


def _name_of(data: str | Path) -> str:
    """Return the name of the data for files, that of its folder for a data.yaml.

    mmengine takes no dots in the name of a config.
    """
    path = Path(os.path.abspath(data))
    name = path.parent.name if path.suffix in (".yaml", ".yml") else path.stem
    return re.sub(r"\W+", "-", name).strip("-") or "data"
