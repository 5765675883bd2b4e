"""Registries: own rows and those of other packages, loaded when asked for, refused in one line."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import DataError
from layerprobe.registry import Registry
from tests.plugins import install


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[type]]:
    registry = Registry("layerprobe.toys", type, what="toy", shipped={"ordered": "collections:OrderedDict"})
    yield registry
    monkeypatch.undo()
    registry.reload()


def test_another_package_adds_to_it(registry: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, registry, "class Toy: pass\nnumber = 3", {"a toy": "Toy", "broken": "number"})
    assert list(registry) == ["ordered", "a toy", "broken"]
    assert registry["a toy"].__name__ == "Toy"
    with pytest.raises(DataError, match="expected toy_plugin:number to be a type, the toy 'broken', got a int"):
        registry["broken"]


def test_a_package_that_does_not_import(
    registry: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, tmp_path, registry, "import not_there", {"a toy": "Toy"})
    with pytest.raises(
        DataError, match="the toy 'a toy' of toy_plugin:Toy cannot be loaded: No module named 'not_there'"
    ):
        registry["a toy"]
    assert registry["ordered"] is OrderedDict
    for _ in range(2):
        assert registry.usable() == {"ordered": OrderedDict}
    assert caplog.text.count("cannot be loaded: No module named 'not_there': skipped") == 1


def test_a_package_that_ends_the_process(
    registry: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, registry, "import sys; sys.exit('no licence')", {"a toy": "Toy"})
    with pytest.raises(DataError, match=r"toy_plugin:Toy cannot be loaded: it ends the process \(no licence\)$"):
        registry["a toy"]


def test_own_names_are_not_taken(
    registry: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, tmp_path, registry, "class Toy: pass", {"ordered": "Toy"})
    assert registry["ordered"] is OrderedDict
    assert "the toy 'ordered' of toy_plugin:Toy is ignored" in caplog.text


def test_unknown_names_are_told_with_the_nearest(registry: Registry[type]) -> None:
    with pytest.raises(DataError, match="expected a toy, one of ordered, got 'orderd'; did you mean 'ordered'"):
        registry["orderd"]
    number: Any = 3
    with pytest.raises(DataError, match=r"expected a toy, one of ordered, got 3$"):
        registry[number]
    assert "orderd" not in registry
