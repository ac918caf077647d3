"""Drawing of stored predictions, without predicting again."""

from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from ..utils.images import read_image
from .inputs import Input
from .reading import Video
from .results import ResultWriter, stored_prediction, thread_queue, try_or_message
from .run import Run
from .shards import Record
from .videos import DrawnVideo
from .workers import run_progress


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
        run.report(f"not drawn: {input_.path}: {reason}")


def _draw_image(run: Run, results: ResultWriter, input_: Input, records: list[Record]) -> None:
    image = read_image(input_.path, **run.model.loading)
    results.write_drawing(input_, stored_prediction(run, input_, records[0], image))


def _draw_video(run: Run, results: ResultWriter, input_: Input, records: list[Record]) -> None:
    drawn = DrawnVideo(run, input_)
    for record, image in zip(records, Video(input_.path), strict=False):  # a damaged video has fewer records
        drawn.write(results.draw(stored_prediction(run, input_, record, image)))
    drawn.close()
