"""A Hub that answers badly: a stand-in on loopback, which commands take for the Hugging Face Hub.

    python benchmarks/attacks/hub.py [--only NAME] [--limit 150] [--verbose]

Every way is tried on a model that was not downloaded before, on one that was, and on a data set. Prints how many were
tried, and of these how many lost what was downloaded, said nothing for over thirty seconds or of what went wrong,
ended in a traceback, or hung: did not end within the limit, where layerprobe gives the Hub up after a minute. Exits
with 1 if there is any of them. Takes about ten minutes, mostly of waiting.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SILENCE = 30.0
"""Seconds without a word from a command that waits for the Hub."""
start: Any = None
"""What a command begins with, imported when the stand-in has its address."""


class Answer(BaseHTTPRequestHandler):
    """Answers as the Hub does; badly where the name of a repository says so, once a file of that name is there."""

    protocol_version = "HTTP/1.1"
    folder: ClassVar[Path]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer."""
        self.answer()

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.answer()

    def answer(self) -> None:
        """Answer well or badly."""
        path = self.path.partition("?")[0]
        match = re.search(r"org/(\d+)-(\d)", path)
        if match is None:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        files = self.folder / ("data" if "datasets/" in path else "model")
        headers = {"X-Repo-Commit": COMMIT, "Content-Type": "application/octet-stream"}
        if path.startswith("/api/"):
            names = [{"rfilename": file.name} for file in sorted(files.iterdir())]
            value = [] if "/tree/" in path else {"id": match[0], "sha": COMMIT, "siblings": names, "tags": []}
            content, headers["Content-Type"] = json.dumps(value).encode(), "application/json"
        elif (file := files / path.rpartition("/")[2]).is_file():
            content = file.read_bytes()
            headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        else:
            self.send(404, b"", headers | {"X-Error-Code": "EntryNotFound"})
            return
        place = list(PLACES)[int(match[2])]
        if PLACES[place][0] in path and (self.folder / f"bad-{match[1]}-{match[2]}").exists():
            with contextlib.suppress(OSError):
                list(WAYS.values())[int(match[1])](self, content, headers)
            self.close_connection = True
        else:
            self.send(200, content, headers)

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        """Send an answer whole."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


# ---- the ways -----------------------------------------------------------------------------------------------


def status(code: int, **more: str) -> Callable[[Answer, bytes, dict[str, str]], None]:
    """Answer with a status."""
    extra = {name.replace("_", "-"): value for name, value in more.items()}
    return lambda answer, content, headers: answer.send(code, b"no", headers | extra)


def mute(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Take the request and never answer."""
    time.sleep(1e6)


def drip_headers(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send a byte of the headers every second."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10**6:
        answer.wfile.write(bytes([byte]))
        time.sleep(1)


def half(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send half of the body and close."""
    whole = headers | {"Content-Length": str(len(content))}
    answer.send(200, content[: len(content) // 2], whole)


def page(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send the page of a portal in place of the file."""
    answer.send(200, b"<html><body>Please log in</body></html>", {"Content-Type": "text/html"})


def page_as_file(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send a page with the headers of the file."""
    answer.send(200, b"<html><body>Please log in</body></html>", headers | {"Content-Type": "text/html"})


def empty(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send an empty file."""
    answer.send(200, b"", headers)


def other_bytes(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send as many other bytes."""
    answer.send(200, bytes(255 - byte for byte in content), headers)


def loop(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Redirect to itself."""
    answer.send(302, b"", {"Location": answer.path})


def away(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Redirect to where nothing listens."""
    answer.send(302, b"", headers | {"Location": "http://127.0.0.1:9/x"})


def reset(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Close the connection."""
    answer.connection.close()


def garbage(answer: Answer, content: bytes, headers: dict[str, str]) -> None:
    """Send what is no HTTP."""
    answer.wfile.write(b"\0\xff" * 500)


WAYS: dict[str, Callable[[Answer, bytes, dict[str, str]], None]] = {
    "429 for 99,999 s": status(429, Retry_After="99999"),
    "429 of a limit for 10 h": status(429, ratelimit='"api";r=0;t=36000'),
    "429 for 2 s, again and again": status(429, Retry_After="2"),
    "429 for 1e30 s": status(429, Retry_After="1" + "0" * 30),
    "500": status(500),
    "503 for 99,999 s": status(503, Retry_After="99999"),
    "403": status(403),
    "mute": mute,
    "drips of headers": drip_headers,
    "half a file": half,
    "a page of a portal": page,
    "a page as the file": page_as_file,
    "an empty file": empty,
    "other bytes": other_bytes,
    "a loop of redirects": loop,
    "a redirect to nowhere": away,
    "closed connections": reset,
    "no HTTP": garbage,
}
PLACES = {
    "config": ("config.json", "score {} -t pairs.csv"),
    "weights": ("model.safetensors", "score {} -t pairs.csv"),
    "all, downloaded before": ("", "score {} -t pairs.csv"),
    "data set": ("", "score rtd -t {}"),
}
"""What of the Hub answers badly, and the command."""


# ---- commands -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """A command with a Hub that answers badly in one way."""

    way: str
    place: str
    pid: int = 0
    stderr: int = -1
    began: float = 0.0
    last: float = 0.0
    """When it said something last."""
    silence: float = 0.0
    text: str = ""
    code: int | None = None

    @property
    def repository(self) -> str:
        """The numbers of its way and place, which say to the stand-in what to do."""
        return f"{list(WAYS).index(self.way)}-{list(PLACES).index(self.place)}"

    def start(self) -> None:
        """Run the command in a fork of this process, which has imported everything."""
        self.stderr, end = os.pipe()
        self.text, self.silence = "", 0.0
        self.began = self.last = time.monotonic()
        self.pid = os.fork()
        if self.pid:
            os.close(end)
            return
        os.setsid()
        os.dup2(end, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["layerprobe", *PLACES[self.place][1].format(f"org/{self.repository}").split()]
        code: Any = 1
        try:
            start.main()
        except SystemExit as error:
            code = error.code
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(int(code or 0))

    def listen(self) -> bool:
        """Read what it says; return whether it has ended."""
        said = os.read(self.stderr, 2**16).decode()
        now = time.monotonic()
        self.silence, self.last = max(self.silence, now - self.last), now
        self.text += f"{now - self.began:6.1f} {said}" if said else ""
        if said:
            return False
        status = os.waitpid(self.pid, 0)[1]
        self.code = None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        return True

    @property
    def problem(self) -> str:
        """What is wrong with how it ended; empty where nothing is."""
        if self.code is None:
            return "hang"
        if "Traceback" in self.text:
            return "traceback"
        if self.place == "all, downloaded before" and self.code:
            return "lost: what was downloaded is not used"
        if self.code and "error: " not in self.text:
            return f"silent: exit code {self.code}"
        return f"silent: for {self.silence:.0f} s" if self.silence > SILENCE else ""


def run(attempts: list[Attempt], *, together: int, limit: float) -> Iterator[Attempt]:
    """Run commands, some at a time; yield each when it has ended."""
    waiting, running = attempts[::-1], selectors.DefaultSelector()
    while waiting or running.get_map():
        while waiting and len(running.get_map()) < together:
            attempt = waiting.pop()
            attempt.start()
            running.register(attempt.stderr, selectors.EVENT_READ, attempt)
        for key, _ in running.select(1):
            if key.data.listen():
                running.unregister(key.fd)
                os.close(key.fd)
                yield key.data
        for key in running.get_map().values():
            if time.monotonic() - key.data.began > limit:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(key.data.pid, signal.SIGKILL)


def serve(port: Any, folder: Path) -> None:
    """Be the Hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Answer,), {"folder": folder}))
    server.daemon_threads = True
    port.send(server.server_address[1])
    server.serve_forever()


def main() -> None:
    """Print a line for each attack that did not survive, and the table."""
    global start
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="'way, place' that begin so")
    parser.add_argument("--limit", type=float, default=150, help="seconds after which a command hangs")
    parser.add_argument("--together", type=int, default=8, help="commands at a time, which mostly wait")
    parser.add_argument("--verbose", action="store_true", help="print what they say, with seconds")
    options = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        here, there = multiprocessing.Pipe()
        hub = multiprocessing.get_context("fork").Process(target=serve, args=(there, folder), daemon=True)
        hub.start()
        os.environ |= {
            "HF_HOME": f"{folder}/home",
            "HF_ENDPOINT": f"http://127.0.0.1:{here.recv()}",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_VERBOSITY": "error",
            "LAYERPROBE_CACHE": f"{folder}/cache",
            "OMP_NUM_THREADS": "1",
        }
        os.chdir(folder)
        command = [sys.executable, "-m", "layerprobe_cli.start"]
        subprocess.run([*command, "demo", "--files", ".", "--json"], stdout=subprocess.DEVNULL, check=True)
        pairs = (folder / "pairs.csv").read_text().splitlines(keepends=True)
        (folder / "pairs.csv").write_text("".join(pairs[:101]))
        (folder / "rtd").rename(folder / "model")
        (folder / "rtd").symlink_to("model")
        (folder / "data").mkdir()
        (folder / "data" / "train.csv").write_text("".join(pairs[:101]))
        for module in ("datasets", "layerprobe.scoring.score", "layerprobe_cli.main", "layerprobe_cli.commands.score"):
            importlib.import_module(module)
        start = importlib.import_module("layerprobe_cli.start")
        attempts = [Attempt(way=way, place=place) for way in WAYS for place in PLACES]
        attempts = [attempt for attempt in attempts if f"{attempt.way}, {attempt.place}".startswith(options.only)]
        before = [attempt for attempt in attempts if attempt.place == "all, downloaded before"]
        for attempt in run(before, together=2, limit=options.limit):
            assert attempt.code == 0, attempt.text
        for attempt in attempts:
            (folder / f"bad-{attempt.repository}").touch()
        for attempt in run(attempts, together=options.together, limit=options.limit):
            if options.verbose:
                print(
                    f"[{attempt.way}, {attempt.place}] {attempt.code}, silent {attempt.silence:.0f} s\n{attempt.text}"
                )
            count = counts.setdefault(f"the Hub answers badly: {attempt.place}", collections.Counter())
            count.update(("tried", attempt.problem.partition(":")[0] or "survived"))
            if attempt.problem:
                print(f"{attempt.place}: {attempt.way}: {attempt.problem}", flush=True)
        hub.terminate()
    columns = ("tried", "survived", "lost", "silent", "traceback", "hang")
    print(f"| attack | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, count in counts.items():
        print(f"| {name} | {' | '.join(str(count[column]) for column in columns)} |")
    sys.exit(any(count["tried"] != count["survived"] for count in counts.values()))


if __name__ == "__main__":
    main()
