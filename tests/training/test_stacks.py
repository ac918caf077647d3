"""A checkpoint of OpenMMLab's libraries resumes and is tested with the OneDL forks, and the reverse."""

import json
import os
import subprocess

import pytest
from demo_runs import DEMO, SCORES, assert_same_state, cfg_options
from paths import ROOT

VENVS = {name: ROOT / name / "bin" / "python" for name in (".venv", ".venv-onedl")}


def run(venv: str, tool: str, *arguments: object) -> None:
    command = [VENVS[venv], ROOT / "tools" / f"{tool}.py", *arguments]
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    ended = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not all(python.exists() for python in VENVS.values()), reason="needs `make setup` of both stacks")
@pytest.mark.parametrize("config", SCORES)
def test_checkpoint_of_a_stack_resumes_with_the_other_stack(config, shapes, tmp_path):
    options = [*cfg_options(config, shapes, 4), "model.backbone.drop_path_rate=0.2"]
    file = DEMO / f"{config}.py"
    for venv, other in zip(VENVS, reversed(VENVS), strict=True):
        folder, resumed = tmp_path / venv, tmp_path / f"{venv}-resumed"
        run(venv, "train", file, *options, "--work-dir", folder)
        run(other, "train", file, "--resume", folder / "iter_2.pth", *options, "--work-dir", resumed)
        assert_same_state(folder / "iter_4.pth", resumed / "iter_4.pth")
        scores = set()
        for tester in VENVS:
            tested = tmp_path / f"{venv}-tested-by-{tester}"
            run(tester, "test", file, folder / "iter_4.pth", "--work-dir", tested, *options)
            scores.add(json.loads(next(tested.glob("2*/2*.json")).read_text())[SCORES[config]])
        assert len(scores) == 1
