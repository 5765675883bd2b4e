"""The blocks of a model: in its configuration, in its modules, and in models made of some of them.

The blocks, and the modules between the last block and the output, are found in a forward pass, in the same way for
every architecture.
"""

import contextlib
import copy
import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

from layerprobe.encoders.batching import Batch, difference, read_by_model
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import LayerProbeError, ModelError, UnsupportedArchitectureError, option
from layerprobe.files.images import Modality
from layerprobe.process import MAKING_MODELS, silence_if
from layerprobe.rng import Undrawn

V = TypeVar("V")
P = ParamSpec("P")


def cache_text(make: Callable[Concatenate[PreTrainedConfig, P], V]) -> Callable[Concatenate[PreTrainedConfig, P], V]:
    """Cache what is made of a configuration, by its class and text."""
    cache: dict[Hashable, V] = {}

    @functools.wraps(make)
    def made(config: PreTrainedConfig, /, *args: P.args, **options: P.kwargs) -> V:
        settings = config.to_dict()
        if "auto_map" not in settings:  # otherwise the configuration loads code
            settings.pop("_name_or_path", None)
        key = type(config), json.dumps(settings, sort_keys=True, default=str), args, *options.items()
        if key not in cache:
            cache[key] = make(config, *args, **options)
        return cache[key]

    return made


def check_supported(config: PreTrainedConfig) -> None:
    """Refuse architectures whose blocks cannot be removed one by one."""
    reason = _refusal(config)
    if reason:
        raise refusal(config.model_type or type(config).__name__, reason)


_EXPECTED = "expected an encoder that is a plain stack of blocks, such as BERT, ModernBERT or ViT"


def refusal(name: str, reason: str, *, advice: str = _EXPECTED) -> UnsupportedArchitectureError:
    """Return the error for a model that cannot be truncated by removing blocks."""
    return UnsupportedArchitectureError(f"{name} cannot be truncated layer by layer: {reason}; {advice}")


_INPUTS = {
    **dict.fromkeys(("input_values", "input_features", "audio_mel"), "sound"),
    "past_values": "series of numbers",
    "pixel_values_videos": "videos",
}
"""Inputs of models other than texts and images, by their name in transformers."""


def _refusal(config: PreTrainedConfig) -> str | None:
    if other := _INPUTS.get(getattr(known_class(config), "main_input_name", "")):
        return f"it reads {other}, and layerprobe embeds texts and images"
    for name, differ in (("depths", "grids and widths"), ("block_sizes", "numbers of tokens")):
        if isinstance(stages := getattr(config, name, None), list | tuple):
            blocks = ", ".join(map(str, stages))
            return f"its blocks form stages ({blocks}) with different {differ}, so layers have unequal shapes"
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


def is_read_as_part(config: PreTrainedConfig) -> bool:
    """Return whether only the encoder of a model is read, which transformers cannot load alone, such as BART's."""
    return bool(config.is_encoder_decoder) and not has_encoder_alone(config)


def encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder of an encoder-decoder, such as BART, that transformers cannot load alone; others unchanged."""
    encoder = model.get_encoder() if is_read_as_part(model.config) else model
    if not isinstance(encoder, PreTrainedModel):
        raise refusal(model.config.model_type, "its encoder is not a model of transformers")
    return encoder


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
    return encoder_of(model)


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
def known_positions(config: PreTrainedConfig, *, trust_remote_code: bool) -> int | None:
    """Return `position_limit` for a configuration, without making the model's weights."""
    with torch.device("meta"):
        return position_limit(empty_model(copy.deepcopy(config), trust_remote_code=trust_remote_code))


def position_limit(model: PreTrainedModel) -> int | None:
    """Return the number of positions of a model; None if it has no limit."""
    positions = None
    with contextlib.suppress(NotImplementedError):  # XLNet's configuration raises this: it has no limit
        positions = getattr(model.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa and models like it count positions from the one after padding
        tables = [m for name, m in model.named_modules() if isinstance(m, nn.Embedding) and "position" in name]
        paddings = [table.padding_idx for table in tables]
        return positions - max((index + 1 for index in paddings if index is not None), default=0)
    return None


def refuse_kernels(config: PreTrainedConfig, name: str) -> None:
    """Raise ModelError if a configuration requests attention code from the hub that was not allowed."""
    parts = (config, *(getattr(config, part) for part in getattr(config, "sub_configs", ()) if hasattr(config, part)))
    for part in parts:
        attention = getattr(part, "_attn_implementation", None)
        if isinstance(attention, str) and "/" in attention:
            raise ModelError(
                f"{name} requests attention code from {attention}: review it, then allow it with "
                f"{option('trust_remote_code', True)}, "
                "or remove it from config.json"
            )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Module names of a model's blocks and of what follows them; they also hold for truncated copies."""

    blocks: str | None
    """Name of the list whose modules run once per block, in order; None for a model without blocks."""
    tail: tuple[str, ...] = ()
    """Modules that process the last block's output, in order: the final norm of pre-norm models; often none."""
    texts_second: bool = False
    """Whether states are (token, text, feature) inside the model."""

    def states(self, model: PreTrainedModel, batch: Batch, *, name: str, raw: bool = False) -> Iterator[Tensor]:
        """Yield (text, token, feature) states of layers 0 .. n_blocks, as truncated models output them; raw: no tail.

        A layer is the input of the next block, passed through the tail. Blocks output their states in many
        forms, and transformers' hidden states differ from the layers for some models.
        """
        # packed sequences have no mask
        tokens = batch["attention_mask"] if "attention_mask" in batch else batch["input_ids"]
        width, before_tail = tokens.shape[1], list[Tensor]()
        with contextlib.ExitStack() as hooks:
            inputs = hooks.enter_context(self.inputs_of_blocks(model))
            if raw and self.tail:
                first = model.get_submodule(self.tail[0])
                hooks.enter_context(first.register_forward_pre_hook(lambda module, args: before_tail.append(args[0])))
            with model_errors(name, "a forward pass"):
                last: Tensor = model(**read_by_model(batch)).last_hidden_state
        for state in inputs:
            yield self.token_part(state, width) if raw else self.through_tail(model, state, width)
        yield self.token_part(before_tail[0], width) if before_tail else last

    @contextlib.contextmanager
    def inputs_of_blocks(self, model: PreTrainedModel) -> Iterator[list[Any]]:
        """Yield a list that collects the inputs of all blocks during every forward pass, see `through_tail`."""
        inputs: list[Any] = []
        with contextlib.ExitStack() as hooks:
            for block in set(model.get_submodule(self.blocks).children()) if self.blocks else ():
                hook = block.register_forward_pre_hook(
                    lambda module, args, kwargs: inputs.append(first_tensor(args, kwargs)), with_kwargs=True
                )
                hooks.enter_context(hook)
            yield inputs

    def through_tail(self, model: PreTrainedModel, state: Tensor, width: int) -> Tensor:
        """Return the output of a model truncated before a block from that block's input, for `width` tokens."""
        for path in self.tail:
            state = model.get_submodule(path)(state)
        return self.token_part(state, width)

    def token_part(self, state: Tensor, width: int) -> Tensor:
        """Return the (text, token, feature) part of an inner state that belongs to `width` tokens."""
        return (state.transpose(0, 1) if self.texts_second else state)[:, :width]


@torch.inference_mode()
def find_stack(model: PreTrainedModel, batch: Batch, *, n_blocks: int, name: str) -> Stack:
    """Locate the blocks of a model, and the modules after the last one, in a forward pass.

    The blocks are the outermost list whose modules run as often as there are blocks; if a block is spread over
    several such lists, as in XLM, the one that runs first; if blocks share weights, as in ALBERT, a list of one.
    The tail consists of the modules outside of all lists that lead, one into the next, to the output.
    """
    if n_blocks == 0:
        return Stack(blocks=None)  # its only layer is its output
    entered, passed, last = _watched_pass(model, batch, name=name)
    counts = Counter(path for path, _ in entered)
    lists = [path for path, count in counts.items() if count == n_blocks]  # in the order in which they ran
    blocks = next((path for path in lists if not any(path.startswith(f"{other}.") for other in lists)), None)
    if blocks is None:
        raise refusal(name, f"none of its lists of modules runs once for each of its {n_blocks} blocks")
    states = [state for path, state in entered if path == blocks]
    size, width = batch["attention_mask"].shape
    shapes = list(dict.fromkeys(tuple(state.shape) if isinstance(state, Tensor) else () for state in states))
    shape = shapes[0] if len(shapes) == 1 and len(shapes[0]) == 3 else (0, 0, 0)
    texts_first = shape[0] == size and shape[1] >= width
    stack = Stack(blocks=blocks, texts_second=not texts_first)
    if not texts_first and not (shape[1] == size and shape[0] >= width):
        listed = " and ".join("x".join(map(str, shape)) or "nothing" for shape in shapes[:2])
        raise refusal(name, f"its blocks read {listed} numbers for {size} texts of {width} tokens")
    begun = max(i for i, (path, _) in enumerate(entered) if path == blocks)
    tail: list[str] = []
    into_tail = last
    for n_entered, path, received, out in reversed(passed):
        if n_entered > begun and all(isinstance(state, Tensor) and state.ndim == 3 for state in (received, out)):
            before, behind = stack.token_part(received, last.shape[1]), stack.token_part(out, last.shape[1])
            if torch.equal(behind, into_tail) and not torch.equal(before, into_tail):  # dropout changes nothing here
                tail.insert(0, path)
                into_tail = before
    if into_tail.shape[-1] != shape[-1]:
        features = f"{shape[-1]} features per token, but its output has {into_tail.shape[-1]}"
        raise refusal(name, f"its blocks read {features}")
    return replace(stack, tail=tuple(tail))


def _watched_pass(
    model: PreTrainedModel, batch: Batch, *, name: str
) -> tuple[list[tuple[str, Any]], list[tuple[int, str, Any, Any]], Tensor]:
    """Record a forward pass, in order.

    Returns:
        List and input of each module of a list that ran; for each module outside of lists the number of list modules
        that ran before, its name, its input if that is one tensor, and its output; and the last states.
    """
    entered: list[tuple[str, Any]] = []
    passed: list[tuple[int, str, Any, Any]] = []

    def enter(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append((path, first_tensor(args, kwargs)))

    def leave(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        passed.append((len(entered), path, args[0] if len(args) == 1 and not kwargs else None, output))

    lists = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)
    }
    inside = {module for blocks in lists.values() for module in blocks.modules()}
    with contextlib.ExitStack() as hooks:
        for path, blocks in lists.items():
            for block in set(blocks.children()):
                hooks.enter_context(block.register_forward_pre_hook(partial(enter, path), with_kwargs=True))
        for path, module in model.named_modules():
            if inside.isdisjoint(module.modules()):
                hooks.enter_context(module.register_forward_hook(partial(leave, path), with_kwargs=True))
        with model_errors(name, "a forward pass"):
            return entered, passed, model(**read_by_model(batch)).last_hidden_state


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the first floating-point argument of a module: its hidden states."""
    values = (*args, *(kwargs[name] for name in sorted(kwargs, key="hidden_states".__ne__)))
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)


BLOCKS_TOLERANCE = 1e-4
"""Largest difference from the full model with its other blocks skipped, as a share of the largest state."""


def check_blocks(config: PreTrainedConfig, blocks: Sequence[int], *, name: str) -> None:
    """Raise ModelError unless these are blocks of the model, ascending, from 1."""
    n_blocks = count_blocks(config)
    if not blocks or list(blocks) != sorted(set(blocks)) or not 1 <= blocks[0] <= blocks[-1] <= n_blocks:
        listed = ", ".join(map(str, blocks)) or "none"
        raise ModelError(f"expected blocks of {name} to keep, ascending, from 1 to {n_blocks}, got {listed}")


@torch.no_grad()  # not in inference mode: the result can be trained
def model_with_blocks(model: PreTrainedModel, blocks: Sequence[int], probe: Batch, *, name: str) -> PreTrainedModel:
    """Return a model of some blocks, ascending, from 1, which shares its weights with the full one.

    It is compared with the full model, in evaluation mode, with the other blocks skipped.
    """
    n_blocks = count_blocks(model.config)
    check_blocks(model.config, blocks, name=name)
    path = find_stack(model, probe, n_blocks=n_blocks, name=name).blocks
    if path is None or len(list(model.get_submodule(path).children())) != n_blocks:
        raise refusal(name, f"its {n_blocks} blocks are not separate modules")
    expected = _skip_blocks(model, path, blocks, probe)
    reasons = []
    for config in truncated_configs(blocks_first(model.config, blocks), len(blocks)):
        try:
            smaller = model_from_config(model, config, blocks)
            states = smaller(**read_by_model(probe)).last_hidden_state
        except LayerProbeError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # models raise all kinds of errors
            reasons.append(" ".join(str(error).split())[:200])
            continue
        if count_weights(smaller) < count_weights(model) and difference(states, expected) <= BLOCKS_TOLERANCE:
            return smaller
        reasons.append("the output of its blocks depends on the presence of others")
    listed = ", ".join(map(str, blocks))
    raise refusal(name, f"its blocks {listed} cannot form a model alone ({reasons[0]})")


def model_from_config(model: PreTrainedModel, config: PreTrainedConfig, blocks: Sequence[int]) -> PreTrainedModel:
    """Return a model of a configuration that shares its weights with some blocks, from 1, of a larger one.

    It is in evaluation mode.

    Raises:
        ModelError: If the weights do not match.
    """
    model_class: Any = type(model)
    with MAKING_MODELS, Undrawn():
        smaller: PreTrainedModel = model_class(config, **pooler_option(model_class))
    weights, n_blocks, copied = model.state_dict(), count_blocks(model.config), dict[str, Tensor]()
    lists = block_lists(model, n_blocks)
    for key, fresh in smaller.state_dict().items():
        source = _name_in_whole(key, blocks, lists)
        if source not in weights:
            raise ModelError(f"a model of {len(blocks)} blocks has weights that the full model lacks, such as {source}")
        weight = weight_of_blocks(weights[source], fresh.shape, blocks, n_blocks)
        if weight is None:
            raise ModelError(
                f"a model of {len(blocks)} blocks has weights of other shapes than the full model, such as {source}"
            )
        copied[key] = weight
    smaller.load_state_dict(copied, assign=True)
    smaller.tie_weights()
    place_like(smaller, model)
    return smaller.train(False)


def place_like(smaller: PreTrainedModel, model: PreTrainedModel) -> None:
    """Move a model with shared weights to the other model's device, with buffers in that model's precision.

    Weights keep their precision: 16-bit models can have rotary frequencies in float32.
    """
    nn.Module.to(smaller, model.device)
    buffers = dict(model.named_buffers())
    for name, buffer in smaller.named_buffers():
        if name in buffers and buffer.is_floating_point():
            buffer.data = buffer.data.to(buffers[name].dtype)


def _name_in_whole(key: str, blocks: Sequence[int], lists: Sequence[str]) -> str:
    """Return the full model's name for a weight of the smaller one."""
    for path in lists:
        if key.startswith(f"{path}."):
            number, _, rest = key.removeprefix(f"{path}.").partition(".")
            if int(number) < len(blocks):
                return f"{path}.{blocks[int(number)] - 1}.{rest}"
    return key


def _skip_blocks(model: PreTrainedModel, path: str, blocks: Sequence[int], probe: Batch) -> Tensor:
    """Return the last states of the full model with blocks that are not kept skipped."""

    def hand_on(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        state = first_tensor(args, kwargs)
        return (state, *output[1:]) if isinstance(output, tuple) else state

    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.get_submodule(path).children(), 1):
            if number not in blocks:
                hooks.enter_context(block.register_forward_hook(hand_on, with_kwargs=True))
        last: Tensor = model(**read_by_model(probe)).last_hidden_state
    return last
