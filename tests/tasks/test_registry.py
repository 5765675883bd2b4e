"""Kinds of tasks: what each says of itself, one from another package, and that nothing else names them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from layerprobe.finetuning.losses import Criterion, Loss
from layerprobe.kinds import KINDS as OWN
from layerprobe.metrics.names import metric_title
from layerprobe.scoring.probes import Probe
from layerprobe.tasks.kind import KINDS, detect_kind
from tests.sources import naming
from tests.toy_kind import toy_kind
from tests.toy_task import OF_EXAMPLES


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with toy_kind(monkeypatch, tmp_path):
        yield


@pytest.mark.parametrize("name", [name for name in OWN if KINDS[name].items is None])
def test_a_kind_holds_together(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert all(metric_title(metric) for metric in kind.metrics)
    learning = kind.learning()
    assert issubclass(learning.loss, Criterion)
    assert (kind.zero_shot == "own") == (learning.untrained is not None)
    assert isinstance(learning.probe, Probe if kind.zero_shot == "probe" else Probe | None)


@pytest.mark.parametrize("name", OF_EXAMPLES)
def test_perfect_outputs_score_1(name: str) -> None:
    kind = KINDS[name]
    assert issubclass(kind.learning().loss, Loss)
    assert kind.pairs or kind.zero_shot == "probe"
    classes = kind.labelled and kind.threshold is None
    perfect = (np.eye(3), np.arange(3.0)) if classes else (np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0]))
    scores = kind.score(*perfect, *([] if kind.threshold is None else [kind.threshold(*perfect)]))
    assert scores == pytest.approx(dict.fromkeys(scores, 1.0))
    assert set(kind.metrics) == set(scores)


def test_every_file_is_of_one_kind() -> None:
    for cells in ([], ["0"], ["0", "1"], ["true"], ["0", "2"], ["0.5"], ["yes", "no"], ["yes", "1"]):
        of_pairs = [name for name in ("sts", "paraphrase") if KINDS[name].detects(set(cells))]
        assert len(of_pairs) <= 1
        assert detect_kind(cells, pairs=True) == (of_pairs or ["entailment"])[0]
        assert detect_kind(cells, pairs=False) == ("regression" if cells == ["0.5"] else "classification")


def test_kinds_from_outside_are_asked_first(toy: None) -> None:
    assert (detect_kind(["0.5", "1"], pairs=False), detect_kind(["0", "1"], pairs=False)) == (
        "grading",
        "classification",
    )


DEFAULTS = {
    "cli/layerprobe_cli/commands/inspection.py",  # of collections, which have no splits
    "layerprobe/embedded.py",  # the task of the embedded pair
    "layerprobe/tasks/rows.py",  # what it proposes where columns are of queries and documents
    "layerprobe/probing/probes.py",  # whose metrics the targets of arrays have
}


def test_nothing_else_names_a_kind() -> None:
    assert {file for file in naming(OWN) if not file.startswith("layerprobe/kinds/")} == DEFAULTS
