"""What belongs to the whole process: threads neither spoil it for each other nor leave it changed."""

import contextlib
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from layerprobe.context import report, settings
from layerprobe.embedded import embedded_model
from layerprobe.encoders.failures import NO_CONVERSION, quiet_transformers
from layerprobe.encoders.graphs import quiet_export
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.process import silence, while_needed, without_warnings
from layerprobe.rng import exact_products
from layerprobe.similarity.cka import linear_cka
from tests.models import save_tiny


def state() -> list[object]:
    """What the contexts change."""
    return [
        sys.stdout,
        os.environ.get(NO_CONVERSION),
        transformers.utils.logging.get_verbosity(),
        logging.root.manager.disable,
        list(logging.root.handlers),
        list(warnings.filters),
        torch.get_float32_matmul_precision(),
    ]


def overlapping(held: Callable[[], AbstractContextManager[None]]) -> list[object]:
    """Have the first of two threads leave a context while the second is in it; return the state in between."""
    second_is_in, first_is_out, between = threading.Event(), threading.Event(), list[object]()

    def second() -> None:
        with held():
            second_is_in.set()
            first_is_out.wait()
            between.extend(state())

    thread = threading.Thread(target=second)
    with held():
        thread.start()
        assert second_is_in.wait(5), "expected the second thread not to wait"
    first_is_out.set()
    thread.join()
    return between


@pytest.mark.parametrize("held", [quiet_transformers, quiet_export, exact_products, without_warnings])
def test_what_overlaps_holds_until_the_last_leaves_and_is_undone_then(
    held: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    before_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        before = state()
        assert overlapping(held)[:-1] != before[:-1] or held is exact_products
        assert state() == before
    finally:
        torch.set_float32_matmul_precision(before_precision)


def test_a_change_that_fails_is_tried_again() -> None:
    made = []

    @while_needed
    @contextlib.contextmanager
    def change() -> Iterator[None]:
        made.append(1)
        if len(made) == 1:
            raise OSError
        yield

    with pytest.raises(OSError), change():
        pass
    with change():
        assert len(made) == 2


def test_products_are_exact_whatever_the_process_allows() -> None:
    place = torch.backends.mkldnn.matmul
    before, rng = place.fp32_precision, np.random.default_rng(0)
    first, second = rng.random((40, 8), dtype=np.float32), rng.random((40, 6), dtype=np.float32)
    expected = linear_cka(first, second)
    try:
        place.fp32_precision = "bf16"
        assert linear_cka(first, second) == expected
        assert place.fp32_precision == "bf16"
    finally:
        place.fp32_precision = before


class Writer:
    """All that some services put in place of standard error."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stderr", [Writer(), None], ids=["writer", "none"])
def test_standard_error_need_not_be_a_file(stderr: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    before = transformers.utils.logging.get_verbosity()
    with quiet_transformers():
        pass
    assert transformers.utils.logging.get_verbosity() == before


def in_threads(work: Callable[[int], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Have three threads work, and do something here until they are done."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meanwhile()


def test_truncating_in_other_threads_leaves_what_this_one_draws(tmp_path: Path) -> None:
    folder, spread = str(save_tiny("bert", tmp_path / "bert")), list[float]()
    init = nn.init.kaiming_uniform_

    def work(number: int) -> None:
        extract(Model(folder, cache_dir=tmp_path / str(number)), ["one text", "another"])

    in_threads(work, lambda: spread.append(nn.Linear(8, 8).weight.std().item()))
    assert 0.1 < min(spread) <= max(spread) < 0.4
    assert nn.init.kaiming_uniform_ is init


def test_random_weights_are_those_of_their_seed_in_threads_too(tmp_path: Path) -> None:
    def embedded(number: int, cache: str) -> np.ndarray:
        model = Model(folder, random_init=number, cache_dir=tmp_path / cache)
        return extract(model, ["one text", "another"]).layer(2).copy()

    folder, found = str(save_tiny("bert", tmp_path / "bert")), dict[int, np.ndarray]()
    before = torch.get_rng_state()
    in_threads(lambda number: found.update({number: embedded(number, "together")}))
    torch.testing.assert_close(torch.get_rng_state(), before)
    for number in range(3):
        np.testing.assert_array_equal(found[number], embedded(number, "alone"))


@contextlib.contextmanager
def another_thread(context: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> Iterator[None]:
    """Have another thread be in layerprobe, and in a context of it, meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        entered.set()
        leave.wait()

    def work() -> None:
        with context(), settings(progress=wait):
            report("training", 1, 2)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def exit_code_of_fork(work: Callable[[], object]) -> int:
    """Return 0 where a forked process does some work."""
    if not (child := os.fork()):
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_one_thread_of_torch() -> None:
    def call() -> None:
        resolve(embedded_model("rtd"))
        torch.randn(2000, 2000).exp().sum()  # waits for ever for OpenMP's threads unless it takes one

    torch.randn(2000, 2000).exp().sum()
    assert exit_code_of_fork(call) == 0


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_not_in_the_contexts_of_other_threads() -> None:
    @contextlib.contextmanager
    def silent() -> Iterator[None]:
        with silence(), without_warnings():
            yield

    def check() -> None:
        assert state() == before

    before = state()
    with another_thread(silent):
        assert exit_code_of_fork(check) == 0
