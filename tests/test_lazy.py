"""Attributes computed on first use: once, and without waiting for another object's."""

import threading

from layerprobe.process import cached_property


class Slow:
    def __init__(self, start: threading.Event | None = None, go: threading.Event | None = None) -> None:
        self.start, self.go, self.count = start, go, 0

    @cached_property
    def value(self) -> int:
        """What it is."""
        self.count += 1
        if self.start and self.go:
            self.start.set()
            self.go.wait(10)
        return self.count


def test_it_is_computed_once():
    slow = Slow()
    assert (slow.value, slow.value, slow.count) == (1, 1, 1)
    assert Slow.__dict__["value"].__doc__ == "What it is."


def test_one_object_does_not_wait_for_another():
    """Else threads that embed wait for each other, and a process forked meanwhile waits for ever."""
    start, go, other = threading.Event(), threading.Event(), Slow()
    blocked = threading.Thread(target=lambda: Slow(start, go).value)
    blocked.start()
    assert start.wait(10)
    computed = threading.Thread(target=lambda: other.value, daemon=True)
    computed.start()
    computed.join(5)
    go.set()
    blocked.join(10)
    assert other.count == 1
