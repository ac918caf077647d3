"""Models as folders for the Hugging Face Hub: weights in safetensors, a config of plain values, a model card."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import CheckpointLoader
from torch import Tensor

from ..utils.atomic import atomic_folder
from ..utils.configs import read_config, tested_metainfo, type_name
from ..utils.errors import reason
from ..version import __version__
from .matching import match_model
from .reader import load_checkpoint, load_from_file

HUB_PREFIX = "hf://"
CONFIG, WEIGHTS = "config.py", "model.safetensors"
_CARD = """---
license: {license}
pipeline_tag: {task}
library_name: xcit_mm
tags: [xcit, {library}]
---
# {name}

{model}. Classes: {classes}.

## Scores

{scores}

## Use

```bash
pip install "xcit_mm[mm,hub]"
xcit-mm predict photo.jpg hf://{name} --out found
```

Written by xcit_mm {version}.
"""


def download_model(name: str) -> Path:
    """Return the folder of a model of the Hub, after downloading its config and weights if necessary.

    Args:
        name: `hf://OWNER/NAME`.

    Raises:
        ModuleNotFoundError: If huggingface_hub is not installed.
        ConnectionError: If the Hub has no such model or cannot be reached.
        ValueError: If the config is a program.
    """
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name} needs huggingface_hub: pip install huggingface_hub") from None
    try:
        folder = Path(snapshot_download(name.removeprefix(HUB_PREFIX), allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # the Hub's client and its libraries raise many types
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConnectionError(f"cannot download {name} ({why}): check the name, or download the folder") from error
    _check_values(folder / CONFIG)
    return folder


class _DictCalls(ast.NodeTransformer):
    """Replaces `dict(key=value)` by `{"key": value}`, which is a literal."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name) or node.func.id != "dict" or node.args:
            return node
        keys: list[ast.expr | None] = [ast.Constant(keyword.arg) for keyword in node.keywords]
        return ast.Dict(keys, [self.visit(keyword.value) for keyword in node.keywords])


def _check_values(config: Path) -> None:
    """Raise ValueError unless a config only assigns plain values. mmengine runs it, and its author may be anyone."""
    try:
        for statement in ast.parse(config.read_bytes()).body:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                raise ValueError(f"line {statement.lineno} is not an assignment")
            ast.literal_eval(_DictCalls().visit(statement.value))
    except (ValueError, SyntaxError, RecursionError, OSError) as error:
        raise ValueError(f"{config} is not loaded, because it may run code: {reason(error)}") from None


@CheckpointLoader.register_scheme(prefixes=[HUB_PREFIX], force=True)
def load_from_hub(filename: str, map_location: object = "cpu") -> object:
    """Read the weights of `hf://OWNER/NAME`, and download them first if necessary."""
    return load_from_file(str(download_model(filename) / WEIGHTS), map_location)


def write_model(
    config: str | Path, checkpoint: str | Path, folder: Path, name: str, license_id: str, scores: Sequence[str] = ()
) -> None:
    """Write a model as a folder, to upload to the Hub or to use in place of a model's name.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or a published name. Its weights are written unchanged.
        folder: A folder that does not exist yet.
        name: `OWNER/NAME` on the Hub, for the model card.
        license_id: Identifier of the license, such as 'apache-2.0', for the model card.
        scores: Lines of the model card, such as 'COCO val2017: box AP 45.3'.

    Raises:
        FileExistsError: If the folder exists.
        FileNotFoundError: If config or checkpoint are missing.
        ValueError: If the checkpoint is not of the config's model.
    """
    with atomic_folder(folder) as unfinished:
        cfg, content = read_config(config, []), load_checkpoint(checkpoint)
        init_default_scope(cfg.get("default_scope"))
        match_model(MODELS.build(cfg.model), content)
        write_safetensors(content.get("state_dict", content), unfinished / WEIGHTS)
        cfg.load_from = None  # a path of this machine
        cfg.dump(unfinished / CONFIG)
        (unfinished / "README.md").write_text(_model_card(cfg, name, license_id, scores))


def _model_card(cfg: Config, name: str, license_id: str, scores: Sequence[str]) -> str:
    backbone, library = cfg.model.backbone, cfg.default_scope
    has_masks = library == "mmseg" or "segm" in str(cfg.get("test_evaluator"))
    return _CARD.format(
        name=name,
        license=license_id,
        library=library,
        task="image-segmentation" if has_masks else "object-detection",
        model=f"{type_name(cfg.model)} with XCiT-{backbone.arch}/{backbone.patch_size}",
        classes=", ".join(tested_metainfo(cfg)["classes"]),
        scores="\n".join(f"- {score}" for score in scores) or "No score has been measured.",
        version=__version__,
    )


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors, which may share memory. Raises OSError if the file cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({key: value.clone().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
