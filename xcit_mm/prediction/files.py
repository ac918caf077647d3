"""Many files: predicted one after the other, and what is found written as it comes."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import mmengine
import numpy as np
from mmengine.utils import ProgressBar

from .drawing import Style, draw_instances, draw_segmentation_map
from .inputs import Input, Video, read_image
from .predictor import Prediction, Predictor
from .results import coco_results

__all__ = ["Summary", "Writer", "check_folder", "predict_files"]

PICTURES, LABELS, PREDICTIONS, IMAGES = "pictures", "labels", "predictions.json", "images.json"


class Summary(NamedTuple):
    """How predicting files went.

    Attributes:
        done: Number of files.
        failed: A line for each file that could not be predicted.
        interrupted: Whether Ctrl-C ended it.
    """

    done: int
    failed: list[str]
    interrupted: bool


def check_folder(out: Path, overwrite: bool) -> list[Path]:
    """The results of an earlier run in a folder.

    Raises:
        FileExistsError: If there are some that are not to be overwritten, or that no run has left.
    """
    there = [out / name for name in (PICTURES, LABELS, PREDICTIONS, IMAGES) if (out / name).exists()]
    if there and not overwrite:
        raise FileExistsError(f"{there[0]} is there already: give another --out, or --overwrite to replace its results")
    if there and not (out / IMAGES).exists():
        raise FileExistsError(f"{there[0]} is not of an earlier run, which leaves {IMAGES}: give another --out")
    return there


class Writer:
    """Writes predictions to a folder: a picture or film a file, segmentation maps of a segmentor, and json files.

    Args:
        out: The folder.
        predict: The model whose predictions they are.
        style: Of the pictures.
        score_thr: Least score that is drawn.
        overwrite: Whether to remove what an earlier run left there.
        image_ids: By the inputs' keys, where the images have ids already; default: from 1 on, as they come.
        category_ids: Of the classes; default: from 1 on, a segmentor's from 0, as the segmentation maps have them.

    Raises:
        FileExistsError: As `check_folder`.
    """

    def __init__(
        self,
        out: Path,
        predict: Predictor,
        style: Style,
        score_thr: float = 0.3,
        overwrite: bool = False,
        image_ids: dict[str, int] | None = None,
        category_ids: list[int] | None = None,
    ) -> None:
        self.out = out
        self.is_detector = predict.is_detector
        self.classes, self.palette = predict.metainfo["classes"], predict.metainfo.get("palette")
        self.score_thr, self.style = score_thr, style
        self.image_ids = image_ids
        first = int(self.is_detector)
        self.category_ids = category_ids or list(range(first, first + len(self.classes)))
        self.images: list[dict] = []
        self.results: list[dict] = []
        for path in check_folder(out, overwrite):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.close()  # marks the folder as a run's, and shows early that it can be written

    def add(self, given: Input, predictions: Iterable[Prediction], rate: float | None) -> None:
        """Write a file's predictions as they come; of a video, `rate` frames a second."""
        film = None
        try:
            for frame, prediction in enumerate(predictions):
                picture = self.draw(prediction)
                if rate is None:
                    mmcv.imwrite(picture, str(self.out / PICTURES / f"{given.key}.jpg"))
                else:
                    film = film or self._film(given, rate, picture)
                    film.write(picture)
                self._keep(given, prediction, None if rate is None else frame)
        finally:
            if film is not None:
                film.release()

    def draw(self, prediction: Prediction) -> np.ndarray:
        """The image under what was found in it."""
        drawing = self.classes, self.palette, self.style
        if prediction.instances is not None:
            return draw_instances(prediction.image, prediction.instances.above(self.score_thr), *drawing)
        assert prediction.labels is not None  # one of the two is given
        return draw_segmentation_map(prediction.image, prediction.labels, *drawing)

    def _film(self, given: Input, rate: float, picture: np.ndarray) -> cv2.VideoWriter:
        path = self.out / PICTURES / f"{given.key}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        film = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, picture.shape[1::-1])
        if not film.isOpened():
            raise OSError(f"{path} cannot be written with {rate:g} frames a second")
        return film

    def _keep(self, given: Input, prediction: Prediction, frame: int | None) -> None:
        image_id = self.image_ids[given.key] if self.image_ids else len(self.images) + 1
        height, width = prediction.image.shape[:2]
        image = dict(id=image_id, file_name=given.name, height=height, width=width)
        self.images.append(image if frame is None else image | dict(frame=frame))
        if prediction.instances is None:
            # Beside a video no folder can have its name: frames and images never meet.
            name = given.key if frame is None else f"{given.name}/{frame:06}"
            mmcv.imwrite(prediction.labels, str(self.out / LABELS / f"{name}.png"))
        else:
            self.results += coco_results(prediction.instances, image_id, self.category_ids)

    def close(self) -> None:
        """Write the json files, of what was added so far."""
        categories = [dict(id=number, name=name) for number, name in zip(self.category_ids, self.classes, strict=True)]
        mmengine.dump(dict(images=self.images, categories=categories, annotations=[]), str(self.out / IMAGES))
        if self.is_detector:
            mmengine.dump(self.results, str(self.out / PREDICTIONS))


def predict_files(inputs: list[Input], predict: Callable[[np.ndarray], Prediction], writer: Writer) -> Summary:
    """Predict files with a progress bar; those that fail are told, and Ctrl-C keeps what was done."""
    failed: list[str] = []
    interrupted = False
    progress = ProgressBar(len(inputs))
    try:
        for given in inputs:
            try:
                predict_file(given, predict, writer)
            except Exception as error:  # decoders and transforms raise nearly anything: the other files are done
                failed.append(f"{given.path}: {' '.join(str(error).split())}")
            progress.update()
    except KeyboardInterrupt:
        interrupted = True
    writer.close()
    return Summary(progress.completed - len(failed), failed, interrupted)


def predict_file(given: Input, predict: Callable[[np.ndarray], Prediction], writer: Writer) -> None:
    """Predict an image, or a video frame by frame; nothing is written if the first frame fails."""
    frames = Video(given.path) if given.is_video else [read_image(given.path)]
    writer.add(given, map(predict, frames), frames.rate if isinstance(frames, Video) else None)
