"""What a configuration says about an encoder: its blocks, whether and how it truncates, how large it is.

Knows configurations; loads no weights.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedConfig, PreTrainedModel

from layerprobe.errors import ModelError, UnsupportedArchitectureError

# Encoder-decoders of which transformers has the encoder alone.
ENCODER_OF_TWO = ("t5", "mt5", "umt5")
# Lists in a configuration that have one entry a block.
PER_BLOCK_LISTS = ("layer_types", "mlp_layer_types", "attention_window", "no_rope_layers")
# Models that cannot be built with no block at all: the encoder reads a variable that its first block sets.
NEEDS_A_BLOCK = ("deberta-v2", "modernbert", "modernbert-decoder")


def check_supported(config: PreTrainedConfig) -> None:
    """Refuse architectures whose blocks cannot be cut off one by one.

    Raises:
        UnsupportedArchitectureError: With the reason.
    """
    reason = _refusal(config)
    if reason:
        raise UnsupportedArchitectureError(
            f"{config.model_type} cannot be truncated layer by layer: {reason}; "
            "expected an encoder that is a plain stack of blocks, such as BERT, ELECTRA or ModernBERT"
        )


def _refusal(config: PreTrainedConfig) -> str | None:
    kind = config.model_type
    if kind == "funnel":
        return "its blocks shorten the sequence, so its layers do not belong to the same tokens"
    if kind == "esm":
        return "its contact head is as wide as the number of blocks, so a shorter checkpoint does not load"
    if kind == "albert" and (config.num_hidden_groups > 1 or config.inner_group_num > 1):
        return (
            f"which of its {config.num_hidden_groups} weight groups of {config.inner_group_num} a block uses "
            "depends on the number of blocks, so a truncated model computes something else"
        )
    if config.is_encoder_decoder and kind not in ENCODER_OF_TWO:
        return "it is an encoder-decoder whose hidden states come from two stacks"
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        return "its configuration names no number of blocks (num_hidden_layers)"
    return None


def count_blocks(config: PreTrainedConfig) -> int:
    """Return the number of transformer blocks."""
    return int(config.num_hidden_layers)


def truncated_config(config: PreTrainedConfig, layer: int) -> PreTrainedConfig:
    """Return the configuration of the model that keeps the embeddings and blocks 1 .. `layer`.

    Raises:
        ModelError: If the model has no such layer.
        UnsupportedArchitectureError: If the architecture cannot be truncated.
    """
    check_supported(config)
    check_layer(config, layer)
    shorter = copy.deepcopy(config)
    shorter.num_hidden_layers = layer
    for name in PER_BLOCK_LISTS:
        values = getattr(config, name, None)
        if isinstance(values, list) and len(values) == count_blocks(config):
            setattr(shorter, name, values[:layer])
    return shorter


def check_layer(config: PreTrainedConfig, layer: int) -> None:
    """Raise ModelError if the model has no layer `layer`."""
    if not 0 <= layer <= count_blocks(config):
        raise ModelError(f"expected a layer from 0 to {count_blocks(config)}, got {layer}")


def empty_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the bare encoder of `config` with fresh weights and, where it may be left out, no pooler."""
    kind: Any = AutoModelForTextEncoding if config.model_type in ENCODER_OF_TWO else AutoModel
    options = {"trust_remote_code": True} if trust_remote_code else {}
    return kind.from_config(config, **pooler_option(config), **options)  # type: ignore[no-any-return]


def pooler_option(config: PreTrainedConfig) -> dict[str, bool]:
    """Return the argument that leaves the pooler out, for the models that know it."""
    known = AutoModel._model_mapping.keys()  # type: ignore[attr-defined]
    model_class = AutoModel._model_mapping[type(config)] if type(config) in known else None  # type: ignore[attr-defined]
    if isinstance(model_class, type) and "add_pooling_layer" in inspect.signature(model_class).parameters:
        return {"add_pooling_layer": False}
    return {}


def blocks_of(model: nn.Module, n_blocks: int) -> nn.ModuleList | None:
    """Return the list of the model's blocks; None where blocks share their weights."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == n_blocks]
    return lists[0] if lists else None


def count_parameters(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Return the parameters of the model truncated at layers 0 .. n_blocks, from the configuration alone.

    The pooler is left out: mean pooling does not use it. Nothing is allocated.

    Raises:
        UnsupportedArchitectureError: If the architecture cannot be truncated.
    """
    check_supported(config)
    with torch.device("meta"):
        model = empty_model(config, trust_remote_code=trust_remote_code)
    counts = {name: p.numel() for name, p in model.named_parameters() if "pooler" not in name.split(".")}
    total = sum(counts.values())
    shares_blocks = config.model_type == "albert"
    blocks = None if shares_blocks else blocks_of(model, count_blocks(config))
    if blocks is None:
        return (total,) * (count_blocks(config) + 1)
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
    return tuple(total - sum(sizes[layer:]) for layer in range(len(sizes) + 1))


def read_config(source: str, **options: Any) -> PreTrainedConfig:
    """Return the configuration of `source`; see `loading` for what can go wrong."""
    return AutoConfig.from_pretrained(source, **options)  # type: ignore[no-any-return]
