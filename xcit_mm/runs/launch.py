"""One command for both libraries: find the one that a config belongs to, check the run, hand over its own script."""

import importlib.util
import runpy
import sys
from pathlib import Path

from mmengine.config import Config

from ..weights.matching import CheckpointMismatch
from .configs import read_config
from .preflight import check_backbone, check_checkpoint, check_data, check_resume

__all__ = ["find_script", "run_tool"]

# With the requirements that install each.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def run_tool(tool: str, argv: list[str]) -> None:
    """Run the `tools/TOOL.py` of mmdet, mmseg or mmpretrain on a config of theirs, with every argument as given.

    What can be known to fail is reported first, in one line, before anything is written.

    Args:
        tool: 'train' or 'test'.
        argv: The command line after the program's name.
    """
    config = next((arg for arg in argv if arg.endswith(".py")), None)
    if config is None:
        sys.exit(
            f"usage: python tools/{tool}.py CONFIG{' CHECKPOINT' if tool == 'test' else ''} [FLAG ...]\n"
            "FLAGs are those of the library that the config belongs to: add --help after CONFIG to see them"
        )
    try:
        cfg = read_config(config, argv)
        script = find_script(cfg, config, tool)
        if "-h" not in argv and "--help" not in argv:
            check_backbone(cfg)
            check_data(cfg, ("train", "val") if tool == "train" else ("test",))
            following = argv[argv.index(config) + 1 :]
            if tool == "test" and following and not following[0].startswith("-"):
                check_checkpoint(following[0])
            if tool == "train" and "--resume" in argv:
                argv = _with_seed(argv, cfg, check_resume(cfg, argv))
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.argv = [str(script), *argv]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except CheckpointMismatch as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _with_seed(argv: list[str], cfg: Config, seed: int | None) -> list[str]:
    """The command line with the seed of the run that is resumed, if the config leaves it to chance.

    mmengine restores it only after it has shuffled the data with another one.
    """
    if seed is None or (cfg.get("randomness") or {}).get("seed") is not None:
        return argv
    return [*argv, "--cfg-options", f"randomness.seed={seed}"]


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """The library's own `tools/TOOL.py` for a config.

    Raises:
        ValueError: If the config belongs to no library.
        FileNotFoundError, ModuleNotFoundError: If the library, or its tools, are not installed.
    """
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        raise ValueError(f"default_scope={library!r} in {config}: must be one of {', '.join(_LIBRARIES)}")
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"{config} needs {library}, which is not installed: pip install -r requirements/{_LIBRARIES[library]}.txt"
        )
    script = Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"
    if not script.is_file():
        raise FileNotFoundError(f"{script} is missing: install {library} with pip or mim, which bring its tools along")
    return script
