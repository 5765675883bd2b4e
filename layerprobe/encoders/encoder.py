"""A loaded encoder, the states of all its layers, and the same model truncated at a layer.

Knows how Hugging Face models hand out hidden states, and where the last one differs from the others.
"""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerprobe.encoders.architecture import check_layer, count_blocks, pooler_option, truncated_config
from layerprobe.encoders.batching import Batch, TokenizedTexts, tokenize
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import ModelError, UnsupportedArchitectureError

# Texts of unequal lengths on which a freshly loaded model is looked at.
PROBE_TEXTS = (
    "One.",
    "A short sentence.",
    "Some other words, twice as many.",
    "And this is the longest of the four sentences.",
)
PADDING_TOLERANCE = 1e-3
# Where no length is asked for, models that read thousands of tokens are not given them.
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoder:
    """A model with its tokenizer, ready for a forward pass."""

    model: PreTrainedModel
    """The bare encoder, in evaluation mode."""
    tokenizer: Any
    """Its Hugging Face tokenizer."""
    description: ModelDescription
    """What it is."""
    max_length: int | None
    """Tokens that the model and its tokenizer can read; None where neither names a limit."""
    device: torch.device
    """Where the model is."""
    autocast: torch.dtype | None
    """The reduced precision of the forward pass; None for float32."""
    final_norm: nn.Module | None
    """The norm between the last block and the output, where there is one."""
    padding_invariant: bool
    """Whether a text's states are the same alone and in a padded batch."""

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return self.description.n_layers

    def limit(self, max_length: int | None = None) -> int:
        """Return at how many tokens texts are cut where `max_length`, by default 512, is asked for."""
        wanted = DEFAULT_MAX_LENGTH if max_length is None else max_length
        return wanted if self.max_length is None else min(wanted, self.max_length)

    def tokenize(self, texts: tuple[str, ...] | list[str], *, max_length: int | None = None) -> TokenizedTexts:
        """Return `texts` as token ids, cut at the model's own limit or `max_length`, by default 512.

        Raises:
            DataError: If the maximum length leaves no room for words, or a text has no token.
            ModelError: If the tokenizer knows words that the model does not.
        """
        return tokenize_for(self.model, self.tokenizer, texts, max_length=self.limit(max_length))

    def tokenizer_to_save(self) -> Any:
        """Return a copy of the tokenizer without the truncation and padding of its last call, which saving keeps."""
        tokenizer = copy.deepcopy(self.tokenizer)
        if getattr(tokenizer, "backend_tokenizer", None) is not None:
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        return tokenizer

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the model computes."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def layer_states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield (text, token, feature) states of layers 0 .. n_blocks, as truncated models output them."""
        # transformers hands out the last hidden state only behind the final norm
        before_norm: list[Tensor] = []

        def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            before_norm[:] = inputs[:1]

        hook = self.final_norm.register_forward_pre_hook(keep) if self.final_norm else contextlib.nullcontext()
        with hook:
            output = self.model(**batch, output_hidden_states=True)
        norm = self.final_norm if self.description.norm == "final" else None
        for state in output.hidden_states[:-1]:
            yield norm(state) if norm else state
        yield before_norm[0] if self.description.norm == "raw" and before_norm else output.last_hidden_state


def tokenize_for(
    model: PreTrainedModel, tokenizer: Any, texts: tuple[str, ...] | list[str], *, max_length: int
) -> TokenizedTexts:
    """Return `texts` as token ids that `model` knows."""
    tokens = tokenize(tokenizer, texts, max_length=max_length, token_types=reads_token_types(model))
    n_known = getattr(model.config, "vocab_size", math.inf)
    largest = max((max(ids) for ids in tokens.features["input_ids"]), default=0)
    if largest >= n_known:
        # a GPU would stop with an assertion that names nothing
        raise ModelError(
            f"the tokenizer gives token {largest} where the model knows {n_known} tokens: "
            "expected the tokenizer that the model was trained with"
        )
    return tokens


def reads_token_types(model: PreTrainedModel) -> bool:
    """Return whether the model has token type embeddings.

    GPT-2 takes token type ids and looks them up among its words, so the argument alone says nothing.
    """
    return bool(getattr(model.config, "type_vocab_size", 0))


# ---- what a freshly loaded model does --------------------------------------------------------------------


@torch.inference_mode()
def find_final_norm(model: PreTrainedModel, batch: Batch) -> nn.Module | None:
    """Return the module that norms the last block's output, or None for post-norm encoders.

    It is the norm outside all blocks whose output is the model's output: no table of architectures.

    Raises:
        UnsupportedArchitectureError: If the model does not hand out one state a block and one more.
    """
    if count_blocks(model.config) == 0:
        return None  # its only layer is its output
    inside = {m for blocks in model.modules() if isinstance(blocks, nn.ModuleList) for m in blocks.modules()}
    outputs: dict[nn.Module, Any] = {}

    def remember(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[module] = output

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if "norm" in type(module).__name__.lower() and module not in inside:
                hooks.enter_context(module.register_forward_hook(remember))
        result = model(**batch, output_hidden_states=True)
    expected = count_blocks(model.config) + 1
    if len(result.hidden_states) != expected:
        raise UnsupportedArchitectureError(
            f"expected {expected} hidden states from {model.config.model_type}, one a block and the embeddings, "
            f"got {len(result.hidden_states)}"
        )
    last = result.last_hidden_state
    equal = (m for m, output in outputs.items() if isinstance(output, Tensor) and torch.equal(output, last))
    return next(equal, None)


@torch.inference_mode()
def is_padding_invariant(model: PreTrainedModel, alone: list[Batch], together: Batch) -> bool:
    """Return whether every text has the same last states alone as in the padded batch."""
    states = model(**together).last_hidden_state
    for row, batch in enumerate(alone):
        single = model(**batch).last_hidden_state[0]
        padded = states[row][together["attention_mask"][row].bool()]
        if (single - padded).abs().max() > PADDING_TOLERANCE * single.abs().max().clamp(min=1):
            return False
    return True


# ---- truncation ------------------------------------------------------------------------------------------


class TruncatedEncoder(nn.Module):
    """The embeddings and the first `layer` blocks of an encoder, as a model of its own.

    The removed blocks do not exist in it. Architectures that do not run without a block, such as DeBERTa-v2
    and ModernBERT, keep one for layer 0 and read what goes into it.
    """

    def __init__(self, encoder: Encoder, layer: int) -> None:
        super().__init__()
        check_layer(encoder.model.config, layer)
        self.layer = layer
        model = _truncated(encoder.model, layer) if layer else _without_blocks(encoder.model)
        self.reads_input_of_block = model is None
        self.model = _truncated(encoder.model, 1) if model is None else model
        self.parameters_without_pooler = encoder.description.parameters[layer]
        path = next((name for name, module in encoder.model.named_modules() if module is encoder.final_norm), None)
        self.final_norm = self.model.get_submodule(path) if path and self.reads_input_of_block else None

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer whose states it gives."""
        return (self.layer,)

    def layer_states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the token states of its only layer, (text, token, feature)."""
        yield self(batch)

    def forward(self, batch: Batch) -> Tensor:
        """Return the token states of the layer, (text, token, feature)."""
        if not self.reads_input_of_block:
            return self.model(**batch).last_hidden_state  # type: ignore[no-any-return]
        state: Tensor = self.model(**batch, output_hidden_states=True).hidden_states[0]
        return self.final_norm(state) if self.final_norm else state

    def save(self, directory: str | Path, tokenizer: Any) -> None:
        """Write a Hugging Face checkpoint with its tokenizer.

        Raises:
            UnsupportedArchitectureError: If this is layer 0 of an architecture that does not run without a block.
        """
        if self.reads_input_of_block:
            raise UnsupportedArchitectureError(
                f"{self.model.config.model_type} does not run without a block, so layer 0 has no checkpoint: "
                "save layer 1 or a later one"
            )
        self.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


class EveryLayer(nn.Module):
    """A copy of an encoder to be trained at all of its layers at once: what truncated models output, in one pass."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.layers = tuple(range(encoder.n_layers))
        self.model = _truncated(encoder.model, encoder.n_layers - 1)
        path = next((name for name, module in encoder.model.named_modules() if module is encoder.final_norm), None)
        final_norm = self.model.get_submodule(path) if path else None
        description = replace(encoder.description, norm="final" if final_norm else "none")
        self._encoder = replace(encoder, model=self.model, final_norm=final_norm, description=description)

    def layer_states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the token states of every layer, (text, token, feature), with the final norm where there is one."""
        yield from self._encoder.layer_states(batch)

    def save(self, directory: str | Path, tokenizer: Any) -> None:
        """Write the whole model as a Hugging Face checkpoint with its tokenizer."""
        self.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _truncated(model: PreTrainedModel, n_blocks: int) -> PreTrainedModel:
    """Return a copy of `model` that has the first `n_blocks` blocks only."""
    config = truncated_config(model.config, n_blocks)
    model_class: Any = type(model)
    with torch.random.fork_rng(devices=[]):  # fresh weights are drawn on the CPU, then replaced
        shorter: Any = model_class(config, **pooler_option(model_class))
    shorter.to(device=model.device, dtype=model.dtype)
    weights = model.state_dict()
    shorter.load_state_dict({name: weights[name] for name in shorter.state_dict()})
    return cast(PreTrainedModel, shorter.eval())


def _without_blocks(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return a copy of `model` without any block, or None where that cannot be built or does not run."""
    try:
        shorter = _truncated(model, 0)
        with torch.inference_mode():
            token = torch.ones((1, 1), dtype=torch.long, device=model.device)
            shorter(input_ids=token, attention_mask=token)
    except Exception:  # whatever goes wrong where a first block was taken for granted
        return None
    return shorter
