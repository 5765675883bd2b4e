"""Which runs did not train, by what they hold."""

from types import SimpleNamespace

import numpy as np
import pytest

from layerprobe.embedded import embedded_task
from layerprobe.finetuning import outcomes
from layerprobe.finetuning.outcomes import COMPARED, FailureSign, failure_sign, not_trained
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, Protocol

VARIED = np.linspace(0.0, 1.0, 40)
ALIKE = np.full(40, 0.9) + 1e-6 * VARIED
LEANING = np.stack([VARIED + 5, VARIED], axis=1)
"""All of the first class, each with its own values."""


def run_of(*losses: float, score: float) -> FineTuningRun:
    """A run whose epochs had these train losses."""
    scores = {"spearman": score}
    return FineTuningRun(
        layer=3,
        seed=0,
        protocol=Protocol(epochs=max(len(losses), 1)),
        parameters=1,
        primary="spearman",
        best_epoch=1,
        validation=scores,
        test=scores,
        epochs=tuple(EpochMetrics(epoch=i, train_loss=loss, validation=scores) for i, loss in enumerate(losses, 1)),
        seconds=0.0,
        peak_memory=None,
    )


@pytest.mark.parametrize(
    ("losses", "score", "outputs", "floor", "untrained", "sign"),
    [
        pytest.param((0.36, 0.377, 0.377), 11.7, VARIED, 0.0, None, "loss", id="the loss rose"),
        pytest.param((0.693, 0.693), 50.0, VARIED, 50.0, None, "loss", id="no fall, at the floor"),
        pytest.param((0.377,), 11.0, ALIKE, 0.0, None, "one output", id="one epoch, one cosine"),
        pytest.param((0.7, 0.69), 90.0, np.ones((40, 2)), 90.0, None, "one output", id="one value of each class"),
        pytest.param((0.25,), 9.0, VARIED, 0.0, 54.0, "untrained", id="one epoch, far below the untrained model"),
        pytest.param((0.75, 0.7), 55.0, VARIED, 50.0, 75.0, "untrained", id="above a floor that is not 0"),
        pytest.param((0.245, 0.2437, 0.243), 58.6, VARIED, 0.0, 58.7, None, id="layer 0"),
        pytest.param((0.245, 0.245, 0.245), 58.7, VARIED, 0.0, 58.7, None, id="a tiny learning rate"),
        pytest.param((1.3, 0.7), 72.0, 3e-3 * LEANING, 72.0, None, "one output", id="nearly one value, at the floor"),
        pytest.param((0.2, 0.19), 30.0, 3e-3 * VARIED, 0.0, None, None, id="cosines close together that tell"),
        pytest.param((0.6866, 0.6855), 45.0, VARIED, 53.0, None, None, id="slow, at the floor"),
        pytest.param((0.71, 0.69, 0.66), 50.0, VARIED, 50.0, None, None, id="random labels"),
        pytest.param((0.021, 0.0207), 84.1, VARIED, 0.0, 83.5, None, id="already fine-tuned"),
        pytest.param((0.33, 0.29), 90.0, LEANING, 90.0, None, None, id="the majority, honestly"),
        pytest.param((), 52.0, VARIED, 0.0, 54.0, None, id="no losses on record"),
        pytest.param((0.10,), 52.0, VARIED, 0.0, None, None, id="one epoch"),
        pytest.param((0.10, 0.08), 4.0, VARIED, 0.0, 9.0, None, id="an untrained model that says nothing"),
        pytest.param((0.0, 0.0), 100.0, VARIED, 0.0, None, None, id="nothing left to learn"),
    ],
)
def test_a_run_failed_where_its_training_shows_it(
    losses: tuple[float, ...],
    score: float,
    outputs: np.ndarray,
    floor: float,
    untrained: float | None,
    sign: FailureSign | None,
) -> None:
    run = run_of(*losses, score=score)
    assert failure_sign(run, outputs, floor=floor, untrained=untrained) == sign


@pytest.mark.parametrize("n_items", [COMPARED - 1, COMPARED])
def test_a_score_before_training_counts_where_there_are_items_enough(
    n_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = SimpleNamespace(of=lambda *_: None)
    monkeypatch.setattr(outcomes, "outputs_in", lambda _: outputs)
    why = not_trained(run_of(0.3, score=2.0), embedded_task(train=8, validation=n_items, test=8), untrained=54.0)
    assert why == ("it scores 2.0 after training, 54.0 before" if n_items == COMPARED else "")
