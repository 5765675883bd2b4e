"""What belongs to the whole process is changed by one thread at a time."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from transformers import AutoModel

from layerprobe.rng import Undrawn, drawing, restore_rng, rng_states, seeded
from tests.models import tiny_config


@pytest.mark.parametrize("held", [drawing, lambda: seeded(0, torch.device("cpu"))], ids=["drawing", "seeded"])
def test_a_second_thread_waits(held: Callable[[], AbstractContextManager[None]]) -> None:
    before = torch.get_rng_state()
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
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_nothing_is_drawn_where_weights_are_to_be_replaced() -> None:
    before, drawn, ours = torch.get_rng_state(), nn.init.normal_, torch.empty(0)
    config = tiny_config("modernbert")
    with Undrawn():
        layer, numbers = nn.Linear(3, 4), torch.randn(2, 5, generator=None)
        nn.init.trunc_normal_(layer.bias, std=0.1, a=-0.1, b=0.1)  # draws until all lie in the range
        model = AutoModel.from_config(config)
        ours = torch.tensor([])
    assert (numbers.shape, numbers.count_nonzero(), layer.bias.count_nonzero()) == ((2, 5), 0, 0)
    assert {each.device.type for each in (*model.parameters(), *model.buffers(), ours)} == {"cpu"}
    assert nn.init.normal_ is drawn
    torch.testing.assert_close(torch.get_rng_state(), before)


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
    assert before.equal(generator.get_state())
