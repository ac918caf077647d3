"""Score a model on the data set of its config with mmengine's Runner, after checks."""

import copy
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from ..checks.doctor import check_test
from ..utils.compat import load_files_by
from ..weights.lookup import find_model, load_checkpoint
from .runner import build_runner, print_into_log, read_run, stop_at_failure, write_data_anew


def evaluate(
    model: str | Path,
    *,
    checkpoint: str | Path | None = None,
    work_dir: str | Path | None = None,
    cfg_options: Mapping[str, Any] | None = None,
    launcher: str = "none",
    skip_checks: bool = False,
) -> dict[str, float]:
    """Score a model on the test data of its config.

    If `finetune` wrote the config, the user's labels for the validation are read and written again
    first, so that corrections count. Then the config, the model and the data are checked.

    Args:
        model: A published model's name, a work folder, or a config.
        checkpoint: A path, URL or `xcit://NAME`. Default: the model's own. In a work folder this
            is the best one, or else the last. A config alone has none.
        work_dir: Folder for the log. Default: `model` if it is a work folder, else `work_dir` of
            the config, or `work_dirs/NAME`.
        cfg_options: Values that replace values in the config, by dotted key.
        launcher: 'pytorch' if torchrun has started this process.
        skip_checks: Whether to start without checks.

    Returns:
        The scores by the names that mmdet or mmseg give them, such as 'coco/bbox_mAP', from 0 to 1,
        or 'mIoU', from 0 to 100.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If the model is unknown or has no checkpoint, a check fails, or the checkpoint
            does not fit the config.

    Example:
        >>> from xcit_mm import evaluate
        >>> scores = evaluate("work_dirs/nuts")
        >>> 0 <= scores["coco/bbox_mAP_50"] <= 1
        True
    """
    _, weights = find_model(model, checkpoint)
    cfg = read_run(model, work_dir, cfg_options, launcher)
    write_data_anew(cfg, ("val",))  # a run that resumes keeps its data
    if not skip_checks:
        stop_at_failure(check_test(copy.deepcopy(cfg)))
    cfg.load_from = weights
    cfg.resume = False
    runner = build_runner(cfg)
    with print_into_log(runner), load_files_by(load_checkpoint):
        scores = runner.test()
    return {name: float(score) for name, score in scores.items() if isinstance(score, Real)}
