"""Makes a model of any blocks of another model. Knows loaded models, no files and no texts but one."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import (
    block_lists,
    count_blocks,
    first_entries,
    in_order,
    pooler_option,
    refusal,
    truncated_configs,
)
from layerprobe.encoders.batching import Batch, read_by_model
from layerprobe.encoders.stack import find_stack, first_tensor
from layerprobe.errors import LayerProbeError, ModelError
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import Undrawn

TOLERANCE = 1e-4
"""Largest difference from the whole model with its other blocks passed by, as a share of the largest state."""


def check_blocks(config: PreTrainedConfig, blocks: Sequence[int], *, name: str) -> None:
    """Raise ModelError unless these are blocks of the model, ascending, from 1."""
    n_blocks = count_blocks(config)
    if not blocks or list(blocks) != sorted(set(blocks)) or not 1 <= blocks[0] <= blocks[-1] <= n_blocks:
        listed = ", ".join(map(str, blocks)) or "none"
        raise ModelError(f"expected blocks of {name} to keep, ascending, from 1 to {n_blocks}, got {listed}")


def config_of_blocks(config: PreTrainedConfig, blocks: Sequence[int]) -> PreTrainedConfig:
    """Return the likeliest configuration of a model of some blocks."""
    return next(truncated_configs(in_order(config, blocks), len(blocks)))


@torch.no_grad()  # not in inference mode: what is made here is trained
def of_blocks(model: PreTrainedModel, blocks: Sequence[int], probe: Batch, *, name: str) -> PreTrainedModel:
    """Return a model of some blocks, which shares its weights with the whole one.

    It is compared with the whole model in which the other blocks hand on what they read.

    Args:
        model: The bare encoder, in evaluation mode; it is not changed.
        blocks: To keep, ascending, from 1.
        probe: Texts to compare it on.
        name: Of the model, for its errors.
    """
    n_blocks = count_blocks(model.config)
    check_blocks(model.config, blocks, name=name)
    path = find_stack(model, probe, n_blocks=n_blocks, name=name).blocks
    if path is None or len(list(model.get_submodule(path).children())) != n_blocks:
        raise refusal(name, f"its {n_blocks} blocks are no list of modules of their own")
    expected = _passed_by(model, path, blocks, probe)
    lists, weights = block_lists(model, n_blocks), model.state_dict()
    reasons = []
    for config in truncated_configs(in_order(model.config, blocks), len(blocks)):
        try:
            smaller = _of_config(model, config, blocks, lists, weights)
            states = smaller(**read_by_model(probe)).last_hidden_state
        except LayerProbeError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # models raise anything
            reasons.append(" ".join(str(error).split())[:200])
            continue
        scale = expected.abs().max().clamp(min=1)
        if states.shape == expected.shape and (states - expected).abs().max() <= TOLERANCE * scale:
            return smaller
        reasons.append("what its blocks compute depends on which others there are")
    listed = ", ".join(map(str, blocks))
    raise refusal(name, f"no model can be made of its blocks {listed} alone ({reasons[0]})")


def _of_config(
    model: PreTrainedModel,
    config: PreTrainedConfig,
    blocks: Sequence[int],
    lists: Sequence[str],
    weights: dict[str, Tensor],
) -> PreTrainedModel:
    model_class: Any = type(model)
    with MAKING_MODELS, Undrawn():
        smaller: PreTrainedModel = model_class(config, **pooler_option(model_class))
    copied = {}
    for key, fresh in smaller.state_dict().items():
        source = _name_in_whole(key, blocks, lists)
        if source not in weights:
            raise ModelError(f"it would have a weight {key}, which its block {blocks[0]} has not")
        weight = _entries(weights[source], fresh.shape, blocks, count_blocks(model.config))
        if weight is None:
            raise ModelError(f"its weight {source} has another shape there")
        copied[key] = weight
    smaller.load_state_dict(copied, assign=True)
    smaller.tie_weights()
    place_like(smaller, model)
    smaller.train(False)
    return smaller


def place_like(smaller: PreTrainedModel, model: PreTrainedModel) -> None:
    """Move a model that shares another's weights to its device, with buffers in that model's precision.

    Weights keep theirs: of a model in 16 bits, frequencies of rotary positions can be in float32.
    """
    nn.Module.to(smaller, model.device)
    buffers = dict(model.named_buffers())
    for name, buffer in smaller.named_buffers():
        if name in buffers and buffer.is_floating_point():
            buffer.data = buffer.data.to(buffers[name].dtype)


def _name_in_whole(key: str, blocks: Sequence[int], lists: Sequence[str]) -> str:
    """Return what the whole model calls a weight of the smaller one."""
    for path in lists:
        if key.startswith(f"{path}."):
            number, _, rest = key.removeprefix(f"{path}.").partition(".")
            return f"{path}.{blocks[int(number)] - 1}.{rest}"
    return key


def _entries(weight: Tensor, shape: torch.Size, blocks: Sequence[int], n_blocks: int) -> Tensor | None:
    """Return the part of a weight that belongs to some blocks, where it has an entry per block."""
    if weight.shape == shape or first_entries(weight, shape, layer=len(blocks), n_blocks=n_blocks) is None:
        return weight if weight.shape == shape else None
    axis = next(axis for axis, sizes in enumerate(zip(weight.shape, shape, strict=True)) if len(set(sizes)) > 1)
    parts = weight.chunk(n_blocks, dim=axis)
    return torch.cat([parts[block - 1] for block in blocks], dim=axis)


def _passed_by(model: PreTrainedModel, path: str, blocks: Sequence[int], probe: Batch) -> Tensor:
    """Return the last states of the whole model, in which blocks that are not kept hand on what they read."""

    def hand_on(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        state = first_tensor(args, kwargs)
        return (state, *output[1:]) if isinstance(output, tuple) else state

    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.get_submodule(path).children(), 1):
            if number not in blocks:
                hooks.enter_context(block.register_forward_hook(hand_on, with_kwargs=True))
        last: Tensor = model(**read_by_model(probe)).last_hidden_state
    return last
