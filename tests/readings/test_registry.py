"""A reading of a user's own works wherever those that come with layerprobe do, and nothing else names one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.entry import zoo_entry
from layerprobe.lab.dropbench.zoo import Zoo, ZooProvenance, read_zoo, write_zoo
from layerprobe.readings.reading import CKA, READINGS, ZERO_SHOT
from layerprobe.readings.source import read_curves
from layerprobe.tasks.values import Task
from tests.models import N_BLOCKS, TEXTS, given, save_tiny
from tests.plugins import install
from tests.sources import naming
from tests.toy_task import toy_task

TOY = """
import numpy as np
from layerprobe.readings.reading import Reading
from layerprobe.readings.reading import LayerCurve

def mean_norm(source):
    embedded = source.embeddings
    norms = [np.linalg.norm(embedded.layer(layer), axis=1).mean() for layer in range(embedded.n_layers)]
    return LayerCurve(values=tuple(map(float, norms)))

MEAN_NORM = Reading(description="mean length of an embedding", direction=None, compute=mean_norm)
SHORT = Reading(description="too few values", direction=1, compute=lambda source: LayerCurve(values=(1.0,)))
GREEDY = Reading(description="labels that it did not ask for", direction=1, compute=lambda source: source.labels)
NOTHING = Reading(description="what no model has", direction=1, compute=lambda source: None)
"""
NAME = "mean norm"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "plugin").mkdir()
    install(monkeypatch, tmp_path / "plugin", READINGS, TOY, {NAME: "MEAN_NORM", "nothing": "NOTHING"})
    yield
    monkeypatch.undo()
    READINGS.reload()


@pytest.fixture
def options(tmp_path: Path) -> Model:
    return Model(device="cpu", cache_dir=tmp_path / "cache")


@pytest.fixture
def task() -> Task:
    return toy_task(train=48, validation=24, test=24)


@pytest.mark.usefixtures("toy")
def test_it_is_read_by_name(tmp_path: Path, options: Model) -> None:
    model = str(save_tiny("bert", tmp_path / "bert"))
    curves = read_curves(given(model, options), TEXTS, ["nothing", NAME])
    embedded = extract(given(model, options), list(dict.fromkeys(TEXTS)))
    norms = [np.linalg.norm(embedded.layer(layer), axis=1).mean() for layer in range(N_BLOCKS + 1)]
    assert list(curves) == [NAME]
    np.testing.assert_allclose(curves[NAME].values, norms)


def test_a_broken_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Model) -> None:
    model = str(save_tiny("bert", tmp_path / "bert"))
    install(monkeypatch, tmp_path, READINGS, TOY, {"short": "SHORT", "greedy": "GREEDY"})
    with pytest.raises(DataError, match="expected short at each of 4 layers, got 1 values"):
        read_curves(given(model, options), TEXTS, ["short"])
    with pytest.raises(DataError, match="expected a task for a reading with labels, got texts alone"):
        read_curves(given(model, options), TEXTS, ["greedy"])
    monkeypatch.undo()
    READINGS.reload()


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_the_command_line_shows_it(tmp_path: Path) -> None:
    model = save_tiny("bert", tmp_path / "bert")
    (tmp_path / "texts.txt").write_text("".join(f"{a} {b} c\n" for a in "abc" for b in "def"))

    def layerprobe(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "layerprobe_cli.main", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout

    command = ("predict", model, "--texts", tmp_path / "texts.txt", "--cache-dir", tmp_path / "cache", "--readings")
    assert NAME in layerprobe(*command).splitlines()[0]
    printed = json.loads(layerprobe(*command, "--json"))
    assert len(printed[NAME]["values"]) == N_BLOCKS + 1


@pytest.mark.usefixtures("toy")
def test_dropbench_makes_rules_of_it(tmp_path: Path, options: Model, task: Task) -> None:
    entry = zoo_entry(
        given(str(save_tiny("electra", tmp_path / "electra")), options),
        {},
        task,
        {"gentle": Protocol(epochs=1, learning_rate=1e-3, batch_size=20)},
        name="electra 0",
        family="rtd",
        size="tiny",
        seed=0,
        corpus="toy",
        seeds=(0,),
        n_altered=12,
    )
    assert NAME in entry.metrics
    assert "nothing" not in entry.curves
    zoo = Zoo(
        provenance=ZooProvenance(layerprobe="0", created="now", command="test"),
        entries=(entry, replace(entry, name="another", family="mlm")),
    )
    write_zoo(zoo, tmp_path / "zoo.json")
    (budget,) = bench_predictors(read_zoo(tmp_path / "zoo.json"), draws=10).budgets
    parameters = {scores.name: scores.parameters for scores in budget.rules}
    # nobody knows whether a longer embedding is better
    assert (parameters[f"fall of {NAME}"], parameters[f"best layer by {NAME}"]) == (3, 1)


def test_nothing_else_names_a_reading() -> None:
    """A new one is its own module and a row."""
    elsewhere = {"probe", ZERO_SHOT, CKA}  # also the name of a method, a table's column, a measure
    assert set(naming(set(READINGS) - elsewhere)) == {"layerprobe/readings/reading.py"}
