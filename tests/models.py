"""Tiny checkpoints of many architectures, built from a configuration on the spot and saved with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel, PreTrainedTokenizerFast

N_BLOCKS, HIDDEN = 3, 16
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz.,"
VOCABULARY = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS))
TEXTS = ("a", "layers of a model", "it is short.", "the quick brown fox, and all of the others.", "a b c d e f g h")

# What every architecture calls the same, whatever its configuration calls it.
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": HIDDEN,
    "num_hidden_layers": N_BLOCKS,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
ROTARY = {"num_key_value_heads": 2, "head_dim": 8}
MODERNBERT = {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}
V3 = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
    "max_relative_positions": -1,
}
T5 = {
    "vocab_size": len(VOCABULARY),
    "d_model": HIDDEN,
    "num_layers": N_BLOCKS,
    "num_heads": 2,
    "d_kv": 8,
    "d_ff": 24,
    "pad_token_id": 0,
}

# name -> (model type, what differs from SIZES); the first group hands out what a truncated model outputs
POST_NORM: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "electra": ("electra", {"embedding_size": HIDDEN}),
    "electra-projected": ("electra", {"embedding_size": 12}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {"hidden_dim": 24}),
    "mpnet": ("mpnet", {}),
    "deberta-v2": ("deberta-v2", {}),
    "deberta-v3": ("deberta-v2", V3),
    "deberta-v2-conv": ("deberta-v2", {**V3, "conv_kernel_size": 3}),
    "albert": ("albert", {"embedding_size": 12}),
    "xlm-roberta": ("xlm-roberta", {}),
    "nomic-bert": ("nomic_bert", {"head_dim": 8}),
}
PRE_NORM: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("modernbert", MODERNBERT),
    "eurobert": ("eurobert", ROTARY),
    "gpt2": ("gpt2", {}),
    "llama": ("llama", ROTARY),
    "qwen3": ("qwen3", ROTARY),
    "t5": ("t5", T5),
}
MIXES_PADDING: dict[str, tuple[str, dict[str, Any]]] = {
    "fnet": ("fnet", {}),
    "convbert": ("convbert", {"embedding_size": HIDDEN, "conv_kernel_size": 3, "head_ratio": 1}),
}
ARCHITECTURES = {**POST_NORM, **PRE_NORM, **MIXES_PADDING}


def tiny_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of single letters: [CLS] a ##b [SEP]."""
    backend = Tokenizer(WordPiece({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = {**dict(zip(names, SPECIAL, strict=True)), "model_max_length": 64, **options}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def tiny_model(name: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of `ARCHITECTURES` with weights large enough that every layer does something."""
    kind, differences = ARCHITECTURES[name]
    config = AutoConfig.for_model(kind, **({**SIZES, **differences, **changes} if kind != "t5" else T5 | changes))
    factory: Any = AutoModelForTextEncoding if kind == "t5" else AutoModel
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = factory.from_config(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model
