"""OpenMMLab's libraries and the forks of OneDL: a checkpoint of one goes on, and is scored, with the other."""

import json
import os
import subprocess

import pytest
from demo_runs import DEMO, SCORES, cfg_options
from paths import ROOT

from xcit_mm.weights.reader import load_from_file

VENVS = {name: ROOT / name / "bin" / "python" for name in (".venv", ".venv-onedl")}


def run(venv: str, tool: str, *arguments: object) -> None:
    command = [VENVS[venv], ROOT / "tools" / f"{tool}.py", *arguments]
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    ended = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not all(python.exists() for python in VENVS.values()), reason="needs `make setup` of both stacks")
@pytest.mark.parametrize("config", SCORES)
def test_checkpoints_go_from_one_stack_to_the_other(config, shapes, tmp_path):
    options = [*cfg_options(config, shapes, 4), "model.backbone.drop_path_rate=0.2"]
    file = DEMO / f"{config}.py"
    for venv in VENVS:
        run(venv, "train", file, *options, "--work-dir", tmp_path / venv)
    scores, states = [], []
    for venv, other in zip(VENVS, reversed(VENVS), strict=True):
        resumed = tmp_path / f"resumed{venv}"
        run(venv, "train", file, "--resume", tmp_path / other / "iter_2.pth", *options, "--work-dir", resumed)
        for folder in (tmp_path / venv, resumed):
            states.append(load_from_file(str(folder / "iter_4.pth"))["state_dict"])
            tested = tmp_path / f"tested-{folder.name}"
            run(other, "test", file, folder / "iter_4.pth", "--work-dir", tested, *options)
            scores.append(json.loads(next(tested.glob("2*/2*.json")).read_text())[SCORES[config]])
    for state in states[1:]:
        assert all(tensor.equal(states[0][name]) for name, tensor in state.items())
    assert len(set(scores)) == 1
