"""Tags of words: seqeval and scikit-learn as other formulas, first tokens, the loss and the probe of token states."""

import dataclasses
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seqeval import metrics as seqeval
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from tokenizers import pre_tokenizers, processors
from transformers import BertForTokenClassification, BertJapaneseTokenizer

from layerprobe.encoders.batching import Batch, collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, StoreError
from layerprobe.extraction.embed import kept_token_states, token_states
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.tmft import FineTuner, read_layers
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds import tokens_loss
from layerprobe.kinds.tokens import TaggedSentences, entity_influences, entity_scores, tag_influences, tag_scores
from layerprobe.kinds.tokens_loss import NO_TOKEN, WordClasses, score_words, tokenize_words
from layerprobe.scoring.probes import logistic_probe, logistic_weights
from layerprobe.tasks.evaluation import evaluate_outputs
from tests.encoders.vocabularies import byte_bpe, unigram, with_names
from tests.finetuning.test_tmft import without_dropout
from tests.models import given, save_tiny, tiny_tokenizer
from tests.mps import on_mps
from tests.toy_task import toy_sentences, toy_task_of

LABELS = ("O", "B-x", "B-y", "I-x", "I-y")


def tagged(tags: Sequence[np.ndarray]) -> TaggedSentences:
    numbers = tuple(tuple(part.tolist()) for part in tags)
    return TaggedSentences(words=tuple(("word",) * len(part) for part in tags), tags=numbers, labels=LABELS)


def drawn(n: int = 60, seed: int = 0) -> tuple[np.ndarray, TaggedSentences]:
    """Outputs that are right for about two words of three, of sentences of one to eight words."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum([0, *rng.integers(1, 9, n)])
    tags = rng.choice(5, size=ends[-1], p=(0.5, 0.15, 0.1, 0.15, 0.1))
    outputs = rng.normal(size=(ends[-1], 5))
    outputs[np.arange(ends[-1]), tags] += 1.5
    return outputs, tagged(np.split(tags, ends[1:-1]))


def sentences(tags: np.ndarray, gold: TaggedSentences) -> list[list[str]]:
    return [[LABELS[tag] for tag in part] for part in np.split(tags, gold.ends[1:-1])]


@pytest.mark.parametrize("seed", range(4))
def test_entities_are_those_of_seqeval(seed: int) -> None:
    outputs, gold = drawn(seed=seed)
    true, predicted = sentences(gold.word_tags, gold), sentences(outputs.argmax(axis=1), gold)
    assert any(tags[0].startswith("I-") for tags in predicted)  # which seqeval counts too
    assert entity_scores(outputs, gold) == pytest.approx(
        {
            "entity f1": seqeval.f1_score(true, predicted),
            "entity precision": seqeval.precision_score(true, predicted),
            "entity recall": seqeval.recall_score(true, predicted),
            "accuracy": seqeval.accuracy_score(true, predicted),
        }
    )


def test_tags_are_those_of_scikit_learn() -> None:
    outputs, gold = drawn()
    said = outputs.argmax(axis=1)
    true = gold.word_tags
    expected = {"accuracy": accuracy_score(true, said), "macro f1": f1_score(true, said, average="macro")}
    assert tag_scores(outputs, gold) == pytest.approx(expected)


def without(outputs: np.ndarray, gold: TaggedSentences, sentence: int) -> tuple[np.ndarray, TaggedSentences]:
    kept = np.repeat(np.arange(len(gold)), np.diff(gold.ends)) != sentence
    return outputs[kept], gold.take([row for row in range(len(gold)) if row != sentence])


@pytest.mark.parametrize(("score", "influences"), [(entity_scores, entity_influences), (tag_scores, tag_influences)])
def test_influences_are_what_leaving_a_sentence_out_changes(score: object, influences: object) -> None:
    """A ratio A / B moves by -(a - R b) / (B - b): the influence, but for what the sentence has in the sum below."""
    outputs, gold = drawn(n=400)
    scores, found = score(outputs, gold), influences(outputs, gold)  # type: ignore[operator]
    assert found.keys() == scores.keys()
    for name, values in found.items():
        assert values.shape == (400,)
        assert values.sum() == pytest.approx(0, abs=1e-9)
        left = [score(*without(outputs, gold, i))[name] for i in range(40)]  # type: ignore[operator]
        np.testing.assert_allclose(values[:40], 399 * (scores[name] - np.array(left)), rtol=0.04, atol=0.01)


def test_nothing_to_find_scores_0_and_has_no_influence() -> None:
    gold = tagged([np.zeros(2, dtype=int), np.zeros(3, dtype=int)])
    assert entity_scores(np.eye(5)[gold.word_tags], gold)["entity f1"] == 0
    assert entity_influences(np.eye(5)[gold.word_tags], gold)["entity f1"].tolist() == [0, 0]


SENTENCES = [
    ["the", "quick", "brown", "fox,", "and", "all"],
    ["don't", "é", "\u200b", "word", "\u00ad", "x"],
    ["a"],
    [":-)", "#tag", "U.S.", "layers", "of", "a", "model"],
]


def byte_level(*, prefix: bool) -> Any:
    """As GPT-2's and RoBERTa's."""
    backend = byte_bpe()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return with_names(backend)


@cache
def sentence_piece() -> Any:
    """As XLM-R's; trained anew, equally likely pieces have other numbers."""
    return with_names(unigram())


def recipe(tokenizer: Any, max_length: int) -> tuple[list[list[int]], list[int]]:
    """transformers/examples/pytorch/token-classification: ids, and the label of the first token of every word."""
    encoded = tokenizer(SENTENCES, is_split_into_words=True, truncation=True, max_length=max_length)
    first: list[int] = []
    for i, words in enumerate(SENTENCES):
        places, previous = [NO_TOKEN] * len(words), None
        for place, word in enumerate(encoded.word_ids(i)):
            if word is not None and word != previous:
                places[word] = place
            previous = word
        first += places
    return encoded["input_ids"], first


TOKENIZERS = {
    "wordpiece": (tiny_tokenizer, tiny_tokenizer),
    "byte-level": (lambda: byte_level(prefix=False), lambda: byte_level(prefix=True)),
    "byte-level, prefixed": (lambda: byte_level(prefix=True), lambda: byte_level(prefix=True)),
    "sentencepiece": (sentence_piece, sentence_piece),
}


@pytest.mark.parametrize("max_length", [64, 6])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_tokenised_as_by_transformers(
    encoder: Encoder, name: str, max_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, peer = (make() for make in TOKENIZERS[name])
    monkeypatch.setattr(encoder.model.config, "vocab_size", 1000)
    found = tokenize_words(dataclasses.replace(encoder, tokenizer=ours), SENTENCES, max_length=max_length)
    ids, first = recipe(peer, max_length)
    assert found.texts.ids.tolist() == [token for tokens in ids for token in tokens]
    assert np.diff(found.texts.ends).tolist() == list(map(len, ids))
    assert found.first.tolist() == first
    assert found.ends.tolist() == [0, 6, 12, 13, 20]
    assert found.sentence.tolist() == [0] * 6 + [1] * 6 + [2] + [3] * 7
    _, whole = recipe(peer, 500)
    assert found.n_cut == sum(a == NO_TOKEN != b for a, b in zip(first, whole, strict=True))
    assert (found.n_cut > 0) == (max_length == 6)


def test_a_slow_tokenizer_has_the_same_words(encoder: Encoder, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    words = tiny_tokenizer().get_vocab()
    vocabulary.write_text("\n".join(sorted(words, key=words.__getitem__)))
    slow = BertJapaneseTokenizer(str(vocabulary), word_tokenizer_type="basic", subword_tokenizer_type="wordpiece")
    assert not slow.is_fast
    lower = [[word.lower().replace("é", "e") for word in words] for words in SENTENCES]
    for max_length in (64, 6):
        found = tokenize_words(dataclasses.replace(encoder, tokenizer=slow), lower, max_length=max_length)
        fast = tokenize_words(encoder, lower, max_length=max_length)
        assert found.texts.ids.tolist() == fast.texts.ids.tolist()
        assert found.first.tolist() == fast.first.tolist()
        assert found.n_cut == fast.n_cut


def test_lengths_without_room_and_sentences_without_tokens_are_refused(encoder: Encoder) -> None:
    with pytest.raises(DataError, match="expected a maximum length of more than the 2 special tokens, got 2"):
        tokenize_words(encoder, SENTENCES, max_length=2)
    bare = byte_level(prefix=False)
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(DataError, match="the tokenizer finds no token in the text '': remove it"):
        tokenize_words(dataclasses.replace(encoder, tokenizer=bare), [[]])


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
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(folder), device="cpu")
    states, joined, cat = Encoder.layer_states, list[type](), torch.cat

    def layer_states(self: Encoder, batch: Batch) -> Iterator[torch.Tensor]:
        if len(batch["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return map(on_mps, states(self, batch))

    monkeypatch.setattr(Encoder, "layer_states", layer_states)
    monkeypatch.setattr(torch, "cat", lambda parts, dim: joined.extend(map(type, parts)) or cat(parts, dim))
    list(token_states(encoder, encoder.tokenize(["a b c", "the model"])))
    assert joined == [torch.Tensor, torch.Tensor]


def test_a_full_disk_is_seen_before_states_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a map of more than fits ends the process without a word."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    encoder = load_encoder(str(folder), device="cpu")
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
def test_scores_are_those_of_logistic_regression_on_states(folder: Path, tmp_path: Path, kind: str) -> None:
    task, options = toy_task_of(kind), Model(device="cpu", cache_dir=tmp_path)
    checkpoint, encoder = resolve(str(folder)), load_encoder(str(folder), device="cpu")
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
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task, options = toy_task_of("tags"), Model(device="cpu", cache_dir=tmp_path)
    checkpoint = resolve(str(folder))
    monkeypatch.setattr(tokens_loss, "WORDS", 50)
    with caplog.at_level(logging.WARNING):
        first = score_words(given(checkpoint, options), task, split="validation")
    assert f"of {task.train.n_outputs} training words, a random choice of sentences" in caplog.text
    monkeypatch.setattr(tokens_loss, "load", None)
    assert score_words(given(checkpoint, options), task, split="validation") == first
