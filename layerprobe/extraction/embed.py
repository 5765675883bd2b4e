"""The pooled embeddings of every layer of an encoder, in one pass, and what token states are like.

Knows a loaded encoder and texts; knows no store. Only (layer, text, feature) leaves the device.

The measures of token states are those of Skean et al. 2025 (arXiv 2502.02013, Layer by Layer), who average them over
texts.

How they differ from their code (OFSkean/information_flow, revisions 5dc1ca8 and 703d566): theirs subtracts the mean of
a text's token states and scales what is left to length 1; here states are taken as they are. Its prompt entropy sets
negative products of states to 0 and is divided by log min(T, features) by default; here it is in nats. Its curvature is
the angle between one state and the next in 5dc1ca8, and in 703d566 that between two steps without their direction,
0 .. pi / 2; here it is that of the paper, between two steps, 0 .. pi.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from layerprobe.context import report
from layerprobe.encoders.backends.graph import Graph
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, Batch, Prepared, collate, copies, pool, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DegenerateLayerError, option
from layerprobe.names import short_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMetrics:
    """Label-free measures of token states by layer, averaged over the texts."""

    n_texts: int
    """Distinct texts."""
    prompt_entropy: tuple[float, ...]
    """By layer: nats, the von Neumann entropy of a text's cosines between tokens."""
    prompt_entropy_errors: tuple[float, ...]
    """Standard errors over the texts."""
    curvature: tuple[float, ...]
    """By layer: radians, the mean angle between a step from token to token and the next one."""
    curvature_errors: tuple[float, ...]
    """Standard errors over the texts that turn."""
    n_turning: tuple[int, ...]
    """By layer: texts with two steps on end, the only ones that have a curvature."""


# Tokens a batch, padding included. A CPU is fastest where a batch fits its cache.
ACCELERATOR_BATCH_TOKENS = 32768

T = TypeVar("T")
R = TypeVar("R")
TokenMeasure = Callable[[Tensor, Tensor], Tensor]
"""(text, token, feature) states and their mask -> (text,)."""


def embed_layers(
    encoder: Encoder,
    texts: Prepared,
    *,
    pooling: Pooling = "mean",
    batch_tokens: int | None = None,
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
        graph: The encoder and this pooling, compiled by another library; torch computes without one.

    Returns:
        (layer, text, feature) float32.
    """
    if graph is None:
        return _embedded(encoder, texts, _by_torch(encoder, pooling), batch_tokens)
    return _embedded(encoder, texts, lambda batch: torch.from_numpy(graph.run(batch)), batch_tokens)


def embed_and_measure(
    encoder: Encoder, texts: Prepared, *, pooling: Pooling = "mean", batch_tokens: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what `embed_layers` does, and what the token states are like, from the same forward pass.

    Returns:
        (layer, text, feature) float32, and (measure, layer, text): the prompt entropy in nats and the curvature in
        radians, which is NaN where a text has no two steps from token to token.
    """
    width = encoder.description.hidden_size
    measures = (prompt_entropy, curvature)
    layers = _by_torch(encoder, pooling, measures)
    result = _embedded(encoder, texts, layers, batch_tokens, n_measures=len(measures))
    return result[..., :width], np.moveaxis(result[..., width:], -1, 0)


Layers = Callable[[Batch], Tensor]
"""A padded batch where the model is -> (layer, text, features and then measures)."""


def _by_torch(encoder: Encoder, pooling: Pooling, measures: Sequence[TokenMeasure] = ()) -> Layers:
    encoder.check_pooling(pooling)

    def layers(batch: Batch) -> Tensor:
        mask = batch["attention_mask"]
        with encoder.precision():
            return torch.stack(
                [
                    torch.cat(
                        [pool(states, mask, pooling), *(measure(states, mask)[:, None] for measure in measures)], dim=1
                    )
                    for states in encoder.layer_states(batch)
                ]
            )

    return layers


def _embedded(
    encoder: Encoder, texts: Prepared, layers: Layers, batch_tokens: int | None, n_measures: int = 0
) -> NDArray[np.float32]:
    """Return (layer, text, features and then measures), in the order of the texts.

    On CUDA, while a batch is computed, the next one is put together and the one before is copied out.
    """
    lengths, n_features = texts.lengths, encoder.description.hidden_size
    result = np.empty((encoder.n_layers, len(lengths), n_features + n_measures), dtype=np.float32)
    batches = token_batches(lengths, budget=budget_of(encoder, batch_tokens), same_length=not encoder.padding_invariant)
    done, total = 0, sum(lengths)
    behind: tuple[Sequence[int], _Copy] | None = None
    for rows, batch in _collated(texts, batches, encoder.device):
        copy = _Copy(in_halves(layers, batch))
        if behind is not None:
            result[:, behind[0]] = behind[1].result()
        behind = rows, copy
        done += sum(lengths[row] for row in rows)
        report(f"embedding with {short_name(encoder.description.name)}", done, total)
    if behind is not None:
        result[:, behind[0]] = behind[1].result()
    again, first = copies(texts)
    result[:, again] = result[:, first]
    # all but the curvature, which short texts do not have
    for layer, values in enumerate(result[..., : n_features + 1]):
        check_finite(encoder, layer, values)
    return result


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


class _Copy:
    """A tensor on its way to the memory of the computer."""

    def __init__(self, values: Tensor) -> None:
        on_cuda = values.device.type == "cuda"
        self._values = values.to("cpu", non_blocking=on_cuda)  # into pinned memory
        self._arrived = torch.cuda.Event() if on_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            # of the values' own device; by default it would be the current one's, which is cuda:0
            self._arrived.record(torch.cuda.current_stream(values.device))

    def result(self) -> NDArray[np.float32]:
        """Return it once it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.numpy()


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


def prompt_entropy(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the von Neumann entropy of each text's tokens: how many directions they spread over.

    With unit token states u_1 .. u_T, the eigenvalues l_k of the Gram matrix u_i . u_j / T sum to 1, and

        S = - sum_k l_k log l_k.

    It is the matrix-based Renyi entropy in the limit alpha -> 1, of the Gram matrix as it is: centring would hide
    that all tokens point the same way.

    Args:
        states: (text, token, feature).
        attention_mask: (text, token), 1 for tokens and 0 for padding on either side.

    Returns:
        (text,) float32 nats, 0 .. log min(T, features) up to rounding; NaN where a state of the text is not finite.

    Source: Giraldo, Rao and Principe 2014 (arXiv 1211.2459); Skean et al. 2025, section 3.
    """
    # a matrix product would follow the forward pass into bfloat16
    with torch.autocast(states.device.type, enabled=False):
        units = normalize(_inside(states, attention_mask), dim=-1)
        broken = ~units.isfinite().all(dim=2).all(dim=1)
        units = units.masked_fill(broken[:, None, None], 0)
        few_tokens = units.shape[1] <= units.shape[2]
        gram = units @ units.mT if few_tokens else units.mT @ units
        trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        gram = gram / trace[:, None, None]
        if gram.device.type == "mps":  # it has no eigenvalues
            gram = gram.cpu()
        shares = torch.linalg.eigvalsh(gram).clamp(min=0).to(states.device)
        entropies: Tensor = torch.special.entr(shares).sum(dim=1)
        return entropies.masked_fill(broken, torch.nan)


def curvature(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return how sharply each text's path from token to token turns.

    The mean over k of the angle between the steps z_(k+1) - z_k and z_(k+2) - z_(k+1); steps of length 0 have no
    direction and are left out.

    Returns:
        (text,) float32 radians, 0 .. pi; NaN where a text has no two steps on end, or a state of it is not finite.

    Source: Hosseini and Fedorenko 2023 (arXiv 2311.04930); Skean et al. 2025, section 3.
    """
    path = _inside(states, attention_mask)
    broken = ~path.isfinite().all(dim=2).all(dim=1)
    steps = path.diff(dim=1)
    inside = attention_mask.bool()
    moves = inside[:, 1:] & inside[:, :-1] & (steps.norm(dim=-1) > 0)
    turns = moves[:, 1:] & moves[:, :-1]
    units = normalize(steps, dim=-1)
    before, after = units[:, :-1], units[:, 1:]
    # the arc cosine loses half the digits near 0 and pi
    angles = 2 * torch.atan2((after - before).norm(dim=-1), (after + before).norm(dim=-1))
    means: Tensor = angles.masked_fill(~turns, 0).sum(dim=1) / turns.sum(dim=1)
    return means.masked_fill(broken, torch.nan)


def _inside(states: Tensor, attention_mask: Tensor) -> Tensor:
    # filled, not multiplied by 0: a state at padding may be infinite or NaN
    return states.float().masked_fill(~attention_mask.bool().unsqueeze(-1), 0)
