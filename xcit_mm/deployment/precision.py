"""Comparison of a file in float16 or int8 with its float32 file."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .comparison import Drift, compare_files
from .evaluation import MAX_DIFFERENCE, Scores, evaluate_files, score_lines
from .formats import add_metadata, read_onnx
from .images import sample_inputs


@dataclass
class PrecisionReport:
    """Comparison of a file in float16 or int8 with its float32 file, both on a CPU.

    Attributes:
        key: 'fp16' or 'int8', the key of the file's metadata.
        details: float16: `peak`, the largest absolute value in half precision. int8: numbers of quantised `layers`, of
            `all_layers`, of `calibration_images` and of `shared_images`, which are evaluated too; for each number of
            threads the median `milliseconds` of an image of `size` (height, width) in each file.
        notes: Lines about the details.
        max_loss: Points of AP or mIoU, beyond which the report warns.
        max_drift: Maximum share of the detections that may differ; None: no limit, also for the pixels.
        images: Description of the compared images.
        drift: Differences between the predictions for these images.
        megabytes: Size of each file.
        evaluated: Number of images of the test set that were evaluated.
        scores: Scores of torch and both files.
    """

    key: str
    details: dict[str, Any]
    notes: list[str]
    max_loss: float = MAX_DIFFERENCE
    max_drift: float | None = None
    images: str = ""
    drift: Drift = field(default_factory=Drift)
    megabytes: dict[str, float] = field(default_factory=dict)
    evaluated: int = 0
    scores: Scores = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Summarize the comparison."""
        before, after = self.megabytes.values()
        yield f"{before:.1f} to {after:.1f} MB; on the CPU, {self.drift.line()} ({self.images})"
        yield from self.notes
        for line in score_lines(self.scores, self.max_loss):
            yield f"{line} on {self.evaluated} images"

    def to_json(self) -> str:
        """Return the value of the file's metadata."""
        values = asdict(self) | dict(drift=asdict(self.drift) | dict(share=self.drift.share))
        return json.dumps(values.pop("details") | values)


def compare_precision(
    cfg: Config, model: Any, path: Path, out: Path, report: PrecisionReport, count: int | None
) -> None:
    """Compare the float32 file `path` with its conversion `out`. Complete the report and add it to `out`.

    Both are evaluated on `count` images of the test set, or on all if it is None.

    Raises:
        RuntimeError: If the drift is too large or a value is not finite.
    """
    precision = dict(fp16="float16").get(report.key, report.key)
    files = {"float32": path, precision: out}
    runs = {name: read_onnx(file) for name, file in files.items()}
    report.images, samples = sample_inputs(cfg, model)
    report.drift = compare_files(model, samples, runs[precision], runs["float32"])
    if report.max_drift is not None and report.drift.exceeds(report.max_drift):
        raise RuntimeError(f"{report.drift.share:.1%} is found differently in {precision}: leave --{report.key} out")
    report.megabytes = {name: file.stat().st_size / 1e6 for name, file in files.items()}
    if count != 0:
        report.evaluated, report.scores = evaluate_files(cfg, model, runs, count)
    add_metadata(out, report.key, report.to_json())
