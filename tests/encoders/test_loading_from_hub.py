"""Loading by hub id with the real download code, against a stand-in for the hub on this machine."""

import contextlib
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from layerprobe.encoders import identity
from layerprobe.encoders.identity import folder_digest
from tests.encoders.test_recipe import sentence_transformer
from tests.models import N_BLOCKS, save_tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", "v1", COMMIT)
# the hub's client waits 23 s in all before it gives up
ATTEMPT = """
import json, sys, time
time.sleep = lambda seconds: None
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.identity import resolve
from layerprobe.errors import ModelError
for name in sys.argv[1:]:
    try:
        checkpoint = resolve(name)
        description = load_encoder(checkpoint).description
        print(json.dumps([description.name, description.revision, description.n_blocks, checkpoint.recipe.pooling]))
    except ModelError as error:
        print(json.dumps(str(error)))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers for some repositories with the paths and headers of the hub."""

    folders: ClassVar[dict[str, Path]] = {}
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        path, _, _ = self.path.partition("?")
        self.asked.append(path)
        parts = path.strip("/").split("/")
        listing = parts[:2] == ["api", "models"]
        repository = "/".join(parts[2:4] if listing else parts[:2])
        if repository == "org/gated":
            return self.send(403, {"X-Error-Code": "GatedRepo"})
        folder = self.folders.get(repository)
        if folder is None:
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        # api/models/org/tiny/revision/v1, or org/tiny/resolve/v1/config.json
        revision = (parts[5:6] if listing else parts[3:4]) or ["main"]
        if revision[0] not in REVISIONS:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        if listing:
            files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
            is_tree = parts[4:5] == ["tree"]
            body: Any = [] if is_tree else {"id": repository, "sha": COMMIT, "siblings": files, "tags": []}
            return self.send(200, {"Content-Type": "application/json"}, json.dumps(body).encode(), with_body=with_body)
        file = folder / "/".join(parts[4:])
        if not file.is_file():
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = file.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        return self.send(200, headers, content, with_body=with_body)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"", *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *details: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(**folders: Path) -> Iterator[tuple[str, list[str]]]:
    """Give the address of a hub that has models of `org` by their names, and the paths that it is asked for."""
    asked: list[str] = []
    named = {f"org/{name}": folder for name, folder in folders.items()}
    handler = type("TinyHub", (Hub,), {"folders": named, "asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def attempt(home: Path, names: list[str], **settings: str) -> list[Any]:
    """Load models in a fresh process, as its environment says; return descriptions or messages."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(home), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1", **settings}
    command = [sys.executable, "-c", ATTEMPT, *names]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) == len(names)
    assert not any("\n" in line for line in lines if isinstance(line, str))
    return lines


@pytest.mark.slow  # two processes that load torch, and the waits of the hub's client
def test_download_then_offline(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    sentences = sentence_transformer(save_tiny("bert", tmp_path / "model"), "cls")
    names = ["org/tiny@v1", "org/tiny", "org/sentences", "org/nothing", "org/tiny@v9", "org/gated"]
    with serving(tiny=checkpoint("electra"), sentences=sentences) as (address, asked):
        loaded, newest, configured, *refused = attempt(tmp_path, names, HF_ENDPOINT=address)
    assert loaded == ["org/tiny@v1", COMMIT, N_BLOCKS, "mean"]
    assert newest == ["org/tiny", COMMIT, N_BLOCKS, "mean"]
    assert sum("org/tiny" in path and "modules.json" in path for path in asked) == 1, "expected it to be asked once"
    assert configured == ["org/sentences", COMMIT, N_BLOCKS, "cls"], "expected sentence-transformers' configuration"
    no_model, no_revision, gated = refused
    assert no_model == (
        "there is no model org/nothing on the hub, and no folder of that name: check the spelling, or set HF_TOKEN"
    )
    assert no_revision == "org/tiny has no revision v9: expected a branch, tag or commit of the hub repository"
    assert gated == "org/gated is gated: ask for access on its hub page, then set HF_TOKEN or run `hf auth login`"

    weights = next((tmp_path / "hub" / "models--org--sentences" / "snapshots").rglob("model.safetensors")).resolve()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    names = ["org/tiny@v1", f"org/tiny@{COMMIT}", "org/sentences", "org/nothing"]
    again, by_commit, wrong, unknown = attempt(tmp_path, names, HF_HUB_OFFLINE="1")
    assert again == loaded
    assert wrong.startswith("model.safetensors of org/sentences differs from the hub's file, whose checksum is ")
    assert wrong.endswith(f"remove {weights} to download it again")
    assert by_commit == [f"org/tiny@{COMMIT}", COMMIT, N_BLOCKS, "mean"]
    assert unknown == (
        "org/nothing is not in the local hub cache and the hub cannot be reached (HF_HUB_OFFLINE is set): "
        "connect once, or give a local folder"
    )
    (snapshot,) = (tmp_path / "hub" / "models--org--tiny" / "snapshots").iterdir()
    assert folder_digest(snapshot) == folder_digest(checkpoint("electra"))


def test_what_cannot_be_asked_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_network(*_: object, **__: object) -> str:
        raise identity.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(identity, "hf_hub_download", no_network)
    assert identity._beside("org/unheard", {"revision": COMMIT}, "modules.json") is None
    assert "modules.json of org/unheard is not in the local hub cache" in caplog.text
