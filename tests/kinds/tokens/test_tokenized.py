"""The first token of every word: that of transformers' own recipe, for tokenizers of every sort."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram
from transformers import BertJapaneseTokenizer, PreTrainedTokenizerFast

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import DataError
from layerprobe.kinds.tokens.loss import NO_TOKEN, tokenize_words
from tests.models import save_tiny, tiny_tokenizer

SENTENCES = [
    ["the", "quick", "brown", "fox,", "and", "all"],
    ["don't", "é", "\u200b", "word", "\u00ad", "x"],
    ["a"],
    [":-)", "#tag", "U.S.", "layers", "of", "a", "model"],
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(str(save_tiny("bert", tmp_path_factory.mktemp("bert"))), device="cpu")


def byte_level(*, prefix: bool) -> Any:
    """As GPT-2's and RoBERTa's."""
    backend = Tokenizer(BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([" ".join(words) for words in SENTENCES] * 3, trainer)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    backend.decoder = decoders.ByteLevel()
    return named(backend)


def sentence_piece() -> Any:
    """As XLM-R's."""
    letters = sorted({letter for words in SENTENCES for word in words for letter in word} - {"\u200b", "\u00ad"})
    pieces = [(token, 0.0) for token in SPECIAL] + [("▁", -3.0), ("▁the", -4.0), ("▁a", -4.0), ("er", -4.5)]
    backend = Tokenizer(Unigram([*pieces, *((letter, -6.0) for letter in letters)], unk_id=1))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return named(backend)


def named(backend: Any) -> Any:
    names = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=64, **dict(zip(names, SPECIAL, strict=True))
    )


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
