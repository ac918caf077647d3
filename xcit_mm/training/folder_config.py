"""The config in the folder of a training, which is that of the checkpoints beside it."""

from pathlib import Path

from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..utils.compat import ScriptRunner


class FolderConfigHook(Hook):
    """Writes the config of a training into its folder, with the first checkpoint if the folder has
    checkpoints.

    mmengine writes it before it starts, and a test does too. Then the checkpoints of an earlier run
    would be used with the config of a run that was refused, stopped early, or only tested them.
    """

    priority = "LOWEST"  # after hooks that refuse a run or a checkpoint

    def __init__(self) -> None:
        self._is_written = False

    def before_train(self, runner: Runner) -> None:
        if not any(Path(runner.work_dir).glob("*.pth")):
            self._write(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._write(runner)

    def _write(self, runner: Runner) -> None:
        if isinstance(runner, ScriptRunner) and not self._is_written:
            runner.write_config()
        self._is_written = True
