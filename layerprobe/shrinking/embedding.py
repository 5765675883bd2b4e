"""The embeddings of the last layer, by torch or a graph, with all features or fewer by a map. Knows loaded encoders."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from layerprobe.encoders.backends.graph import Graph
from layerprobe.encoders.batching import Batch, Prepared, TokenizedTexts, collate, copies, pool, token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.model import Pooling
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import another_folder
from layerprobe.extraction.embed import budget_of, in_halves
from layerprobe.files.folders import folder_errors, new_folder
from layerprobe.files.images import prompted

Vectors = NDArray[np.float32]
Embed = Callable[[Prepared], Vectors]
"""Tokenised texts -> (text, feature) embeddings."""


@torch.inference_mode()
def embedded(
    encoder: Encoder, texts: Prepared, one: Callable[[Batch], Vectors], batch_tokens: int | None = None
) -> Vectors:
    """Embed tokenised texts batch by batch with `one`; returns (text, feature)."""
    embeddings = np.empty((len(texts.lengths), encoder.description.hidden_size), dtype=np.float32)
    budget, same_length = budget_of(encoder, batch_tokens), not encoder.padding_invariant
    for rows in token_batches(texts.lengths, budget=budget, same_length=same_length):
        batch = collate(texts, rows, encoder.device)
        embeddings[rows] = in_halves(lambda batch: torch.from_numpy(one(batch))[None], batch)[0].numpy()
    again, first = copies(texts)
    embeddings[again] = embeddings[first]
    return embeddings


def vectors(states: Tensor, batch: Batch, pooling: Pooling) -> Vectors:
    """Pool the (text, token, feature) states of a batch to (text, feature)."""
    pooled: Vectors = pool(states, batch["attention_mask"], pooling).float().cpu().numpy()
    return pooled


def embedder(model: SharedModel, *, graph: Graph | None = None, dense: Vectors | None = None) -> Embed:
    """Return a function that embeds tokenised texts by the last layer, in torch or a graph, then maps by `dense`."""

    def embed(texts: Prepared) -> Vectors:
        encoder, how = model.encoder, model.checkpoint
        last = TruncatedEncoder(encoder, encoder.n_layers - 1, share=True)

        def one(batch: Batch) -> Vectors:
            if graph is not None:
                last_layer: Vectors = graph.run(batch)[-1]
                return last_layer
            with encoder.precision():
                states = last(batch)
            return vectors(states, batch, how.pooling)

        return embedded(encoder, texts, one, how.asked.batch_tokens)

    return mapped(embed, dense)


def mapped(embed: Embed, dense: Vectors | None) -> Embed:
    """Return a function that embeds texts and maps the embeddings by `dense`, a (dimensions, width) map."""
    return embed if dense is None else lambda texts: embed(texts) @ dense.T


def once(embed: Embed) -> Embed:
    """Return a function that embeds the same tokenised texts once."""
    done = dict[bytes, Vectors]()

    def remembered(texts: Prepared) -> Vectors:
        read = cast(TokenizedTexts, texts)
        key = read.ids.tobytes() + read.ends.tobytes()
        if key not in done:
            done[key] = embed(texts)
        return done[key]

    return remembered


def tokenized(model: SharedModel, texts: Sequence[str]) -> Prepared:
    """Tokenise texts for the model, with its prompt."""
    how = model.checkpoint
    return model.encoder.tokenize(prompted(how.prompt, texts), max_length=how.max_length)


# ---- fewer dimensions -----------------------------------------------------------------------------------


def fewer(embeddings: NDArray[Any], dimensions: int) -> NDArray[np.float32]:
    """Return the (dimensions, width) map of (text, width) embeddings to fewer features; its rows are orthonormal.

    It adds nothing to embeddings: centring them would change every cosine. It keeps the directions along which
    normalised embeddings are largest, so that their inner products change least (Eckart and Young 1936).
    """
    values = np.asarray(embeddings, dtype=np.float64)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    directions = np.linalg.eigh(unit.T @ unit)[1].T[::-1][:dimensions]
    return np.ascontiguousarray(directions, dtype=np.float32)


def write_dense(folder: Path, weight: NDArray[np.float32]) -> None:
    """Write a (dimensions, width) map as a Dense module, whole or not at all; StoreError if it cannot be written."""
    identity = "torch.nn.modules.linear.Identity"
    keys = {"in_features": weight.shape[1], "out_features": len(weight), "bias": False, "activation_function": identity}
    with folder_errors(folder, advice=another_folder()), new_folder(folder, replace=True) as new:
        (new / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
        save_file({"linear.weight": weight}, new / "model.safetensors")
