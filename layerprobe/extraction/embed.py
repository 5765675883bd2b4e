"""The pooled embeddings of every layer of an encoder, in one pass.

Knows a loaded encoder and texts; knows no store. Only (layer, text, feature) leaves the device.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.backends.graph import Graph
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, POOLED, Batch, Prepared, collate, copies, pool, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DegenerateLayerError, option
from layerprobe.names import short_name

# Tokens a batch, padding included. A CPU is fastest where a batch fits its cache.
ACCELERATOR_BATCH_TOKENS = 32768

T = TypeVar("T")
R = TypeVar("R")


def embed_layers(
    encoder: Encoder,
    texts: Prepared,
    *,
    pooling: Pooling = "mean",
    batch_tokens: int | None = None,
    dim: int | None = None,
    graph: Graph | None = None,
) -> NDArray[np.float32]:
    """Return the pooled embedding of every text at every layer.

    Texts are sorted by token length and cut into batches by a token budget; the result is in the order of
    `texts` and does not depend on the batches beyond float rounding. Texts of the same tokens have the same embedding.

    Args:
        encoder: A loaded encoder.
        texts: What its tokenizer made of the texts, or images; see `Encoder.tokenize`.
        pooling: mean, cls, max or last.
        batch_tokens: Tokens a batch, padding included; 1,024 on a CPU and 32,768 elsewhere by default.
        dim: How many of the first features to keep; all by default.
        graph: The encoder and this pooling, compiled by another library; torch computes without one.

    Returns:
        (layer, text, feature) float32.
    """
    if graph is None:
        return _embedded(encoder, texts, _by_torch(encoder, pooling), batch_tokens, dim)
    return _embedded(encoder, texts, lambda batch: torch.from_numpy(graph.run(batch)), batch_tokens, dim)


Layers = Callable[[Batch], Tensor]
"""A padded batch where the model is -> (layer, text, features)."""


def _by_torch(encoder: Encoder, pooling: Pooling) -> Layers:
    encoder.check_pooling(pooling)

    def layers(batch: Batch) -> Tensor:
        mask = batch.get(POOLED, batch["attention_mask"])
        with encoder.precision():
            return torch.stack([pool(states, mask, pooling) for states in encoder.layer_states(batch)])

    return layers


def _embedded(
    encoder: Encoder, texts: Prepared, layers: Layers, batch_tokens: int | None, dim: int | None
) -> NDArray[np.float32]:
    """Return (layer, text, features), in the order of the texts.

    On CUDA, while a batch is computed, the next one is put together and the one before is copied out.
    """
    lengths = texts.lengths
    width = width_of(encoder, dim)
    result = np.empty((encoder.n_layers, len(lengths), width), dtype=np.float32)
    batches = token_batches(lengths, budget=budget_of(encoder, batch_tokens), same_length=not encoder.padding_invariant)
    done, total = 0, sum(lengths)
    behind: tuple[Sequence[int], Callable[[], NDArray[np.float32]]] | None = None
    for rows, batch in _collated(texts, batches, encoder.device):
        copy = copied(in_halves(layers, batch))
        if behind is not None:
            result[:, behind[0]] = behind[1]()[..., :width]
        behind = rows, copy
        done += sum(lengths[row] for row in rows)
        report(f"embedding with {short_name(encoder.description.name)}", done, total)
    if behind is not None:
        result[:, behind[0]] = behind[1]()[..., :width]
    again, first = copies(texts)
    result[:, again] = result[:, first]
    for layer, values in enumerate(result):
        check_finite(encoder, layer, values)
    return result


def width_of(encoder: Encoder, dim: int | None) -> int:
    """Return how many features an embedding has of which `dim` are kept, or all."""
    return min(dim or encoder.description.hidden_size, encoder.description.hidden_size)


def budget_of(encoder: Encoder, batch_tokens: int | None) -> int:
    """Return the tokens a batch where `batch_tokens` are requested."""
    return batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS)


def dtype_and_advice(encoder: Encoder) -> str:
    """Return the dtype that states are not finite in, and what to do."""
    dtype = encoder.description.dtype
    return f"{dtype}; " + ("are its weights whole?" if dtype == "float32" else f"try {option('dtype', 'float32')}")


def check_finite(encoder: Encoder, layer: int, values: NDArray[np.float32]) -> None:
    """Raise DegenerateLayerError if embeddings of a layer, (text, feature), are not finite."""
    bad = int((~np.isfinite(values)).any(axis=1).sum())
    if bad:
        raise DegenerateLayerError(
            f"layer {layer} of {encoder.description.name} is not finite for {bad} of {len(values)} texts: "
            f"expected finite states, got NaN or infinity in {dtype_and_advice(encoder)}"
        )


def _collated(texts: Prepared, batches: Iterator[list[int]], device: torch.device) -> Iterator[tuple[list[int], Batch]]:
    """Yield rows and their batch on the device; for CUDA, the next one is put together meanwhile.

    On a CPU that takes half a percent of the time of a pass, and a thread would share the pass's core.
    """
    if device.type != "cuda":
        for rows in batches:
            yield rows, collate(texts, rows, device)
        return

    def pinned(rows: list[int]) -> tuple[list[int], Batch]:
        # a copy from other memory would wait for the device
        return rows, {name: values.pin_memory() for name, values in collate(texts, rows).items()}

    for rows, batch in ahead(pinned, batches):
        yield rows, {name: values.to(device, non_blocking=True) for name, values in batch.items()}


def ahead(make: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield what is made of every item; of the next one while the caller is busy."""
    with ThreadPoolExecutor(1) as background:
        waiting: Future[R] | None = None
        for item in items:
            made, waiting = waiting, background.submit(make, item)
            if made is not None:
                yield made.result()
        if waiting is not None:
            yield waiting.result()


def copied(values: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Begin to copy a tensor to the memory of the computer; return what waits until it is there, and returns it."""
    if values.device.type != "cuda":
        return values.cpu().numpy
    copy = values.to("cpu", non_blocking=True)  # into pinned memory
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    # of the values' own device; by default it would be the current one's, which is cuda:0
    arrived.record(torch.cuda.current_stream(values.device))

    def once_there() -> NDArray[np.float32]:
        arrived.synchronize()
        return copy.numpy()

    return once_there


@torch.inference_mode()
def in_halves(layers: Layers, batch: Batch) -> Tensor:
    """Return what `layers` does of one batch; one that does not fit the device's memory is halved."""
    n_texts = len(batch["attention_mask"])
    try:
        return layers(batch)
    except (RuntimeError, MemoryError) as error:
        if n_texts == 1 or not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()
    parts = (slice(n_texts // 2), slice(n_texts // 2, None))
    halves = [in_halves(layers, {name: values[part] for name, values in batch.items()}) for part in parts]
    return torch.cat(halves, dim=1)
