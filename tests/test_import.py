"""`import xcit_mm` adds what this file lists to other libraries, and changes nothing of theirs."""

import json
import subprocess
import sys

import pytest

# Of a table only the entries count: who adds to it may write it again.
SNAPSHOTS = """
import json, logging, multiprocessing, os, random, signal, sys, warnings
from importlib import import_module
from types import ModuleType
import cv2, torch
LIBRARIES = ("mmengine", "mmcv", "mmdet", "mmseg", "torch", "cv2", "numpy")
for name in ("config", "hub", "runner", "hooks", "optim", "fileio", "registry", "visualization"):
    import_module(f"mmengine.{name}")
for name in ("mmcv.cnn", "mmcv.transforms", "mmdet.registry", "mmseg.registry"):
    import_module(name)
from mmengine.registry import Registry
from mmengine.runner import CheckpointLoader
LOADED = [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]


def attributes():
    found = {}
    for name in LOADED:
        for key, value in vars(sys.modules[name]).items():
            if key.startswith("__") or isinstance(value, ModuleType):
                continue
            if not isinstance(value, (dict, set)):
                found[f"{name}.{key}"] = id(value)
            parts = {}
            if isinstance(value, (Registry, dict)):
                parts = getattr(value, "module_dict", value)
            elif isinstance(value, type) and value.__module__ == name:
                parts = {part: vars(value)[part] for part in vars(value) if part[:2] != "__"}
            for entry, part in parts.items():
                if not isinstance(part, (dict, set)):
                    found[f"{name}.{key}[{entry}]"] = id(part)
    return {key: found[key] for key in found if "[_abc_" not in key}


def state():
    loaders = {url: CheckpointLoader._get_checkpoint_loader(url).__name__ for url in URLS}
    return dict(
        loaders,
        allowed=sorted(map(str, torch.serialization.get_safe_globals())),
        cv2=cv2.getNumThreads(),
        environment=dict(os.environ),
        finders=[str(type(finder)) for finder in sys.meta_path],
        logging=str(logging.getLogger().handlers),
        random=hash(random.getstate()),
        torch=int(torch.get_rng_state().sum()),
        signals=[str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
        start_method=multiprocessing.get_start_method(allow_none=True),
        threads=torch.get_num_threads(),
        warnings=list(map(str, warnings.filters)),
    )


OURS = (
    "https://dl.fbaipublicfiles.com/xcit/a.pth", "model.safetensors", "xcit://a", "hf://owner/a",
)
URLS = (
    *OURS, "https://example.com/a.pth", "http://example.com/a.safetensors", "model.pth",
    "https://dl.fbaipublicfiles.com/detectron2/a.pkl", "torchvision://resnet50", "s3://a/b.pth",
)
before, values = attributes(), state()
import xcit_mm
after, new_values = attributes(), state()
print(json.dumps(dict(
    urls=URLS, ours=OURS,
    modules=[name for name in sys.modules if name.startswith("xcit_mm.")],
    changed=sorted(key for key in before if after.get(key) != before[key]),
    added=sorted(key for key in after if key not in before),
    state={key: [values[key], new_values[key]] for key in values if values[key] != new_values[key]},
)))
"""
ADDED = {
    "CPUAmpOptimWrapper",
    "LayerDecayOptimWrapperConstructor",
    "LoadRasterFromFile",
    "NonFiniteHook",
    "ResumableCheckpointHook",
    "StrictLoadHook",
    "TimmPyramid",
    "XCiT",
    "XCiTClassifier",
    "atomic",  # a backend of files
    "xcit_mm",  # where configs of `xcit_mm::` are
}


@pytest.fixture(scope="module")
def differences() -> dict:
    """What differs after the import in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-c", SNAPSHOTS]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_a_backbone_loads_no_commands_predictions_or_checks(differences):
    rooms = {name.split(".")[1] for name in differences["modules"]}
    assert rooms == {"archs", "models", "ops", "rasters", "training", "utils", "version", "weights"}
    transform = {name for name in differences["modules"] if name.startswith("xcit_mm.rasters.")}
    assert transform == {"xcit_mm.rasters.loading"}


def test_no_attribute_of_a_library_is_replaced(differences):
    assert differences["changed"] == []


def test_registries_and_tables_get_only_the_names_of_this_package(differences):
    assert {key.partition("[")[2].rstrip("]") for key in differences["added"]} == ADDED


def test_only_addresses_of_this_package_have_another_loader(differences):
    changed = [key for key in differences["state"] if key in differences["urls"]]
    assert changed == differences["ours"]


def test_the_state_of_the_process_stays(differences):
    """A finder stands in for mmcv's operators, and torch may read mmengine's checkpoints."""
    kept = differences["state"].keys() - differences["ours"]
    assert kept == {"finders", "allowed"}
    before, after = differences["state"]["finders"]
    assert after == [*before, "<class 'xcit_mm.ops.finder._StandIn'>"]
