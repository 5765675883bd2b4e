"""The STS benchmark in four languages: read, tokenised without loss, and learnt from."""

import csv
import dataclasses
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from layerprobe.encoders.model import Model
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.scoring.score import score_split
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Examples, Task
from tests.models import SPECIAL, given, save_tiny

FILES = {"en": "en-train.csv", "de": "de-train.csv", "es": "es-train.csv", "ko": "ko-train.tsv"}
WORDS = 600


def trained_tokenizer(texts: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """Byte-level pairs learnt from texts: every text can be had back from its tokens."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=64, **dict(zip(names, SPECIAL, strict=True))
    )


def in_file(file: Path) -> list[tuple[str, str, float]]:
    """The pairs of a file, read in another way."""
    with file.open(encoding="utf-8", newline="") as lines:
        if file.suffix == ".csv":
            return [(first, second, float(score)) for first, second, score in csv.reader(lines)]
        header, *rows = (line.rstrip("\r\n").split("\t") for line in lines)
        places = [header.index(name) for name in ("sentence1", "sentence2", "score")]
        return [(row[places[0]], row[places[1]], float(row[places[2]])) for row in rows]


def part(examples: Examples, n: int) -> Examples:
    assert examples.second is not None
    return Examples(first=examples.first[:n], second=examples.second[:n], targets=examples.targets[:n])


@pytest.mark.parametrize("language", FILES)
def test_texts_and_scores_are_those_of_the_file(shared_data: Path, language: str) -> None:
    file = shared_data / "stsb" / FILES[language]
    task, expected = load_task(file, keep_overlaps=True), in_file(file)
    assert task.train.second is not None
    odd = {text for pair in expected for text in pair[:2] if any(unicodedata.category(each) == "Cc" for each in text)}
    rows = list(zip(task.train.first, task.train.second, task.train.targets, strict=True))
    assert len(rows) == len(expected) == 5749
    for (first, second, target), (one, other, gold) in zip(rows, expected, strict=True):
        assert target == pytest.approx(gold / 5)
        assert first == one or one in odd
        assert second == other or other in odd
    assert len(odd) < 3


@pytest.mark.slow
@pytest.mark.parametrize("language", FILES)
def test_a_tiny_model_learns_from_it(shared_data: Path, tmp_path: Path, language: str) -> None:
    task: Task = load_task(shared_data / "stsb" / FILES[language])
    task = dataclasses.replace(
        task, train=part(task.train, 512), validation=part(task.validation, 128), test=part(task.test, 128)
    )
    tokenizer = trained_tokenizer(task.train.texts)
    for text in task.test.texts:
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    model = save_tiny("bert", tmp_path / "model", tokenizer=tokenizer, vocab_size=len(tokenizer))
    options = Model(device="cpu", cache_dir=tmp_path / "cache")
    protocol = Protocol(learning_rate=3e-3, epochs=4, batch_size=32)
    (run,) = finetune(given(str(model), options), task, (2,), seeds=(0,), protocol=protocol).runs
    losses = [epoch.train_loss for epoch in run.epochs]
    assert losses[-1] < 0.9 * losses[0]
    untrained, embeddings = score_split(given(str(model), options), task)
    assert embeddings.texts == task.test.texts
    assert run.test["pearson"] > untrained.metrics["pearson"][2]
