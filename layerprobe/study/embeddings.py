"""Texts -> the embeddings of every layer, from the store or from one forward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders import (
    Checkpoint,
    Encoder,
    TokenizedTexts,
)
from layerprobe.errors import DamagedStoreError, DataError, MisalignedSamplesError
from layerprobe.extraction import embed_layers
from layerprobe.progress import Progress, part_of, silent
from layerprobe.results import (
    ModelDescription,
    Pooling,
    from_json,
    to_dict,
    to_json,
)
from layerprobe.store import ShardWriter, Store, StoredEmbeddings, StoreKey, texts_digest
from layerprobe.study.options import Options, changed, dtype_name, found, load

logger = logging.getLogger(__name__)

EMBEDDING_OPTIONS = ("pooling", "max_length", "prompt", "dtype", "norm", "attn")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """The pooled embeddings of every layer for a list of distinct texts, on disk."""

    model: ModelDescription
    pooling: Pooling
    texts: tuple[str, ...]
    """The distinct texts, one a row."""
    stored: StoredEmbeddings
    store: Store
    """Where they are kept."""
    fingerprint: str
    """Names everything the numbers depend on."""
    warnings: tuple[str, ...]
    """What the user should know about them."""
    settings: dict[str, str]
    """Options that the numbers depend on and that were not left at their default."""
    _row: dict[str, int] = field(repr=False)

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return self.stored.n_layers

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Return one layer, (text, feature), read-only."""
        return self.stored.layer(layer)

    def rows(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of every text.

        Raises:
            MisalignedSamplesError: If a text was not embedded.
        """
        try:
            return np.array([self._row[text] for text in texts])
        except KeyError as error:
            raise MisalignedSamplesError(
                f"the text {error.args[0][:60]!r} is not among the {len(self.texts)} embedded ones: extract it first"
            ) from None


def extract(
    model: str | Path | Checkpoint,
    texts: Sequence[str],
    *,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> Embeddings:
    """Return the pooled embeddings of every layer, from the store or from one forward pass.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        texts: The texts; repeated ones are embedded once.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load and embed.
        progress: Told the tokens that are done.

    Raises:
        DataError: If there are no texts, or an empty one.
        ModelError: If the model cannot be had or truncated.
        StoreError: If the store cannot be written.
    """
    options = options or Options()
    distinct = tuple(dict.fromkeys(texts))
    if not distinct:
        raise DataError("expected texts to embed, got none")
    if "" in distinct:
        raise DataError("expected texts with words in them, got an empty one: drop it")
    checkpoint = found(model, random_init, options)
    key = _store_key(checkpoint, distinct, options)
    store = Store(options.cache_dir)
    stored = _open(store, key)
    if stored is None:
        stored = _embed_and_store(store, key, load(checkpoint, options), distinct, options, progress)
    return Embeddings(
        # the user's own name for the model: a moved folder has the same fingerprint
        model=from_json(ModelDescription, to_json({**stored.description["model"], "name": checkpoint.label})),
        pooling=options.pooling,
        texts=distinct,
        stored=stored,
        store=store,
        fingerprint=key.fingerprint,
        settings={name: value for name, value in changed(options).items() if name in EMBEDDING_OPTIONS},
        warnings=tuple(f"{warning} for {checkpoint.label}" for warning in stored.description["warnings"]),
        _row={text: i for i, text in enumerate(distinct)},
    )


def _open(store: Store, key: StoreKey) -> StoredEmbeddings | None:
    try:
        return store.open(key)
    except DamagedStoreError:
        return None  # the writer names what is damaged and redoes it


def _store_key(checkpoint: Checkpoint, texts: Sequence[str], options: Options) -> StoreKey:
    return StoreKey(
        # a folder is known by its content, wherever it lies
        model="" if checkpoint.revision.startswith("sha256:") else checkpoint.source,
        **checkpoint.identity,
        pooling=options.pooling,
        max_length=options.max_length or 0,
        dtype=dtype_name(options),
        norm=options.norm,
        prompt=options.prompt,
        texts_digest=texts_digest(texts),
    )


def _embed_and_store(
    store: Store, key: StoreKey, encoder: Encoder, texts: tuple[str, ...], options: Options, progress: Progress
) -> StoredEmbeddings:
    """Embed shard by shard; the next shard is tokenised and the last one written meanwhile."""
    model = encoder.description
    description = {"model": to_dict(model), "warnings": _warnings(encoder, texts, options)}
    with (
        store.writer(
            key, texts=texts, n_layers=model.n_layers, width=model.hidden_size, description=description
        ) as writer,
        ThreadPoolExecutor(1) as background,
    ):
        _fill(writer, encoder, texts, options, background, progress)
        return writer.finish()


def _fill(
    writer: ShardWriter,
    encoder: Encoder,
    texts: tuple[str, ...],
    options: Options,
    background: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    pending = list(writer.pending)
    n_pending = sum(stop - start for _, start, stop in pending)

    def tokenized(number: int) -> Future[TokenizedTexts]:
        _, start, stop = pending[number]
        return background.submit(_tokenize, encoder, texts[start:stop], options)

    upcoming = tokenized(0) if pending else None
    written: Future[None] | None = None
    done = 0
    for number, (index, start, stop) in enumerate(pending):
        assert upcoming is not None
        tokens = upcoming.result()
        upcoming = tokenized(number + 1) if number + 1 < len(pending) else None
        report = part_of(progress, start=done, share=stop - start, whole=n_pending)
        layers = embed_layers(
            encoder, tokens, pooling=options.pooling, batch_tokens=options.batch_tokens, progress=report
        )
        if written is not None:
            written.result()
        written = background.submit(writer.write, index, layers)
        done += stop - start
    if written is not None:
        written.result()


def _tokenize(encoder: Encoder, texts: Sequence[str], options: Options) -> TokenizedTexts:
    return encoder.tokenize([options.prompt + text for text in texts], max_length=options.max_length)


def _warnings(encoder: Encoder, texts: Sequence[str], options: Options) -> list[str]:
    """Say in plain words what was cut or slowed down; the model is named later, it can have moved."""
    found = []
    # a token is at least a byte or so: only texts as long as that can have been cut
    limit = encoder.limit(options.max_length)
    long = [text for text in texts if len(options.prompt) + len(text.encode("utf-8", "replace")) >= limit // 2]
    n_cut = _tokenize(encoder, long, options).n_truncated if long else 0
    if n_cut:
        found.append(f"{n_cut} of {len(texts)} texts were cut at {limit} tokens")
    if not encoder.padding_invariant:
        found.append("padding would change the states: texts were batched by equal length")
    return found
