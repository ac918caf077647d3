"""Drawing of stored predictions, without predicting again."""

from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import cv2
import numpy as np

from ..prediction import Instances, Prediction
from ..utils.images import read_image
from .inputs import Input
from .manifest import LABELS, VISUALIZATIONS
from .reading import Video
from .results import ResultWriter, report_undrawn, thread_queue, try_or_message
from .run import Run
from .shards import Record
from .videos import DrawnVideo, map_key
from .workers import run_progress

__all__ = ["redraw"]


def redraw(run: Run) -> None:
    """Draw the predicted images and videos of a run again. Inputs that cannot be drawn are reported."""
    results, shards = ResultWriter(run), run.completed()
    total = sum(len(run.shards[shard].inputs) for shard in shards)
    with (
        run_progress(run, total) as progress,
        ThreadPoolExecutor(2) as pool,
        thread_queue(pool, lambda _: progress(1, 0)) as submit,
    ):
        for shard in shards:
            for number, group in groupby(run.records(shard), key=lambda record: record.number):
                input_, records = run.inputs[number], [record for record in group if record.error is None]
                if records and input_.size is None:  # rasters have no visualizations
                    submit(_redraw, run, results, input_, records)


def _redraw(run: Run, results: ResultWriter, input_: Input, records: list[Record]) -> None:
    draw = _draw_video if input_.is_video else _draw_image
    if reason := try_or_message(draw, run, results, input_, records):
        report_undrawn(input_, reason)


def _draw_image(run: Run, results: ResultWriter, input_: Input, records: list[Record]) -> None:
    image = read_image(input_.path, **run.model.loading)
    results.write_drawing(input_, _stored_prediction(run, input_, records[0], image))


def _draw_video(run: Run, results: ResultWriter, input_: Input, records: list[Record]) -> None:
    drawn = DrawnVideo(run.out / VISUALIZATIONS / f"{input_.key}.mp4", input_)
    for record, image in zip(records, Video(input_.path), strict=False):  # a damaged video has fewer records
        drawn.write(results.draw(_stored_prediction(run, input_, record, image)))
    drawn.close()


def _stored_prediction(run: Run, input_: Input, record: Record, image: np.ndarray) -> Prediction:
    size, drawing = [record.height, record.width], (run.model.classes, run.model.palette)
    if list(image.shape[:2]) != size:
        raise ValueError(f"the image has {image.shape[0]}x{image.shape[1]} pixels, its prediction {size[0]}x{size[1]}")
    if record.boxes is not None:
        masks = None if record.masks is None else [dict(size=size, counts=code.encode()) for code in record.masks]
        boxes, scores = (np.array(values, np.float32) for values in (record.boxes, record.scores))
        instances = Instances(boxes.reshape(-1, 4), scores, np.array(record.labels, int), masks)
        return Prediction(image, instances, None, *drawing)
    png = record.segmentation_map
    if png is None:
        png = (run.out / LABELS / f"{map_key(input_, record.frame)}.png").read_bytes()
    return Prediction(image, None, cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED), *drawing)
