"""Triplets: loaded, scored untrained, and their loss that of sentence-transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.losses import CosineTriplets
from layerprobe.metrics.scores import cosine_scores
from layerprobe.scoring.score import score_split
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.models import given
from tests.toy_retrieval import write_jsonl
from tests.toy_task import toy_pairs


def rows(n: int) -> list[dict[str, str]]:
    pairs, others = toy_pairs(n, 1), toy_pairs(n, 2)
    sides = zip(pairs.first, others.first, strict=True)
    return [{"anchor": a, "positive": " ".join(a.split()[::-1]), "negative": b} for a, b in sides]


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(rows(64), kind="triplets", split_ratios=(0.5, 0.25, 0.25))


def test_a_table_is_split(task: Task, tmp_path: Path) -> None:
    assert [len(task.split(split)) for split in ("train", "validation", "test")] == [32, 16, 16]
    file = write_jsonl(tmp_path / "x.jsonl", rows(64))
    assert load_task(file, kind="triplets", split_ratios=(0.5, 0.25, 0.25)).digest == task.digest
    swapped = load_task(file, kind="triplets", columns="anchor,negative,positive", split_ratios=(0.5, 0.25, 0.25))
    assert swapped.test.sides == (task.test.sides[0], task.test.sides[2], task.test.sides[1])


def test_untrained_scores_are_those_of_the_evaluator(task: Task, model: str, options: Model) -> None:
    scores, _ = score_split(given(model, options), task)
    embeddings = extract(given(model, options), task.test.texts)
    for layer in range(4):
        values = embeddings.layer(layer)
        anchor, positive, negative = (values[embeddings.rows(side)] for side in task.test.sides)
        margins = cosine_scores(anchor, positive) - cosine_scores(anchor, negative)
        assert scores.scores[layer] == pytest.approx(100 * np.mean(margins > 0))
        assert evaluate_outputs("triplets", margins, task.test.gold).metrics["accuracy"] == scores.scores[layer]


def test_the_loss_is_that_of_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric, TripletLoss

    sides = list(torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0)))
    criterion, metric = CosineTriplets(width=5, n_labels=0), TripletDistanceMetric.COSINE
    theirs = TripletLoss(None, distance_metric=metric, triplet_margin=criterion.margin)  # type: ignore[arg-type]
    expected = theirs.compute_loss_from_embeddings(sides, None)  # type: ignore[arg-type]
    got = criterion.example_loss(torch.cat(sides), None, np.arange(7))  # type: ignore[arg-type]
    torch.testing.assert_close(got, expected)
