"""One limit on how long the Hub is waited for, and what is said meanwhile. Knows HTTP, no models."""

import contextlib
import logging
import re
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

from layerprobe.context import duration
from layerprobe.process import while_needed

logger = logging.getLogger(__name__)

LIMIT = 60.0
"""Seconds without a good answer, the pauses that the Hub asks for among them, after which it is given up."""
FIRST_WORD = 10.0
"""Seconds until it is said what is waited for; then twice as many from one word to the next."""
_BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which `huggingface_hub` asks again."""
_OFFLINE = "HF_HUB_OFFLINE=1 takes at once what was downloaded before"


@while_needed
@contextlib.contextmanager
def hub_within_limits() -> Iterator[None]:
    """Bound how long the Hub is waited for inside a `with` block, and say what is waited for.

    Where there is no good answer in time, requests fail from then on as they do with HF_HUB_OFFLINE=1: what was
    downloaded before is used, and what was not cannot be found. A download that goes on may take as long as it likes.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        yield
        return
    watch = _Watch.current = _Watch()
    _Watch.trouble = None
    watch.attach(get_session())
    thread = threading.Thread(target=watch.run, daemon=True)
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
    return _Watch.trouble


def give_up_hub(reason: str) -> None:
    """Let all requests inside the `with` block fail from here on, as offline."""
    if _Watch.current is not None and not _Watch.current.given_up:
        _Watch.current.give_up(f"answers badly ({reason})")


class _Watch:
    """Looks at requests to the Hub while they wait; threads may share it."""

    current: ClassVar["_Watch | None"] = None
    trouble: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.done = threading.Event()
        self.given_up = False
        self.sessions: list[Any] = []
        self.bad_since: float | None = None
        """When the first request began of those that had no good answer."""
        self.waiting: tuple[float, str, Any] | None = None
        """Since when, for what, and the answer that is still coming."""

    def attach(self, session: Any) -> None:
        """Look at the requests of an HTTP client; `huggingface_hub` makes a new one when a connection fails."""
        if session not in self.sessions:
            hooks = session.event_hooks
            session.event_hooks = {
                "request": [*hooks["request"], self.asked],
                "response": [*hooks["response"], self.answered],
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
        now = time.monotonic()
        self.bad_since = self.bad_since or now
        self.check(now, _name(request))
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {part: min(seconds or LIMIT, LIMIT) for part, seconds in limits.items()}
        request.extensions["trace"] = self._traced
        self.waiting = self.bad_since, f"answer {_name(request)}", None

    def answered(self, response: Any) -> None:
        """Note a good answer; OfflineModeIsEnabled if the pause before the next try is too long."""
        name, now = _name(response.request), time.monotonic()
        if response.status_code not in _BUSY:
            self.bad_since = None
            _Watch.trouble = _Watch.trouble if self.given_up else None
            self.waiting = now, f"send {name}", weakref.ref(response)
            return
        pause = _pause(response.headers)
        answer = f"answered {response.status_code} {response.reason_phrase} to {name}"
        answer += f" and asks to wait {duration(pause)}" if pause else ""
        self.waiting, _Watch.trouble = None, f"the Hub {answer}"
        self.check(now + pause, name, answer)
        logger.warning("the Hub %s: trying again; %s", answer, _OFFLINE)

    def check(self, now: float, name: str, reason: str = "") -> None:
        """Give the Hub up where it had no good answer for too long; then raise OfflineModeIsEnabled."""
        if not self.given_up and self.bad_since is not None and now - self.bad_since > LIMIT:
            self.give_up(reason or f"did not answer {name} within {duration(LIMIT)}")
        if self.given_up:
            from huggingface_hub.errors import OfflineModeIsEnabled

            raise OfflineModeIsEnabled(str(_Watch.trouble))

    def give_up(self, reason: str) -> None:
        """Refuse all requests from here on."""
        self.given_up, self.waiting, _Watch.trouble = True, None, f"the Hub {reason}"
        logger.warning("the Hub %s: going on without it; %s", reason, _OFFLINE)

    def _traced(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(".failed") and self.waiting is not None:
            if not self.given_up:
                _Watch.trouble = f"the Hub did not {self.waiting[1]}"
            self.waiting = None

    def run(self) -> None:
        """Say what is waited for, and end what waits too long for an answer."""
        from huggingface_hub import close_session, get_session

        next_word = FIRST_WORD
        while not self.done.wait(0.25):
            self.attach(get_session())
            if self.waiting is None:
                continue
            since, what, response = self.waiting
            waited = time.monotonic() - since
            if response is not None and (response() is None or response().is_closed):
                self.waiting = None
            elif response is None and waited > LIMIT:
                self.give_up(f"did not {what} within {duration(LIMIT)}")
                close_session()  # what is waited for fails, and is asked for again
                self.attach(get_session())
            elif waited > next_word:
                next_word += min(next_word, 2 * FIRST_WORD)
                logger.warning("waiting for the Hub to %s for %s; %s", what, duration(waited), _OFFLINE)


def _name(request: Any) -> str:
    return f"{request.method} {without_password(str(request.url).partition('?')[0])}"


def without_password(text: str) -> str:
    """Return a text without the user and the password of its addresses.

    Examples:
        >>> without_password("cannot reach https://me:secret@hub.example/api")
        'cannot reach https://hub.example/api'
    """
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)


def _pause(headers: Any) -> float:
    """Return the seconds that an answer asks to wait before the next try, as `huggingface_hub` reads them."""
    limit = re.search(r"\bt\s*=\s*(\d+)", headers.get("ratelimit", ""))
    asked = limit[1] if limit else headers.get("retry-after", "").strip()
    return min(float(asked), 3600.0 * 24 * 365) if asked.isdigit() else 0.0
