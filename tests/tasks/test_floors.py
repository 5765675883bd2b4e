"""What kinds of tasks say of trivial answers, against their own scores; and what is primary where a class is rare."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.runs import agreed, run_folder
from layerprobe.kinds import KINDS as OWN
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.scoring.scores import Scores
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples
from tests.models import save_tiny
from tests.toy_questions import toy_questions
from tests.toy_task import toy_items, toy_task_of


@pytest.mark.parametrize("kind", ["classification", "entailment", "tags", "entities", "image classification"])
def test_floors_of_classes_are_what_one_answer_for_all_scores(kind: str) -> None:
    items = toy_items("classification" if kind.startswith("image") else kind, 40, 5)
    targets = getattr(items.gold, "word_tags", items.gold)
    numbers, counts = np.unique(targets, return_counts=True)
    answer = items.labels.index("O") if kind == "entities" else int(numbers[np.argmax(counts)])
    n_classes = len(getattr(items, "labels", ())) or int(targets.max()) + 1
    outputs = np.tile(np.eye(n_classes)[answer], (len(targets), 1))
    scores = KINDS[kind].score(outputs, items.gold)
    floors = {name: floor.value for name, floor in KINDS[kind].floors(items).items()}
    assert floors == pytest.approx({name: 100 * score for name, score in scores.items()})


@pytest.mark.parametrize("impossible", [0.0, 0.4])
def test_the_floor_of_answers_is_what_no_answer_scores(impossible: float) -> None:
    items = toy_questions(50, 3, impossible=impossible)
    outputs = np.tile([0.0, 5.0, 0.0, 1.0], (50, 1))
    scores = KINDS["question answering"].score(outputs, items.gold, 0.0)
    floors = {name: floor.value for name, floor in KINDS["question answering"].floors(items).items()}
    assert floors == pytest.approx({name: 100 * score for name, score in scores.items()})
    assert (floors["f1"] > 0) == (impossible > 0)


def test_every_primary_metric_has_a_floor_but_rouge() -> None:
    without = set()
    for name in OWN:
        if name in ("image classification", "question answering"):
            continue
        floors = KINDS[name].floors(toy_items(name, 12, 1))
        assert set(floors) <= set(KINDS[name].metrics)
        without |= {name} if KINDS[name].metrics[0] not in floors else set()
    assert without == {"summarization"}


def rare_task(ones: int, n: int = 60) -> lp.Task:
    texts = [f"word{i} of {i % 7} and {i % 5}" for i in range(3 * n)]
    rows = [{"text": text, "label": "yes" if i % n < ones else "no"} for i, text in enumerate(texts)]
    parts = [rows[start : start + n] for start in (0, n, 2 * n)]
    return lp.load_task(dict(zip(("train", "validation", "test"), parts, strict=True)), kind="classification")


def test_macro_f1_is_primary_where_a_class_is_rare_and_that_is_said() -> None:
    rare, even = rare_task(6), rare_task(15)
    assert (rare.primary, even.primary) == ("macro f1", "accuracy")
    (said,) = rare.warnings
    assert said == (
        "macro F1 is the primary metric instead of accuracy, which says little about rare classes: 18 of 180 texts are "
        "'yes'"
    )
    assert even.warnings == ()
    split_again = dataclasses.replace(rare, train=rare.validation, validation=rare.train)
    assert split_again.primary == "macro f1", "however it is divided"
    many = Examples(first=("a",) * 40, second=None, targets=tuple(float(i % 20) for i in range(40)))
    names = tuple(f"c{i:02}" for i in range(20))
    classes = lp.Task(name="x", kind="classification", train=many, validation=many, test=many, labels=names)
    assert classes.primary == "accuracy", "many classes of one size are not rare"


def test_runs_by_another_metric_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(save_tiny("bert", tmp_path / "bert"), cache_dir=tmp_path / "cache")
    protocol, checkpoint = agreed(None, resolve(model))

    def folder(task: lp.Task) -> Path:
        return run_folder(checkpoint, task, protocol)

    rare, even = rare_task(6), rare_task(15)
    before = folder(rare), folder(even)
    monkeypatch.setattr("layerprobe.stats.floors.has_rare_class", lambda sizes: False)
    assert folder(rare) != before[0], "epochs were chosen by accuracy before"
    assert folder(even) == before[1], "older runs of other tasks are read"


def test_noise_is_not_better_than_the_largest_class(tmp_path: Path) -> None:
    model = Model(save_tiny("bert", tmp_path / "bert"), cache_dir=tmp_path / "cache")
    scores = lp.score(model, rare_task(4))
    assert scores.primary == next(iter(scores.metrics)) == "macro f1"
    assert scores.on_floor
    assert scores.first.floor is not None
    assert scores.first.floor.value == pytest.approx(200 * (56 / 60) / (1 + 56 / 60) / 2)
    assert (scores.conclusion.case, scores.verdict) == ("floor", Verdict.FAILED)
    assert (scores.conclusion.choice, scores.facts["floor"].value) == (None, scores.first.floor.value)
    assert words.headline(scores.conclusion) == "No layer beats a trivial baseline"
    assert set(scores.table.data["flag"]) == {None}
    assert set(scores.table.data["floor"]) == {scores.first.floor.value}
    across = lp.score(model, [rare_task(4)])
    assert (across.conclusion.case, across.verdict) == ("no task", Verdict.FAILED)
    assert set(across.table.data["flag"]) == {None}
    assert from_json(Scores, to_json(scores)) == scores


def test_scores_of_one_model_have_intervals_and_what_was_chosen_a_wider_one(tmp_path: Path) -> None:
    model = Model(save_tiny("bert", tmp_path / "bert"), cache_dir=tmp_path / "cache")
    scores = lp.score(model, toy_task_of("sts"), tolerance=60.0)
    compared = scores.compared
    assert compared is not None
    widths = [(score - low, high - score) for score, (low, high) in zip(scores.scores, compared.intervals, strict=True)]
    below, above = widths[scores.best_layer]
    assert below > 1.05 * above
    assert scores.table.data["behind"] == compared.behind
    assert scores.table.data["flag"][scores.best_layer] == "best"
    score, best = scores.facts["score"], scores.best_layer
    assert (score.value, score.interval) == (scores.scores[best], compared.intervals[best])
    enough = [check.names["enough"] for check in scores.conclusion.checks if check.name == "enough"]
    assert enough == ([compared.smallest()] if best else [])
    assert scores.first.influences == ()
