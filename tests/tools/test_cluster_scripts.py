"""The scripts for torchrun and Slurm start the tools with the given flags."""

import os
import subprocess

import pytest
from helpers.paths import ROOT


@pytest.fixture
def shims(tmp_path) -> dict[str, str]:
    """An environment with a python that prints its arguments, and a Slurm of two nodes."""
    files = dict(
        python='printf "%s|" "$@"',
        scontrol="printf 'n1\\nn2\\n'",
        srun='echo "srun $*"; while [ "$1" != bash ]; do shift; done\n'
        'SLURM_JOB_NUM_NODES=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-2] exec "$@"',
    )
    for name, script in files.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def shown(environment: dict[str, str], script: str, *arguments: str) -> str:
    command = ["bash", ROOT / "tools" / script, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return run.stdout


def test_dist_scripts_start_torchrun(shims):
    train = shown(shims, "dist_train.sh", "a b.py", "8", "--amp")
    assert train.startswith("-m|torch.distributed.run|--nnodes|1|--node_rank|0|--nproc_per_node|8|")
    assert train.endswith("tools/train.py|a b.py|--launcher|pytorch|--amp|")


@pytest.mark.parametrize(
    "tool, arguments", [("train", "a b.py|--work-dir|LAST|"), ("test", "a b.py|LAST|")]
)
def test_slurm_scripts_start_torchrun_on_every_node(tool, arguments, shims):
    environment = dict(shims, NODES="2", GPUS_PER_NODE="4")
    out = shown(environment, f"slurm_{tool}.sh", "part", "job", "a b.py", "LAST", "--amp")
    job = "srun --partition part --job-name job --nodes 2 --ntasks-per-node 1 --gres gpu:4 "
    assert out.startswith(job)
    assert "-m|torch.distributed.run|--nnodes|2|--nproc_per_node|4|" in out
    assert "--rdzv_endpoint|n1:29500|" in out
    assert out.endswith(f"tools/{tool}.py|{arguments}--launcher|pytorch|--amp|")


@pytest.mark.parametrize(
    "script, arguments",
    [
        ("dist_train.sh", ["a.py", "2"]),
        ("dist_test.sh", ["a.py", "LAST", "2"]),
        ("slurm_train.sh", ["part", "job", "a.py", "LAST"]),
        ("slurm_test.sh", ["part", "job", "a.py", "LAST"]),
    ],
)
def test_sigterm_to_a_script_reaches_torchrun(script, arguments, shims, tmp_path):
    loop = "echo started; for _ in {1..100}; do sleep 0.1; done"
    (tmp_path / "python").write_text(f"#!/bin/bash\ntrap 'echo saved; exit 143' TERM\n{loop}\n")
    command = ["bash", ROOT / "tools" / script, *arguments]
    with subprocess.Popen(command, env=shims, stdout=subprocess.PIPE, text=True) as process:
        assert "started\n" in process.stdout
        process.terminate()
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 143
