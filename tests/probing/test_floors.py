"""A trivial answer stands beside every score; where no layer is above it, none is best, sufficient or exported."""

from typing import Any

import numpy as np
import pytest

from layerprobe.files.serialisation import from_json, to_json
from layerprobe.probing import probes
from layerprobe.probing.run import probe
from layerprobe.probing.values import Probing
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from tests.probing.data import layered

FEW: dict[str, Any] = {"foldings": 1}
LARGEST = "always predicting the largest class"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit nothing again: errors are then smaller, so that less is on the floor."""
    monkeypatch.setattr(probes, "REFITTED_NUMBERS", 0)


def rare(seed: int, *, share: float = 0.03, signal: float = 0.0, n: int = 200) -> Probing:
    """Return the answer about classes of which one is rare; of four layers the last one has the signal."""
    rng = np.random.default_rng(seed)
    targets = np.zeros(n, dtype=int)
    targets[: round(share * n)] = 1
    embeddings = rng.standard_normal((n, 4, 16))
    embeddings[:, 3, 0] += signal * targets
    return probe(embeddings, targets, weighted_sum=False, **FEW)


@pytest.mark.parametrize("seed", range(3))
def test_no_layer_is_best_where_none_is_above_the_largest_class(seed: int) -> None:
    result = rare(seed)
    assert (result.primary, result.on_floor, result.smallest_sufficient) == ("macro f1", True, None)
    assert (result.verdict, result.conclusion.case) == (Verdict.FAILED, "floor")
    assert (result.conclusion.choice, result.conclusion.names["trivial"]) == (None, LARGEST)
    assert result.facts["floor"].value == pytest.approx(49.24, abs=0.01)
    data = result.table.data
    assert set(data["flag"]) == {None}
    assert data["floor"] == pytest.approx([100 * 2 * 0.97 / 1.97 / 2] * 4)
    assert set(result.table.marks) == {None}
    assert result.floors["accuracy"].value == pytest.approx(97.0)
    assert "macro F1 is used instead of accuracy" in result.notes[-1]
    assert "the smallest has 6 of 200 samples" in result.notes[-1]
    assert from_json(Probing, to_json(result)) == result
    assert result.summary.startswith("No layer beats a trivial baseline")
    assert set(result.plot().data[0].marker.symbol) == {"circle"}


def test_a_rare_class_that_is_found_is_above_the_floor() -> None:
    result = rare(0, share=0.1, signal=6.0)
    assert (result.primary, result.best_layer, result.on_floor) == ("macro f1", 3, False)
    assert result.candidates == (3,)
    (floor,) = (check for check in result.conclusion.checks if check.name == "floor")
    assert words.line(floor, result.conclusion)[0] == f"Beats {LARGEST}, which scores 47.4"
    assert LARGEST in [trace.name for trace in result.plot().data]


def test_every_kind_of_target_has_a_floor() -> None:
    embeddings, signal = layered(60, strengths=(0.0, 1.0))
    rows = np.arange(60).reshape(30, 2)
    pairs = np.column_stack([rows, (signal[rows[:, 0]] * signal[rows[:, 1]]).sum(axis=1)])
    queries = np.array([(i, 20 + i) for i in range(20)])
    labels = (signal[:, :2] > 0).astype(int)
    found = {
        kind: probe(embeddings, targets, kind=kind, weighted_sum=False, **FEW).floors  # type: ignore[arg-type]
        for kind, targets in {"scores": signal[:, 0], "pairs": pairs, "queries": queries, "labels": labels}.items()
    }
    assert {metric: each.value for metric, each in found["scores"].items()} == {"spearman": 0, "pearson": 0, "r2": 0}
    assert {metric: each.value for metric, each in found["pairs"].items()} == {"spearman": 0, "pearson": 0}
    assert found["queries"]["recall@10"].value == pytest.approx(25.0)
    assert found["labels"]["average precision"].value == pytest.approx(100 * labels.mean())
