"""A loaded encoder, the states of all its layers, and the same model truncated at a layer.

Knows how Hugging Face models return hidden states, and how the last one differs from the others.
"""

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from layerprobe.encoders.architecture import Stack, count_weights, model_from_config, truncated_configs
from layerprobe.encoders.batching import (
    Batch,
    ImageReader,
    PreparedImages,
    TokenizedTexts,
    collate,
    difference,
    prepare_images,
    probe_images,
    prompt_lengths,
    read_by_model,
    tokenize,
)
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.model import ModelDescription, Pooling
from layerprobe.encoders.vocabulary import write_whole
from layerprobe.errors import DataError, ModelError, UnsupportedArchitectureError
from layerprobe.files.atomic import error_number
from layerprobe.files.images import Modality, caption_texts
from layerprobe.rng import without_autocast

# Texts of unequal lengths for inspecting a loaded model.
PROBE_TEXTS = (
    "One.",
    "A short sentence.",
    "Some other words, twice as many.",
    "And this is the longest of the four sentences.",
)
PADDING_TOLERANCE = 1e-3
# Default limit for models that can read thousands of tokens.
DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoder:
    """A model with its tokenizer, or its image processor, ready for a forward pass."""

    model: PreTrainedModel
    """The bare encoder, in evaluation mode."""
    tokenizer: Any
    """Its Hugging Face tokenizer, or image processor."""
    description: ModelDescription
    """Name, size and settings of the model."""
    max_length: int | None
    """Most tokens that the model and its tokenizer can read; None if neither has a limit."""
    device: torch.device
    """Device of the model."""
    autocast: torch.dtype | None
    """The reduced precision of the forward pass; None for float32."""
    stack: Stack
    """Location of its layers."""
    padding_invariant: bool
    """Whether a text has the same states alone and in a padded batch."""
    reader: ImageReader | None = None
    """Converts images to pixels; None for text models."""

    @property
    def modality(self) -> Modality:
        """Kind of input: texts or images."""
        return "text" if self.reader is None else "image"

    @property
    def probes(self) -> Sequence[str]:
        """Texts or images for inspecting the model."""
        return PROBE_TEXTS if self.reader is None else probe_images()

    @property
    def n_layers(self) -> int:
        """Number of blocks plus the embedding output."""
        return self.description.n_layers

    def limit(self, max_length: int | None = None) -> int:
        """Return the length at which texts are truncated for a requested `max_length`, by default 512."""
        if self.reader is not None:
            return self.reader.n_tokens
        limit = DEFAULT_MAX_LENGTH if max_length is None else max_length
        return limit if self.max_length is None else min(limit, self.max_length)

    def check_pooling(self, pooling: Pooling) -> None:
        """Raise DataError if images have no such token."""
        if self.reader is not None and (pooling == "last" or (pooling == "cls" and not self.reader.n_extra)):
            what = "an image has no last token" if pooling == "last" else f"{self.description.name} has no [CLS]"
            raise DataError(f"expected pooling by mean{', cls' * (pooling == 'last')} or max, got {pooling}: {what}")

    def tokenize(
        self, texts: Sequence[str], *, max_length: int | None = None, unpooled: Sequence[str] = ()
    ) -> TokenizedTexts | PreparedImages:
        """Return `texts` as token ids, truncated at the model's own limit or `max_length`, by default 512; or images.

        For images with captions, a text model reads the captions. Texts may begin with prompts that are not
        pooled.
        """
        if self.reader is not None:
            return prepare_images(self.reader, texts)
        texts = caption_texts(texts)
        with model_errors(self.description.name, "tokenizing", advice="use another model, or remove unusual texts"):
            limit = self.limit(max_length)
            tokens = tokenize_for(self.model, self.tokenizer, texts, max_length=limit)
            if not unpooled:
                return tokens
            lengths = prompt_lengths(self.tokenizer, texts, unpooled, max_length=limit)
            return replace(tokens, n_unpooled=lengths)

    def tokenizer_to_save(self) -> Any:
        """Return a copy of the tokenizer without the truncation and padding of its last call, which would be saved."""
        tokenizer = copy.deepcopy(self.tokenizer)
        if getattr(tokenizer, "backend_tokenizer", None) is not None:
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        return tokenizer

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the model's precision, independent of the caller's autocast."""
        if self.autocast is None:
            return without_autocast()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def layer_states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield (text, token, feature) states of layers 0 .. n_blocks, as truncated models output them."""
        description = self.description
        return self.stack.states(self.model, batch, name=description.name, raw=description.norm == "raw")


def tokenize_for(model: PreTrainedModel, tokenizer: Any, texts: Sequence[str], *, max_length: int) -> TokenizedTexts:
    """Return `texts` as token ids in the model's vocabulary."""
    tokens = tokenize(tokenizer, texts, max_length=max_length, token_types=reads_token_types(model))
    check_known(model, tokens.ids)
    return tokens


def check_known(model: PreTrainedModel, ids: NDArray[np.int32]) -> None:
    """Raise ModelError if a token id is not in the model's vocabulary."""
    n_known = getattr(model.config, "vocab_size", math.inf)
    largest = int(ids.max(initial=0))
    if largest >= n_known:
        # a GPU would stop with an uninformative assertion
        raise ModelError(
            f"the tokenizer produces token {largest}, but the model knows {n_known} tokens: "
            "expected the tokenizer that the model was trained with"
        )


def reads_token_types(model: PreTrainedModel) -> bool:
    """Return whether the model has token type embeddings.

    GPT-2 accepts token type ids and looks them up as words, so the argument alone proves nothing.
    """
    return bool(getattr(model.config, "type_vocab_size", 0))


# ---- checks of a loaded model ----------------------------------------------------------------------------


@contextlib.contextmanager
def float32_attention(model: PreTrainedModel, *, plain: bool = False) -> Iterator[str]:
    """Switch a model to float32 attention temporarily, as flash attention needs; yield its usual attention.

    Plain: to attention written as products and a softmax.
    """
    kind = model.config._attn_implementation
    switch = plain or "flash" in (kind or "")
    if switch:
        model.set_attn_implementation("eager")
    try:
        yield kind
    finally:
        if switch:
            model.set_attn_implementation(kind)


@torch.inference_mode()
def is_padding_invariant(layers: Callable[[Batch], Iterable[Tensor]], alone: list[Batch], together: Batch) -> bool:
    """Return whether every text has the same states at all layers, (text, token, feature), alone as in the batch."""
    states, masks = [*layers(together)], together["attention_mask"].bool()
    return not any(
        difference(padded[row][masks[row]], single[0]) > PADDING_TOLERANCE
        for row, batch in enumerate(alone)
        for padded, single in zip(states, layers(batch), strict=True)
    )


# ---- truncation ------------------------------------------------------------------------------------------


class TruncatedEncoder(nn.Module):
    """The embeddings and the first `layer` blocks of an encoder, as a model of its own.

    The other blocks do not exist in it. Architectures that does not run without a block, such as DeBERTa-v2
    and ModernBERT, keep one for layer 0, and its input is read. The encoder stays unchanged; with `share` the
    model shares its weights, for inspection without a copy, otherwise it can be trained. With `every` it outputs all
    layers up to that one, to train them together.
    """

    def __init__(self, encoder: Encoder, layer: int, *, share: bool = False, every: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.layers = tuple(range(layer + 1)) if every else (layer,)
        self.name = encoder.description.name
        self.stack = encoder.stack
        self.reads_input_of_block = False
        try:
            model = _truncated(encoder, layer)
        except Exception:  # some code assumes at least one block
            if layer:
                raise
            self.reads_input_of_block = True
            model = _truncated(encoder, 1)
        self.model = model if share else copy.deepcopy(model)
        self.parameters_without_pooler = encoder.description.parameters[layer]

    def layer_states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the token states of its layers, (text, token, feature), after the final norm if there is one."""
        if len(self.layers) == 1:
            yield self(batch)
        else:
            yield from self.stack.states(self.model, batch, name=self.name)

    def forward(self, batch: Batch) -> Tensor:
        """Return the token states of the layer, (text, token, feature)."""
        if self.reads_input_of_block:
            return next(self.stack.states(self.model, batch, name=self.name))
        with model_errors(self.name, f"a forward pass of the first {self.layer} blocks"):
            return self.model(**read_by_model(batch)).last_hidden_state

    def check_runs_alone(self) -> None:
        """Raise UnsupportedArchitectureError for layer 0 of a model that does not run without a block."""
        if self.reads_input_of_block:
            raise UnsupportedArchitectureError(
                f"{self.model.config.model_type} does not run without a block, so layer 0 cannot be saved: "
                "save layer 1 or a later one"
            )

    def save(self, directory: str | Path, tokenizer: Any) -> None:
        """Write a Hugging Face checkpoint with its tokenizer."""
        self.check_runs_alone()
        save_checkpoint(self.model, tokenizer, Path(directory), name=self.name)


def save_checkpoint(model: PreTrainedModel, tokenizer: Any, folder: Path, *, name: str) -> None:
    """Write configuration, weights and tokenizer to a folder."""
    with model_errors(name, "saving", but=lambda error: error_number(error) is not None):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_whole(tokenizer, folder)
        _keep_rules(tokenizer, folder, name=name)


def _keep_rules(tokenizer: Any, folder: Path, *, name: str) -> None:
    """Make the saved tokenizer read texts as it does in memory.

    When transformers 5 loads a tokenizer of a known class, such as BertTokenizer, it rebuilds the rules of that class,
    without a lower case or an end token that was added.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    of_transformers = type(tokenizer).__module__.startswith("transformers.")
    if backend is not None and of_transformers and not _reads_alike(tokenizer, folder):
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if not _reads_alike(tokenizer, folder):
            raise ModelError(
                f"the tokenizer of {name} reads texts differently after saving: expected one that transformers reloads "
                "unchanged"
            )


def _reads_alike(tokenizer: Any, folder: Path) -> bool:
    """Return whether the saved tokenizer returns the same ids as in memory."""
    texts = [*PROBE_TEXTS, *map(str.upper, PROBE_TEXTS)]
    saved = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return bool(saved(texts)["input_ids"] == tokenizer(texts)["input_ids"])


def _truncated(encoder: Encoder, n_blocks: int) -> PreTrainedModel:
    """Return a model of the first `n_blocks` blocks only, which shares the encoder's weights.

    It is ambiguous which settings have one entry per block: the first valid model with the right weights is used.
    """
    name, sizes = encoder.description.name, encoder.description.parameters
    if not 0 <= n_blocks < len(sizes):
        raise ModelError(f"expected a layer from 0 to {len(sizes) - 1}, got {n_blocks}")
    expected = sizes[n_blocks]
    problems: list[Exception] = []
    with model_errors(name, f"making a model of {n_blocks} blocks"):
        for config in truncated_configs(encoder.model.config, n_blocks):
            try:
                shorter = model_from_config(encoder.model, config, range(1, n_blocks + 1))
            except Exception as error:  # models raise all kinds of errors
                problems.append(error)
                continue
            if (count := count_weights(shorter)) == expected:
                _run(shorter, encoder)
                return shorter
            reason = f"has {count} weights, but its embeddings and blocks have {expected}"
            problems.append(ModelError(f"a model of {n_blocks} blocks {reason}"))
        raise problems[0]


@torch.no_grad()  # not in inference mode: the model may keep tensors of the pass
def _run(model: PreTrainedModel, encoder: Encoder) -> None:
    """Run a single token, or image, through a shorter model: BigBird's attention is sparse until a short text."""
    token = torch.ones((1, 1), dtype=torch.long, device=model.device)
    batch = {"input_ids": token, "attention_mask": token}
    if encoder.reader is not None:
        batch = collate(encoder.tokenize(encoder.probes[:1]), [0], model.device)
    with encoder.precision():
        model(**read_by_model(batch))
