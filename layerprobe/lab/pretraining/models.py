"""A protocol and a seed -> fresh models under their objective, and their tokenizers. Knows no training.

Every encoder is an ELECTRA model whose embeddings are as wide as its layers: BERT without a pooler. The class is the
same for all objectives, so nothing but the objective differs. Tokenizers have a word each of the synthetic language,
and WordPiece of texts.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel, PreTrainedTokenizerFast

from layerprobe.embedded.language import Language
from layerprobe.encoders.loading import quiet_transformers
from layerprobe.files.serialisation import digest
from layerprobe.lab.pretraining.values import OBJECTIVES, EncoderSize, PretrainingProtocol
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import drawing
from layerprobe.training.masking import MaskedLanguageModel, Masking, Objective

GENERATOR = "generator"


def build_encoder(protocol: PretrainingProtocol, *, vocab_size: int, pad_id: int, seed: int) -> ElectraModel:
    """Return a fresh encoder; its weights depend on size, vocabulary and seed alone, on no objective."""
    config = _config(protocol.size, protocol, vocab_size=vocab_size, pad_id=pad_id)
    with drawing(seed), MAKING_MODELS:
        return ElectraModel(config)


def build_objective(encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking, *, seed: int) -> Objective:
    """Return the objective of the protocol with `encoder` as its model; heads and generator are fresh."""
    # not the seed itself: a generator would begin with the encoder's numbers. Torch reads 32 bits of a seed.
    with drawing(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])), MAKING_MODELS:
        return OBJECTIVES[protocol.objective].build(encoder, protocol, masking)


def masking_of(protocol: PretrainingProtocol, tokenizer: Any) -> Masking:
    """Return which tokens are selected: the same ones for every objective.

    As in the code of BERT and ELECTRA, only [CLS], [SEP] and padding never are, and a [MASK] that a text has, as in
    ELECTRA's. An unknown word is a word: [UNK] is selected like any other.
    """
    special_ids = [number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]
    return Masking.of(protocol, tokenizer, vocab_size=len(tokenizer), special_ids=special_ids)


def save_models(objective: Objective | None, encoder: ElectraModel, tokenizer: Any, folder: Path) -> None:
    """Write the encoder under its head to a folder that is there, and a generator to `generator/` within it."""
    with quiet_transformers():
        model: Any = encoder if objective is None else objective.model
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        generator: Any = getattr(objective, "generator", None)
        if generator is not None:
            generator.save_pretrained(folder / GENERATOR)
            tokenizer.save_pretrained(folder / GENERATOR)


def count(module: nn.Module) -> int:
    """Return the parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _config(size: EncoderSize, protocol: PretrainingProtocol, *, vocab_size: int, pad_id: int) -> ElectraConfig:
    return ElectraConfig(
        vocab_size=vocab_size,
        embedding_size=protocol.size.hidden_size,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.n_blocks,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate_size,
        max_position_embeddings=protocol.max_length,
        hidden_dropout_prob=protocol.dropout,
        attention_probs_dropout_prob=protocol.dropout,
        pad_token_id=pad_id,
    )


def generator_config(encoder: ElectraModel, protocol: PretrainingProtocol) -> ElectraConfig:
    """Return the shape of a generator for an encoder."""
    config: Any = encoder.config
    size = protocol.size.scaled(protocol.generator_size)
    return _config(size, protocol, vocab_size=config.vocab_size, pad_id=config.pad_token_id)


def build_generator(encoder: ElectraModel, protocol: PretrainingProtocol) -> MaskedLanguageModel:
    """Return a fresh generator for an encoder."""
    return MaskedLanguageModel(model=ElectraForMaskedLM(generator_config(encoder, protocol)), fresh=())


def with_token_head(encoder: ElectraModel) -> MaskedLanguageModel:
    """Return the encoder under a fresh head for masked language modelling, tied to its embeddings."""
    model: Any = ElectraForMaskedLM(encoder.config)
    model.electra = encoder
    model.tie_weights()
    return MaskedLanguageModel(model=model, fresh=())


def with_detection_head(encoder: ElectraModel) -> Any:
    """Return the encoder under a fresh head with one logit a token."""
    model: Any = ElectraForPreTraining(encoder.config)
    model.electra = encoder
    return model


# ---- tokenizers -------------------------------------------------------------------------------------------

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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
        model_input_names=["input_ids", "attention_mask"],
    )
