"""How long the Hub is waited for, and what is said meanwhile. Knows HTTP as `huggingface_hub` speaks it, no models."""

import contextlib
import functools
import logging
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

from layerprobe.context import duration
from layerprobe.files.atomic import readable_size
from layerprobe.process import while_needed

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds without an answer after which the Hub is given up; HF_HUB_ETAG_TIMEOUT or HF_HUB_DOWNLOAD_TIMEOUT if more."""
LONGEST_PAUSE = 300.0
"""Seconds that the Hub may ask for in all, such as until its limit of requests is renewed."""
FIRST_WORD = 10.0
"""Seconds until it is said what is waited for; then twice as many from one word to the next."""
SLOWEST = 4096
"""Bytes a second of a download that goes on, over the time of patience."""
_BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which `huggingface_hub` asks again."""
_LONGEST_SLEEP = 9.0
"""Seconds between two tries of `huggingface_hub` where the answer does not say how many."""
_OFFLINE = "HF_HUB_OFFLINE=1 takes at once what was downloaded before"


@while_needed
@contextlib.contextmanager
def hub_within_limits() -> Iterator[None]:
    """Bound how long the Hub is waited for inside a `with` block, and say what is waited for.

    Where it does not answer in time, asks for too long a pause, or sends next to nothing, requests fail from then on as
    they do with HF_HUB_OFFLINE=1: what was downloaded before is used, and what was not cannot be found. Uploads are
    bounded by the time between two of their parts alone.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        yield
        return
    longest = max(PATIENCE, constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT)
    # what did not answer a moment ago is asked again, with less patience
    watch = _Watch.current = _Watch(min(longest, FIRST_WORD) if _Watch.gave_up else longest)
    _Watch.trouble = None
    thread = threading.Thread(target=watch.run, args=(get_session,), daemon=True)
    watch.attach(get_session())
    thread.start()
    try:
        yield
    finally:
        watch.done.set()
        thread.join()
        watch.detach()
        _Watch.current = None


def hub_limits_if(needed: bool) -> contextlib.AbstractContextManager[None]:
    """Bound how long the Hub is waited for where a model is on it."""
    return hub_within_limits() if needed else contextlib.nullcontext()


def hub_trouble() -> str | None:
    """Return what was wrong with the answers of the Hub inside the last `with` block; None where all were good."""
    return None if _Watch.trouble is None else _Watch.trouble[1]


def give_up_hub(reason: str) -> None:
    """Let all requests inside the `with` block fail from here on, as offline."""
    if _Watch.current is not None and not _Watch.current.given_up:
        _Watch.current.give_up("", f"answers badly ({reason})")


class _Watch:
    """Looks at requests to the Hub while they wait; threads may share it."""

    current: ClassVar["_Watch | None"] = None
    trouble: ClassVar[tuple[str, str] | None] = None
    """The request that was answered badly last, and how."""
    gave_up: ClassVar[bool] = False
    """Whether the Hub was given up since it answered last."""
    streams: ClassVar["weakref.WeakSet[Any]"] = weakref.WeakSet()
    """Connections of the whole process, of which later requests take one that is free."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.done = threading.Event()
        self.given_up = False
        self.sessions: list[Any] = []
        self.pending: dict[str, float] = {}
        """Requests without an answer, and since when."""
        self.bodies: dict[str, tuple[weakref.ref[Any], float, float]] = {}
        """Answers of which more is to come, when they began, and since when too little has come."""
        self.furthest: dict[str, int] = {}
        """How far each file has come, in bytes, when that was enough."""
        self.lost = 0.0
        """Seconds of tries that failed since enough has come of a file."""
        self.failed: tuple[float, float] | None = None
        """When the last try failed, and how many seconds it is waited for the next one at most."""
        self.paused, self.next_word, self.next_size = 0.0, FIRST_WORD, FIRST_WORD

    @property
    def limit(self) -> float:
        """Seconds without progress after which the Hub is given up."""
        return self.patience + self.paused

    # ---- what HTTP clients call ---------------------------------------------------------------------------

    def attach(self, session: Any) -> None:
        """Look at the requests of an HTTP client; `huggingface_hub` makes a new one when a connection fails."""
        if session not in self.sessions:
            hooks = session.event_hooks
            session.event_hooks = {"request": [*hooks["request"], self.asked]} | {
                "response": [*hooks["response"], self.answered]
            }
            self.sessions.append(session)

    def detach(self) -> None:
        """Leave the HTTP clients as they were."""
        for session in self.sessions:
            session.event_hooks = {
                name: [hook for hook in hooks if hook not in (self.asked, self.answered)]
                for name, hooks in session.event_hooks.items()
            }

    def asked(self, request: Any) -> None:
        """Begin to wait for an answer; OfflineModeIsEnabled where the Hub was given up."""
        name, now = _name(request), time.monotonic()
        if self.failed is not None:
            self.lost += min(now - self.failed[0], self.failed[1])
            self.failed = None
        self._wait_on("answer", name, self.lost)
        if self.given_up:
            self._refuse()
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {
            part: min(value or self.patience, self.patience) for part, value in limits.items()
        }
        request.extensions["trace"] = functools.partial(self._traced, name)
        if int(request.headers.get("content-length", 0)) < SLOWEST:  # an upload may take its time
            self.pending[name] = now

    def answered(self, response: Any) -> None:
        """Wait for what is left of an answer, or for the next try; OfflineModeIsEnabled if that is asked to be late."""
        name = _name(response.request)
        if response.status_code not in _BUSY:
            self.pending.pop(name, None)
            self.bodies[name] = weakref.ref(response), time.monotonic(), time.monotonic()
            if not self.given_up:
                _Watch.gave_up = False
                if _Watch.trouble is not None and _Watch.trouble[0] == name:
                    _Watch.trouble = None
            return
        answer = f"answered {response.status_code} {response.reason_phrase} to {name}"
        pause = _pause(response.headers)
        if self.paused + pause > LONGEST_PAUSE:
            self.give_up(name, f"{answer} and asks to wait {duration(pause)}")
            self._refuse()
        if pause or self.lost:
            asks = f" and asks to wait {duration(pause)}" if pause else ""
            logger.warning("the Hub %s%s: trying again; %s", answer, asks, _OFFLINE)
        self.paused += pause
        self._failed(name, f"the Hub {answer}", pause or _LONGEST_SLEEP)

    def _traced(self, name: str, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.streams.add(info["return_value"])
        elif event.endswith(".failed"):
            self._failed(name, f"the connection to the Hub failed at {name}", _LONGEST_SLEEP)

    def _failed(self, name: str, trouble: str, sleep: float) -> None:
        if not self.given_up:
            _Watch.trouble = name, trouble
        now = time.monotonic()
        self.lost += now - self.pending.pop(name, now)
        self.failed = now, sleep

    # ---- while they wait ----------------------------------------------------------------------------------

    def run(self, get_session: Callable[[], Any]) -> None:
        """Say what is waited for, and end what takes too long."""
        while not self.done.wait(min(0.25, self.patience / 4)):
            self.attach(get_session())
            waits = [*((since, "answer", name) for name, since in list(self.pending.items())), *self._slow_bodies()]
            if not waits or self.given_up:
                continue
            since, what, name = min(waits)
            self._wait_on(what, name, self.lost + time.monotonic() - since)
            open_streams: list[Any] = [*self.streams] if self.given_up else []
            for stream in open_streams:  # what is waited for fails, and is asked again
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    def _wait_on(self, what: str, name: str, waited: float) -> None:
        """Say what is waited for, or give the Hub up."""
        if waited > self.limit and not self.given_up:
            self.give_up(name, f"did not {what} {name} within {duration(self.limit)}")
        elif waited > self.next_word and not self.given_up:
            self.next_word += min(self.next_word, 2 * FIRST_WORD)
            word = "waiting for the Hub to %s %s for %s, at most for %s; %s"
            logger.warning(word, what, name, duration(waited), duration(self.limit), _OFFLINE)

    def _slow_bodies(self) -> Iterator[tuple[float, str, str]]:
        """Yield the answers of which not enough has come."""
        for name, (reference, began, since) in list(self.bodies.items()):
            response, now = reference(), time.monotonic()
            if response is None or response.is_closed:
                del self.bodies[name]
                continue
            first = re.match(r"bytes=(\d+)-", response.request.headers.get("range", ""))
            arrived = response.num_bytes_downloaded + (int(first[1]) if first else 0)
            ends = "content-length" in response.headers or now - began < self.patience
            if ends and arrived > self.furthest.get(name, 0) + SLOWEST * self.patience:
                self.furthest[name], self.lost = arrived, 0.0
                self.bodies[name] = reference, began, now
                if now - began > self.next_size:
                    self.next_size += min(self.next_size, 2 * FIRST_WORD)
                    logger.info("downloading, %s so far of %s", readable_size(arrived), name.partition(" ")[2])
            else:
                yield since, "send", name

    def give_up(self, name: str, reason: str) -> None:
        """Refuse all requests from here on."""
        self.given_up = _Watch.gave_up = True
        _Watch.trouble = name, f"the Hub {reason}"
        logger.warning("the Hub %s: going on without it; %s", reason, _OFFLINE)

    def _refuse(self) -> NoReturn:
        from huggingface_hub.errors import OfflineModeIsEnabled

        raise OfflineModeIsEnabled(str(hub_trouble()))


def _name(request: Any) -> str:
    return f"{request.method} {str(request.url).partition('?')[0]}"


def _pause(headers: Any) -> float:
    """Return the seconds that an answer asks to wait before the next try, as `huggingface_hub` reads them."""
    limit = re.search(r"\bt\s*=\s*(\d+)", headers.get("ratelimit", ""))
    asked = limit[1] if limit else headers.get("retry-after", "").strip()
    return min(float(asked), 3600.0 * 24 * 365) if asked.isdigit() else 0.0
