"""Waiting for the Hub, by the real client against a server on loopback, with less patience."""

from __future__ import annotations

import http.server
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, get_session, hf_hub_download
from huggingface_hub.errors import FileMetadataError, LocalEntryNotFoundError, OfflineModeIsEnabled

from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.loading import one_line_errors
from layerprobe.errors import ModelError
from layerprobe.files import network
from layerprobe.files.network import hub_limits_if, hub_trouble, hub_within_limits

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = b"{}" * 100


class Hub(http.server.BaseHTTPRequestHandler):
    """Has every file, with the same content; answers in one of several ways."""

    protocol_version = "HTTP/1.1"
    bad: Callable[[Hub], bool] | None
    over: threading.Event
    address: str

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.bad is not None and not type(self).bad(self):  # type: ignore[misc]
            self.close_connection = True
            return
        self.begin(200, ETag='"1"', X_Repo_Commit=COMMIT, Content_Length=str(len(CONTENT)))
        self.wfile.write(CONTENT if self.command == "GET" else b"")

    def begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    handler = type("Bound", (Hub,), {"bad": None, "over": threading.Event(), "address": ""})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    handler.address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.8)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.8)
    monkeypatch.setattr(network, "LIMIT", 2.5)
    monkeypatch.setattr(network, "FIRST_WORD", 0.3)
    monkeypatch.setattr(network._Watch, "trouble", None)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.05)))
    yield handler
    handler.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def download(hub: type[Hub]) -> str:
    with hub_within_limits():
        return hf_hub_download("org/model", "config.json", endpoint=hub.address)


def wait(hub: Hub) -> bool:
    hub.over.wait()
    return False


def drip_headers(hub: Hub) -> bool:
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 1000:
        hub.wfile.write(bytes([byte]))
        if hub.over.wait(0.05):
            break
    return False


@pytest.mark.parametrize("bad", [wait, drip_headers])
def test_a_hub_that_is_slow_is_given_up_and_named(
    hub: type[Hub], caplog: pytest.LogCaptureFixture, bad: Callable[[Hub], bool]
) -> None:
    hub.bad = bad
    began = time.monotonic()
    try:
        download(hub)
    except Exception:  # also what HTTP clients raise of a connection that is closed
        assert time.monotonic() - began < 8
    else:
        pytest.fail("expected no file")
    assert "HF_HUB_OFFLINE=1" in caplog.text
    assert "config.json" in caplog.text
    assert (hub_trouble() or "").startswith("the Hub ")
    assert "waiting for the Hub to" in caplog.text


def busy(status: int, **headers: str) -> Callable[[Hub], bool]:
    def answer(hub: Hub) -> bool:
        hub.begin(status, Content_Length="0", **headers)
        return False

    return answer


@pytest.mark.parametrize(
    "bad", [busy(429, Retry_After="99999"), busy(503, Retry_After="9" * 40), busy(429, ratelimit='"api";r=0;t=36000')]
)
def test_a_pause_that_is_too_long_is_refused_at_once(hub: type[Hub], bad: Callable[[Hub], bool]) -> None:
    hub.bad = bad
    with pytest.raises((LocalEntryNotFoundError, OfflineModeIsEnabled)):
        download(hub)
    assert "asks to wait" in (hub_trouble() or "")


def test_no_message_has_the_user_and_password_of_the_address(
    hub: type[Hub], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([busy(503, Retry_After="2"), busy(429, Retry_After="99999")])
    hub.bad = lambda handler: next(answers, wait)(handler)
    hub.address = hub.address.replace("//", "//me:s3cr%2Fet@")
    with pytest.raises((LocalEntryNotFoundError, OfflineModeIsEnabled)):
        download(hub)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    assert "s3cr" not in (hub_trouble() or "")
    with (
        pytest.raises(ModelError, match=r"what answers at http://127\.0\.0\.1:\d+ is not the hub") as caught,
        one_line_errors("org/model"),
    ):
        raise OfflineModeIsEnabled(hub.address) from FileMetadataError()
    of_others = first_sentence(ValueError(f"no answer from {hub.address}"))
    assert of_others.startswith("no answer from http://127.0.0.1:")
    output = caplog.text + (hub_trouble() or "") + str(caught.value) + of_others
    assert "answered 503" in output
    assert "me:" not in output
    assert "s3cr" not in output


def test_a_short_pause_is_said_and_done(hub: type[Hub], caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([busy(429, Retry_After="2"), busy(503)])
    hub.bad = lambda handler: next(answers, lambda _: True)(handler)
    assert Path(download(hub)).read_bytes() == CONTENT
    assert "answered 429 Too Many Requests" in caplog.text
    assert "asks to wait 2 s: trying again" in caplog.text
    assert hub_trouble() is None


def test_what_was_downloaded_is_used_when_the_hub_falls_silent(hub: type[Hub]) -> None:
    path = download(hub)
    hub.bad = wait
    assert download(hub) == path


def test_a_hub_that_answers_changes_nothing(hub: type[Hub], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "layerprobe")
    session = get_session()
    hooks = session.event_hooks
    download(hub)
    assert get_session() is session
    assert session.event_hooks == hooks
    assert not caplog.records


def test_nothing_is_watched_offline_or_where_no_hub_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks, before = get_session().event_hooks, threading.active_count()
    with hub_limits_if(needed=False):
        assert (get_session().event_hooks, threading.active_count()) == (hooks, before)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with hub_within_limits():
        assert (get_session().event_hooks, threading.active_count()) == (hooks, before)
