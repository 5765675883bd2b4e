"""The linear probe of where answers begin and end: one Newton step, and what it scores."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.kinds import answers_loss as untrained
from layerprobe.kinds.answers_loss import answer_probe, newton_step, window_sums, windowed
from layerprobe.scoring.probes import LOGIT_VARIANCE
from layerprobe.scoring.score import score_split, zero_shot
from layerprobe.store.store import Store
from tests.encoders.conftest import checkpoint, loaded  # noqa: F401
from tests.models import given
from tests.mps import on_mps
from tests.toy_questions import toy_question_task, toy_questions

ITEMS = toy_questions(6, 0, impossible=0.4, length=20)


def test_it_is_a_newton_step_on_the_loss(loaded: Callable[[str], Encoder]) -> None:  # noqa: F811
    encoder = loaded("bert")
    windows = windowed(encoder, ITEMS.questions, ITEMS.contexts, max_length=24)
    targets = windows.targets(ITEMS.spans)
    rows = list(range(len(windows.pairs)))[::-1]
    torch.manual_seed(0)
    states = torch.randn(sum(windows.texts.length(row) for row in rows), 3)
    covariance, pull = window_sums(windows, targets, rows, states)

    begins = np.cumsum([0, *(windows.texts.length(row) for row in rows)])

    def loss(weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, begin, end in zip(rows, begins, begins[1:], strict=False):
            logits = states[begin:end].double() @ weights
            options = torch.from_numpy(windows.characters(row)[:, 0] >= 0)
            options[windows.null[row]] = True
            own = logits.masked_fill(~options, -torch.inf)
            total = total + cross_entropy(own[None], torch.tensor([targets[row, 0]]))
        return total

    zero = torch.zeros(3, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(loss, zero).numpy()
    gradient = torch.autograd.functional.jacobian(loss, zero).numpy()
    np.testing.assert_allclose(covariance, hessian, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pull[:, 0], -gradient, rtol=1e-4, atol=1e-4)
    scale = np.sqrt(np.diag(hessian) / len(rows))
    expected = np.linalg.solve(hessian + np.diag(scale**2) * 3 / LOGIT_VARIANCE, -gradient)
    np.testing.assert_allclose(newton_step(covariance, pull, n=len(rows))[:, 0], expected, rtol=1e-3)


def test_it_is_fitted_on_a_device_without_float64(
    loaded: Callable[[str], Encoder],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, options = loaded("bert"), Model()
    windows = windowed(encoder, ITEMS.questions, ITEMS.contexts, max_length=24)

    def spans(encoder: Encoder) -> list[np.ndarray]:
        weights = untrained._fitted(encoder, windows, ITEMS, options)
        return untrained._spans(encoder, windows, weights, options)

    def to(values: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if args[:1] != (mps,):
            return real(values, *args, **options)
        return on_mps(values) if values.is_floating_point() else values

    expected, real, mps = spans(encoder), torch.Tensor.to, torch.device("mps")
    monkeypatch.setattr(torch.Tensor, "to", to)
    np.testing.assert_array_equal(spans(dataclasses.replace(encoder, device=mps)), expected)


def test_a_batch_that_does_not_fit_is_halved(
    loaded: Callable[[str], Encoder],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, states = loaded("bert"), Encoder.layer_states
    windows = windowed(encoder, ITEMS.questions, ITEMS.contexts, max_length=24)
    expected = untrained._fitted(encoder, windows, ITEMS, Model())

    def layer_states(self: Encoder, batch: Batch) -> Iterator[torch.Tensor]:
        if len(batch["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return states(self, batch)

    monkeypatch.setattr(Encoder, "layer_states", layer_states)
    torch.testing.assert_close(untrained._fitted(encoder, windows, ITEMS, Model()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("impossible", [0.0, 0.4])
def test_it_finds_what_is_in_the_tokens(checkpoint: Callable[[str], Path], tmp_path: Path, impossible: float) -> None:  # noqa: F811
    task, options = toy_question_task(n=120, impossible=impossible), Model(device="cpu", cache_dir=tmp_path)
    scores, _ = score_split(given(str(checkpoint("bert")), options), task)
    assert (scores.method, scores.primary) == ("probe", "f1")
    assert scores.scores[0] == pytest.approx(100) if not impossible else scores.scores[0] > 60
    (file,) = (path for path in Store(tmp_path).root.rglob("*.json") if path.parent.name == "answer-probes")
    before = file.stat().st_mtime_ns
    again = answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    assert (again.metrics, again.influences, file.stat().st_mtime_ns) == (scores.metrics, scores.influences, before)


def test_each_precision_has_a_result_of_its_own(
    checkpoint: Callable[[str], Path],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One store may be shared by machines of which `auto` takes bfloat16 on one alone."""
    task, options = toy_question_task(), Model(device="cpu", cache_dir=tmp_path)
    for found in (None, torch.bfloat16):
        monkeypatch.setattr("layerprobe.encoders.device.autocast_dtype", lambda *_, found=found: found)
        answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    assert len([path for path in Store(tmp_path).root.rglob("*.json") if path.parent.name == "answer-probes"]) == 2


def test_a_model_in_16_bits_is_fitted_in_more(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:  # noqa: F811
    options = Model(device="cpu", cache_dir=tmp_path, dtype="bfloat16")
    scores, _ = score_split(given(str(checkpoint("bert")), options), toy_question_task(n=120))
    assert scores.scores[0] == pytest.approx(100)


def test_a_split_without_answers_and_embeddings_alone(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:  # noqa: F811
    task, options = toy_question_task(impossible=1.0), Model(device="cpu", cache_dir=tmp_path)
    with pytest.raises(DataError, match="no answer of the train split is in a window, so no probe can be fitted"):
        answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    with pytest.raises(DataError, match="cannot be scored on embeddings alone"):
        zero_shot(None, task)  # type: ignore[arg-type]
