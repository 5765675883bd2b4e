"""The pooled embeddings of every layer of an encoder, in one forward pass, and what its token states are like.

Knows a loaded encoder and texts; knows no files. Only (layer, text, feature) leaves the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.batching import TokenizedTexts, collate, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.pooling import pool
from layerprobe.encoders.values import Pooling
from layerprobe.errors import DegenerateLayerError
from layerprobe.extraction.tokens import curvature, prompt_entropy
from layerprobe.names import short_name
from layerprobe.progress import Progress, silent

# Tokens a batch, padding included. A CPU is fastest where a batch fits its cache.
CPU_BATCH_TOKENS, ACCELERATOR_BATCH_TOKENS = 1024, 32768

TokenMeasure = Callable[[Tensor, Tensor], Tensor]
"""(text, token, feature) states and their mask -> (text,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenMeasures:
    """What the token states of every text are like at every layer."""

    prompt_entropy: NDArray[np.float32]
    """(layer, text) nats."""
    curvature: NDArray[np.float32]
    """(layer, text) radians; NaN where a text has no two steps from token to token."""


def embed_layers(
    encoder: Encoder,
    texts: TokenizedTexts,
    *,
    pooling: Pooling = "mean",
    batch_tokens: int | None = None,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Return the pooled embedding of every text at every layer.

    Texts are sorted by token length and cut into batches by a token budget; the result is in the order of
    `texts` and does not depend on the batches beyond float rounding.

    Args:
        encoder: A loaded encoder.
        texts: What its tokenizer made of the texts; see `Encoder.tokenize`.
        pooling: mean, cls, max or last.
        batch_tokens: Tokens a batch, padding included; 1,024 on a CPU and 32,768 elsewhere by default.
        progress: Called with the tokens that are done, and all.

    Returns:
        (layer, text, feature) float32.

    Raises:
        DegenerateLayerError: If an embedding is not finite; names the layer and the model.
    """
    return _embedded(encoder, texts, pooling, batch_tokens, progress)


def embed_and_measure(
    encoder: Encoder,
    texts: TokenizedTexts,
    *,
    pooling: Pooling = "mean",
    batch_tokens: int | None = None,
    progress: Progress = silent,
) -> tuple[NDArray[np.float32], TokenMeasures]:
    """Return what `embed_layers` does, and what the token states are like, from the same forward pass.

    Returns:
        (layer, text, feature) float32, and two numbers for every layer and text.

    Raises:
        DegenerateLayerError: If an embedding or a token state is not finite.
    """
    width = encoder.description.hidden_size
    result = _embedded(encoder, texts, pooling, batch_tokens, progress, (prompt_entropy, curvature))
    return result[..., :width], TokenMeasures(prompt_entropy=result[..., width], curvature=result[..., width + 1])


def _embedded(
    encoder: Encoder,
    texts: TokenizedTexts,
    pooling: Pooling,
    batch_tokens: int | None,
    progress: Progress,
    measures: Sequence[TokenMeasure] = (),
) -> NDArray[np.float32]:
    """Return (layer, text, features and then measures), in the order of the texts."""
    budget = batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS)
    lengths, n_features = texts.lengths, encoder.description.hidden_size
    result = np.empty((encoder.n_layers, len(lengths), n_features + len(measures)), dtype=np.float32)
    done, total = 0, sum(lengths)
    for rows in token_batches(lengths, budget=budget, same_length=not encoder.padding_invariant):
        result[:, rows] = _embed_batch(encoder, texts, rows, pooling, measures)
        done += sum(lengths[row] for row in rows)
        progress(f"embedding with {short_name(encoder.description.name)}", done, total)
    # all but the curvature, which short texts do not have
    for layer, values in enumerate(result[..., : n_features + 1]):
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad:
            raise DegenerateLayerError(
                f"layer {layer} of {encoder.description.name} is not finite for {bad} of {len(values)} texts: "
                f"expected finite states, got NaN or infinity in {encoder.description.dtype}; try --dtype float32"
            )
    return result


@torch.inference_mode()
def _embed_batch(
    encoder: Encoder, texts: TokenizedTexts, rows: Sequence[int], pooling: Pooling, measures: Sequence[TokenMeasure]
) -> NDArray[np.float32]:
    """Run one batch; one that does not fit the device's memory is halved."""
    try:
        batch = collate(texts, rows, encoder.device)
        mask = batch["attention_mask"]
        with encoder.precision():
            layers = [
                torch.cat(
                    [pool(states, mask, pooling), *(measure(states, mask)[:, None] for measure in measures)], dim=1
                )
                for states in encoder.layer_states(batch)
            ]
        return torch.stack(layers).cpu().numpy()
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()
    middle = len(rows) // 2
    halves = [_embed_batch(encoder, texts, part, pooling, measures) for part in (rows[:middle], rows[middle:])]
    return np.concatenate(halves, axis=1)
