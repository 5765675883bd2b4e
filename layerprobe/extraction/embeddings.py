"""Texts -> embeddings of every layer, from the store or from one forward pass."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import one_layer
from layerprobe.context import part
from layerprobe.encoders.backends import TORCH
from layerprobe.encoders.batching import ModelInputs, digest_array
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.graphs import Graph, backend_graph
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import SharedModel, choose_workers, first_use, load
from layerprobe.encoders.model import Model, ModelDescription, Pooling
from layerprobe.errors import (
    DamagedStoreError,
    DataError,
    DegenerateLayerError,
    LayerProbeError,
    LostWorkerError,
    MisalignedSamplesError,
    ModelError,
    WorkerError,
)
from layerprobe.extraction.check import reading_cautions
from layerprobe.extraction.embed import ahead, embed_layers, embedding_width
from layerprobe.files.atomic import readable_size
from layerprobe.files.images import prompted, readable_as
from layerprobe.files.inputs import SpooledTexts, is_path, similar_file
from layerprobe.files.serialisation import from_dict, to_dict
from layerprobe.jobs.crew import HERE, Plan, Share, Workers, execute, make_crew
from layerprobe.names import counted, short_name, some
from layerprobe.results.shown import Estimate
from layerprobe.similarity.checks import constant_layer, rounding
from layerprobe.store.manifest import Manifest, StoredFile, StoreKey, first_rows, sample_ids, texts_digest
from layerprobe.store.shards import ShardWriter, StoredEmbeddings, StoredLayer, write_shard
from layerprobe.store.store import Store
from layerprobe.tasks.cells import without_surrogates
from layerprobe.tasks.values import Items, Task, TextFile, TextSplit

logger = logging.getLogger(__name__)

# Rows in memory at a time.
TEXTS_A_PASS = 4096

ItemsOf = TypeVar("ItemsOf", bound=Items)

PLAIN = Model(pooling="mean", prompt="")
"""Default pooling and prompt for models without a configuration."""
EMBEDDING_OPTIONS = ("pooling", "max_length", "prompt", "dtype", "norm", "attn", "store_dtype")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Embeddings:
    """The pooled embeddings of every layer, on disk: an array of (samples, layers, features), read on demand.

    The first index is a text or its number, the second a layer: `embeddings["a text"]` is (layers, features), and
    `embeddings[:, 6]` is layer 6 of all texts. `np.asarray(embeddings)` reads all of them.
    """

    model: ModelDescription
    pooling: Pooling
    distinct: Sequence[str]
    """The distinct texts, in order of first appearance: a tuple, or `SpooledTexts` if there are many."""
    bare: Sequence[str]
    """The distinct texts without the prompts of queries and documents from the options or the model's configuration; a
    query that is also a document begins with `query: ` if prompts make two texts of it."""
    stored: StoredEmbeddings
    store: Store
    """Store of the embeddings."""
    fingerprint: str
    """Digest of everything the numbers depend on."""
    warnings: tuple[str, ...]
    """Warnings for the user."""
    settings: dict[str, str]
    """Options that affect the numbers and differ from their defaults."""
    _rows: RowsOf
    first_layer: int = 0
    """1 if pooling takes one token that is the same in all texts before the first block: measures then skip layer 0,
    and values of every layer repeat that of layer 1."""
    collapsed: int = 0
    """Number of last layers with one embedding for all texts, for example after a collapsed training: they are skipped,
    and values of every layer repeat that of the layer before them."""
    _places: NDArray[np.intp] | None = None
    """Row of each requested text among the distinct ones; None if all are distinct."""

    def __repr__(self) -> str:
        sizes = f"{self.n_layers} layers of {self.model.hidden_size} features, {len(self)} texts"
        copies = f" ({len(self.distinct)} different)" if self._places is not None else ""
        return f"<Embeddings: {short_name(self.model.name)}, {sizes}{copies}>"

    @property
    def texts(self) -> Sequence[str]:
        """The texts as requested, one per row; `distinct` are the embedded ones."""
        return self.distinct if self._places is None else _taken(self.distinct, self._places)

    def __len__(self) -> int:
        return len(self.distinct if self._places is None else self._places)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of samples, layers and features."""
        return len(self), self.n_layers, self.model.hidden_size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        rows, layers, *features = key if isinstance(key, tuple) and len(key) > 1 else (key, slice(None))
        if isinstance(rows, str):
            rows = int(self.rows([rows])[0])
        elif isinstance(rows, list | tuple) and rows and isinstance(rows[0], str):
            rows = self.rows(rows)
        chosen, numbers = np.arange(len(self))[rows], np.arange(self.n_layers)[layers]
        places = np.atleast_1d(chosen if self._places is None else self._places[chosen])
        of_layers = [self.stored.rows(layer)[places] for layer in np.atleast_1d(numbers).tolist()]
        values = np.stack(of_layers, axis=1).astype(np.float32, copy=False)
        values = values if numbers.ndim else values[:, 0]
        values = values if chosen.ndim else values[0]
        return values[..., features[0]] if features else values

    @property
    def n_layers(self) -> int:
        """Number of blocks plus the embedding output."""
        return self.stored.n_layers

    @property
    def layers(self) -> range:
        """Layers that are not skipped."""
        return range(self.first_layer, self.n_layers - self.collapsed)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings, except those of skipped layers."""
        left_out = left_out_layers(self.model.name, self.pooling, self.layers, self.n_layers)
        return tuple(warning for warning in self.warnings if warning not in left_out)

    @property
    def complete(self) -> Embeddings:
        """The same embeddings, for comparing every layer; raises DegenerateLayerError if last layers are skipped."""
        if self.collapsed:
            raise DegenerateLayerError(
                constant_layer(len(self.distinct), name=f"layer {self.layers.stop} of {self.model.name}")
            )
        return self

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Return one layer, (text, feature), read-only; -1 is the last one."""
        values = self.stored.layer(layer)
        return values if self._places is None else values[self._places]

    def measured(self, layer: int) -> NDArray[np.float32]:
        """Return one layer like `layer`, or the nearest one that is not skipped."""
        return self.layer(self.nearest(layer))

    def nearest(self, layer: int) -> int:
        """Return a layer number, or the nearest one that is not skipped."""
        return min(max(one_layer(layer, self.n_layers - 1), self.layers[0]), self.layers[-1])

    def rows(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of every text; for duplicates the first.

        Raises:
            DataError: If a single text is passed.
            MisalignedSamplesError: If a text was not embedded.
        """
        listed = unwrap_texts(texts)
        wanted = without_surrogates(listed if isinstance(listed, Sequence) else tuple(listed))
        rows = self._rows(wanted)
        if (rows < 0).any():
            text = wanted[int((rows < 0).argmax())]
            raise MisalignedSamplesError(
                f"the text {text[:60]!r} is not among the {len(self.distinct)} embedded ones: extract it first"
            )
        return rows if self._places is None else np.unique(self._places, return_index=True)[1][rows]

    def vectors(self, layer: int, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the embeddings of texts at a layer, (text, feature); texts have no prompts, as in items."""
        rows = {text: row for row, text in enumerate(self.bare)}
        # queries that are also documents have this prefix
        return self.layer(layer)[[rows[text if text in rows else f"query: {text}"] for text in texts]]


RowsOf = Callable[[Sequence[str]], NDArray[np.int64]]
"""Function from texts to the row of each, -1 for missing ones."""


def _row_finder(texts: Sequence[str]) -> RowsOf:
    """Return a function that finds rows of texts by ids, which are built on first use with 16 bytes each."""

    @functools.cache
    def index_ids() -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        ids = sample_ids(texts)
        rows = np.argsort(ids)
        return ids[rows], rows

    def find_rows(wanted: Sequence[str]) -> NDArray[np.int64]:
        ids, rows = index_ids()
        wanted_ids = sample_ids(wanted)
        begins, ends = np.searchsorted(ids, wanted_ids), np.searchsorted(ids, wanted_ids, side="right")
        spans = zip(wanted, begins, ends, strict=True)
        places = [next((row for row in rows[a:b].tolist() if texts[row] == text), -1) for text, a, b in spans]
        return np.array(places, dtype=np.int64)

    return find_rows


class Read(NamedTuple):
    """Texts as a model reads them: queries and documents already begin with their prompts."""

    texts: Sequence[str]
    model: Resolved
    """The model for these texts: with another prompt if theirs are in the texts."""
    bare: Sequence[str]
    """See `Embeddings`."""
    prompts: tuple[str, ...] = ()
    """Prompts at the beginning of the texts."""
    earlier: tuple[Sequence[str], ...] = ()
    """Other texts that may be in the store: those they share are not embedded again."""

    def drawn(self, n: int, *, before: int = 0) -> Read:
        """Return `n` of the texts, drawn at random, including those drawn for `before`; all in order."""
        order = np.random.default_rng(0).permutation(len(self.texts))
        fewer = (_taken(self.texts, order[:before]),) if before else ()
        if n >= len(self.texts):
            return self._replace(earlier=fewer)
        texts = _taken(self.texts, order[:n])
        bare = texts if self.bare is self.texts else _taken(self.bare, order[:n])
        return self._replace(texts=texts, bare=bare, earlier=(self.texts, *fewer))


def extract(
    model: ModelLike,
    texts: Sequence[str] | TextFile | Items | Task,
    *,
    on_plan: Callable[[Estimate], None] | None = None,
    ray: str | None = None,
    workers: int | None = None,
) -> Embeddings:
    """Return the pooled embeddings of every layer, from the store or from one forward pass.

    Args:
        model: A name, a folder, a `Model`, or a checkpoint.
        texts: Texts, or those of a file, of items or of a task; duplicates are embedded once. A list or a
            file has one row per text, items and tasks one per distinct text.
        on_plan: Called once with the estimate before embedding begins; not if everything is in the store.
        ray: Address of a Ray cluster, whose nodes embed some thousand texts at a time; all must see the store.
        workers: Most processes on the cluster; by default one per GPU, else one per node.

    Raises:
        LayerProbeError: If there is no such Ray cluster, or none of its nodes can work.
        DataError: If there are no texts, one is empty, or a value does not fit into a requested float16.
        ModelError: If the model cannot be loaded or truncated.
        StoreError: If the store cannot be written, or the disk is full.
    """
    listed = checked_texts(texts)
    distinct = distinct_texts(listed)
    checkpoint = resolve(model, items=readable_as(distinct))
    options = checkpoint.asked
    machines = choose_workers(options, Store(options.cache_dir).root, count=workers, ray=ray)
    read = make_read(checkpoint, texts if isinstance(texts, Task | Items) else distinct)
    embeddings = extract_read(read, on_plan=on_plan, workers=machines)
    if isinstance(texts, Task | Items) or len(listed) == len(distinct):
        return embeddings
    return replace(embeddings, _places=embeddings.rows(listed))


def make_read(checkpoint: Resolved, data: Sequence[str] | Items | Task) -> Read:
    """Return texts as a model reads them, and the model for that: no text gets a prompt twice."""
    if isinstance(data, Task):
        data = data.split("all")
    if not isinstance(data, Items):
        return Read(data, checkpoint, data)
    items, model = _with_prompts(data, checkpoint)
    texts, bare = items.texts, data.with_prompts("", "").texts
    if len(bare) != len(texts):  # a query is also a document: with prompts, these are two texts
        bare = data.with_prompts("query: ", "document: ").texts
    return Read(texts, model, bare, tuple(filter(None, items.prompts or ())))


def extract_read(
    read: Read,
    *,
    whole: Sequence[str] = (),
    on_plan: Callable[[Estimate], None] | None = None,
    workers: Workers = HERE,
    look: bool = True,
) -> Embeddings:
    """Return the embeddings of texts, or of the `whole` they belong to if that is in the store.

    Without `look` the tokenizer's reading of the texts is not checked.
    """
    model = read.model
    encoder = first_use(model)
    store, stored = Store(model.asked.cache_dir), None
    prompts = read.prompts or (model.prompt,)
    for distinct in (whole, read.texts) if whole else (read.texts,):
        key = _store_key(model, distinct, prompts)
        if (stored := _open(store, key)) is not None:
            break
    if stored is None:
        encoder = encoder or load(model)
        # a graph pools all tokens
        graph = None if model.asked.backend == TORCH or key.unpooled else backend_graph(encoder, model)
        if on_plan is not None:
            on_plan(_plan(store, key, encoder, len(distinct)))
        if workers.executor == "here":
            entries = ((_open(store, _store_key(model, others, prompts)), others) for others in read.earlier)
            embedded = [
                ([entry.rows(layer) for layer in range(entry.n_layers)], _row_finder(others))
                for entry, others in entries
                if entry is not None
            ]
            stored = _embed_and_store(store, key, encoder, distinct, model, graph=graph, stored=embedded)
        else:
            with _writer(store, key, encoder, distinct, model, graph) as writer:
                embed_elsewhere(workers, writer, model.with_options(backend=_backend(graph)), distinct)
                stored = writer.finish()
    recipe, pooling = model.recipe, model.pooling
    settings = {name: value for name, value in model.settled.changed(PLAIN).items() if name in EMBEDDING_OPTIONS}
    layers = _varying(stored) if len(distinct) > 1 else range(stored.n_layers)
    warnings = [*(reading_cautions(model, distinct) if look else ())]
    # add the model's current name, because it can have moved
    manifest = stored.manifest
    if manifest.n_cut:
        limit = manifest.description["max_length"]
        warnings.append(f"{manifest.n_cut} of {manifest.n_rows} texts were cut at {limit} tokens for {model.label}")
    warnings += [f"{warning} for {model.label}" for warning in manifest.description["warnings"]]
    notes = [note for prompt in prompts for note in recipe.notes(pooling, prompt)]
    warnings += dict.fromkeys(f"{model.label} is read with {note}" for note in notes)
    warnings += left_out_layers(model.label, pooling, layers, stored.n_layers)
    return Embeddings(
        # the user's current name for the model: a moved folder has the same fingerprint
        model=replace(from_dict(ModelDescription, manifest.description["model"]), **model.naming),
        pooling=pooling,
        distinct=distinct,
        bare=read.bare if distinct is read.texts else distinct,
        stored=stored,
        store=store,
        fingerprint=key.fingerprint,
        settings=settings | ({"end_token": recipe.end_token} if recipe.end_token else {}),
        warnings=tuple(warnings),
        _rows=_row_finder(distinct),
        first_layer=layers.start,
        collapsed=stored.n_layers - layers.stop,
    )


def left_out_layers(model: str, pooling: Pooling, layers: range, n_layers: int) -> list[str]:
    """Return warnings about first and last layers of a model that are skipped, with reasons."""
    they = "it is" if layers.start == 1 else "they are"
    reasons = {
        range(layers.start): f"with {pooling} pooling {they} the same for all texts",
        range(layers.stop, n_layers): "all texts have one embedding there, perhaps after a collapsed training",
    }
    return [
        f"{layer_span(span)} of {model} {'is' if len(span) == 1 else 'are'} left out: {reason}"
        for span, reason in reasons.items()
        if span
    ]


def layer_span(layers: range) -> str:
    """Return adjacent layers in words.

    Examples:
        >>> layer_span(range(8, 9)), layer_span(range(2, 5))
        ('layer 8', 'layers 2 to 4')
    """
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def _varying(stored: StoredEmbeddings) -> range:
    """Return the layers from the first to the last that differs between texts; all if none differs."""
    layers = range(stored.n_layers)
    first = next((layer for layer in layers if not _is_constant(stored, layer)), None)
    if first is None:
        return layers
    return range(first, next(layer for layer in reversed(layers) if not _is_constant(stored, layer)) + 1)


def _is_constant(stored: StoredEmbeddings, layer: int) -> bool:
    """Return whether a layer is the same for all texts, up to rounding."""
    rows = stored.rows(layer)
    one = rows[0:1].astype(np.float64)
    # two rows within rounding of their mean differ by at most twice that
    floor = 2 * rounding(np.abs(one[0]), math.sqrt(float(np.mean(one**2))), rows.dtype)
    # the second row already differs for almost every layer
    chunks = (slice(1, 2), *(slice(start, start + TEXTS_A_PASS) for start in range(2, rows.shape[0], TEXTS_A_PASS)))
    return all((np.abs(rows[chunk] - one) <= floor).all() for chunk in chunks)


def extract_split(checkpoint: Resolved, task: Task, split: TextSplit) -> Embeddings:
    """Return embeddings that include the texts of a split, like `extract_items`."""
    return extract_items(checkpoint, task.split(split), task=task)[1]


def extract_items(checkpoint: Resolved, items: ItemsOf, *, task: Task | None = None) -> tuple[ItemsOf, Embeddings]:
    """Return items as they are embedded, and embeddings that include their texts.

    Queries and documents each have a prompt: the items' own, else that of the options, else that of the model's
    configuration. If all texts of a task are in the store, the embeddings are those of the whole task.

    Raises:
        ModelError: If the model cannot be loaded or truncated.
        StoreError: If the store cannot be written.
    """
    whole = () if task is None else make_read(checkpoint, task).texts
    return _with_prompts(items, checkpoint)[0], extract_read(make_read(checkpoint, items), whole=whole)


def _with_prompts(items: ItemsOf, model: Resolved) -> tuple[ItemsOf, Resolved]:
    """Return items with prompts before queries and documents, and the model for them; other items unchanged."""
    if items.prompts is None:
        return items, model
    query, document = model.retrieval_prompts
    if query == document and items.prompts == (None, None):
        return items, model.with_options(prompt=query)
    return items.with_prompts(query, document), model.with_options(prompt="")


def distinct_texts(texts: Sequence[str] | TextFile | Items | Task) -> Sequence[str]:
    """Return every distinct text, in order, from any input of `checked_texts`."""
    texts = checked_texts(texts)
    rows = first_rows(texts, sample_ids(texts))
    return texts if len(rows) == len(texts) else _taken(texts, rows)


def checked_texts(texts: Sequence[str] | TextFile | Items | Task) -> Sequence[str]:
    """Return the texts of a list, a file, a task, or a table with one column.

    Lone surrogates, which no tokenizer reads, become spaces, as in the texts of files; a warning lists them.

    Raises:
        DataError: If there are no texts, one is empty or not a string, or a single text or a table of several columns
            was passed instead of a list.
    """
    listed = unwrap_texts(texts)
    texts = listed if isinstance(listed, SpooledTexts) else tuple(listed)
    if not texts:
        raise DataError("expected texts to embed, got none")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"expected texts, got {text!r} as number {number}: remove it, or convert it to a text")
        if not text:
            raise DataError(f"expected texts with words in them, got an empty one as number {number}: remove it")
    if (whole := without_surrogates(texts)) is not texts:
        numbers = [number for number, (text, mended) in enumerate(zip(texts, whole, strict=True)) if text != mended]
        logger.warning(
            "replaced lone surrogates (halves of characters) by a space in %s: number %s",
            counted(len(numbers), "text"),
            some(numbers),
        )
        texts = whole
    return texts


def unwrap_texts(data: Any) -> Any:
    """Return the texts of a file, a task, items, or the only column of a table; anything else unchanged.

    Raises:
        DataError: If the input is a single text, a table of several columns, or not iterable.
    """
    if isinstance(data, Task):
        data = data.split("all")
    if isinstance(data, Items | TextFile):
        return data.texts
    if isinstance(data, str) and is_path(data) and " " not in data:
        advice = f"layerprobe.load_texts reads a file{similar_file(data)}"
        raise DataError(f"expected texts, got the path {data!r}: {advice}")
    if isinstance(data, str):
        raise DataError(f"expected a list of texts, got the single text {data[:60]!r}: put it into a list")
    # an Arrow table's `columns` are its cells
    columns = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    if columns is not None:
        names = list(columns)
        if len(names) != 1:
            column = f": pass one, such as frame[{names[0]!r}], or load_task(frame)" if names else ""
            raise DataError(
                f"expected texts, got a table with columns {', '.join(map(str, names)) or 'of none'}{column}"
            )
        return unwrap_texts(data[names[0]])
    if not isinstance(data, Iterable):
        raise DataError(f"expected a list of texts, got {data!r}")
    if isinstance(data, Iterator):
        return tuple(data)
    return data.to_pylist() if hasattr(data, "to_pylist") else data


def _taken(texts: Sequence[str], rows: NDArray[np.intp]) -> Sequence[str]:
    return texts.take(rows) if isinstance(texts, SpooledTexts) else tuple(texts[row] for row in rows.tolist())


def _open(store: Store, key: StoreKey) -> StoredEmbeddings | None:
    try:
        return store.open(key)
    except DamagedStoreError:
        return None  # the writer reports and recomputes damaged parts


def _store_key(model: Resolved, texts: Sequence[str], prompts: Sequence[str]) -> StoreKey:
    """Return the key for the embeddings of texts that already have, or are given, these prompts."""
    options, recipe = model.asked, model.recipe
    return StoreKey(
        **model.store_identity,
        pooling=model.pooling,
        max_length=model.max_length or 0,
        dtype=model.dtype,
        norm=options.norm,
        prompt=model.prompt,
        texts_digest=texts_digest(texts),
        store_dtype=options.store_dtype,
        dim=recipe.dim,
        unpooled=() if recipe.include_prompt else tuple(filter(None, prompts)),
    )


def _plan(store: Store, key: StoreKey, encoder: Encoder, n_texts: int) -> Estimate:
    model = encoder.description
    size = {"n_layers": model.n_layers, "width": embedding_width(encoder, key.dim)}
    needed, free = store.room(key, n_rows=n_texts, **size)
    return Estimate(
        title=f"Embedding {n_texts:,} texts with {short_name(model.name)}, {model.n_layers} layers of "
        f"{size['width']} features in {key.store_dtype}, takes {readable_size(needed)} of disk; "
        f"{readable_size(free)} are free",
        numbers={
            "model": model.name,
            "n_texts": n_texts,
            **size,
            "store_dtype": key.store_dtype,
            "bytes": needed,
            "free": free,
        },
    )


def _embed_and_store(
    store: Store,
    key: StoreKey,
    encoder: Encoder,
    texts: Sequence[str],
    model: Resolved,
    graph: Graph | None = None,
    stored: Sequence[tuple[Sequence[StoredLayer], RowsOf]] = (),
) -> StoredEmbeddings:
    """Embed shard by shard; meanwhile the next shard is tokenised and the previous one written.

    Texts with the same tokens get the embedding of the first of them, in any shard.
    """
    with _writer(store, key, encoder, texts, model, graph) as writer, ThreadPoolExecutor(1) as background:
        pending, done = writer.pending, 0
        n_pending = sum(stop - start for _, start, stop in pending)
        missing = {index for index, *_ in pending}
        shards = writer.shards[: max(missing, default=-1) + 1]
        writes: list[Future[None]] = []
        parts = (texts[start:stop] for _, start, stop in shards)
        tokenized = _with_first(ahead(lambda part: _tokenize(encoder, part, model, key), parts))
        for (index, start, stop), (tokens, first) in zip(shards, tokenized, strict=True):
            if index not in missing:
                continue
            how = _passes(model, key)
            with part(start=done, share=stop - start, whole=n_pending):
                if stored:
                    here, size = texts[start:stop], encoder.description
                    layers = np.empty((size.n_layers, len(here), embedding_width(encoder, key.dim)), dtype=np.float32)
                    if len(rest := _other_texts(here, stored, layers)):
                        others = _tokenize(encoder, _taken(here, rest), model, key)
                        layers[:, rest] = embed_layers(encoder, others, graph=graph, **how)
                else:
                    layers = embed_layers(encoder, tokens, graph=graph, **how)
            for write in writes:
                write.result()
            inside = np.flatnonzero((first >= start) & (first < np.arange(start, stop)))
            layers[:, inside] = layers[:, first[inside] - start]
            layers[:, first < start] = writer.written(first[first < start])
            writes = [background.submit(writer.write, index, layers, n_cut=tokens.n_truncated)]
            done += stop - start
        for write in writes:
            write.result()
        return writer.finish()


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
        rows = find_rows(_taken(texts, rest))
        for layer, values in enumerate(stored):
            layers[layer, rest[rows >= 0]] = values[rows[rows >= 0]]
        rest = rest[rows < 0]
    return rest


def _writer(
    store: Store, key: StoreKey, encoder: Encoder, texts: Sequence[str], model: Resolved, graph: Graph | None
) -> AbstractContextManager[ShardWriter]:
    size = replace(encoder.description, hidden_size=embedding_width(encoder, key.dim))
    slow = "padding would change the states: texts were batched by equal length"
    description = {
        "model": to_dict(size),
        "warnings": [] if encoder.padding_invariant else [slow],
        "max_length": encoder.limit(model.max_length),
        "backend": _backend(graph),
    }
    return store.writer(key, texts=texts, n_layers=size.n_layers, width=size.hidden_size, description=description)


def _passes(model: Resolved, key: StoreKey) -> dict[str, Any]:
    """Return the arguments of `embed_layers` that describe how a model is run."""
    return {"pooling": model.pooling, "batch_tokens": model.asked.batch_tokens, "dim": key.dim}


def _backend(graph: Graph | None) -> str:
    return TORCH if graph is None else graph.backend


def _tokenize(encoder: Encoder, texts: Sequence[str], model: Resolved, key: StoreKey) -> ModelInputs:
    return encoder.tokenize(prompted(model.prompt, texts), max_length=model.max_length, unpooled=key.unpooled)


def embed_elsewhere(workers: Workers, writer: ShardWriter, checkpoint: Resolved, texts: Sequence[str]) -> None:
    """Embed the pending shards in other processes; a killed node loses only its current shards."""
    directory, manifest = writer.place
    setting = SharedModel(checkpoint, items=readable_as(texts), workers=workers), directory.absolute(), manifest
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
    encoder, model = shared.encoder, shared.checkpoint
    try:
        graph = backend_graph(encoder, model)
    except ModelError as error:  # the model loads where the command runs
        raise WorkerError(str(error)) from error

    def written(shard: tuple[int, list[str]]) -> StoredFile:
        index, texts = shard
        tokens = _tokenize(encoder, texts, model, manifest.key)
        layers = embed_layers(encoder, tokens, graph=graph, **_passes(model, manifest.key))
        return write_shard(directory, manifest, index, layers, n_cut=tokens.n_truncated)

    return written
