"""What a configuration says about an encoder: its blocks, whether and how it truncates, how large it is.

Knows configurations; loads no weights.
"""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
)

from layerprobe.errors import ModelError, UnsupportedArchitectureError


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
    if config.is_encoder_decoder and not has_encoder_alone(config):
        return "it is an encoder-decoder whose hidden states come from two stacks"
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        return "its configuration names no number of blocks (num_hidden_layers)"
    return None


def has_encoder_alone(config: PreTrainedConfig) -> bool:
    """Return whether transformers has the encoder of an encoder-decoder, such as T5, as a model of its own."""
    alone: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
    return alone is not None and alone is not known_class(config)


def count_blocks(config: PreTrainedConfig) -> int:
    """Return the number of transformer blocks."""
    return int(config.num_hidden_layers)


def truncated_configs(config: PreTrainedConfig, layer: int) -> Iterator[PreTrainedConfig]:
    """Yield configurations of the model that keeps the embeddings and blocks 1 .. `layer`, the likeliest first.

    What has an entry a block is cut. A list can be as long by chance, so that others of these configurations leave one
    of them, or all, as they are.

    Raises:
        ModelError: If the model has no such layer, or each configuration is refused by its own class.
        UnsupportedArchitectureError: If the architecture cannot be truncated.
    """
    check_supported(config)
    check_layer(config, layer)
    values = {name: _first_blocks(value, layer, count_blocks(config)) for name, value in vars(config).items()}
    cut = {name: value for name, value in values.items() if value is not None}
    for kept in dict.fromkeys(((), *((name,) for name in cut), tuple(cut))):
        shorter = copy.deepcopy(config)
        shorter.num_hidden_layers = layer
        for name in cut.keys() - set(kept):
            setattr(shorter, name, cut[name])
        yield shorter


def _first_blocks(value: Any, layer: int, n_blocks: int) -> Any:
    """Return what a setting says of the first `layer` blocks, in the form that it has; None where it has no such form.

    The forms are an entry a block, and repeats, such as [[["global", "local"], 12]] of GPT Neo for 24 blocks.
    """
    if not isinstance(value, list | tuple):
        return None
    if len(value) == n_blocks:
        return value[:layer]
    repeats = [each for each in value if isinstance(each, list | tuple) and len(each) == 2]
    if not value or len(repeats) < len(value) or not all(isinstance(n, int) for _, n in repeats):
        return None
    if not all(isinstance(entries, list | tuple) for entries, _ in repeats):
        return None
    entries = [entry for pattern, n in repeats for entry in list(pattern) * n]
    return [[entries[:layer], 1]] if len(entries) == n_blocks else None


def check_layer(config: PreTrainedConfig, layer: int) -> None:
    """Raise ModelError if the model has no layer `layer`."""
    if not 0 <= layer <= count_blocks(config):
        raise ModelError(f"expected a layer from 0 to {count_blocks(config)}, got {layer}")


def auto_class(config: PreTrainedConfig) -> Any:
    """Return the auto class of transformers that makes the bare encoder of `config`."""
    return AutoModelForTextEncoding if has_encoder_alone(config) else AutoModel


def empty_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the bare encoder of `config` with fresh float32 weights and, where it may be left out, no pooler."""
    options = {"trust_remote_code": True} if trust_remote_code else {}
    model: PreTrainedModel = auto_class(config).from_config(
        config, dtype=torch.float32, **pooler_option(known_class(config)), **options
    )
    return model


def known_class(config: PreTrainedConfig) -> type | None:
    """Return the model class that transformers itself has for `config`."""
    model_class = MODEL_MAPPING.get(type(config), None)
    return model_class if isinstance(model_class, type) else None


def pooler_option(model_class: type | None) -> dict[str, bool]:
    """Return the argument that leaves the pooler out, for the models that know it."""
    if model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters:
        return {"add_pooling_layer": False}
    return {}


def count_parameters(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Return the parameters of the model truncated at layers 0 .. n_blocks, from the configuration alone.

    The pooler is left out: mean pooling does not use it. Nothing is allocated.

    Raises:
        UnsupportedArchitectureError: If the architecture cannot be truncated.
    """
    check_supported(config)
    with torch.device("meta"):
        model = empty_model(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    counts = {name: p.numel() for name, p in model.named_parameters() if "pooler" not in name.split(".")}
    total = sum(counts.values())
    sizes = _block_sizes(model, count_blocks(config))
    return tuple(total - sum(sizes[layer:]) for layer in range(len(sizes) + 1))


def _block_sizes(model: PreTrainedModel, n_blocks: int) -> list[int]:
    """Return the parameters of every block; zeros where all blocks share their weights, as in ALBERT."""
    sizes = [0] * n_blocks
    if model.config.model_type == "albert":
        return sizes
    seen: set[nn.Module] = set()
    for blocks in model.modules():
        # the outermost lists only: a block of T5 is itself a list; XLM has one list for every part of a block
        if isinstance(blocks, nn.ModuleList) and len(blocks) == n_blocks and blocks not in seen:
            seen.update(blocks.modules())
            sizes = [n + sum(p.numel() for p in block.parameters()) for n, block in zip(sizes, blocks, strict=True)]
    return sizes
