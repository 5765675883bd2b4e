"""The pooled embeddings of every layer of an encoder, in one forward pass.

Knows a loaded encoder and texts; knows no files. Only (layer, text, feature) leaves the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders import Encoder, TokenizedTexts, collate, pool, token_batches
from layerprobe.errors import DegenerateLayerError
from layerprobe.names import short_name
from layerprobe.progress import Progress, silent
from layerprobe.results import Pooling

# Tokens a batch, padding included. A CPU is fastest where a batch fits its cache.
CPU_BATCH_TOKENS, ACCELERATOR_BATCH_TOKENS = 1024, 32768


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
        progress: Told the tokens that are done.

    Returns:
        (layer, text, feature) float32.

    Raises:
        DegenerateLayerError: If an embedding is not finite; names the layer and the model.
    """
    budget = batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS)
    lengths = texts.lengths
    result = np.empty((encoder.n_layers, len(lengths), encoder.description.hidden_size), dtype=np.float32)
    done, total = 0, sum(lengths)
    for rows in token_batches(lengths, budget=budget, same_length=not encoder.padding_invariant):
        result[:, rows] = _pooled(encoder, texts, rows, pooling)
        done += sum(lengths[row] for row in rows)
        progress(f"embedding with {short_name(encoder.description.name)}", done, total)
    _check_finite(result, encoder)
    return result


@torch.inference_mode()
def _pooled(encoder: Encoder, texts: TokenizedTexts, rows: Sequence[int], pooling: Pooling) -> NDArray[np.float32]:
    """Embed one batch; one that does not fit the device's memory is halved."""
    try:
        batch = collate(texts, rows, encoder.device)
        with encoder.precision():
            layers = [pool(states, batch["attention_mask"], pooling) for states in encoder.layer_states(batch)]
        return torch.stack(layers).cpu().numpy()
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()
    middle = len(rows) // 2
    halves = [_pooled(encoder, texts, part, pooling) for part in (rows[:middle], rows[middle:])]
    return np.concatenate(halves, axis=1)


def _check_finite(embeddings: NDArray[np.float32], encoder: Encoder) -> None:
    for layer, values in enumerate(embeddings):
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).any(axis=1).sum())
            raise DegenerateLayerError(
                f"layer {layer} of {encoder.description.name} is not finite for {bad} of {len(values)} texts: "
                f"expected finite states, got NaN or infinity in {encoder.description.dtype}; try --dtype float32"
            )
