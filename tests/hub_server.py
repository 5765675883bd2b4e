"""A stand-in for the Hugging Face Hub on loopback, as far as an upload asks it; it fails where it is asked to.

It answers as a server without Xet does: files above a size go by the protocol of Git LFS, others in the commit.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants

LARGE = 10_000
TOKEN = "hf_stand_in"


@dataclass
class Repository:
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Hub:
    """What the server has, what it was asked, and where it fails."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    """Part of a request's line -> the status that it is answered with; 0 drops the connection in the middle."""

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return self.repositories[name].branches[branch]


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(hub: Hub, *, token: str | None = TOKEN) -> dict[str, str]:
    """What a process needs to take the stand-in for the Hub; Xet, which it does not have, is off."""
    chosen = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return chosen if token is None else chosen | {"HF_TOKEN": token}


def use(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    """Take the stand-in for the Hub in this process."""
    patch.setattr(constants, "ENDPOINT", hub.address)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setenv("HF_TOKEN", TOKEN)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = f"{self.command} {self.path.partition('?')[0]}"
        self.hub.asked.append(line)
        for part, status in self.hub.fails.items():
            if part in line:
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                    return
                self._send(status, {"error": f"stand-in says {status}"})
                return
        if self.command != "PUT" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
            return
        for pattern, name in ROUTES.items():
            if match := re.fullmatch(pattern, line):
                self._send(*getattr(self, name)(body, *match.groups()))
                return
        self._send(404, {"error": f"no such place: {line}"})

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("X-Error-Message", value.get("error", "") if status >= 400 else "")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # ---- routes ------------------------------------------------------------------------------------------

    def create(self, body: bytes) -> tuple[int, Any]:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"}
        self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        return 200, {"url": f"{self.hub.address}/{name}"}

    def info(self, body: bytes, name: str) -> tuple[int, Any]:
        if name not in self.hub.repositories:
            return 404, {"error": "Repository not found"}
        repository = self.hub.repositories[name]
        oid = repository.commits[-1]["oid"] if repository.commits else "0" * 40
        return 200, {"id": name, "private": repository.private, "sha": oid, "siblings": [], "tags": []}

    def branch(self, body: bytes, name: str, branch: str) -> tuple[int, Any]:
        branches = self.hub.repositories[name].branches
        if branch in branches:
            return 409, {"error": "Reference already exists"}
        branches[branch] = dict(branches["main"])
        return 200, {}

    def validate(self, body: bytes) -> tuple[int, Any]:
        return 200, {"errors": [], "warnings": []}

    def preupload(self, body: bytes, name: str, branch: str) -> tuple[int, Any]:
        modes = [
            {"path": each["path"], "uploadMode": "lfs" if each["size"] > LARGE else "regular", "shouldIgnore": False}
            for each in json.loads(body)["files"]
        ]
        return 200, {"files": modes}

    def batch(self, body: bytes, name: str) -> tuple[int, Any]:
        objects = [
            {
                **each,
                **(
                    {}
                    if each["oid"] in self.hub.objects
                    else {"actions": {"upload": {"href": f"{self.hub.address}/lfs/{each['oid']}"}}}
                ),
            }
            for each in json.loads(body)["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def store(self, body: bytes, oid: str) -> tuple[int, Any]:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.objects[oid] = body
        return 200, {}

    def commit(self, body: bytes, name: str, branch: str) -> tuple[int, Any]:
        repository, lines = self.hub.repositories[name], [json.loads(each) for each in body.splitlines()]
        for each in lines:
            value = each["value"]
            if each["key"] == "file":
                repository.branches[branch][value["path"]] = base64.b64decode(value["content"])
            elif each["key"] == "lfsFile":
                repository.branches[branch][value["path"]] = self.hub.objects[value["oid"]]
        oid = hashlib.sha1(body).hexdigest()
        repository.commits.append({"oid": oid, "branch": branch, **lines[0]["value"]})
        return 200, {"commitUrl": f"{self.hub.address}/{name}/commit/{oid}", "commitOid": oid, "hookOutput": ""}


ROUTES = {
    r"POST /api/repos/create": "create",
    r"GET /api/models/([^/]+/[^/]+)": "info",
    r"POST /api/models/([^/]+/[^/]+)/branch/(.+)": "branch",
    r"POST /api/validate-yaml": "validate",
    r"POST /api/models/([^/]+/[^/]+)/preupload/(.+)": "preupload",
    r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch": "batch",
    r"PUT /lfs/(\w+)": "store",
    r"POST /api/models/([^/]+/[^/]+)/commit/(.+)": "commit",
}
