"""Texts -> embeddings of every layer, from the store or from one forward pass."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import one_layer
from layerprobe.encoders.backends import TORCH
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.graphs import backend_graph
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import SharedModel, choose_workers, first_use, load
from layerprobe.encoders.model import Model, ModelDescription, Pooling
from layerprobe.errors import DamagedStoreError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.extraction.check import with_tokens
from layerprobe.extraction.embed import RowsOf, embed_elsewhere, embed_shards, embedding_width
from layerprobe.files.atomic import readable_size
from layerprobe.files.images import caption_texts, readable_as
from layerprobe.files.serialisation import from_dict, to_dict
from layerprobe.jobs.crew import HERE, Workers
from layerprobe.names import short_name
from layerprobe.results.shown import Estimate
from layerprobe.similarity.checks import constant_layer, rounding
from layerprobe.store.manifest import Manifest, StoreKey, sample_ids, texts_digest
from layerprobe.store.shards import StoredEmbeddings, StoredLayer
from layerprobe.store.store import Store
from layerprobe.tasks.cells import without_surrogates
from layerprobe.tasks.quality import (
    DataQuality,
    checked_texts,
    distinct_texts,
    take_texts,
    task_quality,
    text_quality,
    unwrap_texts,
)
from layerprobe.tasks.values import Items, Task, TextFile, TextSplit

logger = logging.getLogger(__name__)

# Rows in memory at a time.
TEXTS_A_PASS = 4096
# Most texts whose reading by the tokenizer is examined when no table was requested.
FEW = 64

ItemsOf = TypeVar("ItemsOf", bound=Items)

PLAIN = Model(pooling="mean", prompt="")
"""Default pooling and prompt for models without a configuration."""


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
        return self.distinct if self._places is None else take_texts(self.distinct, self._places)

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extraction:
    """Texts as a model reads them, whose embeddings come from the store or from a forward pass.

    Queries and documents already begin with their prompts: no text gets a prompt twice.
    """

    checkpoint: Resolved
    texts: Sequence[str]
    bare: Sequence[str]
    """See `Embeddings`."""
    prompt: str
    """Prompt that is put before every text."""
    prompts: tuple[str, ...]
    """That prompt, or those at the beginning of the texts."""
    earlier: tuple[Sequence[str], ...] = ()
    """Other texts that may be in the store: those they share are not embedded again."""
    cut: bool = False
    """Whether the model is to be truncated, and refused if its blocks cannot be removed."""

    @classmethod
    def of(cls, checkpoint: Resolved, data: Sequence[str] | Items | Task) -> Extraction:
        """Return texts, items or all texts of a task as a model reads them."""
        data = data.split("all") if isinstance(data, Task) else data
        if not isinstance(data, Items):
            prompt = checkpoint.prompt
            return cls(checkpoint=checkpoint, texts=data, bare=data, prompt=prompt, prompts=(prompt,))
        items, prompt = _with_prompts(data, checkpoint)
        texts, bare = items.texts, data.with_prompts("", "").texts
        if len(bare) != len(texts):  # a query is also a document: with prompts, these are two texts
            bare = data.with_prompts("query: ", "document: ").texts
        prompts = tuple(filter(None, items.prompts or ())) or (prompt,)
        return cls(checkpoint=checkpoint, texts=texts, bare=bare, prompt=prompt, prompts=prompts)

    def of_texts(self, texts: Sequence[str], *, earlier: tuple[Sequence[str], ...] = ()) -> Extraction:
        """Return the extraction of other texts that begin with the same prompts."""
        return replace(self, texts=texts, bare=texts, earlier=earlier)

    def drawn(self, n: int, *, before: int = 0) -> Extraction:
        """Return `n` of the texts, drawn at random, including those drawn for `before`; all in order."""
        order = np.random.default_rng(0).permutation(len(self.texts))
        fewer = (take_texts(self.texts, order[:before]),) if before else ()
        if n >= len(self.texts):
            return replace(self, earlier=fewer)
        texts = take_texts(self.texts, order[:n])
        bare = texts if self.bare is self.texts else take_texts(self.bare, order[:n])
        return replace(self, texts=texts, bare=bare, earlier=(self.texts, *fewer))

    def embed(
        self,
        *,
        whole: Sequence[str] = (),
        on_plan: Callable[[Estimate], None] | None = None,
        workers: Workers = HERE,
        look: bool = True,
    ) -> Embeddings:
        """Return the embeddings of the texts, or of the `whole` they belong to if that is in the store.

        Without `look` the tokenizer's reading of the texts is not checked.
        """
        checkpoint = self.checkpoint
        options = checkpoint.asked
        encoder, reason = first_use(checkpoint, cut=self.cut)
        store = Store(options.cache_dir)
        stored = None
        for distinct in (whole, self.texts) if whole else (self.texts,):
            key = self.key(distinct, read=bool(reason))
            if (stored := _open(store, key)) is not None:
                break
        if stored is None:
            encoder = encoder or load(checkpoint, cut=self.cut)
            # a graph pools all tokens
            graph = None if options.backend == TORCH or key.unpooled else backend_graph(encoder, checkpoint)
            backend = TORCH if graph is None else graph.backend
            if on_plan is not None:
                on_plan(_plan(store, key, encoder, len(distinct)))
            size = replace(encoder.description, hidden_size=embedding_width(encoder, key.dim))
            slow = "padding would change the states: texts were batched by equal length"
            description = {
                "model": to_dict(size),
                "warnings": [] if encoder.padding_invariant else [slow],
                "max_length": encoder.limit(checkpoint.max_length),
                "backend": backend,
            }
            with store.writer(
                key, texts=distinct, n_layers=size.n_layers, width=size.hidden_size, description=description
            ) as writer:
                if workers.executor == "here":
                    embed_shards(
                        writer,
                        key,
                        encoder,
                        distinct,
                        batch_tokens=options.batch_tokens,
                        graph=graph,
                        stored=self._stored_earlier(store, read=bool(reason)),
                    )
                else:
                    by_backend = checkpoint.with_options(backend=backend)
                    shared = SharedModel(by_backend, items=readable_as(distinct), workers=workers)
                    embed_elsewhere(writer, shared, distinct, workers)
                stored = writer.finish()
        layers = _varying(stored) if len(distinct) > 1 else range(stored.n_layers)
        end_token = checkpoint.recipe.end_token
        return Embeddings(
            # the user's current name for the model: a moved folder has the same fingerprint
            model=replace(from_dict(ModelDescription, stored.manifest.description["model"]), **checkpoint.naming),
            pooling=checkpoint.pooling,
            distinct=distinct,
            bare=self.bare if distinct is self.texts else distinct,
            stored=stored,
            store=store,
            fingerprint=key.fingerprint,
            settings=self._unusual_settings() | ({"end_token": end_token} if end_token else {}),
            warnings=(
                *(reading_cautions(checkpoint, distinct) if look else ()),
                *self._warnings(stored.manifest),
                *left_out_layers(checkpoint.label, checkpoint.pooling, layers, stored.n_layers),
            ),
            _rows=_row_finder(distinct),
            first_layer=layers.start,
            collapsed=stored.n_layers - layers.stop,
        )

    def key(self, texts: Sequence[str], *, read: bool = False) -> StoreKey:
        """Return everything that the embeddings of texts depend on; read: of layers that are read, not cut."""
        checkpoint, options, recipe = self.checkpoint, self.checkpoint.asked, self.checkpoint.recipe
        return StoreKey(
            **checkpoint.store_identity,
            pooling=checkpoint.pooling,
            max_length=checkpoint.max_length or 0,
            dtype=checkpoint.dtype,
            norm="read" if read and options.norm == "final" else options.norm,
            prompt=self.prompt,
            texts_digest=texts_digest(texts),
            store_dtype=options.store_dtype,
            dim=recipe.dim,
            unpooled=() if recipe.include_prompt else tuple(filter(None, self.prompts)),
        )

    def _stored_earlier(self, store: Store, *, read: bool) -> list[tuple[list[StoredLayer], RowsOf]]:
        """Return the layers in the store of the other texts, and functions that find their rows."""
        entries = ((_open(store, self.key(texts, read=read)), texts) for texts in self.earlier)
        return [
            ([entry.rows(layer) for layer in range(entry.n_layers)], _row_finder(texts))
            for entry, texts in entries
            if entry is not None
        ]

    def _unusual_settings(self) -> dict[str, str]:
        """Return the options that affect the numbers and differ from those of a model without a configuration."""
        checkpoint, options = self.checkpoint, self.checkpoint.asked
        used = {
            "pooling": checkpoint.pooling,
            "max_length": checkpoint.max_length,
            "prompt": self.prompt,
            "dtype": options.dtype,
            "norm": options.norm,
            "attn": options.attn,
            "store_dtype": options.store_dtype,
        }
        return {name: str(value) for name, value in used.items() if value != getattr(PLAIN, name)}

    def _warnings(self, manifest: Manifest) -> list[str]:
        """Return the warnings of stored embeddings, with the model's current name, because it can have moved."""
        checkpoint = self.checkpoint
        reason = manifest.description["model"].get("read")
        warnings = [f"the layers of {checkpoint.label} are read, not cut: {reason}"] if reason else []
        if manifest.n_cut:
            limit = manifest.description["max_length"]
            warnings.append(
                f"{manifest.n_cut} of {manifest.n_rows} texts were cut at {limit} tokens for {checkpoint.label}"
            )
        warnings += [f"{warning} for {checkpoint.label}" for warning in manifest.description["warnings"]]
        notes = [note for prompt in self.prompts for note in checkpoint.recipe.notes(checkpoint.pooling, prompt)]
        return warnings + [f"{checkpoint.label} is read with {note}" for note in dict.fromkeys(notes)]


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
    extraction = Extraction.of(checkpoint, texts if isinstance(texts, Task | Items) else distinct)
    embeddings = extraction.embed(on_plan=on_plan, workers=machines)
    if isinstance(texts, Task | Items) or len(listed) == len(distinct):
        return embeddings
    return replace(embeddings, _places=embeddings.rows(listed))


def data_quality(checkpoint: Resolved, data: Task | Sequence[str], *, split: TextSplit = "all") -> DataQuality:
    """Return the problems of texts or of a split of a task, and how a model's tokenizer reads them.

    The model's weights are not loaded.
    """
    if not isinstance(data, Task):
        return _with_reading(text_quality(data), checkpoint, data)
    windowed = frozenset(data.split(split).windowed)
    return _with_reading(task_quality(data), checkpoint, data.texts(split), windowed=windowed)


def reading_cautions(checkpoint: Resolved, texts: Sequence[str]) -> tuple[str, ...]:
    """Return problems of a model's tokenizer with a sample of texts; none for images."""
    sample = [texts[i] for i in range(0, len(texts), math.ceil(len(texts) / FEW))] if texts else []
    return (*checkpoint.tokenizer_cautions, *_with_reading(text_quality(()), checkpoint, sample).cautions)


def _with_reading(
    quality: DataQuality, checkpoint: Resolved, texts: Sequence[str], *, windowed: Collection[str] = ()
) -> DataQuality:
    if checkpoint.modality == "image":
        return quality
    name, limit = checkpoint.label, checkpoint.limit
    with model_errors(name, "tokenizing"):
        return with_tokens(
            quality, checkpoint.tokenizer, caption_texts(texts), limit=limit, model=short_name(name), windowed=windowed
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
    whole = () if task is None else Extraction.of(checkpoint, task).texts
    return _with_prompts(items, checkpoint)[0], Extraction.of(checkpoint, items).embed(whole=whole)


def _with_prompts(items: ItemsOf, model: Resolved) -> tuple[ItemsOf, str]:
    """Return items with prompts before queries and documents, and the prompt that is still to be put before all."""
    if items.prompts is None:
        return items, model.prompt
    query, document = model.retrieval_prompts
    if query == document and items.prompts == (None, None):
        return items, query
    return items.with_prompts(query, document), ""


def _open(store: Store, key: StoreKey) -> StoredEmbeddings | None:
    try:
        return store.open(key)
    except DamagedStoreError:
        return None  # the writer reports and recomputes damaged parts


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
