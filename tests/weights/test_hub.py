"""A model is written as a folder for the Hugging Face Hub, and is read from it, without a change of a bit."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from xcit_mm.weights.models import find_model
from xcit_mm.weights.reader import load_checkpoint, load_from_file

constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder whose subfolders OWNER/NAME are the models of a local hub."""
    root = tmp_path / "hub"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, with_body: bool) -> None:
            path = self.path.split("?")[0]
            headers, body = {}, b""
            if path.startswith("/api/models/"):  # /api/models/OWNER/NAME/revision/main or .../tree/COMMIT
                folder = root.joinpath(*path.split("/")[3:5])
                files = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
                if "/tree/" in path:
                    answer = [
                        dict(type="file", path=name, size=(folder / name).stat().st_size, oid="0") for name in files
                    ]
                else:
                    answer = dict(
                        id="/".join(path.split("/")[3:5]), sha=COMMIT, siblings=[dict(rfilename=n) for n in files]
                    )
                body = json.dumps(answer).encode()
            else:  # /OWNER/NAME/resolve/COMMIT/FILE
                owner, name, _, _, file = path.split("/")[1:]
                folder = root / owner / name
                if (folder / file).is_file():
                    body = (folder / file).read_bytes()
                    headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self.send_response(200 if folder.is_dir() and body else 404)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as local:
        threading.Thread(target=local.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{local.server_port}")
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield root
        local.shutdown()


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_published_model_predicts_as_before(kind, server, models, shapes, call, tmp_path):
    config, checkpoint = models[kind]
    folder = server / "me" / "model"
    options = ("--name", "me/model", "--license", "apache-2.0", "--score", "shapes: 12.3")
    code, printed, errors = call("weights", "publish", config, checkpoint, "--out", folder, *options)
    assert code == 0 and "hf upload me/model" in printed, errors
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "config.py", "model.safetensors"]
    card = (folder / "README.md").read_text()
    task = {"det": "image-segmentation", "seg": "image-segmentation"}[kind]
    for phrase in ("license: apache-2.0", f"pipeline_tag: {task}", "- shapes: 12.3", "hf://me/model", "circle"):
        assert phrase in card

    state, written = load_from_file(checkpoint)["state_dict"], load_checkpoint("hf://me/model")
    assert state.keys() == written.keys()
    assert all(torch.equal(value, written[key]) and value.dtype == written[key].dtype for key, value in state.items())
    found = find_model("hf://me/model")
    assert Config.fromfile(found.config).model.backbone == Config.fromfile(config).model.backbone

    image = next((shapes / "images" / "validation").iterdir())
    outs = {}
    for name, model in (
        ("hub", ["hf://me/model"]),
        ("folder", [folder]),
        ("files", [config, "--checkpoint", checkpoint]),
    ):
        code, _, errors = call("infer", image, "--model", *model, "--out", tmp_path / name)
        assert code == 0, errors
        results = tmp_path / name / ("predictions.json" if kind == "det" else f"labels/{image.name}.png")
        outs[name] = results.read_bytes()
    assert outs["hub"] == outs["folder"] == outs["files"]


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "model = open('x', 'w')",
        "model = dict(a=[*range(3)])",
        "model = dict(**x)",
        "a.b = 1",
        "model = (",
        "del a",
    ],
)
def test_a_config_of_the_hub_that_is_a_program_is_not_run(line, server, tmp_path):
    folder = server / "me" / "evil"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"{}")
    (folder / "config.py").write_text(f"a = dict(b=[1, (2, -3.5)], c={{'d': None}})\n{line}\n")
    with pytest.raises(ValueError, match=r"config.py is not loaded, because it may run code"):
        find_model("hf://me/evil")


def test_errors_of_the_hub_are_one_line(server, models, refusal, tmp_path):
    (server / "there").mkdir(parents=True)
    (tmp_path / "photo.jpg").touch()
    line = refusal("infer", tmp_path / "photo.jpg", "--model", "hf://me/none", "--out", tmp_path / "out")
    assert line.startswith("ConnectionError: cannot download hf://me/none")
    options = ("--name", "me/model", "--license", "mit")
    line = refusal("weights", "publish", *models["det"], "--out", server / "there", *options)
    assert "there exists: remove it" in line
    line = refusal("weights", "publish", models["det"][0], models["seg"][1], "--out", server / "new", *options)
    assert "does not fit the model" in line and not (server / "new").exists()
