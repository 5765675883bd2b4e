"""What belongs to the whole process is changed by one thread at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from layerprobe.encoders.loading import NO_CONVERSION, quiet_transformers
from layerprobe.training.rng import restore_rng, rng_states, seeded


@pytest.mark.parametrize("held", [quiet_transformers, lambda: seeded(0, torch.device("cpu"))], ids=["quiet", "seeded"])
def test_a_second_thread_waits(held: Callable[[], AbstractContextManager[None]]) -> None:
    before = sys.stdout, os.environ.get(NO_CONVERSION), torch.get_rng_state()
    entered = [threading.Event(), threading.Event()]
    leave = threading.Event()

    def work(event: threading.Event) -> None:
        with held(), held():  # a thread does not wait for itself
            event.set()
            leave.wait()

    threads = [threading.Thread(target=work, args=(event,)) for event in entered]
    threads[0].start()
    entered[0].wait()
    threads[1].start()
    beside = entered[1].wait(0.2)
    leave.set()
    for thread in threads:
        thread.join()
    assert not beside
    assert entered[1].is_set()
    assert (sys.stdout, os.environ.get(NO_CONVERSION)) == before[:2]
    torch.testing.assert_close(torch.get_rng_state(), before[2])


def test_the_generator_of_mps_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, device = torch.Generator(), torch.device("mps")
    monkeypatch.setattr(torch.mps, "get_rng_state", generator.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", generator.set_state)
    before = generator.get_state()
    with seeded(0, device):
        torch.rand(1, generator=generator)
        states = rng_states(device)
        drawn = torch.rand(2), torch.rand(2, generator=generator)
        restore_rng(states, device)
        assert drawn[0].equal(torch.rand(2))
        assert drawn[1].equal(torch.rand(2, generator=generator))
        restore_rng({"cpu": states["cpu"]}, device)  # of a run that an earlier version left
    assert before.equal(generator.get_state())
