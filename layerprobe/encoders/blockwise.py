"""Runs a model with one block at a time in memory; all others are passed by.

Knows the names of weights in safetensors files, and what a model does without its blocks; knows no texts but its own.
"""

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from layerprobe.encoders.architecture import count_blocks, count_parameters, empty_model, truncated_configs
from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder, float32_attention
from layerprobe.encoders.failures import first_sentence, is_out_of_memory
from layerprobe.encoders.first_use import (
    FIRST_BLOCKS,
    TRUNCATION_TOLERANCE,
    FirstUse,
    difference,
    first_use,
    probe_batch,
)
from layerprobe.encoders.loading import Resolved, load_encoder, one_line_errors, quiet_transformers
from layerprobe.encoders.stack import first_tensor
from layerprobe.errors import LayerProbeError, ModelError, UnsupportedArchitectureError, option
from layerprobe.files.network import hub_limits_if
from layerprobe.rng import without_autocast

OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
"""How the published BERT calls its weights, which transformers renames."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockByBlock:
    """A model in evaluation mode, its blocks without weights but the one that is at work."""

    encoder: Encoder
    """The model with its tokenizer; its forward pass goes through the block at work, and by all others."""
    weights: Mapping[str, tuple[str, Path]]
    """By the name of a weight of a block: its name in a file, and the file."""
    n_extras: int | None
    """How much a block gives besides its states, which come first then; None where it gives the states alone."""

    @property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The blocks with their names in the model."""
        path = self.encoder.stack.blocks
        assert path is not None
        return [(f"{path}.{name}", block) for name, block in self.encoder.model.get_submodule(path).named_children()]

    @property
    def file_bytes(self) -> int:
        """The size of the files that the blocks are read from."""
        return sum(path.stat().st_size for path in {path for _, path in self.weights.values()})

    @contextlib.contextmanager
    def at_work(self, number: int) -> Iterator[None]:
        """Keep the weights of block `number` in memory, counted from 1; 0 loads none."""
        if number == 0:
            yield
            return
        name, block = self.blocks[number - 1]
        with one_line_errors(self.encoder.description.name):
            block.load_state_dict(self._read(name, block), assign=True)
        _compute_buffers(self.encoder.model, block, self.encoder.device)
        del block.forward
        try:
            yield
        finally:
            block.to("meta")
            self.pass_by(block)

    def pass_by(self, block: nn.Module) -> None:
        """Make a block return its input in the form of its output."""
        block.forward = functools.partial(_passed, self.n_extras)

    @torch.inference_mode()
    def layer(self, number: int, batch: Batch, state: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Return what goes into the next block, None after the last, and the layer's states, (text, token, feature).

        Args:
            number: The layer, and the block at work.
            batch: What the model reads.
            state: What goes into the block at work, from the layer before; None for layer 0.
        """
        blocks, description = self.blocks, self.encoder.description
        following: list[Tensor] = []

        def put(module: nn.Module, args: Any, kwargs: Any) -> Any:
            passed = first_tensor(args, kwargs)
            replaced = [state if value is passed else value for value in args]
            return tuple(replaced), {name: state if value is passed else value for name, value in kwargs.items()}

        def take(module: nn.Module, args: Any, kwargs: Any) -> None:
            following.append(first_tensor(args, kwargs))

        with contextlib.ExitStack() as hooks:
            if number:
                hooks.enter_context(blocks[number - 1][1].register_forward_pre_hook(put, with_kwargs=True))
            if number < len(blocks):
                hooks.enter_context(blocks[number][1].register_forward_pre_hook(take, with_kwargs=True))
            stack, raw = self.encoder.stack, description.norm == "raw"
            states = stack.last_state(self.encoder.model, batch, name=description.name, raw=raw)
        return following[0] if following else None, states

    def _read(self, path: str, block: nn.Module) -> dict[str, Tensor]:
        read = {}
        with contextlib.ExitStack() as opened:
            files: dict[Path, Any] = {}
            for name in block.state_dict():
                key, file = self.weights[f"{path}.{name}"]
                if file not in files:
                    files[file] = opened.enter_context(safe_open(file, framework="pt"))
                read[name] = files[file].get_tensor(key).to(self.encoder.device, torch.float32)
        return read


def open_blocks(checkpoint: Resolved) -> tuple[FirstUse, BlockByBlock]:
    """Return a model with one block at a time in memory, compared with the model of its first blocks.

    The second, which is looked at in place of the whole model, shares the weights outside of the blocks.
    """
    files = weight_files(checkpoint)
    few = _first_blocks(checkpoint)
    name, path = checkpoint.label, few.stack.blocks
    n_few, n_blocks = few.description.n_blocks, count_blocks(checkpoint.config)
    if few.rewritten:
        raise _refusal(name, "short texts change the model for good")
    if path is None:
        raise _refusal(name, "its blocks are not in a list of their own")
    if len(list(few.model.get_submodule(path).children())) != n_few:
        raise _refusal(name, "all its blocks are one, so the whole model takes no more memory")
    with one_line_errors(checkpoint.name):
        model = _without_weights(checkpoint, few, path)
        parameters = count_parameters(checkpoint.config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
    description = replace(few.description, n_blocks=n_blocks, parameters=parameters)
    with float32_attention(few.model):
        extras = _extras(few)
    blockwise = BlockByBlock(
        encoder=replace(few, model=model, description=description),
        weights=_found(model, path, files, name),
        n_extras=None if extras is None else len(extras),
    )
    for _, block in blockwise.blocks:
        blockwise.pass_by(block)
    with float32_attention(few.model), float32_attention(model):
        _check(blockwise, few, extras)
    return first_use(checkpoint, few)[0], blockwise


def weight_files(checkpoint: Resolved) -> dict[str, Path]:
    """Return the safetensors file of every weight."""
    if checkpoint.loaded is not None or checkpoint.asked.random_init is not None:
        raise ModelError(
            f"{checkpoint.label} has no file of weights to read block by block: expected a folder or a hub id"
        )
    if checkpoint.adapter is not None:
        raise _refusal(checkpoint.label, "its adapter is merged into the weights of the whole model")
    if checkpoint.whole is not None:
        raise _refusal(checkpoint.label, "that is for models with all their blocks and tokens")
    if checkpoint.modality == "image" or checkpoint.towers:
        raise _refusal(checkpoint.label, "that is for models of texts, of one tower")
    source, options = checkpoint.source, {"revision": checkpoint.pinned["revision"]}
    with one_line_errors(checkpoint.name), quiet_transformers(), hub_limits_if(options["revision"] is not None):
        index, whole = (
            cached_file(source, name, **options, _raise_exceptions_for_missing_entries=False)
            for name in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME)
        )
        if whole is not None:
            paths = [whole]
        elif index is not None:
            paths, _ = cast(Any, get_checkpoint_shard_files)(source, index, **options)
        else:
            raise ModelError(
                f"{checkpoint.label} has no safetensors, and other files are read whole: expected model.safetensors, "
                f"or its shards with model.safetensors.index.json; leave {option('blockwise', True)} out, or convert "
                "the weights"
            )
        files: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                files |= dict.fromkeys(file.keys(), Path(path))
    return files


def _refusal(name: str, reason: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"{name} cannot be embedded block by block: {reason}; leave {option('blockwise', True)} out where it fits into "
        "memory"
    )


def _first_blocks(checkpoint: Resolved) -> Encoder:
    """Load the model of the first blocks only; transformers reads no more than its weights."""
    problems = []
    for config in truncated_configs(checkpoint.config, min(FIRST_BLOCKS, count_blocks(checkpoint.config))):
        try:
            return load_encoder(replace(checkpoint, config=config))
        except ModelError as error:
            problems.append(error)
    raise problems[0]


def _without_weights(checkpoint: Resolved, few: Encoder, path: str) -> PreTrainedModel:
    """Return the whole model, of whose weights there are those outside of the blocks, shared with `few`."""
    config = copy.deepcopy(checkpoint.config)
    config._attn_implementation = few.model.config._attn_implementation
    with torch.device("meta"):
        model = empty_model(config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
    model.config.use_cache = False
    model.train(False)
    weights, outside = few.model.state_dict(), {}
    for name, weight in model.state_dict().items():
        if not name.startswith(f"{path}.") and name in weights:
            if weights[name].shape != weight.shape:
                raise _refusal(checkpoint.label, f"its weight {name} depends on how many blocks there are")
            outside[name] = weights[name]
    model.load_state_dict(outside, strict=False, assign=True)
    _compute_buffers(model, model, few.device, but=path)
    return model


@torch.no_grad()
def _compute_buffers(model: PreTrainedModel, module: nn.Module, device: torch.device, *, but: str = "") -> None:
    """Compute buffers that are in no file, such as rotary frequencies, as transformers does."""
    for name, part in module.named_modules():
        empty = [key for key, buffer in part.named_buffers(recurse=False) if buffer.is_meta]
        if not empty or (but and f"{name}.".startswith(f"{but}.")):
            continue
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            tensor._is_hf_initialized = True  # so that it stays as it was read
        for key in empty:
            setattr(part, key, torch.empty_like(getattr(part, key), device=device))
        with guard_torch_init_functions():
            cast(Any, model)._init_weights(part)


def _found(model: PreTrainedModel, path: str, files: Mapping[str, Path], name: str) -> dict[str, tuple[str, Path]]:
    """Return where the weights of all blocks are.

    Checkpoints of a model with a head have a prefix before the name of a weight.
    """
    prefixes = ("", f"{model.base_model_prefix}.")
    places = {}
    for weight in model.state_dict():
        if not weight.startswith(f"{path}."):
            continue
        old = functools.reduce(lambda text, new: text.replace(new, OLD_NAMES[new]), OLD_NAMES, weight)
        stored = next((key for prefix in prefixes for key in (prefix + weight, prefix + old) if key in files), None)
        if stored is None:
            raise _refusal(name, f"its files have no weight {weight}, which transformers makes of others")
        places[weight] = stored, files[stored]
    return places


@torch.inference_mode()
def _extras(few: Encoder) -> list[Any] | None:
    """Return a block's outputs besides its states; None if it outputs the states alone."""
    outputs: list[Any] = []
    block = next(few.model.get_submodule(few.stack.blocks or "").children())
    with block.register_forward_hook(lambda module, args, output: outputs.append(output)):
        few.stack.last_state(few.model, probe_batch(few, n_texts=1, max_length=16), name=few.description.name)
    return list(outputs[0][1:]) if isinstance(outputs[0], tuple) else None


@without_autocast()
def _check(blockwise: BlockByBlock, few: Encoder, extras: list[Any] | None) -> None:
    """Compare the first blocks, run one by one, with a model of these blocks."""
    name, batch = few.description.name, probe_batch(few, n_texts=2, max_length=16)
    mask, state = batch["attention_mask"].bool(), None
    with torch.inference_mode():
        layers = list(few.layer_states(batch))
    for number, expected in enumerate(layers):
        try:
            with blockwise.at_work(number):
                state, states = blockwise.layer(number, batch, state)
        except Exception as error:  # models raise anything
            if is_out_of_memory(error):
                raise
            cause = error.__cause__ if isinstance(error, LayerProbeError) and error.__cause__ else error
            raise _refusal(name, f"it does not run with one of its blocks ({first_sentence(cause)})") from error
        if difference(states, expected, mask) > TRUNCATION_TOLERANCE:
            if number == 0:
                reason = "something that stands between two blocks computes, too"
            elif any(isinstance(extra, Tensor) for extra in extras or ()):
                reason = "a block hands more to the next one than its states"
            else:
                reason = "what a block computes depends on others"
            raise _refusal(name, f"{reason}, so that layer {number} would be another")


def _passed(n_extras: int | None, *args: Any, **kwargs: Any) -> Any:
    state = first_tensor(args, kwargs)
    return state if n_extras is None else (state, *(None for _ in range(n_extras)))
