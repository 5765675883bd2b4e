# ruff: noqa: E501  # a line an attempt
"""Tries what people do with models in memory, tokenizers, numbers, odd files and saved results.

Each attempt is made in a process of its own, those of loaded models in an empty store and in a used one. It survives with the right
numbers, as the model itself, NumPy or scikit-learn has them, or with one line that refuses. Else it is lost (refused, although it is
right), silent (wrong numbers, or no warning where one is due), a traceback or a hang.

    python benchmarks/attacks/loaded.py --only "a loaded model"
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import functools
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertModel,
    LlamaModel,
    PreTrainedTokenizerFast,
)

import layerprobe as lp
from layerprobe.encoders.recipe import default_recipe
from tests.models import SIZES, TEXTS, save_tiny, tiny_model, tiny_tokenizer
from tests.toy_task import toy_task

LIMIT = 60
"""Seconds after which an attempt hangs."""
LONGEST_LINE = 1500
"""Characters of one line."""

Must = Literal["right", "line", "either"]


class WrongError(Exception):
    """Numbers that are not right, a warning that is missing, or a file that was changed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is tried, and how it may end."""

    kind: str
    name: str
    run: Callable[[Path], object]
    must: Must


ATTEMPTS: list[Attempt] = []
BEFORE: list[Callable[[], object]] = []
"""What is computed once, before the attempts."""


def attempt(kind: str, name: str, must: Must, run: Callable[[Path], object]) -> None:
    """Add an attempt, which gets an empty folder."""
    ATTEMPTS.append(Attempt(kind, name, run, must))


def same(result: Any, expected: Any, *, within: float = 2e-4) -> None:
    """Raise WrongError unless numbers are those that are expected."""
    result, expected = (np.asarray(values, dtype=float) for values in (result, expected))
    if result.shape != expected.shape:
        raise WrongError(f"the shape {result.shape}, where {expected.shape} is right")
    error = np.abs(result - expected).max() if result.size else 0.0
    if not error <= within * max(1.0, np.abs(expected).max()):
        raise WrongError(f"numbers that are wrong by {error:.2g}")


def true(condition: object, otherwise: str) -> None:
    """Raise WrongError unless something holds."""
    if not condition:
        raise WrongError(otherwise)


# ---- loaded models -----------------------------------------------------------------------------------------


def pooled(model: Any, tokenizer: Any, texts: Sequence[str], pooling: str) -> Any:
    """Return what a model itself makes of texts, one at a time and so without padding, pooled."""
    rows = []
    for text in texts:
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt"))
        states = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
        states = states[0].float()
        rows.append({"mean": states.mean(0), "last": states[-1], "cls": states[0]}[pooling].numpy())
    return np.stack(rows)


def in_both_stores(
    name: str, alter: Callable[[Any], Any], *, architecture: str = "bert", must: Must = "either", within: float = 2e-4
) -> None:
    """Try a model that was altered after it was loaded, in an empty store and in one that has the plain model's entries."""

    def run(folder: Path, used: bool) -> None:
        saved = save_tiny(architecture, folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(saved)
        if used:
            lp.extract(
                lp.Model((AutoModel.from_pretrained(saved).eval(), tokenizer), cache_dir=folder / "cache"), TEXTS
            )
        model = AutoModel.from_pretrained(saved).eval()
        altered = alter(model)
        model = model if altered is None else altered
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model.eval(), tokenizer, TEXTS, result.pooling), within=within)

    for used in (False, True):
        attempt(
            "a loaded model",
            f"{name}, {'used' if used else 'empty'} store",
            must,
            functools.partial(run, used=used),
        )


def exchange(parent: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a module."""
    setattr(parent, name, make(getattr(parent, name)))


def called(kind: type, forward: Callable[..., Any]) -> Callable[[Any], None]:
    """Return what gives a model another class, with another forward pass."""

    def alter(model: Any) -> None:
        model.__class__ = type("Own", (kind,), {"forward": forward})

    return alter


def without_mask(self: Any, input_ids: Any = None, attention_mask: Any = None, **more: Any) -> Any:
    return BertModel.forward(self, input_ids=input_ids, **more)


def last_two(self: Any, *args: Any, **more: Any) -> Any:
    output = BertModel.forward(self, *args, **more | {"output_hidden_states": True})
    output.last_hidden_state = (output.hidden_states[-1] + output.hidden_states[-2]) / 2
    return output


def reversed_ids(self: Any, input_ids: Any = None, **more: Any) -> Any:
    return LlamaModel.forward(self, input_ids=input_ids.flip(1), **more)


def always_dropping(module: Any) -> Any:
    class Dropping(torch.nn.Module):
        def forward(self, states: Any) -> Any:
            return torch.nn.functional.dropout(states, 0.5, training=True)

    return Dropping()


def scale_method(module: Any, factor: float = 2.0) -> None:
    usual = module.forward
    module.forward = lambda *args, **more: factor * usual(*args, **more)


def of_late_tokens(model: Any) -> None:
    """Attention that differs in texts of more than ten tokens alone, as a window or scaled positions do."""

    def longer(module: Any, args: Any, output: Any) -> Any:
        return output if output.shape[1] <= 10 else torch.cat([output[:, :10], 2 * output[:, 10:]], 1)

    model.embeddings.word_embeddings.register_forward_hook(longer)


def of_one_token(model: Any) -> None:
    """A token whose embedding is made elsewhere, as of a prompt that was learned."""
    last = max(ord("z") - ord("a") + 5, 0)

    def other(module: Any, args: Any, output: Any) -> Any:
        return torch.where((args[0] == last)[..., None], output + 1, output)

    model.embeddings.word_embeddings.register_forward_hook(other)


def peft(model: Any, merged: bool = False) -> Any:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(target_modules=["query", "value"], init_lora_weights=False, r=2))
    return adapted.merge_and_unload() if merged else adapted


def quantized(model: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def pruned(model: Any) -> None:
    import torch.nn.utils.prune as prune

    prune.l1_unstructured(model.encoder.layer[1].output.dense, "weight", amount=0.5)


def tied(model: Any) -> None:
    model.encoder.layer[1] = model.encoder.layer[0]


def swapped(model: Any) -> None:
    blocks = model.encoder.layer
    blocks[0], blocks[2] = blocks[2], blocks[0]


def shorter(model: Any) -> None:
    model.encoder.layer = model.encoder.layer[:2]


def shorter_and_said(model: Any) -> None:
    shorter(model)
    model.config.num_hidden_layers = 2


def longer(model: Any) -> None:
    model.encoder.layer.append(model.encoder.layer[0])


def larger_weights(model: Any) -> None:
    model.encoder.layer[0].output.dense.weight.data.mul_(1.5)


def set_of(path: str, value: Any) -> Callable[[Any], None]:
    """Return what sets an attribute of a module, or of the configuration."""

    def alter(model: Any) -> None:
        parent, _, name = path.rpartition(".")
        place = functools.reduce(
            lambda of, part: of[int(part)] if part.isdigit() else getattr(of, part), parent.split("."), model
        )
        old = getattr(place, name)
        setattr(place, name, value(old) if callable(value) else value)

    return alter


def loaded_models() -> None:
    """Add all of loaded models."""
    plain = in_both_stores
    plain("blocks exchanged", swapped, must="right")
    plain("two blocks that are one", tied, must="right")
    plain("a block taken out", shorter)
    plain("a block taken out, and said", shorter_and_said, must="right")
    plain("a block more", longer)
    plain(
        "dropout that never stops",
        lambda m: exchange(m.encoder.layer[1].output, "dropout", always_dropping),
        must="line",
    )
    plain("embeddings scaled by a patch", lambda m: scale_method(m.embeddings.word_embeddings), must="either")
    plain("a hook on late tokens", of_late_tokens)
    plain("a hook on one token", of_one_token)
    plain("positions the other way round", set_of("embeddings.position_ids", lambda ids: ids.flip(1)))
    plain("rotary frequencies", set_of("rotary_emb.inv_freq", lambda values: 3 * values), architecture="llama")
    plain("epsilon of the last norm", set_of("norm.variance_epsilon", 0.5), architecture="llama")
    plain("scaling of one attention", set_of("layers.1.self_attn.scaling", 0.9), architecture="llama")
    plain("heads of the configuration", set_of("config.num_attention_heads", 4))
    plain("blocks of the configuration", set_of("config.num_hidden_layers", 2))
    plain("epsilon of the configuration", set_of("config.rms_norm_eps", 0.7), architecture="llama")
    plain("a window of the configuration", set_of("config.sliding_window", 2), architecture="qwen3")
    plain("a class that ignores masks", called(BertModel, without_mask))
    plain("a class that gives a mean of layers", called(BertModel, last_two))
    plain("a class that reads backwards", called(LlamaModel, reversed_ids), architecture="llama")
    plain("adapters of peft", peft)
    plain("adapters of peft, merged", functools.partial(peft, merged=True), must="right")
    plain("compiled", lambda m: torch.compile(m, backend="eager"), must="right")
    plain("bfloat16", lambda m: m.to(torch.bfloat16), must="right", within=2e-2)
    plain("one block in float64", lambda m: m.encoder.layer[1].double() and None, must="line")
    plain("quantized for Linear", quantized)
    plain("pruned", pruned)
    plain("in several devices' wrapper", torch.nn.DataParallel, must="either")
    plain("checkpoints of gradients", lambda m: m.train().gradient_checkpointing_enable(), must="right")
    plain("eager attention", lambda m: m.set_attn_implementation("eager"), must="right")
    plain("more tokens", lambda m: m.resize_token_embeddings(70) and None, must="right")
    plain("weights changed in place", larger_weights, must="right")
    plain(
        "an activation of the same name",
        lambda m: exchange(m.encoder.layer[2].intermediate, "intermediate_act_fn", lambda _: torch.nn.GELU("tanh")),
    )
    plain(
        "a norm without weights",
        lambda m: exchange(m.encoder.layer[2].output, "LayerNorm", lambda _: torch.nn.Identity()),
        must="line",
    )
    plain("ALBERT's norm", set_of("embeddings.LayerNorm.eps", 0.3), architecture="albert")
    plain(
        "ModernBERT's window",
        lambda m: [setattr(layer.attn, "sliding_window", 2) for layer in m.layers] and None,
        architecture="modernbert",
    )
    plain(
        "T5 scaled by a patch", lambda m: scale_method(m.encoder.block[1].layer[1].DenseReluDense.wo), architecture="t5"
    )

    def edited_between(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        asked = lp.Model((model, tokenizer), cache_dir=folder / "cache")
        lp.extract(asked, TEXTS)
        model.encoder.layer[2].output.dense.weight.data.mul_(3)
        same(lp.extract(asked, TEXTS).layer(-1), pooled(model, tokenizer, TEXTS, "mean"))

    def hooked_between(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        asked = lp.Model((model, tokenizer), cache_dir=folder / "cache")
        lp.extract(asked, TEXTS)
        scale_method(model.encoder.layer[1].output.dense)
        same(lp.extract(asked, TEXTS).layer(-1), pooled(model, tokenizer, TEXTS, "mean"))

    def other_tokenizer(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(("[MASK]", 4), ("[CLS]", 2))
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model, tokenizer, TEXTS, "mean"))

    def prefixing_tokenizer(folder: Path) -> None:
        class Prefixing(PreTrainedTokenizerFast):  # type: ignore[misc]
            def __call__(self, text: Any, *args: Any, **more: Any) -> Any:
                text = f"x {text}" if isinstance(text, str) else [f"x {one}" for one in text]
                return super().__call__(text, *args, **more)

        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        tokenizer.__class__ = Prefixing
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model, tokenizer, TEXTS, "mean"))

    def masked_lm(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        scale_method(model.bert.encoder.layer[1].output.dense)
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model.bert, tokenizer, TEXTS, "mean"))

    def head_changed(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        scale_method(model.cls.predictions.decoder)
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model.bert, tokenizer, TEXTS, "mean"))

    def scripted(folder: Path) -> None:
        lp.extract(lp.Model((torch.nn.Linear(3, 3), tiny_tokenizer()), cache_dir=folder / "cache"), TEXTS)

    def exported(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        scale_method(model.encoder.layer[1].attention.output.dense)
        lp.export_model(lp.Model((model, tokenizer), cache_dir=folder / "cache"), folder / "out", layer=2)

    def scored(folder: Path) -> None:
        saved = save_tiny("bert", folder / "model")
        model, tokenizer = AutoModel.from_pretrained(saved).eval(), AutoTokenizer.from_pretrained(saved)
        task = toy_task(train=32, validation=16, test=16)
        lp.score(lp.Model(str(saved), cache_dir=folder / "cache"), task)
        scale_method(model.encoder.layer[1].attention.output.dense)
        lp.score(lp.Model((model, tokenizer), cache_dir=folder / "cache"), task)

    attempt("a loaded model", "weights edited between two calls", "right", edited_between)
    attempt("a loaded model", "patched between two calls", "either", hooked_between)
    attempt("a loaded model", "another post-processor of the tokenizer", "right", other_tokenizer)
    attempt("a loaded model", "a class of tokenizer that puts words before texts", "either", prefixing_tokenizer)
    attempt("a loaded model", "under a head, patched", "either", masked_lm)
    attempt("a loaded model", "a head that is patched", "right", head_changed)
    attempt("a loaded model", "no model of transformers", "line", scripted)
    attempt("a loaded model", "patched and exported", "line", exported)
    attempt("a loaded model", "patched and scored", "line", scored)

    def of_sentences(alter: Callable[[Any], object], *, normalize: bool = False) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            module = Transformer(str(save_tiny("bert", folder / "model")))
            parts = [module, Pooling(module.get_embedding_dimension()), *([Normalize()] if normalize else [])]
            lp.extract(lp.Model(SentenceTransformer(modules=parts, device="cpu"), cache_dir=folder / "cache"), TEXTS)
            model = SentenceTransformer(modules=parts, device="cpu")
            alter(model)
            expected = model.encode(list(TEXTS), batch_size=1, convert_to_numpy=True)  # without padding
            result = np.asarray(lp.extract(lp.Model(model, cache_dir=folder / "cache"), TEXTS).layer(-1))
            if normalize:
                result = result / np.linalg.norm(result, axis=1, keepdims=True)
            same(result, expected)

        return run

    def upper(model: Any) -> None:
        usual = model[0].preprocess
        model[0].preprocess = lambda texts, *args, **more: usual(["a " + text for text in texts], *args, **more)

    changes: dict[str, tuple[Callable[[Any], object], Must]] = {
        "a shorter length": (lambda m: setattr(m, "max_seq_length", 5), "right"),
        "padding at the left": (lambda m: setattr(m.tokenizer, "padding_side", "left"), "right"),
        "cut at the left": (
            lambda m: (setattr(m.tokenizer, "truncation_side", "left"), setattr(m, "max_seq_length", 5)),
            "right",
        ),
        "fewer features": (lambda m: setattr(m, "truncate_dim", 6), "right"),
        "a default prompt": (lambda m: (m.prompts.update(q="b c "), setattr(m, "default_prompt_name", "q")), "right"),
        "pooling of the first token": (lambda m: setattr(m[1], "pooling_mode", "cls"), "right"),
        "words put before texts by a patch": (upper, "either"),
        "a patch of the whole": (turned_round, "either"),
        "a patch of pooling": (lambda m: turned_round(m[1]), "either"),
        "a hook on the module": (lambda m: m[0].register_forward_hook(double_features), "either"),
        "a module exchanged": (lambda m: m.__setitem__(1, Pooling(16, pooling_mode="max")), "right"),
    }
    for name, (alter, must) in changes.items():
        attempt("a loaded model", f"sentence-transformers: {name}", must, of_sentences(alter))
    attempt(
        "a loaded model", "sentence-transformers: of length 1", "right", of_sentences(lambda m: None, normalize=True)
    )


def double_features(module: Any, args: Any, output: Any) -> Any:
    """Double the states that a module of sentence-transformers gives."""
    return output | {"token_embeddings": 2 * output["token_embeddings"]}


def turned_round(module: Any) -> None:
    """Let a pooling give its features the other way round."""
    usual = module.forward

    def forward(features: Any, **more: Any) -> Any:
        made = usual(features, **more)
        made["sentence_embedding"] = made["sentence_embedding"].flip(1)
        return made

    module.forward = forward


# ---- how models read -----------------------------------------------------------------------------------------

BOTH_WAYS = [
    "bert",
    "deberta-v2",
    "xlm-roberta",
    "modernbert",
    "eurobert",
    "albert",
    "mpnet",
    "big_bird",
    "longformer",
    "xlnet",
    "flaubert",
    "ernie",
    "esm",
]
ONE_WAY = [
    "llama",
    "mistral",
    "qwen3",
    "qwen2_moe",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "falcon_mamba",
    "mamba",
    "mamba2",
    "bloom",
    "mpt",
    "codegen",
    "gptj",
    "gpt_neox",
    "gpt_neo",
    "opt",
    "phi",
    "phi3",
    "starcoder2",
    "stablelm",
    "cohere",
    "olmo2",
    "xglm",
    "biogpt",
    "rwkv",
    "recurrent_gemma",
    "falcon",
    "persimmon",
    "granite",
    "nemotron",
    "helium",
    "smollm3",
    "jamba",
    "deepseek_v3",
    "gpt_oss",
]


def reading() -> None:
    """Add all of how models read."""

    def direction(kind: str, causal: bool, **changes: Any) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            recipe = default_recipe(AutoConfig.for_model(kind, **changes))
            true(
                recipe.causal == causal, f"causal {recipe.causal}, where {causal} is right; untried: {recipe.untried!r}"
            )

        return run

    for kind in BOTH_WAYS:
        attempt("how a model reads", f"{kind} as it is by default", "right", direction(kind, False))
    for kind in ONE_WAY:
        changes: dict[str, Any] = (
            {"num_key_value_heads": 8} if kind == "nemotron" else {}
        )  # by default it cannot be made
        attempt("how a model reads", f"{kind} as it is by default", "right", direction(kind, True, **changes))
    wide: dict[str, Any] = {
        "hidden_size": 8192,
        "intermediate_size": 32768,
        "num_attention_heads": 64,
        "num_hidden_layers": 90,
    }
    attempt("how a model reads", "a BERT as wide as a 70 B", "right", direction("bert", False, **wide))
    attempt("how a model reads", "a BERT as a decoder", "right", direction("bert", True, is_decoder=True))
    for kind in ("llama", "mistral", "qwen2", "qwen3"):
        attempt(
            "how a model reads",
            f"{kind} with is_causal false, 70 B",
            "right",
            agrees(kind, {**wide, "num_key_value_heads": 8, "is_causal": False}),
        )
    attempt(
        "how a model reads", "gemma3 both ways", "right", agrees("gemma3_text", {"use_bidirectional_attention": True})
    )

    def small_vocabulary(architecture: str, size: int, causal: bool) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            words = dict(zip("PUACGTN"[:size], range(size), strict=True))
            backend = Tokenizer(models.WordLevel(words, unk_token="U"))
            backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=backend, unk_token="U", pad_token="P", model_max_length=32
            )
            changes = {
                "vocab_size": size,
                "bos_token_id": None,
                "eos_token_id": None,
                "cls_token_id": None,
                "sep_token_id": None,
            }
            model = tiny_model(architecture, **changes)
            model.save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")
            texts = ["A", "AC"[: size - 2] * 3, "A" * 9]
            result = lp.extract(lp.Model(str(folder / "model"), cache_dir=folder / "cache", device="cpu"), texts)
            true((result.pooling == "last") == causal, f"{result.pooling} pooling")
            same(
                result.layer(-1), pooled(AutoModel.from_pretrained(folder / "model"), tokenizer, texts, result.pooling)
            )

        return run

    for architecture, causal in (("bert", False), ("modernbert", False), ("llama", True), ("gpt2", True)):
        for size in (3, 4, 5, 6):  # of two words nothing can be asked
            attempt(
                "how a model reads",
                f"{architecture} of {size} tokens",
                "right" if size > 4 else "either",
                small_vocabulary(architecture, size, causal),
            )


def agrees(kind: str, changes: dict[str, Any]) -> Callable[[Path], None]:
    """Return an attempt whose truth is a narrow model of the same configuration, tried by changing its last token."""

    def run(folder: Path) -> None:
        narrow = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
        }
        small = {**SIZES, **changes, **narrow, "num_hidden_layers": 2, "layer_types": None}
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(kind, **{**small, "initializer_range": 0.3})).eval()
        with torch.no_grad():
            one, other = (model(torch.tensor([[7, 8, 9, end]])).last_hidden_state[0, 0] for end in (10, 11))
        causal = bool((one - other).abs().max() < 1e-6)
        recipe = default_recipe(AutoConfig.for_model(kind, **changes))
        true(recipe.causal == causal, f"causal {recipe.causal}, where {causal} is right; untried: {recipe.untried!r}")

    return run


# ---- tokenizers ----------------------------------------------------------------------------------------------

WORDS = [
    "<unk>",
    "<s>",
    "</s>",
    "the",
    "a",
    "dog",
    "cat",
    "man",
    "runs",
    "sleeps",
    "eats",
    "rice",
    "music",
    "red",
    "blue",
    "car",
    "park",
    "two",
    "three",
]
SENTENCES = ["the dog runs", "a cat sleeps", "the man eats rice", "a red car", "two dog sleeps the park music blue"]


def word_tokenizer(post: Any = None, **options: Any) -> Any:
    """Return a tokenizer of whole words."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if post is not None:
        backend.post_processor = processors.TemplateProcessing(single=post, special_tokens=[("<s>", 1), ("</s>", 2)])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{**names, **options})


def tokenizers() -> None:
    """Add all of tokenizers."""

    def of(
        architecture: str,
        make: Callable[[], Any],
        *,
        texts: Sequence[str] = SENTENCES,
        says: str = "",
        settings: dict[str, Any] | None = None,
        oracle: bool = True,
        model: dict[str, Any] | None = None,
        **asked: Any,
    ) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            tokenizer = make()
            changes = {"vocab_size": len(WORDS), "pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 2} | (
                model or {}
            )
            tiny_model(architecture, **changes).save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")
            if settings:
                file = folder / "model" / "tokenizer_config.json"
                file.write_text(json.dumps(json.loads(file.read_text()) | settings))
            read = AutoTokenizer.from_pretrained(folder / "model")
            for used in (False, True):
                result = lp.extract(
                    lp.Model(str(folder / "model"), cache_dir=folder / "cache", device="cpu", **asked), list(texts)
                )
                true(
                    not says or any(says in line for line in result.warnings),
                    f"no warning of {says!r}: {result.warnings}",
                )
                if oracle:
                    whole = AutoModel.from_pretrained(folder / "model").eval()
                    rows = [with_end(read, text, result, asked) for text in texts]
                    states = []
                    for ids in rows:
                        with torch.no_grad():
                            states.append(whole(torch.tensor([ids])).last_hidden_state[0])
                    expected = [row.mean(0) if result.pooling == "mean" else row[-1] for row in states]
                    same(result.layer(-1), np.stack([row.numpy() for row in expected]))
                del used

        return run

    def with_end(tokenizer: Any, text: str, result: Any, asked: dict[str, Any]) -> list[int]:
        ids = tokenizer(text)["input_ids"]
        ends = any("the end token" in line and "after every text" in line for line in result.warnings)
        length = asked.get("max_length")
        if ends:
            ids = [*ids[: length - 1 if length else None], tokenizer.eos_token_id]
        elif length and len(ids) > length:
            ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return list(ids)

    both = "<s> $A </s>"
    llama = functools.partial(of, "llama")
    cases: dict[str, tuple[Callable[[Path], None], Must]] = {
        "begin and end are added": (llama(lambda: word_tokenizer(both)), "right"),
        "begin is promised and not added": (
            llama(lambda: word_tokenizer("$A </s>"), settings={"add_bos_token": True}, says="begin", oracle=False),
            "right",
        ),
        "end is promised and not added": (
            llama(lambda: word_tokenizer("<s> $A"), settings={"add_eos_token": True}, says="end token"),
            "right",
        ),
        "no end": (llama(lambda: word_tokenizer("<s> $A"), says="end token"), "right"),
        "no end, cut": (llama(lambda: word_tokenizer("<s> $A"), max_length=4, says="end token"), "right"),
        "cut": (llama(lambda: word_tokenizer(both), max_length=4), "right"),
        "cut at the left": (llama(lambda: word_tokenizer(both, truncation_side="left"), max_length=4), "right"),
        "padding at the left": (llama(lambda: word_tokenizer(both, padding_side="left")), "right"),
        "padding at the left, BERT": (of("bert", lambda: word_tokenizer(both, padding_side="left")), "right"),
        "padding at the left, GPT-2": (of("gpt2", lambda: word_tokenizer(both, padding_side="left")), "right"),
        "no padding token": (
            llama(lambda: word_tokenizer(both, pad_token=None), model={"pad_token_id": None}),
            "right",
        ),
        "no padding token, BERT": (of("bert", lambda: word_tokenizer(both, pad_token=None)), "right"),
        "the end token within texts": (
            llama(lambda: word_tokenizer(both), texts=["the dog </s>", "a cat </s> </s>", "a man runs"]),
            "right",
        ),
        "a length of 1e30": (llama(lambda: word_tokenizer(both, model_max_length=10**30)), "right"),
        "a length of 2": (llama(lambda: word_tokenizer(both, model_max_length=2), oracle=False, says="2"), "either"),
        "a length of 0": (
            llama(lambda: word_tokenizer(both), settings={"model_max_length": 0}, oracle=False),
            "either",
        ),
        "a length below 0": (
            llama(lambda: word_tokenizer(both), settings={"model_max_length": -1}, oracle=False),
            "either",
        ),
        "a length that is a text": (
            llama(lambda: word_tokenizer(both), settings={"model_max_length": "32"}, oracle=False),
            "either",
        ),
        "a length that is no number": (
            llama(lambda: word_tokenizer(both), settings={"model_max_length": None}),
            "either",
        ),
        "more tokens than the model": (
            llama(lambda: word_tokenizer(both), model={"vocab_size": 12}, oracle=False),
            "line",
        ),
        "a token more than the model": (
            llama(
                lambda: word_tokenizer(both, additional_special_tokens=["<x>"]),
                texts=["the <x> dog", "a <x>", "two"],
                oracle=False,
            ),
            "line",
        ),
        "no token of a text": (
            of("llama", lambda: word_tokenizer("$A"), texts=["the dog", "", "  "], oracle=False, end_token=False),
            "line",
        ),
        "no inputs named": (llama(lambda: word_tokenizer(both, model_input_names=["input_ids"])), "right"),
        "types of tokens named, without any": (
            of(
                "bert",
                lambda: word_tokenizer(both, model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
            ),
            "right",
        ),
        "special tokens that are split": (
            llama(lambda: word_tokenizer(both), settings={"split_special_tokens": True}),
            "right",
        ),
        "unknown words": (
            llama(lambda: word_tokenizer(both), texts=["xyz abc", "qrs tuv dog", "klm"], says="unknown"),
            "right",
        ),
        "letters that are dropped": (
            llama(dropping, texts=["the dög", "ä cat", "ßß man"], oracle=False, says=""),
            "either",
        ),
        "padding and truncation in tokenizer.json": (llama(padded), "right"),
        "upper case that is not known": (
            llama(lambda: word_tokenizer(both), texts=["THE DOG", "A Cat runs", "Man"], says="unknown"),
            "right",
        ),
        "one class in the configuration, another in the file": (
            llama(lambda: word_tokenizer(both), settings={"tokenizer_class": "BertTokenizer"}, oracle=False),
            "either",
        ),
        "a class that is not there": (
            llama(lambda: word_tokenizer(both), settings={"tokenizer_class": "NoSuchTokenizer"}, oracle=False),
            "either",
        ),
        "a template of chats": (llama(lambda: word_tokenizer(both), settings={"chat_template": "{{ 1/0 }}"}), "right"),
    }
    for name, (run, must) in cases.items():
        attempt("a tokenizer", name, must, run)

    def bytes_in_python(folder: Path) -> None:
        from transformers import ByT5Tokenizer

        model = tiny_model("t5", vocab_size=384)
        tokenizer, texts = ByT5Tokenizer(), ["a b", "äß", "the dog runs"]
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), texts)
        same(result.layer(-1), pooled(model, tokenizer, texts, result.pooling))

    def letters_for_words(folder: Path) -> None:
        words = {
            word: i for i, word in enumerate([*WORDS, *"abcdefghijklmnopqrstuvwxyz", *map("word{}".format, range(60))])
        }
        backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="</s>")
        model, texts = tiny_model("bert", vocab_size=len(words)), [text.replace(" ", "") for text in SENTENCES] * 4
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), texts)
        true(any("token" in line for line in result.warnings), f"no warning: {result.warnings}")

    def switched_off(folder: Path) -> None:
        model, tokenizer = tiny_model("bert"), tiny_tokenizer()
        lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "b")])
        result = lp.extract(lp.Model((model, tokenizer), cache_dir=folder / "cache"), TEXTS)
        same(result.layer(-1), pooled(model, tokenizer, TEXTS, "mean"))

    attempt("a tokenizer", "bytes, in Python", "right", bytes_in_python)
    attempt("a tokenizer", "letters for words", "right", letters_for_words)
    attempt("a tokenizer", "another normalizer, used store", "right", switched_off)


def dropping() -> Any:
    """Return a tokenizer that drops what it does not know, in silence."""
    tokenizer = word_tokenizer("<s> $A </s>")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("ä", "")
    return tokenizer


def padded() -> Any:
    """Return a tokenizer that pads and cuts by itself."""
    tokenizer = word_tokenizer("<s> $A </s>")
    tokenizer.backend_tokenizer.enable_padding(length=12, pad_id=2, pad_token="</s>")
    tokenizer.backend_tokenizer.enable_truncation(4)
    return tokenizer


# ---- probe -----------------------------------------------------------------------------------------------------


@functools.cache
def numbers() -> tuple[Any, Any]:
    """Return (120, 3, 6) embeddings, whose layer 1 has a signal, and targets."""
    rng = np.random.default_rng(0)
    target = rng.standard_normal(120)
    x = rng.standard_normal((120, 3, 6))
    x[:, 1, :2] += 1.2 * target[:, None]
    x[:, 2, :1] += 0.6 * target[:, None]
    return x, target


def scores(x: Any, y: Any, **how: Any) -> list[float]:
    """Return the score of each layer and the ends of its interval."""
    result = lp.probe(x, y, foldings=1, weighted_sum=False, **how)
    true(not result.left_out, f"left out: {result.left_out}")
    return [
        number
        for row in result.layers
        for number in (*row.metrics.values(), *(row.error.interval if row.error else ()))
    ]


def probes() -> None:
    """Add all of probe."""
    classes = np.where(numbers()[1] > 0, "high", "low")

    def by_scikit_learn(folder: Path) -> None:
        x, y = numbers()
        splits = KFold(5, shuffle=True, random_state=0)
        result = lp.probe(x, y, cv=splits, foldings=1, weighted_sum=False)
        for layer in range(3):
            fitted = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 6, 19)))
            expected = 100 * spearmanr(cross_val_predict(fitted, x[:, layer], y, cv=splits), y)[0]
            true(abs(result.layers[layer].metrics["spearman"] - expected) < 5, f"layer {layer}: not {expected:.1f}")

    attempt("probe", "as scikit-learn", "right", by_scikit_learn)

    def moved(change: Callable[[Any, Any], tuple[Any, Any]], within: float = 2e-3) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            x, y = numbers()
            same(scores(*change(x.copy(), y.copy())), scores(x, y), within=within)
            if len(np.unique(change(x, y)[1])) == len(y):
                same(scores(change(x.copy(), y)[0], classes), scores(x, classes), within=within)

        return run

    def each_layer(x: Any) -> Any:
        return x * np.array([1e-200, 1e150, -1.0])[:, None] + np.array([0.0, 1e153, 1e5])[:, None]

    def constant(folder: Path) -> None:
        x, y = numbers()
        large, small = (scores(np.concatenate([x, np.full((120, 3, 1), value)], 2), y) for value in (1e300, 1.0))
        same(large, small)

    cases: dict[str, tuple[Callable[[Path], None], Must]] = {
        "each layer by itself": (moved(lambda x, y: (each_layer(x), y)), "right"),
        "turned round": (moved(lambda x, y: (x[:, :, ::-1], y)), "right"),
        "Fortran's order": (moved(lambda x, y: (np.asfortranarray(x), y)), "right"),
        "the other end first": (moved(lambda x, y: (x.astype(">f8"), y.astype(">f8"))), "right"),
        "negative strides": (moved(lambda x, y: (x[::-1][::-1], y)), "right"),
        "a mean of 1e10": (moved(lambda x, y: (x + 1e10, y), 2e-2), "right"),
        "a mean of 1e14": (moved(lambda x, y: (x + 1e13, y), 0.15), "either"),
        "subnormal numbers": (moved(lambda x, y: (x * 1e-310, y), 2e-2), "either"),
        "the largest numbers": (moved(lambda x, y: (x * 1e307, y)), "right"),
        "targets of 1e-310": (moved(lambda x, y: (x, y * 1e-310), 2e-2), "either"),
        "targets of 1e307": (moved(lambda x, y: (x, y * 1e307)), "right"),
        "targets with a mean of 1e12": (moved(lambda x, y: (x, y + 1e9)), "right"),
        "targets in float16": (moved(lambda x, y: (x, y.astype(np.float16)), 5e-2), "right"),
        "bfloat16 of torch": (moved(lambda x, y: (torch.tensor(x).bfloat16(), y), 5e-2), "right"),
        "float16 of torch": (moved(lambda x, y: (torch.tensor(x).half(), y), 5e-3), "right"),
        "torch that needs gradients": (moved(lambda x, y: (torch.tensor(x, requires_grad=True), torch.tensor(y))), "right"),
        "targets of pandas with another index": (moved(lambda x, y: (x, pd.Series(y, index=range(500, 620)))), "right"),
        "targets in a column": (moved(lambda x, y: (x, y[:, None])), "either"),
        "an axis of length 1": (moved(lambda x, y: (x[..., None], y)), "either"),
        "a list of lists": (moved(lambda x, y: (x.tolist(), y.tolist())), "either"),
        "a constant feature of 1e300": (constant, "right"),
        "-0.0 for 0.0": (moved(lambda x, y: (np.where(x == 0, -0.0, x), y)), "right"),
        "objects": (moved(lambda x, y: (x.astype(object), y)), "either"),
        "decimal texts": (moved(lambda x, y: (x.astype(str), y)), "line"),
        "complex numbers": (moved(lambda x, y: (x.astype(complex), y)), "line"),
        "complex targets": (moved(lambda x, y: (x, y + 1j)), "line"),
        "longdouble beyond float64": (moved(lambda x, y: (x.astype(np.longdouble) * np.longdouble("1e4000"), y)), "either"),
        "int64 near its end": (moved(lambda x, y: (np.rint(x * 1e17).astype(np.int64) + 8 * 10**18, y), 5e-2), "either"),
        "uint64 near its end": (moved(lambda x, y: (np.rint(x * 1e17).astype(np.int64).astype(np.uint64) + np.uint64(10**18), y), 5e-2), "either"),
        "one NaN": (lambda folder: scores(np.where(np.arange(6) == 3, np.nan, numbers()[0]), numbers()[1]), "line"),
        "one infinite target": (lambda folder: scores(numbers()[0], np.where(np.arange(120) == 5, np.inf, numbers()[1])), "line"),
        "dates as targets": (lambda folder: scores(numbers()[0], pd.date_range("2020", periods=120)), "either"),
        "times as targets": (lambda folder: scores(numbers()[0], pd.to_timedelta(np.arange(120), "s")), "either"),
        "targets that are nearly the same": (moved(lambda x, y: (x, 1 + 1e-9 * y), 2e-2), "either"),
    }  # fmt: skip
    for name, (run, must) in cases.items():
        attempt("probe", name, must, run)

    def scaled_files(dtype: str) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            x, y = numbers()
            np.save(folder / "x.npy", (x * 100 + 1000).astype(dtype))
            pd.DataFrame({"y": y}).to_csv(folder / "y.csv", index=False)
            code, out, err = shell(folder, "probe", "x.npy", "y.csv", "--json")
            true(code == 0, err.strip()[-200:])
            result = [row["metrics"]["spearman"] for row in json.loads(out)["layers"]]
            expected = [
                row.metrics["spearman"] for row in lp.probe((x * 100 + 1000).astype(dtype).astype(float), y).layers
            ]
            same(result, expected)

        return run

    for dtype in ("<f2", ">f4", "<i2", ">i8"):
        attempt("probe", f"a file of {dtype}", "right", scaled_files(dtype))

    def predicts(folder: Path) -> None:
        x, y = numbers()
        result = lp.probe(x + 1e6, y, foldings=1, weighted_sum=False)
        plain = lp.probe(x, y, foldings=1, weighted_sum=False)
        for layer in (1, -1):
            same(
                result.estimator(layer).predict(x[:, layer] + 1e6),
                plain.estimator(layer).predict(x[:, layer]),
                within=1e-3,
            )

    attempt("probe", "fitted probes far from zero, layers 1 and -1", "right", predicts)


# ---- odd values, places and stores -----------------------------------------------------------------------------


class Model:
    """What attempts begin from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = lp.Model(str(save_tiny("bert", folder / "model")), device="cpu", cache_dir=folder / "cache")

    @functools.cached_property
    def probing(self) -> Any:
        """A result that is quick."""
        return lp.probe(*numbers(), foldings=1, weighted_sum=False)

    task = functools.cached_property(lambda self: toy_task(train=32, validation=16, test=16))


def odd_values() -> None:
    """Add calls with values that somebody could mean; a wrong type may be Python's own TypeError."""
    texts = list(TEXTS)
    calls: dict[str, tuple[Callable[[Model], object], Must]] = {
        "extract: a tuple of texts": (lambda x: lp.extract(x.model, tuple(texts)), "right"),
        "extract: NumPy's texts": (lambda x: lp.extract(x.model, np.array(texts)), "right"),
        "extract: NumPy's objects": (lambda x: lp.extract(x.model, np.array(texts, dtype=object)), "right"),
        "extract: categories of pandas": (lambda x: lp.extract(x.model, pd.Series(texts, dtype="category")), "right"),
        "extract: texts of Arrow": (lambda x: lp.extract(x.model, pd.Series(texts, dtype="string")), "right"),
        "extract: an index": (lambda x: lp.extract(x.model, pd.Index(texts)), "right"),
        "extract: keys of a dictionary": (lambda x: lp.extract(x.model, dict.fromkeys(texts).keys()), "right"),
        "extract: a set": (lambda x: lp.extract(x.model, set(texts)), "either"),
        "extract: None among texts": (lambda x: lp.extract(x.model, [*texts, None]), "line"),
        "extract: NaN among texts": (lambda x: lp.extract(x.model, [*texts, float("nan")]), "line"),
        "extract: numbers": (lambda x: lp.extract(x.model, [1, 2, 3]), "line"),
        "extract: bytes": (lambda x: lp.extract(x.model, [b"a", b"b"]), "line"),
        "extract: pairs": (lambda x: lp.extract(x.model, [("a", "b"), ("c", "d")]), "line"),
        "extract: lists of words": (lambda x: lp.extract(x.model, [["a", "b"], ["c"]]), "line"),
        "extract: a dictionary of one column": (lambda x: lp.extract(x.model, {"text": texts}), "right"),
        "extract: no texts": (lambda x: lp.extract(x.model, []), "line"),
        "extract: a surrogate": (lambda x: lp.extract(x.model, ["a", "b\ud800"]), "either"),
        "extract: a NUL": (lambda x: lp.extract(x.model, ["a\0b", "c"]), "either"),
        "extract: a text of a million letters": (lambda x: lp.extract(x.model, ["a b " * 250_000, "c"]), "right"),
        "extract: a path that is not there": (lambda x: lp.extract(str(x.folder / "modle"), texts), "line"),
        "extract: a path": (lambda x: lp.extract(x.folder / "model", texts), "right"),
        "extract: a file for a model": (lambda x: lp.extract(str(x.folder / "model/config.json"), texts), "line"),
        "extract: a name of 5,000 letters": (lambda x: lp.extract("a" * 5000, texts), "line"),
        "extract: a name with a NUL": (lambda x: lp.extract("a\0b", texts), "line"),
        "extract: a name with a line's end": (lambda x: lp.extract("bert\nbase", texts), "line"),
        "extract: a name with spaces around": (lambda x: lp.extract(f" {x.folder / 'model'} ", texts), "either"),
        "extract: an address": (lambda x: lp.extract("https://huggingface.co/bert-base-cased", texts), "line"),
        "Model: max_length 0": (lambda x: lp.extract(lp.Model(x.model.name, max_length=0), texts), "line"),
        "Model: max_length below 0": (lambda x: lp.extract(lp.Model(x.model.name, max_length=-5), texts), "line"),
        "Model: max_length 1": (lambda x: lp.extract(lp.Model(x.model.name, max_length=1, cache_dir=x.folder / "c"), texts), "either"),
        "Model: max_length 10**20": (lambda x: lp.extract(lp.Model(x.model.name, max_length=10**20, cache_dir=x.folder / "c"), texts), "either"),
        "Model: max_length True": (lambda x: lp.Model(x.model.name, max_length=True), "line"),
        "Model: blocks 0": (lambda x: lp.extract(lp.Model(x.model.name, blocks=(0, 1)), texts), "line"),
        "Model: blocks below 0": (lambda x: lp.extract(lp.Model(x.model.name, blocks=(-1,), cache_dir=x.folder / "c"), texts), "either"),
        "Model: blocks twice": (lambda x: lp.extract(lp.Model(x.model.name, blocks=(1, 1)), texts), "line"),
        "Model: no blocks": (lambda x: lp.extract(lp.Model(x.model.name, blocks=()), texts), "line"),
        "Model: a model kwarg that is not there": (lambda x: lp.extract(lp.Model(x.model.name, model_kwargs={"no_such": 1}, cache_dir=x.folder / "c"), texts), "line"),
        "Model: a processor kwarg that is not there": (lambda x: lp.extract(lp.Model(x.model.name, processor_kwargs={"no_such": 1}, cache_dir=x.folder / "c"), texts), "either"),
        "Model: kwargs that are a list": (lambda x: lp.extract(lp.Model(x.model.name, model_kwargs=["a"]), texts), "line"),
        "Model: a token that is empty": (lambda x: lp.extract(lp.Model(x.model.name, token="", cache_dir=x.folder / "c"), texts), "either"),
        "Model: a device that is not there": (lambda x: lp.extract(lp.Model(x.model.name, device="cuda:99"), texts), "line"),
        "probe: other lengths": (lambda x: lp.probe(numbers()[0], numbers()[1][:-1]), "line"),
        "probe: two rows": (lambda x: lp.probe(numbers()[0][:2], numbers()[1][:2]), "line"),
        "probe: no features": (lambda x: lp.probe(numbers()[0][:, :, :0], numbers()[1]), "line"),
        "probe: no layers": (lambda x: lp.probe(numbers()[0][:, :0], numbers()[1]), "line"),
        "probe: cv 1": (lambda x: lp.probe(*numbers(), cv=1), "line"),
        "probe: cv 500": (lambda x: lp.probe(*numbers(), cv=500), "line"),
        "probe: cv -1": (lambda x: lp.probe(*numbers(), cv=-1), "line"),
        "probe: cv 2.5": (lambda x: lp.probe(*numbers(), cv=2.5), "line"),
        "probe: foldings 0": (lambda x: lp.probe(*numbers(), foldings=0), "line"),
        "probe: scoring of classes for numbers": (lambda x: lp.probe(*numbers(), scoring="accuracy"), "line"),
        "probe: random_state of text": (lambda x: lp.probe(*numbers(), random_state="a"), "line"),
        "probe: targets None": (lambda x: lp.probe(numbers()[0], None), "line"),
        "probe: one class": (lambda x: lp.probe(numbers()[0], ["a"] * 120), "line"),
        "probe: 120 classes": (lambda x: lp.probe(numbers()[0], [f"c{i}" for i in range(120)]), "line"),
        "probe: ragged layers": (lambda x: lp.probe([numbers()[0][:, 0], numbers()[0][:50, 1]], numbers()[1]), "line"),
        "probe: sparse": (lambda x: lp.probe(torch.tensor(numbers()[0]).to_sparse(), numbers()[1]), "either"),
        "probe: on meta": (lambda x: lp.probe(torch.tensor(numbers()[0]).to("meta"), numbers()[1]), "line"),
        "probe: tolerance NaN": (lambda x: lp.probe(*numbers(), tolerance=float("nan")), "line"),
        "compare: one row": (lambda x: lp.compare(numbers()[0][:1], numbers()[0][:1]), "line"),
        "compare: a measure that is not there": (lambda x: lp.compare(*numbers()[:1], numbers()[0], measure="kca"), "line"),
        "compare: 4 axes": (lambda x: lp.compare(numbers()[0][None], numbers()[0][None]), "line"),
        "linear_cka: two lists": (lambda x: lp.linear_cka([[1, 2], [3, 5], [5, 1], [0, 1]], [[1], [2], [4], [8]]), "right"),
        "linear_cka: texts": (lambda x: lp.linear_cka([["a"], ["b"]], [["c"], ["d"]]), "line"),
        "cka_interval: level 1": (lambda x: lp.cka_interval(numbers()[0][:, 0], numbers()[0][:, 1], level=1), "line"),
        "score: a task without a split": (lambda x: lp.score(x.model, x.task, split="dev"), "line"),
        "score: no tasks": (lambda x: lp.score(x.model, []), "line"),
        "predict: split as a list": (lambda x: lp.predict(x.model, x.task, split=["test"]), "line"),
        "predict: n_texts 0": (lambda x: lp.predict(x.model, x.task, n_texts=0), "line"),
        "predict: n_texts below 0": (lambda x: lp.predict(x.model, x.task, n_texts=-3), "line"),
        "settings: level a text": (lambda x: lp.settings(level="0.9").__enter__(), "line"),
        "LayerSearch: no blocks": (lambda x: lp.LayerSearch(n_blocks=0).ask(), "either"),
        "LayerSearch: blocks below 0": (lambda x: lp.LayerSearch(n_blocks=-2), "line"),
        "LayerSearch: unit 0": (lambda x: lp.LayerSearch(n_blocks=4, unit=0), "line"),
        "LayerSearch: unit NaN": (lambda x: lp.LayerSearch(n_blocks=4, unit=float("nan")), "line"),
        "LayerSearch: a score that is NaN": (lambda x: told(x, float("nan")), "line"),
        "LayerSearch: a score of torch": (lambda x: told(x, torch.tensor(0.5)), "right"),
        "LayerSearch: a score of 1e308": (lambda x: told(x, 1e308), "either"),
        "LayerSearch: a score of -1e-320": (lambda x: told(x, -1e-320), "either"),
        "LayerSearch: scores of two signs": (lambda x: told(x, -3.5, higher_is_better=False), "right"),
        "LayerSearch: layer -1": (lambda x: told_of(x, -1), "right"),
        "LayerSearch: layer -9": (lambda x: told_of(x, -9), "line"),
    }  # fmt: skip
    for name, (call, must) in calls.items():

        def run(folder: Path, call: Callable[[Model], object] = call) -> None:
            call(Model(folder))

        attempt("an odd value from Python", name, must, run)


def told(x: Model, score: Any, **settings: Any) -> str:
    """Tell a search of one score and of others that rise by a hundredth, and return its answer."""
    search = lp.LayerSearch(n_blocks=3, **settings)
    n = 0
    while (run := search.ask()) and n < 12:
        search.tell(run.layer, run.seed, score * (1 + 0.01 * n))
        n += 1
    return str(search.answer().summary)


def told_of(x: Model, layer: int) -> None:
    """Tell a search of a layer by its number from the end."""
    search = lp.LayerSearch(n_blocks=3)
    search.tell(layer, 0, 0.5)
    true(json.dumps(search.answer().to_dict() if hasattr(search.answer(), "to_dict") else {}, default=str), "")


def odd_places() -> None:
    """Add files to write that are none, in a folder of their own."""

    def pipe(path: Path) -> None:
        os.mkfifo(path)

    def endpoint(path: Path) -> None:
        with contextlib.chdir(path.parent):  # of a socket, names are short
            socket.socket(socket.AF_UNIX).bind(path.name)

    def link(path: Path) -> None:
        (path.parent / "theirs").write_text("theirs")
        path.symlink_to("theirs")

    def twice(path: Path) -> None:
        (path.parent / "theirs").write_text("theirs")
        os.link(path.parent / "theirs", path)

    def private(path: Path) -> None:
        path.write_text("old")
        path.chmod(0o640)

    places: dict[str, tuple[Callable[[Path], object], Must]] = {
        "a pipe": (pipe, "line"),
        "a socket": (endpoint, "line"),
        "a link to a file": (link, "line"),
        "a link to nothing": (lambda path: path.symlink_to("nothing"), "line"),
        "a link to itself": (lambda path: path.symlink_to(path.name), "line"),
        "a link to a device": (lambda path: path.symlink_to("/dev/null"), "line"),
        "a folder": (Path.mkdir, "line"),
        "a file with another name, too": (twice, "right"),
        "a file of mode 0640": (private, "right"),
    }
    writers: dict[str, Callable[[Any, Path], object]] = {
        "save x.json": lp.save,
        "save x.html": lp.save,
        "save x.csv": lambda result, path: result.table.save(path),
        "save x.parquet": lp.save,
        "save x.tex": lp.save,
        "save x.safetensors": lp.save,
    }
    for writer, write in writers.items():
        for place, (make, must) in places.items():

            def run(folder: Path, write: Any = write, make: Any = make, name: str = writer.split()[1]) -> None:
                result, path = Model(folder).probing, folder / name
                make(path)
                before = os.lstat(path)
                error = None
                try:
                    write(result, path)
                except lp.LayerProbeError as refusal:
                    error = refusal
                after = os.lstat(path)
                true(stat.S_IFMT(before.st_mode) == stat.S_IFMT(after.st_mode), "another kind of file is there now")
                true(before.st_mode == after.st_mode, f"the mode is {after.st_mode:o} and was {before.st_mode:o}")
                if (theirs := folder / "theirs").exists():
                    true(theirs.read_text() == "theirs", "another file was written to")
                if left := {p.name for p in folder.iterdir()} - {name, "theirs", "model", "cache"}:
                    raise WrongError(f"it left {left}")
                if error:
                    raise error

            attempt("an odd place to write", f"{writer}: {place}", must, run)
    names = {
        "300 letters": "x" * 300 + ".json",
        "a NUL": "x\0.json",
        "a line's end": "x\ny.json",
        "none": ".json",
        "a folder that is a file": "model/config.json/x.json",
        "a folder that is not there": "no/such/x.json",
        "of upper case": "X.JSON",
        "two suffixes": "x.json.gz",
    }
    for name, file in names.items():

        def saved(folder: Path, file: str = file) -> None:
            written = lp.save(Model(folder).probing, folder / file)
            true(lp.load(written).summary == Model(folder).probing.summary, "another result comes back")

        attempt("an odd place to write", f"a name: {name}", "either", saved)

    def export_to(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            out = folder / "out"
            make(out)
            before = os.lstat(out)
            try:
                lp.export_model(Model(folder).model, out, layer=1, overwrite=True)
            finally:
                true(
                    stat.S_IFMT(before.st_mode) == stat.S_IFMT(os.lstat(out).st_mode),
                    "another kind of file is there now",
                )
                if (folder / "theirs").is_dir():
                    true((folder / "theirs/keep").exists(), "a file of theirs is gone")

        return run

    def linked_folder(path: Path) -> None:
        (path.parent / "theirs").mkdir()
        (path.parent / "theirs/keep").write_text("theirs")
        path.symlink_to("theirs")

    for place, make in {"a pipe": pipe, "a file": lambda path: path.write_text("x"), "a link to a folder": linked_folder, "a link to nothing": lambda path: path.symlink_to("nothing")}.items():  # fmt: skip
        must: Must = "either" if place == "a link to nothing" else "line"  # what it leads to is made
        attempt("an odd place to write", f"export --overwrite: {place}", must, export_to(make))

    def report_to(option: str, name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            x, y = numbers()
            np.save(folder / "x.npy", x)
            pd.DataFrame({"y": y}).to_csv(folder / "y.csv", index=False)
            make(folder / name)
            before = os.lstat(folder / name)
            code, _, err = shell(folder, "probe", "x.npy", "y.csv", option, name)
            true(
                stat.S_IFMT(before.st_mode) == stat.S_IFMT(os.lstat(folder / name).st_mode),
                "another kind of file is there now",
            )
            if code:
                raise lp.LayerProbeError(err)

        return run

    for place, make in {"a pipe": pipe, "a link to a file": link, "a socket": endpoint}.items():
        attempt("an odd place to write", f"--report: {place}", "line", report_to("--report", "x.html", make))


def locks() -> None:
    """Add stores whose file system cannot lock, and homes that cannot be written."""
    fcntl = importlib.import_module("fcntl")
    for number in (errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE, errno.ENOSYS, errno.ENOLCK, errno.EACCES, errno.EIO, errno.EPERM, errno.EROFS):  # fmt: skip
        for call in ("extract", "search"):

            def run(folder: Path, number: int = number, call: str = call) -> None:
                x = Model(folder)

                def flock(*args: Any) -> None:
                    raise OSError(number, os.strerror(number))

                fcntl.flock = flock
                if call == "extract":
                    result = lp.extract(x.model, TEXTS)
                    true(len(result.layer(-1)) == len(TEXTS), "rows are missing")
                else:
                    search = lp.LayerSearch(folder / "search.json", n_blocks=3)
                    search.tell(1, 0, 0.5)

            attempt("locks and homes", f"{call}, {errno.errorcode[number]}", "either", run)

    def home(
        what: str, make: Callable[[Path], object], variables: Callable[[Path], dict[str, str | None]], must: Must
    ) -> None:
        for command in ("score", "extract"):

            def run(folder: Path, command: str = command) -> None:
                save_tiny("bert", folder / "model")
                rows = [
                    ("a b c"[: 1 + i % 5] + f" {chr(97 + i % 26)} {chr(97 + i // 26)}", "d e " + chr(97 + i % 7), i % 6)
                    for i in range(80)
                ]
                pd.DataFrame(rows, columns=["first", "second", "score"]).to_csv(folder / "pairs.csv", index=False)
                make(folder)
                code, out, err = shell(folder, command, "model", "-t", "pairs.csv", "--json", env=variables(folder))
                true("Traceback" not in err, err.strip()[-200:])
                if code:
                    raise lp.LayerProbeError(err)
                json.loads(out)

            attempt("locks and homes", f"{command}, {what}", must if command == "score" else "either", run)

    none: dict[str, str | None] = {"XDG_CACHE_HOME": None, "LAYERPROBE_CACHE": None}
    home("no HOME", lambda f: None, lambda f: {**none, "HOME": None}, "right")
    home("a HOME that is a file", lambda f: (f / "h").touch(), lambda f: {**none, "HOME": str(f / "h")}, "right")
    home("a HOME that is a device", lambda f: None, lambda f: {**none, "HOME": "/dev/null"}, "right")
    home("a HOME in /proc", lambda f: None, lambda f: {**none, "HOME": "/proc/1/nothing"}, "right")
    home("a HOME that is empty text", lambda f: None, lambda f: {**none, "HOME": ""}, "right")
    home("a cache that is a file", lambda f: (f / "c").touch(), lambda f: {"LAYERPROBE_CACHE": str(f / "c")}, "either")
    home("a cache that is a pipe", lambda f: os.mkfifo(f / "c"), lambda f: {"LAYERPROBE_CACHE": str(f / "c")}, "either")
    home(
        "a cache that is a link to nothing",
        lambda f: (f / "c").symlink_to("no"),
        lambda f: {"LAYERPROBE_CACHE": str(f / "c")},
        "either",
    )
    home(
        "a cache that is a link to itself",
        lambda f: (f / "c").symlink_to("c"),
        lambda f: {"LAYERPROBE_CACHE": str(f / "c")},
        "either",
    )
    home(
        "a cache with a name of 300 letters",
        lambda f: None,
        lambda f: {"LAYERPROBE_CACHE": str(f / ("c" * 300))},
        "either",
    )
    home(
        "an XDG cache that is a file",
        lambda f: (f / "x").touch(),
        lambda f: {"LAYERPROBE_CACHE": None, "XDG_CACHE_HOME": str(f / "x")},
        "either",
    )
    home("a cache that is empty text", lambda f: None, lambda f: {"LAYERPROBE_CACHE": ""}, "either")


# ---- classes, saved results, errors, layers --------------------------------------------------------------------


def spellings() -> None:
    """Add classes that are spelt in two ways, and others that look like it."""
    alike: list[tuple[Any, Any]] = [
        ("TRUE", "true"), ("1.0", "1"), ("+1", "1"), ("1e2", "100"), ("\u00a0yes", "yes"), ("\ufeffyes", "yes"), ("fine", "\ufb01ne"), ("don't", "don\u2019t"),
        ("a-b", "a\u2013b"), ("STRASSE", "stra\u00dfe"), ("n/a value", "N/A Value"), ("yes\u200d", "yes"), ("\u00c5", "\u212b"), ("in stock", "in  stock"),
        ("in-stock", "in stock"), ("Not_Spam", "not spam"), ("\uff21", "A"), ("\u03a3", "\u03c3"), ("\u202ayes", "yes"), ("yes\u00ad", "yes"), ("00", "0"), ("0.50", "0.5"),
        ("False", "0"), (False, 0), (np.float64(1.0), 1), ("\"yes\"", "yes"), ("yes.", "yes"),
    ]  # fmt: skip
    separate = [("C", "C#"), ("1", "10"), ("+", "-"), ("<", ">"), ("<=", ">="), ("resume", "r\u00e9sum\u00e9"), ("x", "x2"), ("1.1", "11"), ("I", "II"), ("a", "\u0430\u0431"), ("0.1", "0.01"), ("-0.5", "0.5"), ("1-2", "12"), ("m2", "m\u00b2 x")]  # fmt: skip

    def frame(first: Any, second: Any) -> pd.DataFrame:
        texts = [f"word {i} and {i * 7 % 13}" for i in range(120)]
        return pd.DataFrame(
            {"text": texts, "label": [(first, second, "none")[i % 3] for i in range(120)]}, dtype=object
        )

    def run(folder: Path, first: Any, second: Any, together: bool) -> None:
        rows = frame(first, second)
        from_table = lp.load_task(rows, kind="classification")
        rows.to_csv(folder / "rows.csv", index=False)
        from_file = lp.load_task(folder / "rows.csv", kind="classification")
        x = np.random.default_rng(0).standard_normal((120, 1, 2))
        probing = lp.probe(x, rows["label"].to_numpy(), foldings=1, weighted_sum=False, kind="classes")
        for what, lines, n in (
            ("a table", (*from_table.warnings, *from_table.notes), len(from_table.labels)),
            ("a file", (*from_file.warnings, *from_file.notes), len(from_file.labels)),
            ("probe", (*probing.warnings, *probing.notes), 3),
        ):
            warned = any("spelling" in line or "read as one label" in line for line in lines)
            true(warned == together or (together and n == 2), f"{what}: {n} classes, warnings {lines}")

    for number, (first, second) in enumerate(alike):
        attempt(
            "two spellings of a class",
            f"{number}: {first!a} and {second!a}",
            "right",
            functools.partial(run, first=first, second=second, together=True),
        )
    for number, (first, second) in enumerate(separate):
        attempt(
            "two spellings of a class",
            f"none {number}: {first!a} and {second!a}",
            "right",
            functools.partial(run, first=first, second=second, together=False),
        )


def saved_results() -> None:
    """Add saved results that do not fit each other."""

    @functools.cache
    def results() -> dict[str, Any]:
        x, y = numbers()
        rng = np.random.default_rng(1)
        quick: dict[str, Any] = {"foldings": 1, "weighted_sum": False}
        return {
            "a": lp.probe(x, y, **quick),
            "b": lp.probe(x + 0.5 * rng.standard_normal(x.shape), y, **quick),
            "two-layers": lp.probe(x[:, :2], y, **quick),
            "fewer": lp.probe(x[:80], y[:80], **quick),
            "classes": lp.probe(x, np.where(y > 0, "high", "low"), **quick),
            "other-targets": lp.probe(x, -y + rng.standard_normal(120), **quick),
            "r2": lp.probe(x, y, scoring="r2", **quick),
            "compared": lp.compare(x, x),
        }

    def files(folder: Path) -> dict[str, Path]:
        return {name: lp.save(result, folder / f"{name}.json") for name, result in results().items()}

    BEFORE.append(results)

    def edited(change: Callable[[Any], object]) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            paths = files(folder)
            data = json.loads(paths["b"].read_text())
            data = {key: value for key, value in data.items() if "checksum" not in key and "sha256" not in key}
            changed = change(data)
            (folder / "b.json").write_text(json.dumps(data if changed is None else changed))
            compared(folder, "a.json", "b.json")

        return run

    def compared(folder: Path, *names: str) -> Any:
        code, out, err = shell(folder, "compare", *names, "--json")
        if code:
            true(out == "" or "error" in json.loads(out), f"stdout has {out[:80]!r}")
            raise lp.LayerProbeError(err.strip().removeprefix("error: "))
        return json.loads(out)

    def pair(first: str, second: str) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            paths = files(folder)
            compared(folder, paths[first].name, paths[second].name)

        return run

    def right(folder: Path) -> None:
        paths = files(folder)
        one, other = (json.loads(paths[name].read_text()) for name in "ab")
        for names, (first, second) in ((("a.json", "b.json"), (one, other)), (("a.json", "a.json"), (one, one))):
            result = compared(folder, *names)
            values = [[row["metrics"]["spearman"] for row in of["layers"]] for of in (first, second)]
            same(
                np.array(result["scores"])[:, 1] - np.array(result["scores"])[:, 0],
                np.subtract(values[1], values[0]),
                within=1e-9,
            )
            for (low, high), value in zip(
                (e["interval"] for e in result["errors"] if e), np.subtract(values[1], values[0]), strict=True
            ):
                true(low - 1e-9 <= value <= high + 1e-9, "an interval without its value")

    def fewer_layers(folder: Path) -> None:
        files(folder)
        true(compared(folder, "a.json", "two-layers.json")["layers"] == [0, 1], "other layers than 0 and 1")

    attempt("saved results", "two of the same items", "right", right)
    attempt("saved results", "one with fewer layers", "right", fewer_layers)
    for first, second in (
        ("a", "fewer"),
        ("a", "classes"),
        ("a", "r2"),
        ("a", "compared"),
        ("compared", "compared"),
        ("a", "other-targets"),
    ):
        attempt("saved results", f"{first} and {second}", "line", pair(first, second))

    def nan_score(data: Any) -> None:
        data["layers"][0]["metrics"]["spearman"] = float("nan")

    def huge(data: Any) -> None:
        data["layers"][0]["metrics"]["spearman"] = 1e308

    def text_score(data: Any) -> None:
        data["layers"][0]["metrics"]["spearman"] = "high"

    def negative_layer(data: Any) -> None:
        data["layers"][0]["layer"] = -1

    def twice(data: Any) -> None:
        data["layers"].append(data["layers"][0])

    def no_metric(data: Any) -> None:
        for row in data["layers"]:
            row["metrics"] = {"pearson": 1.0}

    def short_influences(data: Any) -> None:
        text = (
            next(key for key, value in data.items() if isinstance(value, dict) and "rows" in value)
            if any(isinstance(v, dict) and "rows" in v for v in data.values())
            else ""
        )
        if not text:
            raise lp.LayerProbeError("no influences are saved")
        data[text]["rows"] = data[text]["rows"][: len(data[text]["rows"]) // 2]

    changes: dict[str, Callable[[Any], object]] = {
        "a score that is NaN": nan_score,
        "a score of 1e308": huge,
        "a score that is text": text_score,
        "a layer of -1": negative_layer,
        "a layer twice": twice,
        "no layers": lambda data: data.update(layers=[]),
        "another metric inside": no_metric,
        "influences cut": short_influences,
        "a field more": lambda data: data.update(more=1),
        "a field less": lambda data: data.pop("n_samples", data.pop("unit", None)) and None,
        "a list of it": lambda data: [data],
        "a primary metric that is not there": lambda data: data.update(primary="no such"),
        "null": lambda data: "null",
    }
    for name, change in changes.items():
        must: Must = "either" if change in (huge, negative_layer) else "line"  # which is what the file says
        attempt("saved results", f"edited: {name}", must, edited(change))
    attempt(
        "saved results",
        "edited: an interval inverted",
        "either",
        edited(
            lambda data: data["layers"][0]["error"].update(interval=[50, -50]) if data["layers"][0]["error"] else None
        ),
    )

    contents: dict[str, bytes] = {
        "empty": b"",
        "a byte": b"\0",
        "UTF-16": '{"a": 1}'.encode("utf-16"),
        "half": b'{"layers": [',
        "JSON lines": b'{"a": 1}\n{"a": 2}\n',
        "deep": b"[" * 100_000,
        "a number of a million digits": b"1" * 1_000_000,
        "an error": b'{"error": {"type": "DataError", "message": "x"}}',
    }
    for name, content in contents.items():

        def broken(folder: Path, content: bytes = content) -> None:
            files(folder)
            (folder / "b.json").write_bytes(content)
            compared(folder, "a.json", "b.json")

        attempt("saved results", f"a file: {name}", "line", broken)

    def not_there(folder: Path) -> None:
        files(folder)
        compared(folder, "a.json", "c.json")

    def three(folder: Path) -> None:
        files(folder)
        compared(folder, "a.json", "b.json", "fewer.json")

    def with_a_model(folder: Path) -> None:
        files(folder)
        save_tiny("bert", folder / "model")
        compared(folder, "a.json", "model")

    def a_pipe(folder: Path) -> None:
        files(folder)
        os.mkfifo(folder / "c.json")
        compared(folder, "a.json", "c.json")

    for name, run in {
        "a file that is not there": not_there,
        "three files": three,
        "a file and a model": with_a_model,
        "a pipe": a_pipe,
    }.items():
        attempt("saved results", name, "line", run)


def errors_as_json() -> None:
    """Add commands that fail under --json, and figures."""
    commands = {
        "a model that is not there": ("score", "no/such/model", "-t", "pairs.csv", "--json"),
        "a task that is not there": ("score", "model", "-t", "nothing.csv", "--json"),
        "an option that is not there": ("score", "model", "-t", "pairs.csv", "--jsno", "--json"),
        "a value that is none": ("score", "model", "-t", "pairs.csv", "--tolerance", "much", "--json"),
        "no arguments": ("score", "--json"),
        "a level of 2": ("score", "model", "-t", "pairs.csv", "--level", "2", "--json"),
        "a command that is not there": ("scroe", "--json"),
        "a broken model": ("score", "broken", "-t", "pairs.csv", "--json"),
        "a table without columns": ("score", "model", "-t", "empty.csv", "--json"),
        "a report in no folder": (
            "score",
            "model",
            "-t",
            "pairs.csv",
            "--json",
            "--report",
            "model/config.json/x.html",
        ),
        "a name with quotes and ends of lines": ("score", 'mo"d\nel\\', "-t", "pairs.csv", "--json"),
        "a name that is no UTF-8": ("score", "mod\udcffel", "-t", "pairs.csv", "--json"),
        "a name with colours": ("score", "\x1b[31mmodel", "-t", "pairs.csv", "--json"),
        "probe without targets": ("probe", "model", "--json"),
        "export without a layer": ("export", "model", "out", "--json"),
        "extract of nothing": ("extract", "model", "-t", "nothing.csv", "--json"),
        "find of a file that is not there": ("find", "model", "pairz.csv", "--json"),
        "predict of one row": ("predict", "model", "one.csv", "--json"),
        "compare of one": ("compare", "model", "--json"),
        "json given twice": ("score", "none", "--json", "--json", "-t", "pairs.csv"),
        "cache of a prefix that is not there": ("cache", "prune", "abcdef", "--json"),
        "profile of nothing": ("profile", "nothing", "--json"),
        "check of nothing": ("check", "nothing", "--json"),
        "shrink of nothing": ("shrink", "nothing", "pairs.csv", "--json"),
        "finetune of a layer that is not there": ("finetune", "model", "-t", "pairs.csv", "--layers", "99", "--json"),
    }
    for name, words in commands.items():

        def run(folder: Path, words: tuple[str, ...] = words) -> None:
            files_of(folder)
            code, out, err = shell(folder, *words)
            true(code != 0, f"exit code 0: {out[:100]}")
            true("Traceback" not in err, err.strip()[-200:])
            try:
                value = json.loads(out)
            except ValueError as error:
                raise WrongError(f"stdout is {out[:80]!r}, stderr {err[-160:]!r}") from error
            true(value["error"]["message"] and "\n" not in value["error"]["message"], f"message {value}")
            raise lp.LayerProbeError(value["error"]["message"])

        attempt("errors as JSON and images", name, "line", run)

    for name in ("x.png", "x.SVG", "x.pdf", "x.jpg", "x.webp", "x.eps"):

        def drawn(folder: Path, name: str = name) -> None:
            path = lp.save(Model(folder).probing, folder / name)
            true(path.stat().st_size > 500, "an empty image")

        def on_command_line(folder: Path, name: str = name) -> None:
            x, y = numbers()
            np.save(folder / "x.npy", x)
            pd.DataFrame({"y": y}).to_csv(folder / "y.csv", index=False)
            code, out, err = shell(folder, "probe", "x.npy", "y.csv", "--report", name, "--json")
            if code:
                true("error" in json.loads(out), f"stdout {out[:80]!r}")
                raise lp.LayerProbeError(err.strip())
            true((folder / name).stat().st_size > 500, "an empty image")

        attempt("errors as JSON and images", f"save {name}", "either", drawn)
        attempt("errors as JSON and images", f"--report {name}", "either", on_command_line)


def files_of(folder: Path) -> None:
    """Make a model, a broken one and data."""
    save_tiny("bert", folder / "model")
    (folder / "broken").mkdir()
    (folder / "broken/config.json").write_text("{")
    rows = [(f"a b {chr(97 + i % 26)} {chr(97 + i // 26)}", "d e " + chr(97 + i % 7), i % 6) for i in range(80)]
    table = pd.DataFrame(rows, columns=["first", "second", "score"])
    table.to_csv(folder / "pairs.csv", index=False)
    table[:1].to_csv(folder / "one.csv", index=False)
    (folder / "empty.csv").write_text("")


def negative_layers() -> None:
    """Add layers that count from the last one."""

    def layer(number: Any, expected: int) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            result = lp.extract(Model(folder).model, TEXTS)
            same(result.layer(number), result.layer(expected))

        return run

    for number, expected in ((-1, 3), (-4, 0), (np.int64(-2), 2), (np.int8(-3), 1)):
        attempt("layers below 0", f"layer({number!r})", "right", layer(number, expected))
    for number in (-5, -(10**30), -1.0, None, 4):
        attempt("layers below 0", f"layer({number!r})", "line", layer(number, 3))
    attempt("layers below 0", "layer('-1')", "either", layer("-1", 3))

    def export(number: int, expected: int) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            model = Model(folder).model
            lp.export_model(model, folder / "out", layer=number)
            true(AutoConfig.from_pretrained(folder / "out").num_hidden_layers == expected, "another number of blocks")

        return run

    for number, expected in ((-1, 3), (-2, 2), (-3, 1)):
        attempt("layers below 0", f"export, layer {number}", "right", export(number, expected))
    attempt("layers below 0", "export, layer -9", "line", export(-9, 0))

    def on_command_line(words: tuple[str, ...], expected: list[int]) -> Callable[[Path], None]:
        def run(folder: Path) -> None:
            files_of(folder)
            code, out, err = shell(folder, "profile", "model", *words, "--json", "--quiet", "--max-seconds", "1")
            if code:
                raise lp.LayerProbeError(err.strip())
            data = json.loads(out)
            result = sorted({row["layer"] for row in rows_of(data)} - {None})
            true(result == expected, f"layers {result}, where {expected} are right")

        return run

    cases: dict[tuple[str, ...], tuple[list[int], Must]] = {
        ("--layers", "-1"): ([3], "right"),
        ("--layers=-1",): ([3], "right"),
        ("--layers", "-2,-1"): ([2, 3], "right"),
        ("--layers", "-3--1"): ([1, 2, 3], "either"),
        ("--layers", "0,-1"): ([0, 3], "right"),
        ("--layers", "1--1"): ([1, 2, 3], "either"),
        ("--layers", "3,-1"): ([3], "either"),
        ("--layers", "-1-1"): ([], "line"),
        ("--layers", "-0"): ([0], "either"),
        ("--layers", "--1"): ([], "line"),
        ("--layers", "-9"): ([], "line"),
        ("--layers", "\u22121"): ([3], "either"),
        ("--layers", " -1 "): ([3], "either"),
        ("--layers", "-1."): ([], "line"),
    }
    for words, (layers, must) in cases.items():
        attempt("layers below 0", f"profile {' '.join(words)!a}", must, on_command_line(words, layers))

    def export_there(folder: Path) -> None:
        files_of(folder)
        code, _, err = shell(folder, "export", "model", "out", "--layer", "-2")
        if code:
            raise lp.LayerProbeError(err.strip())
        true(AutoConfig.from_pretrained(folder / "out").num_hidden_layers == 2, "another number of blocks")

    def tuned(folder: Path) -> None:
        x = Model(folder)
        result = lp.finetune(x.model, x.task, [-1, -3], seeds=1, protocol=lp.Protocol(epochs=1))
        true(sorted(run.layer for run in result.runs) == [1, 3], "other layers than 1 and 3")

    def tuned_twice(folder: Path) -> None:
        x = Model(folder)
        result = lp.finetune(x.model, x.task, [3, -1], seeds=1, protocol=lp.Protocol(epochs=1))
        true([run.layer for run in result.runs] == [3], "layer 3 twice")

    def cut(folder: Path) -> None:
        module = Transformer(str(save_tiny("bert", folder / "model")))
        model = SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())], device="cpu")
        same(lp.truncate(model, -2).encode(list(TEXTS)), lp.truncate(model, 2).encode(list(TEXTS)))

    attempt("layers below 0", "export --layer -2", "right", export_there)
    attempt("layers below 0", "finetune [-1, -3]", "right", tuned)
    attempt("layers below 0", "finetune [3, -1]", "either", tuned_twice)
    attempt("layers below 0", "truncate -2", "right", cut)
    attempt("layers below 0", "an estimator of layer -9", "line", lambda folder: Model(folder).probing.estimator(-9))


def rows_of(data: Any) -> Iterator[Any]:
    """Yield what has a layer in JSON."""
    if isinstance(data, dict):
        if isinstance(data.get("layer"), int):
            yield data
        for value in data.values():
            yield from rows_of(value)
    elif isinstance(data, list):
        for value in data:
            yield from rows_of(value)


# ---- processes ---------------------------------------------------------------------------------------------------


def shell(folder: Path, *words: str, env: dict[str, str | None] | None = None) -> tuple[int, str, str]:
    """Run a command in a fork of this process, which has imported everything; return exit code, stdout and stderr."""
    out, err = folder.with_name(f"{folder.name}.out"), folder.with_name(f"{folder.name}.err")
    pid = os.fork()
    if pid == 0:
        code: Any = 1
        try:
            os.chdir(folder)
            os.environ["LAYERPROBE_CACHE"] = str(folder / "cache")
            for name, value in (env or {}).items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            for number, file in ((1, out), (2, err)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
            sys.argv = ["layerprobe", *words]
            importlib.import_module("layerprobe_cli.start").main()
            code = 0
        except SystemExit as error:
            code = error.code
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(BaseException):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(int(code or 0))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, out.read_text(errors="replace"), err.read_text(errors="replace")


def outcome(one: Attempt, folder: Path) -> str:
    """Make an attempt; return what was wrong with how it ended, with its kind first; empty where nothing was."""
    folder.mkdir()
    os.environ["LAYERPROBE_CACHE"] = str(folder / "cache")
    try:
        one.run(folder)
    except WrongError as error:
        return f"silent: {error}"
    except lp.LayerProbeError as error:
        text = str(error)
        if "Traceback" in text:
            return f"traceback: {text.strip()[-200:]}"
        if "error: " not in text and (text.count("\n") or len(text) > LONGEST_LINE):
            return f"silent: no line, but {len(text)} characters: {text[:200]!r}"
        return f"lost: {text}" if one.must == "right" else ""
    except TypeError as error:
        inside = traceback.extract_tb(error.__traceback__)[-1].filename
        if one.kind == "an odd value from Python" and one.must != "right":
            return ""
        return f"traceback: TypeError: {error} in {inside}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__}: {str(error)[:200]} in {last.filename}:{last.lineno}"
    return "silent: nothing is said" if one.must == "line" else ""


def ended(one: Attempt, folder: Path, limit: float, verbose: bool) -> str:
    """Make an attempt in a process of its own, and return what was wrong with how it ended."""
    there, here = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(there)
        if not verbose:
            for number in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        try:
            problem = outcome(one, folder)
        except BaseException as error:
            problem = f"traceback: {error!r}"
        os.write(here, problem.encode(errors="backslashreplace")[:60_000] or b"-")
        os._exit(0)
    os.close(here)
    ready, _, _ = select.select([there], [], [], limit)
    problem = os.read(there, 2**16).decode() if ready else "hang"
    os.close(there)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "" if problem == "-" else problem or "traceback: the process ended"


def main() -> None:
    """Print a line for each attempt that did not survive, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="'kind: name' that begin so")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which an attempt hangs")
    parser.add_argument("--verbose", action="store_true", help="print what attempts print, and their seconds")
    options = parser.parse_args()
    for package in ("layerprobe", "layerprobe_cli"):  # once, so that every attempt is of the same code
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    torch.set_num_threads(1)
    for add in (loaded_models, reading, tokenizers, probes, odd_values, odd_places, locks, spellings, saved_results, errors_as_json, negative_layers):  # fmt: skip
        add()
    counts: dict[str, collections.Counter[str]] = {}
    for prepare in BEFORE if "saved results".startswith(options.only[:5]) else []:
        prepare()
    with tempfile.TemporaryDirectory() as made:
        for number, one in enumerate(ATTEMPTS):
            if not f"{one.kind}: {one.name}".startswith(options.only):
                continue
            began = time.monotonic()
            problem = ended(one, Path(made) / str(number), options.limit, options.verbose)
            counts.setdefault(one.kind, collections.Counter()).update(
                ("tried", problem.partition(":")[0] or "survived")
            )
            if problem or options.verbose:
                print(f"{one.kind}: {one.name}: {problem or 'survived'} ({time.monotonic() - began:.1f} s)", flush=True)
    columns = ("tried", "survived", "lost", "silent", "traceback", "hang")
    print(f"| attack | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, count in counts.items():
        print(f"| {name} | {' | '.join(str(count[column]) for column in columns)} |")
    sys.exit(any(count["tried"] != count["survived"] for count in counts.values()))


if __name__ == "__main__":
    main()
