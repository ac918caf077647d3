"""Items to records: a process reads and predicts items, and appends records to its journal."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.errors import reason
from .journal import Journal
from .listing import Item
from .prediction import Prediction
from .predictor import Predictor
from .reading import ReadImage, is_death_of_reader, read_images
from .results import result_paths, write_drawing, write_map

MAX_DEATHS = 3  # of processes with one item in flight, after which it is not tried again
CRASHED = "predicting it crashed or hung the process: out of memory, or a decoder fails"


@dataclass
class Engine:
    """Predicts items into a folder.

    Attributes:
        category_ids: Ids of the classes in COCO results.
        drawing: Arguments of `Prediction.draw`, or None to draw nothing.
        workers: Number of processes that read images. If 0, this process reads them.
    """

    predictor: Predictor
    journal: Journal
    out: Path
    category_ids: list[int]
    drawing: dict[str, Any] | None
    workers: int

    def predict(self, items: Sequence[Item], deaths: Mapping[str, int]) -> Iterator[Item]:
        """Predict items, and yield each when its record is in the journal.

        A stop from outside, such as Ctrl-C, is recorded, and is not a death of an item.

        Args:
            deaths: As in `Progress`. Items in it are predicted last and alone. After `MAX_DEATHS`,
                they are recorded as failures.
        """
        try:
            yield from self._predict_together([item for item in items if item.path not in deaths])
            for suspect in (item for item in items if item.path in deaths):
                if deaths[suspect.path] < MAX_DEATHS:
                    yield from self._predict_together([suspect])
                else:
                    self.journal.add(suspect, error=CRASHED)
                    yield suspect
        except (KeyboardInterrupt, GeneratorExit, OSError):
            with suppress(OSError):  # the disk may be full
                self.journal.end()
            raise

    def _predict_together(self, items: Sequence[Item]) -> Iterator[Item]:
        """Predict and record images in batches, and yield their items."""
        predictor = self.predictor
        batch_size = predictor.batch_size if predictor.tile is None else 1
        start = self.journal.start
        for batch in read_images(predictor.preprocess, items, batch_size, self.workers, start):
            for (item, _), result in zip(batch, self._predict_batch(batch), strict=True):
                self._record(item, result)
                yield item

    def _predict_batch(self, batch: Sequence[ReadImage]) -> list[Prediction | str]:
        """Return the prediction of each image, or the reason of its failure."""
        arrays = [pixels for _, pixels in batch if not isinstance(pixels, str)]
        try:
            predictions = iter(self.predictor(arrays))
        except Exception as error:  # models and pipelines raise many types
            if is_death_of_reader(error):
                raise
            if len(batch) == 1:
                return [reason(error)]
            return [result for image in batch for result in self._predict_batch([image])]
        return [pixels if isinstance(pixels, str) else next(predictions) for _, pixels in batch]

    def _record(self, item: Item, result: Prediction | str) -> None:
        """Draw, store and record the prediction of an image, or record why it failed."""
        if isinstance(result, str):
            self.journal.add(item, error=result)
            return
        drawing_path, map_path = result_paths(self.out, item.name)
        if self.drawing is not None:
            write_drawing(drawing_path, result, self.drawing)
        height, width = result.image.shape[:2]
        fields: dict[str, Any] = dict(height=height, width=width)
        if result.segmentation is None:
            fields["objects"] = result.to_coco(item.id, self.category_ids)
        else:
            unfinished = self.journal.path.with_suffix(".unfinished")
            write_map(map_path, result.segmentation, unfinished)
        self.journal.add(item, **fields)
