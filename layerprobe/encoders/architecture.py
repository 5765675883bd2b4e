"""Reads an encoder's configuration: its blocks, how it can be truncated, and its size.

Knows configurations; loads no weights.
"""

import contextlib
import copy
import functools
import inspect
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
)

from layerprobe.errors import ModelError, UnsupportedArchitectureError
from layerprobe.files.images import Modality
from layerprobe.process import MAKING_MODELS, silence_if

V = TypeVar("V")
P = ParamSpec("P")


def cache_text(make: Callable[Concatenate[PreTrainedConfig, P], V]) -> Callable[Concatenate[PreTrainedConfig, P], V]:
    """Cache what is made of a configuration, by its class and text."""
    kept: dict[Hashable, V] = {}

    @functools.wraps(make)
    def made(config: PreTrainedConfig, /, *args: P.args, **options: P.kwargs) -> V:
        settings = config.to_dict()
        if "auto_map" not in settings:  # otherwise the configuration loads code
            settings.pop("_name_or_path", None)
        key = type(config), json.dumps(settings, sort_keys=True, default=str), args, *options.items()
        if key not in kept:
            kept[key] = make(config, *args, **options)
        return kept[key]

    return made


def check_supported(config: PreTrainedConfig) -> None:
    """Refuse architectures whose blocks cannot be removed one by one."""
    reason = _refusal(config)
    if reason:
        raise refusal(config.model_type or type(config).__name__, reason)


def refusal(name: str, reason: str) -> UnsupportedArchitectureError:
    """Return the error for a model that cannot be truncated by removing blocks."""
    return UnsupportedArchitectureError(
        f"{name} cannot be truncated layer by layer: {reason}; "
        "expected an encoder that is a plain stack of blocks, such as BERT, ModernBERT or ViT"
    )


_INPUTS = {
    **dict.fromkeys(("input_values", "input_features", "audio_mel"), "sound"),
    "past_values": "series of numbers",
    "pixel_values_videos": "videos",
}
"""Inputs of models other than texts and images, by their name in transformers."""


def _refusal(config: PreTrainedConfig) -> str | None:
    if other := _INPUTS.get(getattr(known_class(config), "main_input_name", "")):
        return f"it reads {other}, and layerprobe embeds texts and images"
    if config.is_encoder_decoder and not has_encoder_alone(config):
        return "it is an encoder-decoder whose encoder transformers cannot load alone (AutoModelForTextEncoding)"
    stages = getattr(config, "depths", None)
    if isinstance(stages, list | tuple):
        blocks = ", ".join(map(str, stages))
        return f"its blocks form stages ({blocks}) with different grids and widths, so layers have unequal shapes"
    if isinstance(getattr(config, "num_hidden_layers", None), int):
        return None
    parts = [name for name in config.sub_configs if getattr(config, name, None) is not None]
    if parts:
        return f"it combines several models ({', '.join(parts)}): use one of them alone"
    return "its configuration has no single number of blocks (num_hidden_layers)"


def has_encoder_alone(config: PreTrainedConfig) -> bool:
    """Return whether transformers has the encoder of an encoder-decoder, such as T5, as a separate model."""
    alone: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
    return alone is not None and alone is not known_class(config)


def modality(config: PreTrainedConfig) -> Modality:
    """Return whether a model reads texts or images."""
    return "image" if getattr(known_class(config), "main_input_name", "") == "pixel_values" else "text"


def tower_configs(config: PreTrainedConfig) -> dict[Modality, PreTrainedConfig]:
    """Return the configurations of the towers of a model that embeds texts and images separately, such as CLIP.

    The result is empty for models with one tower, and for language models that read the output of an image model; it
    has no text tower where transformers has no separate model for it, as for SigLIP.
    """
    if not hasattr(known_class(config), "get_text_features") or not hasattr(known_class(config), "get_image_features"):
        return {}
    parts: dict[Modality, Any] = {"text": config.text_config, "image": config.vision_config}
    return {reads: part for reads, part in parts.items() if known_class(part) is not None}


def count_blocks(config: PreTrainedConfig) -> int:
    """Return the number of transformer blocks."""
    return int(config.num_hidden_layers)


_BACKBONE = ("stage_names", "out_features", "out_indices", "_out_features", "_out_indices")


def truncated_configs(config: PreTrainedConfig, layer: int) -> Iterator[PreTrainedConfig]:
    """Yield configurations of the model that keeps the embeddings and blocks 1 .. `layer`, the likeliest first.

    Settings with one entry per block are shortened, as in the saved file, so that the configuration's class checks
    them. Other lists can have that length by chance: first those whose length follows the depth are cut, then all,
    then all but one, then none. Configurations refused by the class are skipped; if all are, the first error is raised.
    """
    check_supported(config)
    if not 0 <= layer <= count_blocks(config):
        raise ModelError(f"expected a layer from 0 to {count_blocks(config)}, got {layer}")
    n_blocks, settings = count_blocks(config), config.to_dict()
    # numbers of the layers that a detector reads from a vision model; the model itself ignores them
    settings = {name: value for name, value in settings.items() if name not in _BACKBONE}
    values = {name: _block_entries(value, range(layer), n_blocks) for name, value in settings.items()}
    cut = {name: value for name, value in values.items() if value is not None}
    unclear = tuple(name for name in cut if not _follows_depth(config, name))
    if settings.get("num_blocks") == n_blocks:  # the number of blocks again, in xLSTM
        settings["num_blocks"] = layer
    settings[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = layer
    errors: list[Exception] = []
    n_made = 0
    for kept_names in dict.fromkeys((unclear, (), *((name,) for name in cut), tuple(cut))):
        try:
            shorter = _changed(config, {**settings, **{name: cut[name] for name in cut.keys() - set(kept_names)}})
        except Exception as error:  # configurations raise all kinds of errors
            errors.append(error)
            continue
        n_made += 1
        yield shorter
    if not n_made:
        raise errors[0]


def _changed(config: PreTrainedConfig, settings: dict[str, Any]) -> PreTrainedConfig:
    """Return a configuration with other settings, keeping attributes that were set after reading its file."""
    changed = type(config).from_dict(settings)
    changed._attn_implementation = config._attn_implementation
    if hasattr(config, "use_cache"):
        changed.use_cache = config.use_cache
    return changed


def blocks_first(config: PreTrainedConfig, blocks: Sequence[int]) -> PreTrainedConfig:
    """Return a configuration with the entries of some blocks, from 1, before those of the others.

    Truncated to that many layers, it is the configuration of a model with these blocks.
    """
    n_blocks = count_blocks(config)
    order = [block - 1 for block in blocks]
    order += sorted(set(range(n_blocks)) - set(order))
    moved = {name: _block_entries(value, order, n_blocks) for name, value in config.to_dict().items()}
    moved = {name: value for name, value in moved.items() if value is not None}
    return _changed(config, {**config.to_dict(), **moved}) if moved else config


def _follows_depth(config: PreTrainedConfig, name: str) -> bool:
    """Return whether a setting at its default has one entry per block for any number of blocks."""
    config_class: Any = type(config)
    try:
        for depth in (count_blocks(config), count_blocks(config) + 1):
            if len(getattr(config_class(num_hidden_layers=depth), name)) != depth:
                return False
    except Exception:  # configurations raise all kinds of errors
        return False
    return True


def _block_entries(value: Any, blocks: Sequence[int], n_blocks: int) -> Any:
    """Return the entries of some blocks, from 0, in the form of a setting; None if it has no such form.

    The forms are one entry per block; repeats, such as [[["global", "local"], 12]] of GPT Neo for 24 blocks; and
    entries by the number of the block.
    """
    match value:
        case [*entries] if len(entries) == n_blocks:
            return [entries[i] for i in blocks]
        case [[[*_], int()], *_]:
            entries = [entry for pattern, times in value for entry in pattern * times]
            return [[[entries[i] for i in blocks], 1]] if len(entries) == n_blocks else None
        case dict() if value and all(str(key).isdigit() and isinstance(value[key], dict) for key in value):
            by_block = {int(key): (type(key), entry) for key, entry in value.items()}
            chosen = [(place, *by_block[i]) for place, i in enumerate(blocks) if i in by_block]
            return {kind(place): entry for place, kind, entry in chosen}
    return None


def declared_dtype(config: PreTrainedConfig) -> str:
    """Return the dtype of the weights in a configuration, such as bfloat16; float32 if it has none."""
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def auto_class(config: PreTrainedConfig) -> Any:
    """Return the auto class of transformers that makes the bare encoder of `config`."""
    return AutoModelForTextEncoding if has_encoder_alone(config) else AutoModel


def empty_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the bare encoder of `config` with fresh float32 weights and, if possible, without a pooler."""
    with silence_if(trust_remote_code), MAKING_MODELS:
        model: PreTrainedModel = auto_class(config).from_config(
            config, dtype=torch.float32, **pooler_option(known_class(config)), trust_remote_code=trust_remote_code
        )
    return model


def known_class(config: PreTrainedConfig) -> type | None:
    """Return transformers' own model class for `config`, if any."""
    model_class = MODEL_MAPPING.get(type(config), None)
    return model_class if isinstance(model_class, type) else None


def pooler_option(model_class: type | None) -> dict[str, bool]:
    """Return the argument that omits the pooler, for models that have such an argument."""
    if model_class is not None and "add_pooling_layer" in inspect.signature(model_class).parameters:
        return {"add_pooling_layer": False}
    return {}


@cache_text
def count_parameters(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> tuple[int, ...]:
    """Return the parameters of the model truncated at layers 0 .. n_blocks, from the configuration alone.

    The pooler is not counted: mean pooling does not use it. No memory is allocated.
    """
    check_supported(config)
    with torch.device("meta"):
        model = empty_model(copy.deepcopy(config), trust_remote_code=trust_remote_code)
        sizes = [0] * count_blocks(config)  # stays 0 if all blocks share their weights
        for name in block_lists(model, len(sizes)):
            blocks = model.get_submodule(name).children()
            sizes = [n + sum(p.numel() for p in block.parameters()) for n, block in zip(sizes, blocks, strict=True)]
        if len(sizes) == 1:  # the list may be shared by all blocks
            with contextlib.suppress(Exception):  # some models do not run without a block
                less = empty_model(next(truncated_configs(config, 0)), trust_remote_code=trust_remote_code)
                sizes = [count_weights(model) - count_weights(less)]
        sizes = [size + _weights_for_each_block(model, config, trust_remote_code=trust_remote_code) for size in sizes]
    total = count_weights(model)
    return tuple(total - sum(sizes[layer:]) for layer in range(len(sizes) + 1))


def weight_of_blocks(weight: Tensor, shape: torch.Size, blocks: Sequence[int], n_blocks: int) -> Tensor | None:
    """Return the part of a weight that belongs to some of `n_blocks` blocks, from 1; None if it has another shape.

    Some models have a weight outside of their blocks with an entry for each block, such as the embeddings by layer
    of Gemma 4.
    """
    if weight.shape == shape:
        return weight
    odd = [axis for axis, sizes in enumerate(zip(weight.shape, shape, strict=False)) if len(set(sizes)) > 1]
    if weight.ndim != len(shape) or len(odd) > 1 or weight.shape[odd[0]] % n_blocks:
        return None
    if weight.shape[odd[0]] * len(blocks) != shape[odd[0]] * n_blocks:
        return None
    places = torch.arange(weight.shape[odd[0]], device=weight.device).view(n_blocks, -1)
    return weight.index_select(odd[0], places[[block - 1 for block in blocks]].flatten())


def _weights_for_each_block(model: PreTrainedModel, config: PreTrainedConfig, *, trust_remote_code: bool) -> int:
    """Return the number of parameters per block that lie outside of the blocks."""
    n_blocks = count_blocks(config)
    if n_blocks < 2:
        return 0
    try:
        one = empty_model(next(truncated_configs(config, 1)), trust_remote_code=trust_remote_code)
    except Exception:  # some models do not run with a single block
        return 0
    whole = dict(model.named_parameters())
    return sum(
        whole[name].numel() // n_blocks
        for name, p in one.named_parameters()
        if name in whole
        and p.shape != whole[name].shape
        and weight_of_blocks(whole[name], p.shape, (1,), n_blocks) is not None
    )


def count_weights(model: nn.Module) -> int:
    """Return the number of parameters of a model without its pooler."""
    return sum(p.numel() for name, p in model.named_parameters() if "pooler" not in name.split("."))


def block_lists(model: nn.Module, n_blocks: int) -> list[str]:
    """Return the names of the lists with one module per block; none if all blocks share their weights, as in ALBERT."""
    names = []
    seen: set[nn.Module] = set()
    for name, blocks in model.named_modules():
        # the outermost lists only: a block of T5 is itself a list; XLM has one list for every part of a block
        if isinstance(blocks, nn.ModuleList) and len(blocks) == n_blocks and blocks not in seen:
            seen.update(blocks.modules())
            names.append(name)
    return names
