"""Mutated weights files of every kind, read in a folder that is watched. Prints what became of them.

    python tests/weights/fuzz.py COUNT [SEED]

A mutated file may load right or be refused with a ValueError, the model as it was. It must not run code, change,
make or remove a file, hang, take memory far beyond its size, or load values that the file does not hold. Older torch
files and safetensors have no checksums: numbers changed within the data of a tensor are, to any reader, the numbers.
Counted as `numbers` is a file of which exactly those came out, and all others as they were; as `trusted` a zip
archive whose changed pickle loads under checksums that were made for it.
"""

import codecs
import faulthandler
import io
import logging
import os
import random
import resource
import signal
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained

ARCH = dict(embed_dim=16, depth=6, num_heads=2, eta=1.0)
SECONDS, MEGABYTES = 10, 64  # of computing for a file, and of memory above that of reading whole files

OUTCOMES = ("refused", "right", "numbers", "trusted", "fault")


class Hangs(BaseException):
    """Not caught by a reader that catches every Exception."""


class Overwrites(nn.Module):
    """TorchScript runs its __setstate__ on loading."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path, self.training = state
        torch.save(torch.zeros(1), self.path)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Runs:
    """Pickles as a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def saved(content: object, zipped: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def restored(data: bytes, change: Callable[[str, bytes], bytes] = lambda _, record: record) -> bytes:
    """A zip archive written again, without compression, checksums correct."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return stream.getvalue()


def torchscript(path: Path) -> bytes:
    """An archive, uncompressed, which overwrites a file when torch.jit.load reads it."""
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(Overwrites(str(path))), stream)
    return restored(stream.getvalue())


def tar(path: Path) -> bytes:
    """An archive that begins like a pickle; unpacked, it changes the mode of a file through a hard link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("\udc80\x02"))
        link = tarfile.TarInfo("storages")
        link.type, link.linkname, link.mode = tarfile.LNKTYPE, str(path), 0o777
        archive.addfile(link)
    return stream.getvalue()


def originals(state: dict[str, Tensor], victim: Path) -> dict[str, bytes]:
    """A file of every kind; those that must never load begin with 'hostile'."""
    command = Runs(f"touch {victim.with_name('ran')}")
    return {
        "zip": saved(dict(model=state)),
        "zip, pickle changed": saved(dict(model=state)),
        "legacy": saved(dict(model=state), zipped=False),
        "safetensors": save(state),
        "hostile zip": saved(dict(model=state, x=command)),
        "hostile legacy": saved(dict(model=state, x=command), zipped=False),
        "hostile TorchScript": torchscript(victim),
        "hostile tar": tar(victim),
    }


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Bits flipped, most often, or bytes lost, doubled, moved, zeroed, random or from another file."""
    data = bytearray(data)
    head = rng.choice([len(data), min(len(data), 600), len(data)])
    start = rng.randrange(head)
    end = min(len(data), start + rng.choice([1, 2, 8, 64, 1000]))
    kind = rng.choice(["flip"] * 6 + ["cut", "lose", "double", "move", "zero", "random", "other"])
    if kind == "flip":
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(head)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[start:]
    elif kind == "lose":
        del data[start:end]
    elif kind == "double":
        data[end:end] = data[start:end]
    elif kind == "move":
        place, part = rng.randrange(len(data)), data[start:end]
        del data[start:end]
        data[place:place] = part
    elif kind == "zero":
        data[start:end] = bytes(end - start)
    elif kind == "random":
        data[start:end] = rng.randbytes(end - start)
    else:
        data[start:end] = other[start:end]
    return bytes(data)


def mutated(rng: random.Random, kind: str, files: dict[str, bytes]) -> bytes:
    other = files[rng.choice(list(files))]
    if kind == "zip, pickle changed":
        return restored(files[kind], lambda name, part: mutate(rng, part, other) if "data.pkl" in name else part)
    return mutate(rng, files[kind], other)


def places(state: dict[str, Tensor], data: bytes) -> dict[str, int]:
    """Where the numbers of every tensor begin in a file without compression."""
    parts = {key: value.numpy().tobytes() for key, value in state.items()}
    assert all(data.count(part) == 1 for part in parts.values())
    return {key: data.index(part) for key, part in parts.items()}


def held(state: dict[str, Tensor], where: dict[str, int], data: bytes) -> dict[str, Tensor]:
    """The state dict that a file's bytes spell, with what lies past its end as it was."""
    found = dict(state)
    for key, value in state.items():
        part = np.frombuffer(data[where[key] : where[key] + value.nbytes], np.uint8)
        if len(part) == value.nbytes:
            found[key] = torch.tensor(part).view(value.dtype).reshape(value.shape)
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


class Watch:
    """Notes what a reader does that no reader needs, while it is on."""

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

    def state(self) -> dict[str, tuple]:
        """Every file's mode, links, time and content."""
        found = {}
        for path in sorted([self.folder, *self.folder.rglob("*")]):
            stat = path.lstat()
            content = path.read_bytes() if path.is_file() else None
            found[str(path)] = (stat.st_mode, stat.st_nlink, stat.st_mtime_ns, content)
        return found


def read(model: nn.Module, path: Path) -> str:
    """Load a file; '' or the error."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    faulthandler.dump_traceback_later(60 * SECONDS, exit=True)  # where no signal is heard
    try:
        load_pretrained(model, str(path))
    except ValueError as error:
        return str(error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        faulthandler.cancel_dump_traceback_later()
    return ""


def judge(kind: str, error: str, found: dict, before: dict, original: dict, spelled: dict) -> str:
    """What became of a file: 'refused', 'right', 'numbers', 'trusted' or a fault."""
    if error:
        if "memory" in error.lower() or "\n" in error:
            return f"fault: {error}"
        return "refused" if same(found, before) else "fault: refused, but the model is changed"
    if kind.startswith("hostile"):
        return "fault: a hostile file loads"
    if same(found, original):
        return "right"
    if kind == "zip, pickle changed":  # nobody can know better than its checksums
        return "trusted"
    return "numbers" if same(found, spelled) else "fault: loads values that it does not hold"


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter, list[str]]:
    """What became of `count` mutated files, by kind, and every fault."""
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
    files = originals(state, victim)
    where = {kind: places(state, files[kind]) for kind in ("legacy", "safetensors")}
    watch, outcomes, faults = Watch(folder), Counter(), []
    signal.signal(signal.SIGVTALRM, lambda *_: (_ for _ in ()).throw(Hangs(f"more than {SECONDS} s")))
    for codec in ("ascii", "latin1", "raw-unicode-escape", "utf-8"):  # modules that pickle loads when it needs them
        codecs.lookup(codec)
    for kind in files:  # what else is imported and allocated once
        path.write_bytes(files[kind])
        former = watch.state()
        assert bool(read(model, path)) == kind.startswith("hostile"), kind
        assert watch.state() == former, kind
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MEGABYTES * 2**10
    for number in range(count):
        kind = rng.choice(list(files))
        data = mutated(rng, kind, files)
        path.write_bytes(data)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        before = {key: value.clone() for key, value in model.state_dict().items()}
        spelled = held(state, where[kind], data) if kind in where else state
        former = watch.state()
        watch.on = True
        try:
            error = read(model, path)
        except BaseException as unexpected:  # anything but a ValueError
            outcome = f"fault: {type(unexpected).__name__}: {unexpected}"
        else:
            outcome = judge(kind, error, dict(model.state_dict()), before, state, spelled)
        watch.on = False
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if watch.state() != former:
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
        print(f"{kind:20}", *(f"{what} {outcomes[kind, what]:4}  " for what in OUTCOMES))
    print(f"{sum(outcomes.values())} files", *faults[:20], sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
