"""Single items on pages: what two layers make of each, beside each other, in a browser; and when they stay away."""

import base64
import copy
import dataclasses
import gzip
import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.results import document, explore
from layerprobe.results.document import render
from layerprobe.results.shown import read_result
from layerprobe.scoring.score import score
from layerprobe.tasks.explored import (
    ItemSource,
    LayerOutputs,
    class_view,
    decision_view,
    places_of,
    score_view,
    text_map,
)
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Task
from tests.models import save_tiny
from tests.toy_task import toy_task_of

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)> & $x$ ünï 日本"
N = 60


def task_of(kind: str, targets: Sequence[float], labels: tuple[str, ...] = ()) -> Task:
    """Return a task with these test targets; its first text is a script."""
    n, pairs = len(targets), KINDS[kind].pairs
    texts = [SCRIPT, *(f"text {i} of {'cats' if i % 3 else 'dogs'}" for i in range(1, n))]
    seconds = tuple(f"another {i}" for i in range(n)) if pairs else None
    split = Examples(first=tuple(texts), second=seconds, targets=tuple(targets))
    return Task(name="/data/pairs.csv", kind=kind, train=split, validation=split, test=split, labels=labels)


def source(task: Task, outputs: Sequence[Any], threshold: float | None = None, n_groups: int = 1) -> ItemSource:
    """Return a source whose layers output this, with an embedding by which layers are rotated."""
    points = np.random.default_rng(1).normal(size=(3, 400, 5)) * [3, 2, 1, 1, 1]
    rows = {text: i for side in task.test.sides for i, text in enumerate(side)}
    group = LayerOutputs(
        name="model",
        layers=range(len(outputs)),
        outputs=lambda: [(one, threshold) for one in outputs],
        scores=[10.0 * layer for layer in range(len(outputs))],
        vectors=lambda layer, texts: points[layer][[rows[text] + 100 * text.startswith("another") for text in texts]],
    )
    groups = tuple(dataclasses.replace(group, name=f"model {i}") for i in range(n_groups))
    return ItemSource(task=task, split="test", groups=groups, start=((0, 2), (n_groups - 1, 1)))


def scores_with(item_source: ItemSource) -> Any:
    """Return scores of a page whose items are these."""
    from .test_shown import CASES as RESULTS

    return dataclasses.replace(RESULTS["several models"](), item_source=item_source)


GOLD = tuple(i / (N - 1) for i in range(N))
NOISY = [np.array(GOLD), np.array(GOLD) ** 2, np.roll(np.array(GOLD), 20)]
"""The last layer has 20 of 60 pairs in the wrong third, the others none."""


def data_of(page: str) -> dict[str, Any]:
    """Return the items that a page carries."""
    packed = page.partition('id="items">')[2].partition("</script>")[0]
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def test_errors_are_places_between_the_ranks_and_do_not_depend_on_the_scale() -> None:
    view = score_view(task_of("sts", GOLD), task_of("sts", GOLD).test)  # type: ignore[arg-type]
    same, shifted = view.read(NOISY[1], None), view.read(NOISY[2], None)
    np.testing.assert_allclose(same.errors, 0, atol=1e-9)
    np.testing.assert_allclose(shifted.errors[20:], 100 * 20 / N)
    assert (shifted.errors > view.limit).tolist() == [True] * N
    np.testing.assert_allclose(places_of([3, 1, 2]), [250 / 3, 50 / 3, 50])


def test_a_decision_is_wrong_where_the_threshold_says_so() -> None:
    task = task_of("paraphrase", [i % 2 for i in range(N)], ("0", "1"))
    cosines = np.random.default_rng(0).uniform(-1, 1, N)
    view = decision_view(task, task.test)  # type: ignore[arg-type]
    read = view.read(cosines, 0.25)
    wrong = (cosines >= 0.25) != (np.array(task.test.gold) == 1)
    assert ((read.errors > view.limit) == wrong).all()
    assert np.array(read.counts)[[0, 1], [1, 0]].sum() == wrong.sum()


@pytest.mark.parametrize("logits", [False, True])
def test_a_class_is_wrong_where_another_is_the_likeliest(logits: bool) -> None:
    task = task_of("classification", [i % 3 for i in range(N)], ("a", "b", "c"))
    outputs = np.random.default_rng(0).dirichlet(np.ones(3), N)
    outputs[0] = [0.5, 0.5, 0.0]  # the first of equals wins, as in the metric
    outputs[1] = [0.5, 0.5, 0.0]
    view = class_view(task, task.test)  # type: ignore[arg-type]
    read = view.read(np.log(outputs + 1e-12) if logits else outputs, None)
    assert ((read.errors > view.limit) == (outputs.argmax(axis=1) != task.test.gold)).all()
    assert read.words[2] == f"{'abc'[outputs[2].argmax()]} ({outputs[2].max():.2f})"


def test_the_map_turns_with_the_layers_and_says_what_it_shows() -> None:
    rng = np.random.default_rng(0)
    layer = rng.normal(size=(40, 6)) * [5, 3, 1, 0.5, 0.1, 0.1]
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    points, shares = text_map([layer, -3 * layer @ turn, np.ones((40, 6))])
    np.testing.assert_allclose(points[1], points[0], atol=1e-8)
    values = np.linalg.svd(layer - layer.mean(axis=0), compute_uv=False) ** 2
    assert shares == [round(values[:2].sum() / values.sum(), 4)] * 2 + [0.0]
    np.testing.assert_allclose(np.square(points[0]).sum(axis=1).mean(), 1)
    assert not points[2].any()
    few = text_map([layer[:3], rng.normal(size=(3, 1))])
    assert [one.shape for one in few[0]] == [(3, 2), (3, 2)]


def test_texts_are_on_the_page_unless_they_are_refused_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    result = scores_with(source(task_of("sts", GOLD), NOISY))
    page = render(result, plotly="cdn")
    assert data_of(page)["texts"][0][0] == SCRIPT
    assert SCRIPT[9:] not in page
    assert "60 pairs from the test split of pairs.csv: " in page
    assert "/data" not in page
    refused = render(result, plotly="cdn", texts=False)
    assert 'id="items"' not in refused
    assert "Explore the pairs" not in refused
    monkeypatch.setattr(document, "LARGEST", 100)
    large = render(result, plotly="cdn")
    assert 'id="items"' not in large
    assert "To show them, use --with-texts." in large
    assert 'id="items"' in render(result, plotly="cdn", texts=True)


def test_of_many_items_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.tasks.explored.MOST", 10)
    explored = source(task_of("sts", GOLD), NOISY).explored()
    assert explored is not None
    assert explored.counted == "10 pairs of 60, drawn at random from the test split of pairs.csv"
    assert explored.gold == sorted(explored.gold)
    np.testing.assert_array_equal(explored.groups[0].values[0], explored.gold)


def test_items_stay_in_memory() -> None:
    result = scores_with(source(task_of("sts", GOLD), NOISY))
    assert result.explore()._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert "item_source" not in result.to_json()
    read = read_result(result.to_json())
    assert read == result
    assert pickle.loads(pickle.dumps(result)).item_source is None  # noqa: S301
    assert copy.copy(result).item_source is result.item_source
    with pytest.raises(DataError, match="expected a Scores computed in this process from one task"):
        read.explore()
    assert 'id="items"' not in render(read, plotly="cdn")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One encoder of a few blocks, and its cache."""
    folder = tmp_path_factory.mktemp("models")
    return Model(save_tiny("bert", folder / "bert"), cache_dir=folder / "cache")


@pytest.mark.parametrize("kind", ["sts", "paraphrase", "classification", "entities", "retrieval", "triplets"])
def test_outputs_are_those_that_were_scored(kind: str, tiny: Model) -> None:
    task = toy_task_of(kind)
    item_source = score(tiny, task).item_source
    (group,) = item_source.groups
    for (outputs, threshold), value in zip(group.outputs(), group.scores, strict=True):
        arguments = () if threshold is None else (threshold,)
        assert 100 * KINDS[kind].score(outputs, task.test.gold, *arguments)[task.primary] == pytest.approx(value)
    explored = item_source.explored()
    assert explored is item_source.explored()
    assert len(explored.groups[0].places[0]) == (2 if explored.form != "ranks" and KINDS[kind].pairs else 1)
    assert all((errors >= 0).all() and (errors <= 100).all() for errors in explored.groups[0].errors)


def test_a_search_shows_its_runs_beside_the_untrained_model(tiny: Model) -> None:
    task = toy_task_of("sts")
    protocol = lp.Protocol(epochs=1, learning_rate=1e-3, batch_size=16, max_length=16)
    finding = lp.find(tiny, task, seeds=1, protocol=protocol)
    tuned, before = finding.item_source.groups
    for (outputs, _), score_of in zip(tuned.outputs(), tuned.scores, strict=True):
        assert 100 * KINDS["sts"].score(outputs, task.test.gold)["spearman"] == pytest.approx(score_of)
    assert list(before.scores) == pytest.approx(list(finding.untrained))
    assert "before fine-tuning" in data_of(render(finding, plotly="cdn"))["groups"][1]["name"]


def test_a_comparison_on_a_task_shows_its_test_items(tiny: Model) -> None:
    comparison = lp.compare(tiny, dataclasses.replace(tiny, random_init=3), toy_task_of("sts"))
    explored = explore.items_of(comparison)
    assert explored is not None
    assert len(explored.groups) == 2
    assert len(explored.gold) == len(toy_task_of("sts").test)
    assert lp.compare(tiny, tiny, toy_task_of("sts").texts()).item_source is None  # type: ignore[union-attr]
