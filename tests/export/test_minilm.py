"""A real model, fine-tuned on real data: sentence-transformers scores the exported folder as layerprobe does."""

import dataclasses
import warnings
from pathlib import Path

import pytest

from layerprobe.encoders.model import Model
from layerprobe.export.run import export_model
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Examples
from tests.models import given
from tests.test_minilm import MODEL

from .judges import sentence_transformer

LAYER, N_PAIRS = 4, 600


def first(pairs: Examples, n: int) -> Examples:
    return Examples(first=pairs.first[:n], second=pairs.second[:n], targets=pairs.targets[:n])


@pytest.mark.slow
def test_sentence_transformers_scores_the_export_as_we_do(shared_data: Path, tmp_path: Path) -> None:
    task = load_task(shared_data / "stsb" / "en-train.csv")
    task = dataclasses.replace(task, train=first(task.train, N_PAIRS))
    options = Model(device="cpu", cache_dir=tmp_path / "cache")
    model = given(str(MODEL), options)
    (run,) = finetune(model, task, (LAYER,), seeds=(0,), protocol=Protocol(epochs=1), save_models=True).runs
    directory = run.directory
    export_model(directory, tmp_path / "out")

    judge = sentence_transformer(tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    evaluator = EmbeddingSimilarityEvaluator(list(task.test.first), list(task.test.second), list(task.test.targets))
    theirs = evaluator(judge)
    print(f"Spearman x 100: layerprobe {run.test['spearman']:.6f}, theirs {100 * theirs['spearman_cosine']:.6f}")
    assert len(task.test) == 1379
    assert run.test["spearman"] > 60
    assert 100 * theirs["spearman_cosine"] == pytest.approx(run.test["spearman"], abs=1e-4)
    assert 100 * theirs["pearson_cosine"] == pytest.approx(run.test["pearson"], abs=1e-4)
