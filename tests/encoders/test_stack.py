"""Layers are found by looking, also where transformers hands out other hidden states than those of the layers."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer

import layerprobe as lp
from layerprobe.encoders.architecture import Stack, count_weights
from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import as_read, load_encoder, look, look_inside
from layerprobe.encoders.model import Model
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.check import check_model, examine
from tests.models import N_BLOCKS, ROTARY, SIZES, T5, TEXTS, VOCABULARY, tiny_tokenizer

SPARSE = {**SIZES, "max_position_embeddings": 512, "block_size": 4, "num_random_blocks": 1}
OPT = {**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 8}
MAMBA = {**SIZES, "state_size": 4}
# name -> model type, configuration and where its layers are
KINDS: dict[str, tuple[str, dict[str, Any], Stack]] = {
    # transformers hands out layer l + 1 as layer l, and the last one twice
    "mamba": ("mamba", MAMBA, Stack(blocks="layers", tail=("norm_f",))),
    "xlnet": (
        "xlnet",
        {"vocab_size": 61, "d_model": 16, "n_layer": N_BLOCKS, "n_head": 2, "d_inner": 24},
        Stack(blocks="layer", texts_second=True),
    ),
    "opt": ("opt", OPT, Stack(blocks="decoder.layers", tail=("decoder.final_layer_norm", "decoder.project_out"))),
    "opt, post-norm": (
        "opt",
        {**OPT, "do_layer_norm_before": False},
        Stack(blocks="decoder.layers", tail=("decoder.project_out",)),
    ),
    "gpt_neo": (
        "gpt_neo",
        {**SIZES, "attention_types": [[["global", "local", "global"], 1]]},
        Stack(blocks="h", tail=("ln_f",)),
    ),
    "albert, groups of two": (
        "albert",
        {**SIZES, "embedding_size": 12, "inner_group_num": 2},
        Stack(blocks="encoder.albert_layer_groups"),
    ),
    "sparse": ("big_bird", SPARSE, Stack(blocks="encoder.layer")),
    # a weight outside of its blocks has an entry for each
    "esm": (
        "esm",
        {**SIZES, "mask_token_id": 4},
        Stack(blocks="encoder.layer", tail=("encoder.emb_layer_norm_after",)),
    ),
}
BART = {
    **{"vocab_size": len(VOCABULARY), "d_model": 16, "pad_token_id": 0, "max_position_embeddings": 96},
    **dict.fromkeys(("encoder_layers", "decoder_layers"), N_BLOCKS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
}
GEMMA = {**SIZES, **ROTARY, "vocab_size_per_layer_input": len(VOCABULARY), "hidden_size_per_layer_input": 4}
ALONE, DIFFERS = (
    "it is an encoder-decoder whose encoder transformers cannot load",
    "its layers differ from the outputs of",
)
# name -> model type, configuration and why its blocks cannot be removed
READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "minicpm3": (
        "minicpm3",
        {**SIZES, **ROTARY, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
        DIFFERS,
    ),
    "gpt_neox_japanese": (
        "gpt_neox_japanese",
        SIZES,
        r"its first blocks are no model of their own \(a model of 1 blocks has weights that the full",
    ),
    "albert": (
        "albert",
        {**SIZES, "embedding_size": 12, "num_hidden_groups": 3},
        "a model of 1 blocks has 8020 weights, but its embeddings and blocks have 4100",
    ),
    "esmc": ("esmc", {**SIZES, "mask_token_id": 4}, DIFFERS),
    "gemma4": ("gemma4_text", {**GEMMA, "num_kv_shared_layers": 0}, DIFFERS),
    "embedding_gemma2": ("embedding_gemma2_text", {**GEMMA, "embedding_dim": 8}, DIFFERS),
    "bart": ("bart", BART, ALONE),
    "mbart": ("mbart", BART, ALONE),
    "marian": ("marian", {**BART, "decoder_start_token_id": 0}, ALONE),
    "longt5": ("longt5", {**T5, "local_radius": 8}, ALONE),
}


def saved(kind: str, settings: dict[str, Any], folder: Path) -> Path:
    """Save a tiny model with weights so large that every block, bias and norm shows."""
    torch.manual_seed(0)
    model: Any = AutoModel.from_config(AutoConfig.for_model(kind, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tiny_tokenizer(model_max_length=256).save_pretrained(folder)
    return folder


@torch.inference_mode()
def with_first_blocks(encoder: Encoder, layer: int, batch: dict[str, Tensor]) -> Tensor:
    """What the whole model outputs where blocks after the first `layer` pass on what they read."""
    calls = 0

    def skip(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= layer:
            return output
        read = args[0] if args else kwargs["hidden_states"]
        return (read, *output[1:]) if isinstance(output, tuple) else read

    assert encoder.stack.blocks is not None
    blocks = set(encoder.model.get_submodule(encoder.stack.blocks).children())
    hooks = [block.register_forward_hook(skip, with_kwargs=True) for block in blocks]
    state: Tensor = encoder.model(**batch).last_hidden_state
    for hook in hooks:
        hook.remove()
    return state


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_layers_are_those_of_fewer_blocks(name: str, tmp_path: Path) -> None:
    kind, settings, stack = KINDS[name]
    encoder = load_encoder(str(saved(kind, settings, tmp_path)))
    assert encoder.stack == stack
    assert encoder.description.hidden_size == (8 if kind == "opt" else 16)
    texts = encoder.tokenize(TEXTS)
    for row in range(len(TEXTS)):
        batch = collate(texts, [row])
        states = list(encoder.layer_states(batch))
        trained = list(TruncatedEncoder(encoder, N_BLOCKS, every=True).layer_states(batch))
        assert len(states) == N_BLOCKS + 1
        for layer, state in enumerate(states):
            torch.testing.assert_close(TruncatedEncoder(encoder, layer)(batch), state, atol=1e-5, rtol=1e-5)
            assert torch.equal(trained[layer], state)
            torch.testing.assert_close(with_first_blocks(encoder, layer, batch), state, atol=1e-5, rtol=1e-5)
    assert examine(encoder).healthy


@torch.inference_mode()
def test_raw_layers_of_a_tail_of_two_are_as_wide_as_the_blocks(tmp_path: Path) -> None:
    encoder = load_encoder(Model(str(saved("opt", OPT, tmp_path)), norm="raw"))
    assert (encoder.description.norm, encoder.description.hidden_size) == ("raw", 16)
    batch = collate(encoder.tokenize(TEXTS), range(len(TEXTS)))
    for state, final in zip(encoder.layer_states(batch), load_encoder(str(tmp_path)).layer_states(batch), strict=True):
        decoder: Any = encoder.model.decoder
        torch.testing.assert_close(decoder.project_out(decoder.final_layer_norm(state)), final)


@pytest.mark.parametrize("name", READ)
@torch.inference_mode()
def test_layers_of_models_that_cannot_be_cut_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind, settings, reason = READ[name]
    folder = saved(kind, settings, tmp_path / "model")
    options: dict[str, Any] = {"pooling": "mean", "device": "cpu", "cache_dir": tmp_path, "batch_tokens": 64}
    embeddings = lp.extract(Model(str(folder), **options), TEXTS)
    assert re.search(reason, embeddings.model.read)
    whole: Any = AutoModel.from_pretrained(folder).eval()
    model, tokenizer = (whole.get_encoder() if ALONE in reason else whole), AutoTokenizer.from_pretrained(folder)
    for row, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
        states = [*output.hidden_states[:-1], output.last_hidden_state]
        if name == "embedding_gemma2":  # its projection widens the last layer only
            states = [*(model.embedding_projection(model.norm(state)) for state in states[:-1]), states[-1]]
        expected = torch.stack([state[0].mean(0) for state in states])
        torch.testing.assert_close(torch.from_numpy(embeddings[row]), expected, atol=1e-4, rtol=1e-4)
    assert embeddings.model.parameters == (count_weights(model),) * (N_BLOCKS + 1)
    (warning,) = [warning for warning in embeddings.warnings if "read, not cut" in warning]
    assert warning == f"the layers of {folder} are read, not cut: {embeddings.model.read}"
    encoder = load_encoder(str(folder))
    diagnosis = examine(as_read(encoder, look(encoder)))
    (check,) = [check for check in diagnosis.checks if check.name == "truncation"]
    assert (check.result, check.finding) == ("warning", f"layers are read, not cut: {embeddings.model.read}")
    if ALONE in reason:
        again = lp.extract(Model((whole, tokenizer), **options), TEXTS)
        np.testing.assert_allclose(np.asarray(again), np.asarray(embeddings), atol=1e-5)


def changed_input(module: Any, args: Any) -> Any:
    return (2 * args[0], *args[1:])


def mixed_batch(module: Any, args: Any, output: Tensor) -> Tensor:
    return output + output.mean((0, 1))


@pytest.mark.parametrize(
    ("kind", "settings", "change", "problem"),
    [
        (
            "bert",
            SIZES,
            lambda blocks: blocks[1].register_forward_pre_hook(changed_input),
            "do not hand their outputs on",
        ),
        (
            "bert",
            SIZES,
            lambda blocks: blocks[1].register_forward_hook(mixed_batch),
            "has other states in a batch than",
        ),
        ("opt", OPT, lambda blocks: None, "its layers have unequal shapes"),
        ("bert", SIZES, lambda blocks: None, "^$"),
    ],
)
def test_states_between_blocks_are_read_only_where_they_are_layers(
    kind: str, settings: dict[str, Any], change: Callable[[Any], object], problem: str, tmp_path: Path
) -> None:
    encoder = load_encoder(str(saved(kind, settings, tmp_path)))
    change(encoder.model.get_submodule(encoder.stack.blocks or ""))
    assert re.search(problem, look_inside(replace(encoder, stack=replace(encoder.stack, tail=()))))


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        # its encoder does not call its blocks as modules
        (
            "squeezebert",
            {**SIZES, "embedding_size": 16},
            "none of its lists of modules runs once for each of its 3 blocks",
        ),
        ("fsmt", {**BART, "langs": ["en", "de"]}, "its encoder is not a model of transformers"),
    ],
)
def test_models_whose_layers_cannot_be_read_are_refused(
    kind: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=reason):
        check_model(str(saved(kind, settings, tmp_path)))


def test_models_that_shorten_their_texts_are_refused(tmp_path: Path) -> None:
    folder = saved("canine", {**SIZES, "num_hash_buckets": 64, "downsampling_rate": 2}, tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=r"its blocks read 4x.* numbers for 4 texts of .* tokens"):
        load_encoder(str(folder))


@torch.inference_mode()
def test_a_short_text_changes_some_models_for_good(tmp_path: Path) -> None:
    """BigBird is sparse until then: what a text's states are must not depend on what was read before."""
    encoder = load_encoder(str(saved("big_bird", SPARSE, tmp_path)))
    assert encoder.padding_invariant
    batch = collate(encoder.tokenize([" ".join("abcdefgh" * 8)]), [0])
    before = list(encoder.layer_states(batch))
    list(encoder.layer_states(collate(encoder.tokenize(["a"]), [0])))
    for layer, state in enumerate(encoder.layer_states(batch)):
        assert torch.equal(state, before[layer])
        torch.testing.assert_close(TruncatedEncoder(encoder, layer)(batch), state)
