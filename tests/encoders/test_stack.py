"""Layers are found by looking, also where transformers hands out other hidden states than those of the layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from layerprobe.encoders.architecture import Stack
from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.check import check_model, examine
from tests.models import N_BLOCKS, ROTARY, SIZES, TEXTS, tiny_tokenizer

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
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # its encoder does not call its blocks as modules
    "squeezebert": (
        "squeezebert",
        {**SIZES, "embedding_size": 16},
        "none of its lists of modules runs once for each of its 3 blocks",
    ),
    "minicpm3": (
        "minicpm3",
        {**SIZES, **ROTARY, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
        "its layers differ from the outputs of truncated models",
    ),
    "gpt_neox_japanese": (
        "gpt_neox_japanese",
        SIZES,
        "a model of 1 blocks has weights that the full model lacks, such as layers.0.attention.dense_bias",
    ),
    "albert": (
        "albert",
        {**SIZES, "embedding_size": 12, "num_hidden_groups": 3},
        "a model of 1 blocks has 8020 weights, but its embeddings and blocks have 4100",
    ),
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


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_fewer_blocks_change_are_not_healthy(name: str, tmp_path: Path) -> None:
    kind, settings, reason = REFUSED[name]
    folder = saved(kind, settings, tmp_path)
    if name == "minicpm3":
        (check,) = [check for check in check_model(str(folder)).checks if not check.passed]
        assert check.finding.startswith("truncated models differ from the hidden states at layers 1, 2 (")
        return
    with pytest.raises(UnsupportedArchitectureError, match=reason):
        check_model(str(folder))


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
