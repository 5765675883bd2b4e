"""Tokenizers for small encoders: a word each for the synthetic language, WordPiece for texts. Knows no models."""

import json
from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from layerprobe.embedded.language import Language
from layerprobe.files.serialisation import digest

_, UNK, CLS, SEP, _ = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NORMALIZER = normalizers.BertNormalizer(lowercase=True)
# Letters beyond the most frequent ones are unknown: texts from the web have thousands that occur once.
MOST_LETTERS = 1000
# Texts that are looked at together.
CHUNK = 10_000


def word_tokenizer(language: Language, *, max_length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a word of `language`."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *language.vocabulary])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finished(tokenizer, max_length=max_length)


def train_tokenizer(texts: Sequence[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer, lower case as BERT's, trained on `texts`; they alone decide its content.

    The trainer of `tokenizers` 0.23 numbers the pieces of one letter (##a) in the order of a hash map and settles ties
    by those numbers, so the same texts give another vocabulary in every process (its issue 1794). Here a first pass
    finds those pieces, and the second is given them in alphabetical order.

    `vocab_size` is of words at most, with special tokens and letters; few texts give fewer, and many letters more.
    """
    letters = _letters(texts)
    pieces = [word for word in _trained(texts, letters, SPECIAL_TOKENS, vocab_size=0) if word.startswith("##")]
    vocabulary = _trained(texts, letters, (*SPECIAL_TOKENS, *sorted(pieces)), vocab_size=vocab_size)
    # a tokenizer of its own: to the one that was trained the pieces are special tokens
    return _finished(_word_piece(vocabulary), max_length=max_length)


def _letters(texts: Sequence[str]) -> list[str]:
    """Return the most frequent letters of lower-case texts."""
    counts: Counter[str] = Counter()
    for start in range(0, len(texts), CHUNK):
        counts.update(NORMALIZER.normalize_str(" ".join(texts[start : start + CHUNK])))
    ordered = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return [letter for letter in ordered if not letter.isspace()][:MOST_LETTERS]


def _trained(texts: Sequence[str], letters: Sequence[str], first: Sequence[str], *, vocab_size: int) -> dict[str, int]:
    """Return the words that training finds with their numbers, those of `first` before all others."""
    tokenizer = _word_piece({})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(first),
        initial_alphabet=list(letters),
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def _word_piece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK))
    tokenizer.normalizer = NORMALIZER
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def content_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a sha256 of all that decides which tokens a text has."""
    return digest(json.loads(tokenizer.backend_tokenizer.to_str()))


def _finished(tokenizer: Tokenizer, *, max_length: int) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
        model_input_names=["input_ids", "attention_mask"],
    )
