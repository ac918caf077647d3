"""The checkpoint from which a training resumes: of the same classes and the same schedule."""

import math
from collections.abc import Mapping

from mmengine.config import Config

from ..training.schedule import check_schedule
from ..weights.classes import check_same_classes, configured_classes, learned_classes
from ..weights.reader import meta_of
from ..weights.zoo import load_checkpoint


def is_complete(path: str, cfg: Config) -> bool:
    """Return whether the checkpoint at a path or URL, from which a run resumes, is at its end.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If it cannot be read, holds weights without the state of a run, or has other
            classes or another schedule than the config.
    """
    state = load_checkpoint(path)
    keys = state.keys() if isinstance(state, Mapping) else ()
    # mmengine would run the text `config` of mmcv 1.
    if not {"message_hub", "optimizer"} <= set(keys) or "config" in meta_of(state):
        problem = "it holds no state of a run, as best checkpoints and published weights"
        raise ValueError(f"cannot resume from {path}: {problem}: start from it by load_from")
    check_same_classes(path, learned_classes(state), configured_classes(cfg, "train"))
    check_schedule(cfg, state)
    info = state["message_hub"].get("runtime_info") or {}
    return state["meta"]["iter"] >= info.get("max_iters", math.inf)
