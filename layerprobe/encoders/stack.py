"""Locate the layers of a model, and make models from any of its blocks.

The blocks, and the modules between the last block and the output, are found in a forward
pass, in the same way for every architecture.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import (
    block_lists,
    blocks_first,
    count_blocks,
    count_weights,
    pooler_option,
    refusal,
    truncated_configs,
    weight_of_blocks,
)
from layerprobe.encoders.batching import Batch, difference, read_by_model
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import LayerProbeError, ModelError
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import Undrawn


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


TOLERANCE = 1e-4
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
        if count_weights(smaller) < count_weights(model) and difference(states, expected) <= TOLERANCE:
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
