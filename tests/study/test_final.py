"""The final model of a search: it learns from all labels but those of the test split, and is what is exported."""

import dataclasses
import json
import statistics
from pathlib import Path

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.export.run import export_model
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import outputs_in
from layerprobe.finetuning.runs import load_saved_run
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.metrics.scores import decision_scores
from layerprobe.study.find import plan_find
from layerprobe.study.values import Finding, Weights
from tests.models import save_tiny
from tests.toy_task import toy_task, toy_task_of

TASK = toy_task(train=24, validation=16, test=16)
PROTOCOL = lp.Protocol(learning_rate=3e-3, epochs=3, batch_size=8)
HOW = {"seeds": 2, "protocol": PROTOCOL, "budget": 0.4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> lp.Model:
    folder = tmp_path_factory.mktemp("final")
    return lp.Model(save_tiny("bert", folder / "bert"), cache_dir=folder / "cache", device="cpu")


@pytest.fixture(scope="module")
def finding(model: lp.Model) -> Finding:
    return lp.find(model, TASK, final=True, **HOW)  # type: ignore[arg-type]


def test_the_final_run_is_one_more_and_changes_nothing_of_the_search(model: lp.Model, finding: Finding) -> None:
    plain = lp.find(model, TASK, **HOW)  # type: ignore[arg-type]
    timed = {"rounds_by_layer": (), "weights": Weights(directory=""), "final": None}
    assert dataclasses.replace(finding, **timed) == dataclasses.replace(plain, **timed)
    assert plain.final is None
    assert not plain.weights.kept
    assert from_json(Finding, to_json(finding)) == finding
    assert '"final"' not in to_json(plain)


def test_it_learns_from_all_labels_for_as_many_epochs_as_validation_chose(finding: Finding) -> None:
    assert finding.final is not None
    saved = load_saved_run(Path(finding.weights.directory))
    assert saved is not None
    assert saved[1].pairs == (40, 16, 16)
    assert finding.weights.n_train == 40
    chosen = [run.best_epoch for run in finding.fine_tuned if run.layer == finding.best_layer]
    epochs = round(float(np.median(chosen)))
    assert (finding.final.best_epoch, len(finding.final.epochs)) == (epochs, epochs)
    assert finding.final.protocol == dataclasses.replace(PROTOCOL, kept_epoch=epochs)
    (final,) = [check for check in finding.conclusion.checks if check.name == "final"]
    assert (final.facts["items"].value, final.facts["epochs"].value) == (40, epochs)
    assert final.facts["score"].value == finding.final.test["spearman"]


def test_an_epoch_that_is_kept_is_that_of_a_longer_run(model: lp.Model) -> None:
    """The learning rate falls as if all epochs were trained."""
    encoder = load_encoder(resolve(model))
    whole, short = (
        fine_tune(encoder, 1, TASK, protocol=dataclasses.replace(PROTOCOL, kept_epoch=kept))[0][0] for kept in (0, 1)
    )
    assert short.epochs == whole.epochs[:1]
    assert short.best_epoch == 1


def test_it_says_whether_fine_tuning_is_needed(model: lp.Model, finding: Finding) -> None:
    untrained = lp.score(model, TASK, split="test")
    assert finding.untrained == pytest.approx(untrained.scores)
    assert "untrained" in finding.to_pandas()
    assert finding.tested is not None
    for ahead, needed in ((-1.0, True), (1.0, False)):
        scores = (None, finding.tested.mean + ahead, *finding.untrained[2:])
        scored = dataclasses.replace(finding, untrained=tuple(s and min(s, scores[1] or s) for s in scores))
        (check,) = [check for check in scored.conclusion.checks if check.name == "fine-tuning"]
        assert check.passed is needed


def test_its_export_says_what_it_learnt_from_and_why_it_has_this_layer(finding: Finding, tmp_path: Path) -> None:
    export_model(finding, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "40 examples to train on, those for training and those for validation together, for " in card
    assert "as many as validation chose in the search; 16 others to score" in card
    assert "validation Spearman" not in card
    assert "## Why this layer" in card
    assert f" {finding.untrained[finding.best_layer]:.2f} |" in card


def test_a_threshold_is_not_fitted_to_what_was_learnt(model: lp.Model, tmp_path: Path) -> None:
    task = toy_task_of("paraphrase", train=24, validation=16, test=16)
    finding = lp.find(model, task, final=True, **HOW)  # type: ignore[arg-type]
    assert finding.final is not None
    runs = [run for run in finding.fine_tuned if run.layer == finding.best_layer]
    shares = [np.mean(outputs_in(run.directory).of(run.layer, "validation") >= run.threshold) for run in runs]
    share = finding.final.protocol.positive_share
    assert share == pytest.approx(statistics.median(shares))
    learnt = outputs_in(finding.final.directory).of(finding.best_layer, "validation")
    assert len(learnt) == 40
    assert finding.final.threshold == pytest.approx(np.quantile(learnt, 1 - share))
    outputs, gold = outputs_in(finding.final.directory).of(finding.best_layer), task.test.gold
    scores = decision_scores(outputs, gold, finding.final.threshold)
    assert finding.final.test == pytest.approx({name: 100 * score for name, score in scores.items()})
    export_model(finding, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        f"The threshold of its outputs, {finding.final.threshold:.4f}, is such that {100 * share:.1f} % of the examples"
        in card
    )


def test_plans_say_what_runs_learn_from(model: lp.Model, finding: Finding) -> None:
    assert finding.final is not None
    assert finding.final.layer == finding.best_layer
    plan = plan_find([model], TASK, goes_on=False, final=True, **HOW)
    assert plan is not None
    trained = {
        json.loads(path.read_text())["pairs"][0] for path in Path(model.cache_dir or "").rglob("layerprobe.json")
    }
    assert plan.numbers["n_examples"][0] == 20
    assert {40} <= trained <= {20, 40}
    assert "on all 40 training and validation examples" in plan.details[-1]
