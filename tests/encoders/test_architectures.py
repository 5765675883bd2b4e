"""Layers are what Hugging Face says they are, and truncated models output them, for every architecture."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, GPTNeoConfig, T5EncoderModel

from layerprobe.encoders.architecture import check_supported, truncated_configs
from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError, UnsupportedArchitectureError
from layerprobe.extraction.check import examine
from tests.few import few_architectures
from tests.models import (
    ARCHITECTURES,
    HIDDEN,
    MIXES_PADDING,
    N_BLOCKS,
    POST_NORM,
    PRE_NORM,
    TEXTS,
    save_tiny,
    tiny_config,
)

Loaded = Callable[[str], Encoder]
Saved = Callable[[str], Path]
FINAL_NORMS = {
    "modernbert": "final_norm",
    "eurobert": "norm",
    "gpt2": "ln_f",
    "llama": "norm",
    "qwen3": "norm",
    "roberta-prelayernorm": "LayerNorm",
    "t5": "encoder.final_layer_norm",
}
RUNS_WITH_A_BLOCK_ONLY = ("deberta-v2", "deberta-v3", "deberta-v2-conv", "modernbert")
LAYERS = range(N_BLOCKS + 1)


def hugging_face(folder: Path) -> Any:
    """The model as transformers loads it."""
    kind: Any = T5EncoderModel if AutoConfig.from_pretrained(folder).model_type == "t5" else AutoModel
    return kind.from_pretrained(folder).eval()


def batch_of(encoder: Encoder) -> dict[str, Tensor]:
    texts = encoder.tokenize(TEXTS)
    batch = collate(texts, range(len(TEXTS)))
    assert not batch["attention_mask"].all(), "expected padding in the batch"
    return batch


@torch.inference_mode()
def reference_states(folder: Path, batch: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    output = hugging_face(folder)(**batch, output_hidden_states=True)
    return output.hidden_states, output.last_hidden_state


def n_blocks_in(model: torch.nn.Module) -> int:
    names = [re.search(r"\b(?:layers?|h|block|attentions)\.(\d+)\.", name) for name in model.state_dict()]
    return len({match[1] for match in names if match})


def n_parameters_without_pooler(model: torch.nn.Module) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if "pooler" not in name)


@pytest.mark.parametrize("name", few_architectures(ARCHITECTURES))
def test_description(name: str, loaded: Loaded, checkpoint: Saved) -> None:
    encoder = loaded(name)
    description = encoder.description
    assert (description.n_blocks, description.hidden_size) == (N_BLOCKS, HIDDEN)
    assert description.architecture == ARCHITECTURES[name][0]
    assert description.name == str(checkpoint(name))
    assert description.norm == ("final" if name in PRE_NORM else "none")
    assert encoder.padding_invariant == (name not in MIXES_PADDING)
    assert next(encoder.model.parameters()).dtype == torch.float32
    assert not encoder.model.training


@pytest.mark.parametrize("name", {**POST_NORM, **MIXES_PADDING})
@torch.inference_mode()
def test_layers_of_post_norm_models_are_hidden_states(name: str, loaded: Loaded, checkpoint: Saved) -> None:
    batch = batch_of(loaded(name))
    expected, last = reference_states(checkpoint(name), batch)
    states = list(loaded(name).layer_states(batch))
    assert len(states) == len(expected) == N_BLOCKS + 1
    for layer, state in enumerate(states):
        assert torch.equal(state, expected[layer]), f"layer {layer}"
    assert torch.equal(states[-1], last)


@pytest.mark.parametrize("name", PRE_NORM)
@torch.inference_mode()
def test_layers_of_pre_norm_models_go_through_the_final_norm(name: str, loaded: Loaded, checkpoint: Saved) -> None:
    encoder = loaded(name)
    batch = batch_of(encoder)
    expected, last = reference_states(checkpoint(name), batch)
    norm = hugging_face(checkpoint(name)).get_submodule(FINAL_NORMS[name])
    states = list(encoder.layer_states(batch))
    assert len(states) == N_BLOCKS + 1
    for layer in range(N_BLOCKS):
        assert torch.equal(states[layer], norm(expected[layer])), f"layer {layer}"
        assert not torch.allclose(states[layer], expected[layer], atol=0.05), "expected a norm that does something"
    assert torch.equal(states[-1], last)


@pytest.mark.parametrize("name", PRE_NORM)
@torch.inference_mode()
def test_raw_layers_of_pre_norm_models_have_no_norm(name: str, checkpoint: Saved) -> None:
    encoder = load_encoder(Model(str(checkpoint(name)), norm="raw"))
    assert encoder.description.norm == "raw"
    batch = batch_of(encoder)
    expected, last = reference_states(checkpoint(name), batch)
    states = list(encoder.layer_states(batch))
    for layer in range(N_BLOCKS):
        assert torch.equal(states[layer], expected[layer]), f"layer {layer}"
    model = hugging_face(checkpoint(name))
    norm = model.get_submodule(FINAL_NORMS[name])
    residual: list[Tensor] = []
    norm.register_forward_pre_hook(lambda module, inputs: residual.append(inputs[0]))
    model(**batch)
    assert torch.equal(states[-1], residual[0])
    assert torch.equal(norm(states[-1]), last)


@pytest.mark.parametrize("name", few_architectures(ARCHITECTURES))
@torch.inference_mode()
def test_truncated_models_output_the_layers(name: str, loaded: Loaded, checkpoint: Saved) -> None:
    encoder = loaded(name)
    batch = batch_of(encoder)
    real = batch["attention_mask"].bool()
    for layer, expected in enumerate(encoder.layer_states(batch)):
        truncated = TruncatedEncoder(encoder, layer)
        torch.testing.assert_close(truncated(batch)[real], expected[real], atol=1e-5, rtol=1e-5)
        kept = 1 if layer == 0 and name in RUNS_WITH_A_BLOCK_ONLY else layer
        assert truncated.model.config.num_hidden_layers == kept
        assert n_blocks_in(truncated.model) == (0 if name == "albert" else kept)
        assert n_parameters_without_pooler(truncated.model) == encoder.description.parameters[kept]
        assert truncated.parameters_without_pooler == encoder.description.parameters[layer]
    assert encoder.model.config.num_hidden_layers == N_BLOCKS, "expected the encoder to be left as it was"


@pytest.mark.parametrize("name", few_architectures(ARCHITECTURES))
@torch.inference_mode()
def test_saved_truncated_models_are_plain_checkpoints(name: str, loaded: Loaded, tmp_path: Path) -> None:
    encoder = loaded(name)
    batch = batch_of(encoder)
    real = batch["attention_mask"].bool()
    for layer, expected in enumerate(encoder.layer_states(batch)):
        if layer == 0 and name in RUNS_WITH_A_BLOCK_ONLY:
            continue
        folder = tmp_path / str(layer)
        TruncatedEncoder(encoder, layer).save(folder, encoder.tokenizer)
        model = hugging_face(folder)
        assert model.config.num_hidden_layers == layer
        torch.testing.assert_close(model(**batch).last_hidden_state[real], expected[real], atol=1e-5, rtol=1e-5)
        again = load_encoder(str(folder))
        assert again.n_layers == layer + 1
        torch.testing.assert_close(list(again.layer_states(batch))[-1][real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "albert", "t5", "gpt2", "electra-projected", "modernbert"])
@torch.inference_mode()
def test_one_block(name: str, tmp_path: Path) -> None:
    changes = {"num_layers": 1} if name == "t5" else {"num_hidden_layers": 1}
    encoder = load_encoder(str(save_tiny(name, tmp_path, **changes)))
    assert encoder.n_layers == 2
    assert encoder.description.parameters[1] == n_parameters_without_pooler(encoder.model)
    assert encoder.description.norm == ("final" if name in PRE_NORM else "none")
    assert examine(encoder).healthy


@pytest.mark.parametrize("layer", [-1, N_BLOCKS + 1])
def test_layer_out_of_range(layer: int, loaded: Loaded) -> None:
    with pytest.raises(ModelError, match=rf"expected a layer from 0 to 3, got {layer}$"):
        TruncatedEncoder(loaded("bert"), layer)
    with pytest.raises(ModelError, match=rf"expected a layer from 0 to 3, got {layer}$"):
        next(truncated_configs(tiny_config("bert"), layer))


def test_lists_with_an_entry_a_block_are_cut() -> None:
    config = tiny_config("modernbert")
    assert len(config.layer_types) == N_BLOCKS
    for layer in LAYERS[1:]:
        shorter = next(truncated_configs(config, layer))
        assert shorter.layer_types == config.layer_types[:layer]
        assert shorter.num_hidden_layers == layer
    assert len(config.layer_types) == N_BLOCKS
    assert next(truncated_configs(tiny_config("bert", num_labels=3), 1)).num_labels == 3  # names of labels are no list


def test_repeats_of_entries_are_cut() -> None:
    config = GPTNeoConfig(num_layers=6, attention_types=[[["global", "local"], 2], [["local"], 2]])
    for layer in range(7):
        shorter = next(truncated_configs(config, layer))
        again = GPTNeoConfig.from_dict(json.loads(shorter.to_json_string()))
        assert again.attention_layers == config.attention_layers[:layer]
        assert again.num_layers == layer


def test_settings_by_the_number_of_a_block_are_cut() -> None:
    config = tiny_config("llama")
    config.per_layer_config = {0: {"intermediate_size": 8}, 2: {"intermediate_size": 16}}
    first, second = (next(truncated_configs(config, layer)) for layer in (1, 3))
    assert [each.intermediate_size for each in first.per_layer_config] == [8]
    assert [each.intermediate_size for each in second.per_layer_config] == [8, 24, 16]


@torch.inference_mode()
def test_a_list_that_is_as_long_by_chance_is_left_alone(tmp_path: Path) -> None:
    folder = save_tiny("deberta-v3", tmp_path, num_hidden_layers=2)  # of two kinds of positions
    encoder = load_encoder(str(folder))
    assert TruncatedEncoder(encoder, 1).model.config.pos_att_type == ["p2c", "c2p"]
    assert examine(encoder).healthy


OF_PARTS = "it combines several models"
REFUSED_BY_CONFIGURATION = {
    "funnel": r"its blocks form stages \(4, 4, 4\) with different numbers of tokens",
    **dict.fromkeys(("gemma3", "llava", "mistral3", "qwen2_5_vl"), rf"{OF_PARTS} \(\w+_config, \w+_config\)"),
    "fuyu": rf"{OF_PARTS} \(text_config\): use one of them alone",
    "t5gemma": rf"{OF_PARTS} \(encoder, decoder\)",
    **dict.fromkeys(("wav2vec2", "whisper"), "it reads sound, and layerprobe embeds texts and images"),
    "vjepa2": "it reads videos",
    "informer": "it reads series of numbers",
    "lxmert": "its configuration has no single number of blocks",
    "perceiver": "its configuration has no single number of blocks",
}


@pytest.mark.parametrize("kind", REFUSED_BY_CONFIGURATION)
def test_what_a_configuration_rules_out_is_refused_in_a_line(kind: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=REFUSED_BY_CONFIGURATION[kind]) as raised:
        check_supported(AutoConfig.for_model(kind))
    assert str(raised.value).startswith(f"{kind} cannot be truncated layer by layer: ")
    assert "\n" not in str(raised.value)


def test_truncation_keeps_the_attention_implementation_and_the_random_state(checkpoint: Saved) -> None:
    encoder = load_encoder(Model(str(checkpoint("bert")), attn="eager"))
    before = torch.random.get_rng_state()
    assert TruncatedEncoder(encoder, 1).model.config._attn_implementation == "eager"
    assert torch.equal(torch.random.get_rng_state(), before)
