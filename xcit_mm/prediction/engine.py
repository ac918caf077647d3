"""Items to records: a process reads and predicts items, and appends records to its journal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from ..utils.errors import reason
from .items import Item
from .journal import file_stamp
from .prediction import Prediction
from .reading import Reader, ReadImage
from .results import Results

MAX_DEATHS = 3  # of processes with one item in flight, after which it is not tried again
CRASHED = "predicting it crashed or hung the process: out of memory, or a decoder fails"
RESUMES = "the same command goes on"


class Engine:
    """Predicts items, whose images are read by `workers` processes, or by this process if there
    are none.
    """

    def __init__(self, results: Results, workers: int) -> None:
        self.results = results
        self.predictor = results.predictor
        self.journal = results.journal
        self.reader = Reader(results.predictor.preprocess, workers)

    def predict(self, items: Sequence[Item], deaths: Mapping[str, int]) -> Iterator[Item]:
        """Predict items, and yield each when its record is in the journal.

        Args:
            deaths: For each item in flight when a process died, by path: how many died with it
                alone. Items in it are predicted last and alone. After `MAX_DEATHS`, they are
                recorded as failures.

        A stop from outside, such as Ctrl-C, is recorded, and is not a death of an item.

        Raises:
            RuntimeError: If a process that reads images died or hangs.
            OSError: If a result cannot be written.
        """
        try:
            yield from self._predict_together([item for item in items if item.path not in deaths])
            for suspect in items:
                if suspect.path not in deaths:
                    continue
                if deaths[suspect.path] < MAX_DEATHS:
                    yield from self._predict_together([suspect])
                else:
                    self.journal.add(suspect, file_stamp(suspect.path), error=CRASHED)
                    yield suspect
        except (KeyboardInterrupt, GeneratorExit, OSError) as error:
            with suppress(OSError):
                self.journal.end()
            if not isinstance(error, OSError):
                raise
            problem = error.strerror or error  # for example, the disk is full
            raise OSError(
                f"{self.results.out} cannot be written: {problem}; free space, and {RESUMES}"
            ) from error

    def _predict_together(self, items: Sequence[Item]) -> Iterator[Item]:
        """Predict, draw and record images in batches, and yield their items."""
        if not items:
            return
        try:
            for batch in self._iter_batches(self.reader.read(items, self._start)):
                for image, result in zip(batch, self._predict_batch(batch), strict=True):
                    self._record(image, result)
                    yield image.item
        except RuntimeError as error:  # a process that reads died or hangs
            raise RuntimeError(f"{error} ({RESUMES})") from error

    def _start(self, item: Item) -> None:
        self.journal.start(item)
        self.results.remove(item)  # those of a former file at its path

    def _record(self, image: ReadImage, result: Prediction | str) -> None:
        """Draw, store and record the prediction of an image, or record why it failed."""
        if isinstance(result, str):
            self.journal.add(image.item, image.stamp, error=result)
            return
        self.results.draw(image.item, result)
        fields = self.results.store(image.item, result)
        self.journal.add(image.item, image.stamp, self.results.drawing, **fields)

    def _iter_batches(self, images: Iterable[ReadImage]) -> Iterator[list[ReadImage]]:
        """Collect batches of one size. An unreadable image is a batch of its own."""
        batch_size = 1 if self.predictor.tile is not None else self.predictor.batch_size
        waiting: dict[tuple[int, ...], list[ReadImage]] = {}  # by shape
        for image in images:
            if image.pixels is None:
                yield [image]
                continue
            shape = image.pixels.shape
            waiting.setdefault(shape, []).append(image)
            if len(waiting[shape]) == batch_size:
                yield waiting.pop(shape)
            elif sum(map(len, waiting.values())) >= 4 * batch_size:  # bounds the memory
                most_frequent = max(waiting, key=lambda shape: len(waiting[shape]))
                yield waiting.pop(most_frequent)
        yield from waiting.values()

    def _predict_batch(self, batch: Sequence[ReadImage]) -> list[Prediction | str]:
        """Return the prediction of each image, or the reason of its failure."""
        pixels = [image.pixels for image in batch if image.pixels is not None]
        if not pixels:
            return [image.error for image in batch]
        try:
            return list(self.predictor(pixels))
        except Exception as error:  # models and pipelines raise many types
            if self.reader.has_died():
                raise RuntimeError(str(error)) from error
            if len(batch) == 1:
                return [reason(error)]
        return [result for image in batch for result in self._predict_batch([image])]
