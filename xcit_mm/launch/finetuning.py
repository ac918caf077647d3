"""Fine-tune a model on own data: a config for both, written, checked and trained."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mmengine.config import Config

from ..datasets import Dataset, Source, arguments_of, read_dataset, suggest_files, write_dataset
from ..datasets.dataset import PAGE
from ..utils.atomic import restored_on_error
from ..utils.configs import check_keys
from ..utils.errors import ArgumentError
from ..utils.folders import lock_folder
from ..utils.output import quiet, say
from ..weights.class_names import configured_classes
from .adapting import adapt, read_model, scale_of_photos
from .labelled_raster import LabelledRaster, adapt_to_tiles
from .own_config import write_config
from .resume_point import check_is_new
from .runner import build_runner, read_run
from .training import check_half_precision, prepare, run
from .whole_images import adapt_to_whole, check_whole_training

# The data set of a fine-tuning, the arguments with which the library reads it, and the values that
# the config gets.
_Adapted: TypeAlias = tuple[Dataset, dict[str, dict[str, Any]], dict[str, Any]]


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
    """Fine-tune a detector or a segmentor on own data.

    The config of the training is written first, for you to read, edit and train again by `train`.
    Then the run is checked and trained. If a check fails, nothing is written.

    A detector with masks becomes one without if no annotation has a mask.

    Args:
        model: A published model's name, a work folder, or a config.
        data: A COCO json, a data.yaml of YOLO, a folder of images and segmentation maps, or, with
            `labels`, a raster that GDAL reads.
        checkpoint: Weights to start from. Default: those of the model.
        val: The COCO json of the validation. Default: none.
        images: Folder of the images of a COCO json. Default: that of the json.
        val_images: Folder of the images of `val`. Default: `images`.
        boxes: Whether to train boxes only, with a model that could predict masks.
        labels: Polygons of the raster's objects or classes: a vector file, or a GeoDataFrame.
        class_column: Column of the labels' classes. Default: `class`.
        class_name: Class of all labels, in place of a column.
        layer: Layer of the labels. Default: the only one.
        aoi: Polygons within which the labels are complete: a vector file, or a GeoDataFrame.
            Default: the whole raster.
        hold_out: Whether to hold out a fifth of the labels for the validation.
        whole: Whether a segmentor trains on whole images of any size, without crops: on the raster
            as one image, or on each image of a folder. Validations need more memory.
        tile: Side of the tiles that are cut from a raster, in pixels. Default: as in the config.
        overlap: Pixels that tiles share. Default: a quarter of the tile.
        bands: Numbers of the raster's bands, from 1. Default: the first three.
        bounds: Values that become 0 and 255: a pair, or a pair for each band. Default: those of the
            8 bits of a raster.
        nodata: The value of pixels without data. Default: as the raster says.
        config: The config to write. Default: the name of the data, in the current folder.
        overwrite: Whether to replace an existing config, and the tiles of a raster.
        work_dir: Folder of the run. Default: `work_dirs/NAME_OF_CONFIG`.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate to the batch size.
        cfg_options: Values that replace those of the config, by dotted key.
        skip_checks: Whether to start without checks.

    Returns:
        The work folder. `Predictor.from_pretrained`, `evaluate` and `export` take it as a model.

    Raises:
        FileExistsError: If the config exists, without `overwrite`, or the work folder has a
            checkpoint.
        OSError: If a file of the data is missing.
        ValueError: If a file is not what its format says, the model cannot be fine-tuned on the
            data, or a check fails.

    Example:
        >>> from xcit_mm import Predictor, finetune
        >>> finetune("maskrcnn_xcit_tiny_12_p16", "figs/data.yaml")
        PosixPath('work_dirs/figs')
        >>> predictor = Predictor.from_pretrained("work_dirs/figs")
    """
    check_keys(cfg_options or ())
    label_options = dict(class_column=class_column, class_name=class_name, layer=layer)
    reading = dict(tile=tile, overlap=overlap, bands=bands, bounds=bounds, nodata=nodata)
    raster = None
    if labels is not None:
        raster = LabelledRaster(data, labels, label_options, reading, aoi, hold_out, whole)
    else:
        given = label_options | reading | dict(aoi=aoi)
        if not hold_out:
            given["hold_out"] = hold_out
        _refuse_raster_options(given)
    path = _choose_config(Path(data), config, overwrite)
    source = _as_source(data=data, val=val, images=images, val_images=val_images)
    cfg = read_model(model, checkpoint)
    if whole:
        check_whole_training(cfg)
        for name in ("tile", "overlap"):
            if reading[name] is not None:
                raise ArgumentError(name, "a raster that is trained whole has no tiles")
    if amp:
        check_half_precision(cfg, (cfg_options or {}).get("optim_wrapper.dtype"))
    folder = Path(work_dir or (cfg_options or {}).get("work_dir") or f"work_dirs/{path.stem}")
    stem = path.resolve().with_suffix("")
    tiles = stem.with_name(f"{stem.name}-tiles")
    objects = stem.with_name(f"{stem.name}-coco")
    if raster is None:
        written = [path, objects / "train.json", objects / "val.json"]
    else:
        written = [path, tiles]
        raster.check_folder(tiles, overwrite)
    with lock_folder(folder):
        check_is_new(folder)
        with restored_on_error(written):
            if raster is None:
                dataset, arguments, values = _adapt_to_photos(cfg, source, objects, boxes)
            else:
                dataset, arguments, values = _adapt_to_raster(cfg, raster, tiles, boxes)
            if whole:
                adapt_to_whole(values)
            write_config(path, cfg, dataset, arguments, values)
            say(f"{path.stem}: {dataset.describe()}")
            with quiet():
                run_cfg = read_run(path, folder, cfg_options)
                prepare(run_cfg, None, amp, auto_scale_lr, skip_checks)
            runner = build_runner(run_cfg)
        say(f"written: {path}; edit it, and train it again")
        run(runner)
    return folder


def _refuse_raster_options(options: Mapping[str, Any]) -> None:
    """Raise ArgumentError for the first option of a labelled raster that is given."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(name, "it is for a labelled raster: give its labels too")


def _choose_config(data: Path, config: str | Path | None, overwrite: bool) -> Path:
    """Return the path of the config to write.

    Raises:
        ArgumentError: If it is not the name of a Python file.
        FileExistsError: If it exists, without `overwrite`.
    """
    named = data.stem
    if data.suffix in (".yaml", ".yml"):
        named = Path(os.path.abspath(data)).parent.name
    name = re.sub(r"\W+", "-", named).strip("-") or "data"
    path = Path(config or f"{name}.py")
    if path.suffix != ".py":
        raise ArgumentError("config", f"{path}: give a name that ends in .py")
    if path.exists() and not overwrite:
        fix = "train it as it is, give another config, or set overwrite"
        raise FileExistsError(f"{path} exists: {fix}")
    return path


def _as_source(**paths: str | Path | None) -> Source:
    absolute = {name: Path(os.path.abspath(path)) for name, path in paths.items() if path}
    return Source(**absolute)


def _adapt_to_photos(cfg: Config, source: Source, objects: Path, boxes: bool) -> _Adapted:
    """Write the objects of photos to a folder, and adapt the config of a model to the photos."""
    is_detector = cfg.default_scope == "mmdet"
    if is_detector and source.data.is_dir():
        problem = f"{source.data} is a folder, and a detector takes a COCO json or a data.yaml"
        fix = f"see {PAGE}"
        for file in suggest_files(source.data)[:1]:
            fix = f"give {file}"
        raise ArgumentError("data", f"{problem}: {fix}")
    dataset = read_dataset(source, is_detector, configured_classes(cfg) or ())
    values = adapt(cfg, dataset, boxes)
    values["large"] = scale_of_photos(cfg, dataset)
    # With all keys, since mmengine keeps those of the base.
    files = {name: file and str(file) for name, file in vars(source).items()}
    values["source"] = dict(files, folder=str(objects))
    return dataset, write_dataset(dataset, objects), values


def _adapt_to_raster(cfg: Config, raster: LabelledRaster, folder: Path, boxes: bool) -> _Adapted:
    """Cut a labelled raster into a folder of tiles, and adapt the config of a model to them."""
    tiles = raster.cut(folder, cfg)
    values = adapt(cfg, tiles.dataset, boxes)
    adapt_to_tiles(values, cfg, tiles)
    values["source"] = dict(raster=str(raster.path))
    return tiles.dataset, arguments_of(tiles.dataset, folder), values
