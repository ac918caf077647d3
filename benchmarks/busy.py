"""Measure what waiting threads cost on a busy CPU, and what two variables change.

    python benchmarks/busy.py --out name

torch's threads are those of OpenMP (libgomp). A thread that has nothing to do spins for a while,
which takes a core from other processes. Each case is a new process with one of the environments in
`ENVIRONMENTS`: it measures forward passes of XCiT-N12/16 at 256x256, and training steps of two
images, alone or beside processes that do something else, which `LOADS` names. Reports medians, in
milliseconds, since a busy machine is what is measured. Writes OUT.csv.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from csv_rows import ORIGIN, origin, write_row

ENVIRONMENTS = {
    "as installed": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
}
LOADS = {
    "alone": (),
    "one thread of Python": ("python",),
    "two loading workers": ("python", "python"),
    "another training": ("torch",),
}
KEYS = ("environment", "beside")
COSTS = ("forward_ms", "step_ms", *ORIGIN)


def measure(seconds: float) -> dict[str, float]:
    """Return the median milliseconds of a forward pass and of a training step."""
    from xcit_mm.models import XCiT

    torch.manual_seed(0)
    model = XCiT("n12", 16, norm_cfg=dict(type="BN"))
    image = torch.randn(1, 3, 256, 256)

    def step() -> None:
        sum(level.square().mean() for level in model(image.expand(2, -1, -1, -1))).backward()
        model.zero_grad()

    def forward() -> None:
        with torch.no_grad():
            model(image)

    step_ms = median_ms(step, seconds)
    model.eval()
    return dict(forward_ms=median_ms(forward, seconds), step_ms=step_ms)


def median_ms(run: Callable[[], None], seconds: float) -> float:
    """Return the median milliseconds of the runs that fit into some seconds, at least five."""
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(times), 1)


def occupy(kind: str) -> None:
    """Keep a core busy with Python, or all cores with a training, until the process is killed."""
    while kind == "python":
        sum(range(10000))
    measure(3600)


def run(environment: dict[str, str], load: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Measure in a new process, beside others."""
    variables = os.environ | environment
    command = [sys.executable, "-W", "ignore", __file__]
    others = [subprocess.Popen([*command, "--occupy", kind], env=variables) for kind in load]
    try:
        time.sleep(15 if load else 0)  # until the others have loaded torch
        output = subprocess.run(
            [*command, "--measure", str(seconds)], env=variables, stdout=subprocess.PIPE, check=True
        ).stdout
    finally:
        for process in others:
            process.kill()
            process.wait()
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--seconds", type=float, default=12, help="of each measurement")
    add("--measure", type=float, help=argparse.SUPPRESS)
    add("--occupy", choices=["python", "torch"], help=argparse.SUPPRESS)
    add("--out")
    args = parser.parse_args()
    if args.occupy:
        occupy(args.occupy)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    for beside, load in LOADS.items():
        for name, environment in ENVIRONMENTS.items():
            row = dict(environment=name, beside=beside) | run(environment, load, args.seconds)
            print(row, flush=True)
            write_row(Path(f"{args.out}.csv"), row | origin(), KEYS, COSTS)


if __name__ == "__main__":
    main()
