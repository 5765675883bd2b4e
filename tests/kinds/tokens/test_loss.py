"""Tasks of words: the loss is that of transformers' own model, and a tiny model learns them at every layer."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.tmft import FineTuner, read_layers
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.tokens.loss import WordClasses
from layerprobe.tasks.evaluation import evaluate_outputs
from tests.finetuning.finished import tuned
from tests.finetuning.test_tmft import numbers, without_dropout
from tests.models import given, save_tiny, tiny_tokenizer
from tests.toy_task import toy_sentences, toy_task_of

LONG = Protocol(learning_rate=1e-2, epochs=10, batch_size=8)


def test_the_loss_of_a_step_is_that_of_transformers(encoder: Encoder, folder: Path) -> None:
    """The mean over the words of all sentences, of the same head on the same states."""
    items = toy_sentences("entities", 12, 0)
    criterion = WordClasses(width=16, n_labels=3)
    prepared = criterion.prepare(encoder, items, max_length=64)
    peer = BertForTokenClassification.from_pretrained(folder, num_labels=3).eval()
    peer.classifier = criterion.head
    labels = torch.full((12, max(prepared.texts.lengths)), -100)
    for i, tags in enumerate(items.tags):
        labels[i, 1 : 1 + len(tags)] = torch.tensor(tags)
    expected = peer(**collate(prepared.texts, range(12)), labels=labels)
    model = TruncatedEncoder(encoder, 3).eval()
    (logits,) = read_layers(encoder, model, prepared.texts, range(12), [criterion.read], "mean")
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-5)
    loss = criterion.example_loss(logits, prepared, np.arange(12))
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 30])
def test_groups_add_up_to_the_gradient_of_the_batch(encoder: Encoder, batch_tokens: int) -> None:
    items, found = toy_sentences("entities", 13, 0), []
    for tokens in (10**6, batch_tokens):
        torch.manual_seed(0)
        criterion = WordClasses(width=16, n_labels=3)
        prepared = criterion.prepare(encoder, items, max_length=64)
        trainer = FineTuner(
            without_dropout(encoder),
            TruncatedEncoder(without_dropout(encoder), 2).train(),
            Protocol(max_grad_norm=1e9),
            steps_per_epoch=2,
            criteria=[criterion],
            batch_tokens=tokens,
        )
        loss = trainer.update(prepared, np.arange(13)[::-1])
        found.append([loss, *(p.grad.to_dense().clone() for p in trainer.trained if p.grad is not None)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["entities", "tags"])
def test_a_tiny_model_learns_words(encoder: Encoder, kind: str) -> None:
    run = tuned(encoder, 2, toy_task_of(kind), protocol=LONG)
    assert run.test[run.primary] > 75
    assert run.test["accuracy"] > 90
    if kind == "tags":
        assert numbers(tuned(encoder, 2, toy_task_of(kind), protocol=LONG)) == numbers(run)


def test_words_that_are_cut_off_count_as_outside(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = toy_task_of("entities")
    protocol = Protocol(learning_rate=1e-2, epochs=4, batch_size=8, max_length=5)
    options = Model(device="cpu", cache_dir=tmp_path)
    with caplog.at_level(logging.WARNING):
        result = finetune(given(str(folder), options), task, [2], seeds=[0], protocol=protocol)
    n = task.train.n_outputs + task.validation.n_outputs + task.test.n_outputs
    n_cut = n - 3 * sum(map(len, (task.train, task.validation, task.test)))
    assert f"{n_cut} of {n} words were cut off at 5 tokens: they get the first tag" in caplog.text.replace(",", "")
    assert 0 < result.runs[0].test["entity recall"] < 80


def test_left_padding_changes_nothing(tmp_path: Path) -> None:
    scores = []
    for side in ("left", "right"):
        save_tiny("llama", tmp_path / side, tokenizer=tiny_tokenizer(padding_side=side))
        encoder = load_encoder(str(tmp_path / side), device="cpu")
        task = toy_task_of("tags")
        torch.manual_seed(0)
        criterion = criterion_of(task, width=16)
        prepared = criterion.prepare(encoder, task.test, max_length=64)
        model = TruncatedEncoder(encoder, 2).eval()
        with torch.no_grad():
            (kept,) = read_layers(encoder, model, prepared.texts, range(32), [criterion.read], "mean")
        outputs = criterion.item_outputs([each.numpy() for each in kept], prepared)
        scores.append(outputs)
        assert evaluate_outputs("tags", outputs, prepared.gold).metrics
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-4)
