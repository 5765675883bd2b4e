"""Tokenizers of every family, trained on a few sentences of three languages on the spot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

ENGLISH = [
    f"The {who} {does} {what} in the {where}."
    for who in ("woman", "child", "old man", "painter")
    for does in ("is watching", "was drawing", "remembers")
    for what in ("a yellow house", "two horses", "the quiet river")
    for where in ("morning", "mountains", "garden of the town")
]
GERMAN = [
    f"{who} {does} {what} am {where}."
    for who in ("Die Frau", "Das Kind", "Der alte Mann", "Der Maler")
    for does in ("betrachtet", "zeichnete", "vergaß")
    for what in ("ein gelbes Haus", "zwei Pferde", "den ruhigen Fluss")
    for where in ("Morgen", "Gebirge", "Stadtgarten")
]
GREEK = [
    f"{who} {does} {what}."
    for who in ("Η γυναίκα", "Το παιδί", "Ο ζωγράφος", "Ο γέρος")
    for does in ("κοιτάζει", "ζωγράφισε", "θυμάται")
    for what in ("το κίτρινο σπίτι", "δύο άλογα", "το ήσυχο ποτάμι", "τα ψηλά βουνά")
]
TEXTS = [*ENGLISH, *GERMAN, *GREEK]
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NAMES = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")


def wordpiece() -> Tokenizer:
    """As BERT's: pieces inside a word begin with ##."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=500, special_tokens=[*SPECIAL], show_progress=False))
    ends = ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-R's and T5's: the likeliest path, and the mask behind all others."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=[*SPECIAL[:-1]], unk_token="<unk>", show_progress=False
    )
    _train(tokenizer, trainer)
    tokenizer.add_special_tokens(["<mask>"])
    return _with_ends(tokenizer)


def byte_bpe() -> Tokenizer:
    """As RoBERTa's, GPT-2's and ModernBERT's: of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _with_ends(_train(tokenizer, trainer))


def word_end_bpe() -> Tokenizer:
    """As CLIP's and XLM's: the last piece of a word ends in </w>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*SPECIAL], end_of_word_suffix="</w>", show_progress=False
    )
    return _with_ends(_train(tokenizer, trainer))


def prefixed_bpe() -> Tokenizer:
    """Pairs are joined, and pieces inside a word begin with ##."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*SPECIAL], continuing_subword_prefix="##", show_progress=False
    )
    return _with_ends(_train(tokenizer, trainer))


def fallback_bpe() -> Tokenizer:
    """As Gemma's and Llama's: of letters, with a token a byte for all others."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    _train(tokenizer, trainers.BpeTrainer(vocab_size=800, special_tokens=tokens, show_progress=False))
    return _with_ends(tokenizer)


FAMILIES: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "wordpiece": (wordpiece, "bert"),
    "unigram": (unigram, "xlm-roberta"),
    "byte_bpe": (byte_bpe, "roberta"),
    "word_end_bpe": (word_end_bpe, "modernbert"),
    "prefixed_bpe": (prefixed_bpe, "mpnet"),
    "fallback_bpe": (fallback_bpe, "t5"),
}
"""By name, with the architecture that reads it here."""


def _train(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _with_ends(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return tokenizer


def with_names(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    names = dict(zip(NAMES, SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)


def save(family: str, folder: Path) -> Path:
    """Write a tiny model of two blocks that reads a family's tokens to a folder, and return it."""
    train, kind = FAMILIES[family]
    tokenizer = with_names(train())
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in NAMES if name not in ("unk_token", "mask_token")}
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "t5":
        sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 24, "decoder_start_token_id": 0}
    # three rows more than there are tokens, as many models have
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer) + 3, intermediate_size=24, max_position_embeddings=80, **sizes, **ids
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
