"""An encoder as one graph: token ids in, the pooled embeddings of every layer out. Knows a loaded encoder; no files."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders.batching import Batch, collate
from layerprobe.encoders.encoder import PROBE_TEXTS, Encoder
from layerprobe.encoders.pooling import pool
from layerprobe.encoders.values import Pooling
from layerprobe.modes import without_autocast
from layerprobe.process import silence, while_needed, without_warnings

PLAIN = "eager"
"""Attention of transformers that is written out."""
FEATURES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """An encoder and its pooling, compiled by a library other than torch."""

    backend: str
    """The name of the engine."""
    run: Callable[[Batch], NDArray[np.float32]]
    """A padded batch -> (layer, text, feature) float32."""


Tokens = Literal["tokens"]
TOKENS: Tokens = "tokens"
"""In the place of a pooling: none."""


class PooledLayers(nn.Module):
    """An encoder with its pooling, so that only one embedding a text and layer leaves it.

    Args:
        encoder: In float32; its norm decides what layers are, as in `Encoder.layer_states`.
        pooling: mean, cls, max or last; `TOKENS` for the states of tokens, at the last layer alone.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling | Tokens) -> None:
        super().__init__()
        self.model = encoder.model
        self.encoder = encoder
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return (layer, text, feature), or (text, token, feature), float32 for (text, token) ids, padded on a side."""
        values = (input_ids, attention_mask, token_type_ids)
        batch = {name: value for name, value in zip(FEATURES, values, strict=True) if value is not None}
        if self.pooling == TOKENS:
            return list(self.encoder.layer_states(batch))[-1]
        return torch.stack([pool(states, attention_mask, self.pooling) for states in self.encoder.layer_states(batch)])


@without_autocast()
def exported(encoder: Encoder, pooling: Pooling | Tokens, *, plain: bool = False) -> torch.export.ExportedProgram:
    """Return an encoder and its pooling as a graph of torch, for any number of texts and of tokens.

    Args:
        encoder: It is left as it was.
        pooling: As of `PooledLayers`.
        plain: Make it of attention written out, instead of the one that the encoder computes with.
    """
    batch = probes(encoder)[0]
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), quiet_export(), plain_attention(encoder) if plain else contextlib.nullcontext():
        return torch.export.export(
            PooledLayers(encoder, pooling).train(False),
            (),
            kwargs=batch,
            dynamic_shapes=dict.fromkeys(batch, any_size),
            strict=False,  # hooks, which tell the layers, run as they are
        )


@contextlib.contextmanager
def plain_attention(encoder: Encoder) -> Iterator[None]:
    """Have an encoder compute attention written out as products and a softmax."""
    before = encoder.model.config._attn_implementation
    encoder.model.set_attn_implementation(PLAIN)
    try:
        yield
    finally:
        encoder.model.set_attn_implementation(before)


def probes(encoder: Encoder, *, max_length: int | None = None) -> list[Batch]:
    """Return batches on which a graph is compared with torch: padded ones, texts alone, a long one, a single token.

    The first has three texts or one length, several texts and tokens anyway: what a graph is made of.
    """
    tokens = encoder.tokenize([*PROBE_TEXTS, " ".join(PROBE_TEXTS * 64)], max_length=max_length)
    n_texts = len(PROBE_TEXTS)
    together = [list(range(n_texts))] if encoder.padding_invariant else [[1, 1, 1]]
    batches = [collate(tokens, rows, "cpu") for rows in (*together, *([row] for row in range(n_texts + 1)))]
    return [*batches, {name: values[:, :1] for name, values in batches[1].items()}]


@without_autocast()
@torch.inference_mode()
def differences(
    graph: Graph, encoder: Encoder, pooling: Pooling, *, max_length: int | None = None
) -> tuple[float, ...]:
    """Return by how much a graph differs from torch at every layer, as a share of the layer's largest feature."""
    worst = np.zeros(encoder.n_layers)
    for batch in probes(encoder, max_length=max_length):
        expected = PooledLayers(encoder, pooling)(**batch).numpy()
        layers = graph.run(batch)
        if layers.shape != expected.shape:
            return (np.inf,) * encoder.n_layers
        error = np.abs(layers - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
        worst = np.maximum(worst, error)  # NaN stays
    return tuple(worst.tolist())


@while_needed
@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Silence what the exporters print, log and warn about; the graph is compared afterwards."""
    before, nothing = logging.root.manager.disable, logging.NullHandler()
    if not logging.root.handlers:
        logging.root.addHandler(nothing)  # openvino logs by the root logger, which would get a handler for ever
    try:
        logging.disable(max(before, logging.WARNING))
        with without_warnings(), silence():
            yield
    finally:
        logging.disable(before)
        logging.root.removeHandler(nothing)
