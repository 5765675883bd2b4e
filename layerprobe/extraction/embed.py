"""The states of every layer of an encoder, in one pass: pooled, or token by token in a temporary file; shard by shard.

Knows a loaded encoder and texts; knows no tasks. With pooling, only (layer, text, feature)
leaves the device; memory never holds the token states of all texts.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import part, report
from layerprobe.encoders.batching import (
    CPU_BATCH_TOKENS,
    POOLED,
    Batch,
    ModelInputs,
    TokenizedTexts,
    collate,
    copies,
    digest_array,
    pool,
    token_batches,
)
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.graphs import Graph, backend_graph
from layerprobe.encoders.loading import SharedModel, load
from layerprobe.encoders.model import Pooling
from layerprobe.errors import (
    DegenerateLayerError,
    LayerProbeError,
    LostWorkerError,
    ModelError,
    StoreError,
    WorkerError,
    option,
)
from layerprobe.files.atomic import reserve
from layerprobe.files.images import prompted
from layerprobe.jobs.crew import Plan, Share, Workers, execute, make_crew
from layerprobe.names import short_name
from layerprobe.store.manifest import Manifest, StoredFile, StoreKey
from layerprobe.store.shards import ShardWriter, StoredLayer, write_shard
from layerprobe.tasks.quality import take_texts

# Tokens per batch, padding included. A CPU is fastest if a batch fits its cache.
ACCELERATOR_BATCH_TOKENS = 32768

T = TypeVar("T")
R = TypeVar("R")


def embed_layers(
    encoder: Encoder,
    texts: ModelInputs,
    *,
    pooling: Pooling = "mean",
    batch_tokens: int | None = None,
    dim: int | None = None,
    graph: Graph | None = None,
) -> NDArray[np.float32]:
    """Return the pooled embedding of every text at every layer.

    Texts are sorted by token length and cut into batches by a token budget; the result is in the order of
    `texts` and depends on the batches only by float rounding. Texts with the same tokens have the same embedding.

    On CUDA, while a batch is computed, the next one is prepared and the previous one copied to the host.

    Args:
        encoder: A loaded encoder.
        texts: Tokens of the texts, or images; see `Encoder.tokenize`.
        pooling: mean, cls, max or last.
        batch_tokens: Tokens per batch, padding included; 1,024 on a CPU and 32,768 elsewhere by default.
        dim: Number of leading features to keep; all by default.
        graph: The encoder with this pooling, compiled by another library; by default torch computes.

    Returns:
        (layer, text, feature) float32.
    """
    if graph is None:
        encoder.check_pooling(pooling)

    def layers(batch: Batch) -> Tensor:
        if graph is not None:
            return torch.from_numpy(graph.run(batch))
        mask = batch.get(POOLED, batch["attention_mask"])
        with encoder.precision():
            return torch.stack([pool(states, mask, pooling) for states in encoder.layer_states(batch)])

    lengths = texts.lengths
    width = embedding_width(encoder, dim)
    result = np.empty((encoder.n_layers, len(lengths), width), dtype=np.float32)
    batches = token_batches(lengths, budget=token_cap(encoder, batch_tokens), same_length=not encoder.padding_invariant)
    done, total = 0, sum(lengths)
    behind: tuple[Sequence[int], Callable[[], NDArray[np.float32]]] | None = None
    for rows, batch in _collated(texts, batches, encoder.device):
        copy = copied(run_in_halves(layers, batch))
        if behind is not None:
            result[:, behind[0]] = behind[1]()[..., :width]
        behind = rows, copy
        done += sum(lengths[row] for row in rows)
        report(f"embedding with {short_name(encoder.description.name)}", done, total)
    if behind is not None:
        result[:, behind[0]] = behind[1]()[..., :width]
    again, first = copies(texts)
    result[:, again] = result[:, first]
    check_finite(encoder, result)
    return result


def embedding_width(encoder: Encoder, dim: int | None) -> int:
    """Return the number of features of an embedding, or `dim` if only some are kept."""
    return min(dim or encoder.description.hidden_size, encoder.description.hidden_size)


def token_cap(encoder: Encoder, batch_tokens: int | None) -> int:
    """Return the tokens per batch, `batch_tokens` or the device's default."""
    return batch_tokens or (CPU_BATCH_TOKENS if encoder.device.type == "cpu" else ACCELERATOR_BATCH_TOKENS)


def check_finite(encoder: Encoder, layers: NDArray[np.float32]) -> None:
    """Raise DegenerateLayerError if states of texts, (layer, text, ...), are not finite."""
    for layer, values in enumerate(layers):
        bad = int((~np.isfinite(values)).any(axis=tuple(range(1, values.ndim))).sum())
        if bad:
            dtype = encoder.description.dtype
            advice = "check its weights" if dtype == "float32" else f"try {option('dtype', 'float32')}"
            raise DegenerateLayerError(
                f"layer {layer} of {encoder.description.name} is not finite for {bad} of {len(values)} texts: "
                f"expected finite states, got NaN or infinity in {dtype}; {advice}"
            )


def _collated(
    texts: ModelInputs, batches: Iterator[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Batch]]:
    """Yield rows and their batch on the device; for CUDA, the next batch is prepared meanwhile.

    On a CPU that takes 0.5 % of the time of a pass, and a thread would compete for the pass's core.
    """
    if device.type != "cuda":
        for rows in batches:
            yield rows, collate(texts, rows, device)
        return

    def pinned(rows: list[int]) -> tuple[list[int], Batch]:
        # a copy from pageable memory would wait for the device
        return rows, {name: values.pin_memory() for name, values in collate(texts, rows).items()}

    for rows, batch in ahead(pinned, batches):
        yield rows, {name: values.to(device, non_blocking=True) for name, values in batch.items()}


def ahead(make: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result for every item, computing the next one while the caller is busy."""
    with ThreadPoolExecutor(1) as background:
        waiting: Future[R] | None = None
        for item in items:
            made, waiting = waiting, background.submit(make, item)
            if made is not None:
                yield made.result()
        if waiting is not None:
            yield waiting.result()


def copied(values: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Start copying a tensor to the host; return a function that waits for the copy and returns it."""
    if values.device.type != "cuda":
        return values.cpu().numpy
    copy = values.to("cpu", non_blocking=True)  # into pinned memory
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    # on the values' device; the default is the current one, cuda:0
    arrived.record(torch.cuda.current_stream(values.device))

    def once_there() -> NDArray[np.float32]:
        arrived.synchronize()
        return copy.numpy()

    return once_there


@torch.inference_mode()
def run_in_halves(layers: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Return `layers(batch)`; a batch that does not fit the device's memory is halved."""
    n_texts = len(batch["attention_mask"])
    try:
        return layers(batch)
    except (RuntimeError, MemoryError) as error:
        if n_texts == 1 or not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()
    parts = (slice(n_texts // 2), slice(n_texts // 2, None))
    halves = [run_in_halves(layers, {name: values[part] for name, values in batch.items()}) for part in parts]
    return torch.cat(halves, dim=1)


def token_states(
    encoder: Encoder, texts: TokenizedTexts, *, rows: Sequence[int] | None = None, batch_tokens: int | None = None
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """Yield the token states of texts, or of some, at every layer, batch by batch, longest texts first.

    Yields:
        Numbers of the texts of a batch, and (layer, text, token, feature) float32: each text begins with its own
        tokens, for padding on either side; values after them are meaningless.
    """
    places = range(len(texts)) if rows is None else rows
    lengths = [texts.length(row) for row in places]

    def layers(batch: Batch) -> Tensor:
        with encoder.precision():
            states = torch.stack([layer.float() for layer in encoder.layer_states(batch)])
        if texts.padding_side == "left":
            shifts = (batch["attention_mask"].sum(dim=1) - states.shape[2]).tolist()
            states = torch.stack([states[:, i].roll(shift, 1) for i, shift in enumerate(shifts)], dim=1)
        # a state at padding may be infinite
        inside = torch.arange(states.shape[2], device=states.device) < batch["attention_mask"].sum(dim=1)[:, None]
        # if a batch is halved, the states of both halves together would not fit the device either
        return states.masked_fill(~inside[None, :, :, None], 0).cpu()

    done, total = 0, sum(lengths)
    same_length = not encoder.padding_invariant
    for chosen in token_batches(lengths, budget=token_cap(encoder, batch_tokens), same_length=same_length):
        numbers = [places[i] for i in chosen]
        states = run_in_halves(layers, collate(texts, numbers, encoder.device)).numpy()
        check_finite(encoder, states)
        yield numbers, states
        done += sum(lengths[i] for i in chosen)
        report(f"reading with {short_name(encoder.description.name)}", done, total)


@contextlib.contextmanager
def kept_token_states(
    encoder: Encoder,
    texts: TokenizedTexts,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    *,
    batch_tokens: int | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Yield the states of chosen tokens at every layer, from a temporary file that is removed afterwards.

    Token i is at position `places[i]`, from 0, of text `rows[i]`.

    Yields:
        (layer, n, feature) float32, a memory map to be read layer by layer.
    """
    shape = (encoder.n_layers, len(rows), encoder.description.hidden_size)
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(texts) + 1))
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layerprobe-"))
            with (Path(folder) / "states").open("w+b") as file:
                reserve(file, np.dtype(np.float32).itemsize * math.prod(shape))
                mapped = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
        except OSError as error:
            raise StoreError(
                f"cannot store token states in a temporary file in {tempfile.gettempdir()} "
                f"({error.strerror or error}): free space, or name another folder with TMPDIR"
            ) from error
        try:
            distinct = np.unique(rows).tolist()
            for numbers, states in token_states(encoder, texts, rows=distinct, batch_tokens=batch_tokens):
                for i, number in enumerate(numbers):
                    mine = order[starts[number] : starts[number + 1]]
                    mapped[:, mine] = states[:, i, places[mine]]
            yield mapped
        finally:
            del mapped


# ---- shards of the store ---------------------------------------------------------------------------------


RowsOf = Callable[[Sequence[str]], NDArray[np.int64]]
"""Function from texts to the row of each, -1 for missing ones."""


def embed_shards(
    writer: ShardWriter,
    key: StoreKey,
    encoder: Encoder,
    texts: Sequence[str],
    *,
    batch_tokens: int | None = None,
    graph: Graph | None = None,
    stored: Sequence[tuple[Sequence[StoredLayer], RowsOf]] = (),
) -> None:
    """Embed the pending shards one by one; meanwhile the next one is tokenised and the previous one written.

    Texts with the same tokens get the embedding of the first of them, in any shard.
    """
    pending, done = writer.pending, 0
    n_pending = sum(stop - start for _, start, stop in pending)
    missing = {index for index, *_ in pending}
    shards = writer.shards[: max(missing, default=-1) + 1]
    writes: list[Future[None]] = []
    embed = partial(embed_tokens, encoder, key, batch_tokens, graph)
    with ThreadPoolExecutor(1) as background:
        parts = (texts[start:stop] for _, start, stop in shards)
        tokenized = _with_first(ahead(lambda part: tokens_of(encoder, part, key), parts))
        for (index, start, stop), (tokens, first) in zip(shards, tokenized, strict=True):
            if index not in missing:
                continue
            with part(start=done, share=stop - start, whole=n_pending):
                if stored:
                    here, size = texts[start:stop], encoder.description
                    layers = np.empty((size.n_layers, len(here), embedding_width(encoder, key.dim)), dtype=np.float32)
                    if len(rest := _other_texts(here, stored, layers)):
                        layers[:, rest] = embed(tokens_of(encoder, take_texts(here, rest), key))
                else:
                    layers = embed(tokens)
            for write in writes:
                write.result()
            inside = np.flatnonzero((first >= start) & (first < np.arange(start, stop)))
            layers[:, inside] = layers[:, first[inside] - start]
            layers[:, first < start] = writer.written(first[first < start])
            writes = [background.submit(writer.write, index, layers, n_cut=tokens.n_truncated)]
            done += stop - start
        for write in writes:
            write.result()


def tokens_of(encoder: Encoder, texts: Sequence[str], key: StoreKey) -> ModelInputs:
    """Return texts as a model reads them under a key."""
    return encoder.tokenize(prompted(key.prompt, texts), max_length=key.max_length or None, unpooled=key.unpooled)


def embed_tokens(
    encoder: Encoder, key: StoreKey, batch_tokens: int | None, graph: Graph | None, tokens: ModelInputs
) -> NDArray[np.float32]:
    """Return the embeddings of texts at every layer under a key, (layer, text, feature)."""
    pooling = cast(Pooling, key.pooling)
    return embed_layers(encoder, tokens, pooling=pooling, batch_tokens=batch_tokens, dim=key.dim, graph=graph)


def _with_first(tokenized: Iterable[ModelInputs]) -> Iterator[tuple[ModelInputs, NDArray[np.intp]]]:
    """Yield the tokens of each shard, with the rows of the first texts with the same tokens, perhaps in earlier ones.

    Memory holds 24 bytes for each distinct text so far.
    """
    digests, firsts, n = digest_array([]), np.zeros(0, dtype=np.intp), 0
    for tokens in tokenized:
        new, at, number = np.unique(tokens.digests, return_index=True, return_inverse=True)
        rows, places = n + at, np.searchsorted(digests, new)
        again = np.append(digests, b"")[places] == new
        rows[again] = firsts[places[again]]
        digests = np.insert(digests, places[~again], new[~again])
        firsts = np.insert(firsts, places[~again], rows[~again])
        n += len(tokens.digests)
        yield tokens, rows[number]


def _other_texts(
    texts: Sequence[str], embedded: Sequence[tuple[Sequence[StoredLayer], RowsOf]], layers: NDArray[np.float32]
) -> NDArray[np.intp]:
    """Copy stored embeddings of texts into (layer, text, feature) `layers`; return the numbers of the other texts."""
    rest = np.arange(len(texts))
    for stored, find_rows in embedded:
        rows = find_rows(take_texts(texts, rest))
        for layer, values in enumerate(stored):
            layers[layer, rest[rows >= 0]] = values[rows[rows >= 0]]
        rest = rest[rows < 0]
    return rest


def embed_elsewhere(writer: ShardWriter, shared: SharedModel, texts: Sequence[str], workers: Workers) -> None:
    """Embed the pending shards in other processes; a killed node loses only its current shards."""
    directory, manifest = writer.place
    setting = shared, directory.absolute(), manifest
    plan: Plan[tuple[int, int, int], StoredFile] = Plan(
        jobs={shard: float(shard[2] - shard[1]) for shard in writer.pending},
        sent=lambda shard: (shard[0], list(texts[shard[1] : shard[2]])),
        unit="texts",
    )
    with make_crew(_embedding, setting, workers, most=len(plan.jobs)) as crew:
        for (_, start, stop), answer in execute(plan, crew):
            if isinstance(answer, LostWorkerError):
                raise WorkerError(f"texts {start} to {stop}: {answer}")
            if isinstance(answer, LayerProbeError):
                raise answer
            writer.note(answer)


def _embedding(
    setting: tuple[SharedModel, Path, Manifest], share: Share
) -> Callable[[tuple[int, list[str]]], StoredFile]:
    """Return a function that embeds and writes a shard, for a model, a folder and a manifest."""
    shared, directory, manifest = setting
    shared.take_over(share)
    encoder, key = load(shared.checkpoint, cut=False), manifest.key
    try:
        graph = backend_graph(encoder, shared.checkpoint)
    except ModelError as error:  # the model loads where the command runs
        raise WorkerError(str(error)) from error

    def written(shard: tuple[int, list[str]]) -> StoredFile:
        index, texts = shard
        tokens = tokens_of(encoder, texts, key)
        layers = embed_tokens(encoder, key, shared.asked.batch_tokens, graph, tokens)
        return write_shard(directory, manifest, index, layers, n_cut=tokens.n_truncated)

    return written
