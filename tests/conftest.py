import functools
import gc
import hashlib
import logging
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from numpy.typing import NDArray

from layerprobe.encoders.model import Model
from layerprobe.errors import ON_COMMAND_LINE
from tests.browser import browser  # noqa: F401 - the fixture

OUTSIDE = (
    "CI",
    "GITHUB_ACTIONS",
    "FORCE_COLOR",
    "NO_COLOR",
    "PY_COLORS",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "COLUMNS",
)
"""Variables by which a machine changes what is printed; a test that is about one sets it."""
for variable in {*OUTSIDE, *(name for name in os.environ if name.startswith("LAYERPROBE_"))}:
    os.environ.pop(variable, None)  # here, as some are read on import

checkout = Path(__file__).parents[1]
examples = DirectoryBasedExampleDatabase(checkout / ".hypothesis/examples") if os.access(checkout, os.W_OK) else None
settings.register_profile("few", deadline=None, max_examples=10, database=examples)  # a busy machine is no failure
settings.register_profile("many", deadline=None, max_examples=200, database=examples)
settings.load_profile("few")
ON_COMMAND_LINE.set(True)  # messages are tested as they are written; tests/test_words.py has those of Python


SENSITIVE = ("tests/cli/test_start.py", "tests/cli/test_stderr.py")
"""Tests of signals and of what is printed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in", type=int, default=1, metavar="N", help="run one test in N, the same ones each time, and SENSITIVE"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    n = config.getoption("--one-in")
    items[:] = [i for i in items if i.nodeid.startswith(SENSITIVE) or zlib.crc32(i.nodeid.encode()) % n == 0]


@pytest.fixture(scope="session", autouse=True)
def signals_are_those_of_a_terminal() -> Iterator[None]:
    """Jobs that a script starts in the background ignore interruptions, and so would processes that tests start."""
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository; tests that need it are skipped without it."""
    folder = Path(__file__).parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the data sets are not at {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few thousand parameters run fastest on one thread: on busy cores the others are waited for."""
    import torch  # slow to load: only when a test runs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """A killed process loses nothing that it wrote, synced or not: only a machine without power does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(autouse=True)
def library_log() -> None:
    """The command line sends what the library logs to stderr, of the whole process and for good."""
    logger = logging.getLogger("layerprobe")
    logger.handlers.clear()
    logger.propagate = True
    if logger.level:  # to set it empties the caches of all loggers
        logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def modules_are_no_garbage() -> Iterator[None]:
    """To look through the modules of torch and transformers in every collection takes a tenth of the time of tests."""
    import transformers  # noqa: F401  # slow to load: only when a test runs

    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def what_is_there_is_no_garbage(modules_are_no_garbage: None) -> None:
    """Whatever earlier tests imported stays, too: it is not looked through again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def looks() -> dict[str, Any]:
    """What was found when models were first used, by their weights."""
    return {}


@pytest.fixture(autouse=True)
def looked_at_once(looks: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The few tiny models are compared with their truncations once, although every test has a store of its own."""
    from layerprobe.encoders import loading as first_use

    look = first_use.look

    def once(encoder: Any) -> str:
        content = hashlib.sha256(f"{type(encoder.model)} {encoder.model.config}".encode())
        for name, values in encoder.model.state_dict().items():
            content.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            content.update(values.float().numpy().tobytes())
        key = content.hexdigest()
        if key not in looks:
            looks[key] = look(encoder)
        return looks[key]

    monkeypatch.setattr(first_use, "look", once)


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """All commands with their options, which CliRunner builds anew for each call: a tenth of a second."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_run_at_a_time() -> Iterator[None]:
    """Commands search with one run at a time where nothing is said: to begin a process takes longer than a run."""
    from layerprobe.study import find

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "MOST_JOBS", 1)
        yield


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of a stored layer are read at a time, from now on."""
    from layerprobe.store.shards import StoredLayer

    read, counts = StoredLayer.__getitem__, list[int]()

    def counting(layer: StoredLayer, rows: Any) -> NDArray[np.floating]:
        counts.append(len(values := read(layer, rows)))
        return values

    monkeypatch.setattr(StoredLayer, "__getitem__", counting)
    return counts


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a tiny BERT, which no test changes."""
    from tests.models import save_tiny

    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """How a model is run: on the CPU, with a store of the module's own."""
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))
