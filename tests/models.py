"""Tiny checkpoints of many architectures, built from a configuration on the spot and saved with a tokenizer."""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.model import Model

N_BLOCKS, HIDDEN = 3, 16
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz.,"
VOCABULARY = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS))
TEXTS = (
    "a",
    "layers of a model",
    "it is short.",
    "the quick brown fox, and all of the others.",
    "layers of a model",
    "a b c d e f g h",
)

# What most architectures call the same, whatever their configuration files call it.
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
V3 = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
MODERNBERT = {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}
T5 = {
    "vocab_size": len(VOCABULARY),
    "d_model": HIDDEN,
    "num_layers": N_BLOCKS,
    "num_heads": 2,
    "d_kv": 8,
    "d_ff": 24,
    "pad_token_id": 0,
}
Kind = tuple[str, dict[str, Any]]
# name -> Hugging Face's model type and its configuration
POST_NORM: dict[str, Kind] = {
    "bert": ("bert", SIZES),
    "electra": ("electra", {**SIZES, "embedding_size": HIDDEN}),
    "electra-projected": ("electra", {**SIZES, "embedding_size": 12}),
    "roberta": ("roberta", SIZES),
    "distilbert": ("distilbert", {**SIZES, "hidden_dim": 24}),
    "mpnet": ("mpnet", SIZES),
    "deberta-v2": ("deberta-v2", SIZES),
    "deberta-v3": ("deberta-v2", {**SIZES, **V3}),
    "deberta-v2-conv": ("deberta-v2", {**SIZES, **V3, "conv_kernel_size": 3}),
    "albert": ("albert", {**SIZES, "embedding_size": 12}),
    "xlm-roberta": ("xlm-roberta", SIZES),
    "xlm": ("xlm", SIZES),
    "nomic-bert": ("nomic_bert", {**SIZES, "head_dim": 8}),
}
PRE_NORM: dict[str, Kind] = {
    "modernbert": ("modernbert", {**SIZES, **MODERNBERT}),
    "eurobert": ("eurobert", {**SIZES, **ROTARY, "mask_token_id": 4}),
    "gpt2": ("gpt2", SIZES),
    "llama": ("llama", {**SIZES, **ROTARY}),
    "qwen3": ("qwen3", {**SIZES, **ROTARY}),
    "roberta-prelayernorm": ("roberta-prelayernorm", SIZES),
    "t5": ("t5", T5),
}
MIXES_PADDING: dict[str, Kind] = {
    "fnet": ("fnet", SIZES),
    "convbert": ("convbert", {**SIZES, "embedding_size": HIDDEN, "conv_kernel_size": 3, "head_ratio": 1}),
}
ARCHITECTURES = {**POST_NORM, **PRE_NORM, **MIXES_PADDING}


def tiny_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of single letters, as BERT's: `ab c` is [CLS] a ##b c [SEP]."""
    backend = Tokenizer(WordPiece({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings: dict[str, Any] = {
        **dict(zip(names, SPECIAL, strict=True)),
        "model_max_length": 64,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **options,
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def tiny_config(name: str, **changes: Any) -> PreTrainedConfig:
    """The configuration of one of `ARCHITECTURES`."""
    kind, settings = ARCHITECTURES[name]
    return AutoConfig.for_model(kind, **{**settings, **changes})


def tiny_model(name: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """One of `ARCHITECTURES` with weights so large that every block, bias and norm shows."""
    config = tiny_config(name, **changes)
    factory: Any = AutoModelForTextEncoding if config.model_type == "t5" else AutoModel
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = factory.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    n_parameters = sum(p.numel() for p in model.parameters())
    assert n_parameters < 30_000, f"expected a tiny model, {name} has {n_parameters} parameters"
    return model


def save_tiny(name: str, folder: Path, *, tokenizer: Any = None, **changes: Any) -> Path:
    """Write a tiny model with its tokenizer to `folder` and return it; the files of each are made once."""
    folder.mkdir(parents=True, exist_ok=True)
    files = dict(_files_of(f"{name} {sorted(changes.items())}", lambda: tiny_model(name, **changes)))
    if tokenizer is None:
        files |= _files_of("tokenizer", tiny_tokenizer)
    else:
        tokenizer.save_pretrained(folder)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


_FILES: dict[str, dict[str, bytes]] = {}


def _files_of(key: str, make: Callable[[], Any]) -> dict[str, bytes]:
    if key not in _FILES:
        with tempfile.TemporaryDirectory() as folder:
            make().save_pretrained(folder)
            _FILES[key] = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    return _FILES[key]


def given(model: Any, options: Model) -> Model | Resolved:
    """Return a model that is loaded and run by options."""
    if isinstance(model, Resolved):
        return dataclasses.replace(model, asked=model.asked.like(options))
    return (model if isinstance(model, Model) else Model(model)).like(options)


def store_as(folder: Path, dtype: str, *, norms: str | None = None) -> str:
    """Store the weights of a model in a dtype, which its configuration then names, and those of norms in another."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    dtypes = {name: getattr(torch, norms if norms and "Norm" in name else dtype) for name in weights}
    save_file({name: weight.to(dtypes[name]) for name, weight in weights.items()}, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    return str(folder)


def stored_bytes(folder: Path) -> int:
    """Return the bytes of the weights in the files of a folder, without the headers of these."""
    contents = [file.read_bytes() for file in folder.rglob("*.safetensors")]
    return sum(len(content) - 8 - int.from_bytes(content[:8], "little") for content in contents)
