"""Calls that a user would make, see `benchmarks/attacks/calls.py`: each works, or ends in one line."""

import inspect

import pytest

import layerprobe as lp
from benchmarks.attacks.calls import RIGHT, WRONG, Made, outcome

MOST_NAMES, MOST_PARAMETERS = 28, 15


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("calls"))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_call_works(name: str, made: Made) -> None:
    assert outcome(name, made) == "worked"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_ends_in_one_line(name: str, made: Made) -> None:
    assert outcome(name, made) == "refused"


def test_the_main_module_is_small() -> None:
    names = [name for name in dir(lp) if not name.startswith("_")]
    assert len(names) <= MOST_NAMES
    for name in names:
        value = getattr(lp, name)
        if inspect.isfunction(value):
            parameters = inspect.signature(value).parameters
            assert len(parameters) <= MOST_PARAMETERS, f"{name} has {len(parameters)} parameters"
