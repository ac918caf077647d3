"""A csv of measurements, in which a new row replaces that of the same case."""

import csv
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

ORIGIN = ("date", "commit", "processor")
"""Columns of every csv of measurements."""


def origin(device: str = "cpu") -> dict[str, str]:
    """Return the day, the commit and the processor of a measurement."""
    return dict(zip(ORIGIN, (date.today().isoformat(), commit(), processor(device)), strict=True))


def commit() -> str:
    """Return the commit of the code, which ends in -dirty if the package differs from it."""
    named = git("rev-parse", "--short", "HEAD")
    if not named:
        return "unknown"
    return f"{named}-dirty" if git("status", "--porcelain", "--", "xcit_mm") else named


def git(*arguments: str) -> str:
    """Return what git says in this repository, or nothing if it fails."""
    command = ["git", *arguments]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip()


def processor(device: str) -> str:
    """Return the name of the GPU, or of the processor where Linux says it.

    Processors of one name may differ in the instructions that torch uses, such as AVX512, and
    in AMX, which multiplies matrices of bfloat16.
    """
    if device == "cuda":
        return torch.cuda.get_device_name()
    name = platform.machine()
    instructions = torch.backends.cpu.get_cpu_capability()
    info = Path("/proc/cpuinfo")
    if info.exists():
        described = info.read_text()
        named = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
        name = named.group(1) if named else name
        if "amx_bf16" in described:
            instructions += ", AMX"
    threads = f"{torch.get_num_threads()} thread(s)"
    return f"{name} ({instructions}), {threads}, torch {torch.__version__}"


def write_row(path: Path, row: dict[str, Any], case: Sequence[str], costs: Sequence[str]) -> None:
    """Add a row to a csv in place of that of the same case.

    Args:
        case: Columns that tell cases apart.
        costs: The other columns. What a row does not have stays empty.
    """
    rows = []
    if path.exists():
        with path.open() as file:
            rows = list(csv.DictReader(file))
    others = [old for old in rows if any(old[key] != str(row[key]) for key in case)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*case, *costs])
        writer.writeheader()
        writer.writerows([*others, row])
