"""Read mutated weights files of every kind in a folder that is watched, and count the outcomes.

    python tests/weights/fuzz.py COUNT [SEED]

A mutated file may load correctly or be rejected with a ValueError, the model as it was. It must not run code, change,
create or remove a file, hang, take memory far beyond its size, or load values that the file does not hold. Older torch
files and safetensors have no checksums: a reader cannot notice changed numbers within the data of a tensor. A file is
counted as `numbers` if exactly these numbers came out, and as `trusted` if it is a zip archive whose changed pickle
loads under checksums that were made for it.
"""

import codecs
import faulthandler
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from hostile_files import Runs, archive, records_of, saved, tar, torchscript
from safetensors.torch import save
from torch import Tensor, nn

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained

ARCH = dict(embed_dim=16, depth=6, num_heads=2, eta=1.0)
SECONDS, MEGABYTES = 10, 64  # CPU time for a file, and memory above that of reading whole files

OUTCOMES = ("rejected", "correct", "numbers", "trusted", "fault")


class Hangs(BaseException):
    """Not caught by a reader that catches every Exception."""


def original_files(state: dict[str, Tensor], victim: Path) -> dict[str, bytes]:
    """A file of every kind; those that must never load begin with 'hostile'."""
    hostile = dict(model=state, x=Runs(os.system, f"touch {victim.with_name('ran')}"))
    return {
        "zip": saved(dict(model=state)),
        "zip, pickle changed": saved(dict(model=state)),
        "legacy": saved(dict(model=state), zipped=False),
        "safetensors": save(state),
        "hostile zip": saved(hostile),
        "hostile legacy": saved(hostile, zipped=False),
        "hostile TorchScript": torchscript(victim),
        "hostile tar": tar(victim),
    }


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Flip bits, most often, or remove, double, move, zero or replace bytes."""
    data = bytearray(data)
    head = rng.choice([len(data), min(len(data), 600), len(data)])
    start = rng.randrange(head)
    end = min(len(data), start + rng.choice([1, 2, 8, 64, 1000]))
    match rng.choice(["flip"] * 6 + ["cut", "remove", "double", "move", "zero", "random", "other"]):
        case "flip":
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(head)] ^= 1 << rng.randrange(8)
        case "cut":
            del data[start:]
        case "remove":
            del data[start:end]
        case "double":
            data[end:end] = data[start:end]
        case "move":
            place, part = rng.randrange(len(data)), data[start:end]
            del data[start:end]
            data[place:place] = part
        case "zero":
            data[start:end] = bytes(end - start)
        case "random":
            data[start:end] = rng.randbytes(end - start)
        case "other":
            data[start:end] = other[start:end]
    return bytes(data)


def mutate_file(rng: random.Random, kind: str, files: dict[str, bytes]) -> bytes:
    other = files[rng.choice(list(files))]
    if kind != "zip, pickle changed":
        return mutate(rng, files[kind], other)
    records = records_of(files[kind])
    return archive({name: mutate(rng, part, other) if "data.pkl" in name else part for name, part in records.items()})


def numbers_in(state: dict[str, Tensor], original: bytes, data: bytes) -> dict[str, Tensor]:
    """The state dict that a mutated file without compression holds, with the original values beyond its end."""
    found = dict(state)
    for key, value in state.items():
        begin = original.index(value.numpy().tobytes())
        part = np.frombuffer(data[begin : begin + value.nbytes], np.uint8)
        if len(part) == value.nbytes:
            found[key] = torch.tensor(part).view(value.dtype).reshape(value.shape)
    return found


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, second[key]) for key, value in first.items())


class Watch:
    """Records what a reader does that no reader needs, while it is on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on, self.seen = folder, False, []
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event == "open":
            harmless = not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        else:
            bad = ("exec", "compile", "os.", "subprocess.", "socket.", "shutil.", "tempfile.", "ctypes.", "marshal.")
            harmless = not event.startswith(bad) or event in ("os.listdir", "os.scandir")
        if not harmless:
            self.seen.append(f"{event}{arguments!r:.200}")

    def files(self) -> dict[str, tuple]:
        """Mode, links, time and content of every file."""
        found = {}
        for path in sorted([self.folder, *self.folder.rglob("*")]):
            stat = path.lstat()
            content = path.read_bytes() if path.is_file() else None
            found[str(path)] = (stat.st_mode, stat.st_nlink, stat.st_mtime_ns, content)
        return found


def load(model: nn.Module, path: Path) -> str:
    """Load a file; return the error, or ''."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    faulthandler.dump_traceback_later(60 * SECONDS, exit=True)  # while C code hears no signal
    try:
        load_pretrained(model, str(path))
    except ValueError as error:
        return str(error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        faulthandler.cancel_dump_traceback_later()
    return ""


def classify(kind: str, error: str, found: dict, before: dict, original: dict, held: dict) -> str:
    """Return the outcome of a file, or a description of the fault."""
    if error:
        if "memory" in error.lower() or "\n" in error:
            return f"fault: {error}"
        return "rejected" if same(found, before) else "fault: rejected, but the model is changed"
    if kind.startswith("hostile"):
        return "fault: a hostile file loads"
    if same(found, original):
        return "correct"
    if kind == "zip, pickle changed":  # its checksums confirm the change
        return "trusted"
    return "numbers" if same(found, held) else "fault: loads values that it does not hold"


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter, list[str]]:
    """Count the outcomes of `count` mutated files by kind, and list the faults."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = XCiT(ARCH)
    state = {
        key: torch.randn(value.shape) if value.is_floating_point() else torch.randint(2**60, value.shape)
        for key, value in model.state_dict().items()
    }
    victim, path = folder / "victim", folder / "file.pth"
    victim.write_bytes(b"untouched")
    victim.chmod(0o600)
    files = original_files(state, victim)
    watch, outcomes, faults = Watch(folder), Counter(), []
    signal.signal(signal.SIGVTALRM, lambda *_: (_ for _ in ()).throw(Hangs(f"more than {SECONDS} s")))
    for codec in ("ascii", "latin1", "raw-unicode-escape", "utf-8"):  # modules that pickletools imports on use
        codecs.lookup(codec)
    for kind in files:  # what else is imported and allocated once
        path.write_bytes(files[kind])
        former = watch.files()
        assert bool(load(model, path)) == kind.startswith("hostile"), kind
        assert watch.files() == former, kind
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MEGABYTES * 2**10
    for number in range(count):
        kind = rng.choice(list(files))
        data = mutate_file(rng, kind, files)
        path.write_bytes(data)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        held = numbers_in(state, files[kind], data) if kind in ("legacy", "safetensors") else state
        former = watch.files()
        watch.on = True
        try:
            error = load(model, path)
        except BaseException as unexpected:  # anything but a ValueError
            outcome = f"fault: {type(unexpected).__name__}: {unexpected}"
        else:
            outcome = classify(kind, error, dict(model.state_dict()), before, state, held)
        watch.on = False
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if watch.files() != former:
            outcome = "fault: it changed a file"
        elif watch.seen:
            outcome = f"fault: it did {watch.seen}"
        elif peak > limit:
            outcome = f"fault: it took {peak // 2**10} MB, a file of {len(data)} bytes"
        watch.seen.clear()
        limit = max(limit, peak)
        outcomes[kind, outcome.partition(":")[0]] += 1
        if outcome.startswith("fault"):
            faults.append(f"file {number} ({kind}): {outcome}")
    return outcomes, faults


def main() -> None:
    count, seed = (int(value) for value in [*sys.argv[1:], 0][:2])
    warnings.simplefilter("ignore")
    logging.disable()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        tempfile.tempdir = name
        outcomes, faults = fuzz(count, seed, Path(name))
    for kind in dict.fromkeys(kind for kind, _ in outcomes):
        print(f"{kind:20}", *(f"{outcome} {outcomes[kind, outcome]:4}  " for outcome in OUTCOMES))
    print(f"{sum(outcomes.values())} files", *faults[:20], sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
