"""The probe of token states: that of scikit-learn on states from memory, from the store, and in batches."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from layerprobe.encoders.batching import Batch, collate
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, StoreError
from layerprobe.extraction.embed import kept_token_states, token_states
from layerprobe.kinds.tokens import loss as words
from layerprobe.kinds.tokens.loss import score_words, tokenize_words
from layerprobe.scoring.probes import logistic_probe, logistic_weights
from layerprobe.tasks.evaluation import evaluate_outputs
from tests.models import given, save_tiny, tiny_tokenizer
from tests.mps import on_mps
from tests.toy_task import toy_task_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("bert", tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize(("name", "side"), [("bert", "right"), ("llama", "left")])
def test_states_are_those_of_each_text_alone(tmp_path: Path, name: str, side: str) -> None:
    encoder = load_encoder(str(save_tiny(name, tmp_path, tokenizer=tiny_tokenizer(padding_side=side))), device="cpu")
    tokens = encoder.tokenize(["a b c", "the model", "a", "b c d e f g h"])
    seen = {}
    for rows, states in token_states(encoder, tokens, batch_tokens=20):
        seen.update({row: states[:, i, : tokens.length(row)] for i, row in enumerate(rows)})
    assert sorted(seen) == [0, 1, 2, 3]
    for row, states in seen.items():
        alone = [each[0].detach().numpy() for each in encoder.layer_states(collate(tokens, [row]))]
        np.testing.assert_allclose(states, np.stack(alone), rtol=1e-4, atol=1e-4)
    texts, places = np.array([3, 0, 3, 1]), np.array([2, 1, 0, 4])
    with kept_token_states(encoder, tokens, texts, places, batch_tokens=20) as kept:
        expected = np.stack([seen[row][:, place] for row, place in zip(texts, places, strict=True)], axis=1)
        np.testing.assert_array_equal(kept, expected)
        file = Path(kept.filename)  # type: ignore[attr-defined]
        assert file.exists()
    assert not file.exists()


def test_halves_of_a_batch_leave_the_device_before_they_are_joined(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(model), device="cpu")
    states, joined, cat = Encoder.layer_states, list[type](), torch.cat

    def layer_states(self: Encoder, batch: Batch) -> Iterator[torch.Tensor]:
        if len(batch["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return map(on_mps, states(self, batch))

    monkeypatch.setattr(Encoder, "layer_states", layer_states)
    monkeypatch.setattr(torch, "cat", lambda parts, dim: joined.extend(map(type, parts)) or cat(parts, dim))
    list(token_states(encoder, encoder.tokenize(["a b c", "the model"])))
    assert joined == [torch.Tensor, torch.Tensor]


def test_a_full_disk_is_seen_before_states_are_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a map of more than fits ends the process without a word."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    encoder = load_encoder(str(model), device="cpu")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with (
        pytest.raises(StoreError, match=r"cannot store token states .*No space left on device.*: free space, or name"),
        kept_token_states(encoder, encoder.tokenize(["a b c"]), np.array([0]), np.array([1])),
    ):
        pass


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_are_those_of_the_probe(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    train, others = (rng.normal(size=(n, 4)).astype(np.float32) * [1, 9, 1, 0] + 3 for n in (80, 20))
    targets = rng.integers(0, n_classes, 80)
    weights, bias = logistic_weights(train, targets * 2, 2 * n_classes)  # every second class is never seen
    logits = (others @ weights + bias).astype(np.float64)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares[:, ::2], logistic_probe(train, targets, others), rtol=1e-3, atol=1e-4)
    assert (shares[:, 1::2] == 0).all()
    assert logistic_weights(train, targets * 0 + 1, 3)[1].argmax() == 1


@pytest.mark.parametrize("kind", ["entities", "tags"])
def test_scores_are_those_of_logistic_regression_on_states(model: Path, tmp_path: Path, kind: str) -> None:
    task, options = toy_task_of(kind), Model(device="cpu", cache_dir=tmp_path)
    checkpoint, encoder = resolve(str(model)), load_encoder(str(model), device="cpu")
    scores = score_words(given(checkpoint, options), task, split="test")
    assert (scores.method, scores.primary, len(scores.scores)) == ("probe", task.primary, 4)

    def states(split: object) -> np.ndarray:
        found = tokenize_words(encoder, split.words)  # type: ignore[attr-defined]
        with kept_token_states(encoder, found.texts, found.sentence, found.first) as kept:
            return np.array(kept[2])

    train, test = states(task.train), states(task.test)
    mean, spread = train.mean(axis=0), train.std(axis=0)
    peer = LogisticRegression(C=10 / 16, max_iter=1000).fit((train - mean) / spread, task.train.word_tags)
    expected = evaluate_outputs(kind, peer.decision_function((test - mean) / spread), task.test.gold)
    assert scores.metrics["accuracy"][2] == pytest.approx(expected.metrics["accuracy"], abs=1)


def test_they_are_kept_and_many_words_are_sampled(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task, options = toy_task_of("tags"), Model(device="cpu", cache_dir=tmp_path)
    checkpoint = resolve(str(model))
    monkeypatch.setattr(words, "WORDS", 50)
    with caplog.at_level(logging.WARNING):
        first = score_words(given(checkpoint, options), task, split="validation")
    assert f"of {task.train.n_outputs} training words, a random choice of sentences" in caplog.text
    monkeypatch.setattr(words, "load", None)
    assert score_words(given(checkpoint, options), task, split="validation") == first


def test_prompts_are_refused(model: Path, tmp_path: Path) -> None:
    checkpoint = resolve(str(model))
    options = Model(cache_dir=tmp_path, prompt="query: ")
    with pytest.raises(DataError, match="expected no prompt before sentences whose words have tags"):
        score_words(given(checkpoint, options), toy_task_of("tags"), split="test")
