from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.sweeps.run import run_sweep
from layerprobe.sweeps.values import SweepResult
from tests.sweeps.tiny import plan_of, write_inputs


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Every process computes with one thread: sums over two are others in the last digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and a task."""
    return write_inputs(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def undisturbed_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="session")
def undisturbed(inputs: Path, undisturbed_cache: Path) -> SweepResult:
    """The sweep that nothing happens to."""
    return run_sweep(plan_of(inputs, undisturbed_cache), workers=1)
