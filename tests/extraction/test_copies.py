"""Texts of which a model reads the same tokens have one embedding, bit by bit, whatever batch and shard they are in."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.context import settings
from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.batching import TokenizedTexts, copies
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel, load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction import embed
from layerprobe.extraction.embed import embed_layers
from layerprobe.extraction.embeddings import Extraction, extract
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.step import TokenLimit
from layerprobe.finetuning.tmft import evaluate
from layerprobe.finetuning.values import Protocol
from layerprobe.shrinking.teacher import embedder
from layerprobe.store import store as module
from tests.models import given

N = 36
UNKNOWN = [" ".join(f"zq{i}x{k}" for k in range(1 + i % 6)) for i in range(N)]
"""All of unknown words, one to six of them."""
TEXTS = [text for pair in zip(UNKNOWN, embedded_task(train=N).train.first, strict=False) for text in pair]
FIRST = [2 * (i // 2 % 6) if i % 2 == 0 else i for i in range(len(TEXTS))]
"""By text, the first one of the same tokens."""


@pytest.fixture(scope="module")
def rtd() -> Encoder:
    return load_encoder(str(embedded_model("rtd")))


def assert_one_embedding(layers: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(layers, layers[:, FIRST])


@pytest.mark.parametrize("batch_tokens", [40, 333])
def test_texts_of_the_same_tokens_have_the_same_embedding(rtd: Encoder, batch_tokens: int) -> None:
    tokens = rtd.tokenize(TEXTS)
    layers = embed_layers(rtd, tokens, batch_tokens=batch_tokens)
    assert_one_embedding(layers)
    np.testing.assert_allclose(layers, embed_layers(rtd, tokens, batch_tokens=1), atol=2e-6)


def test_texts_that_are_in_the_store_are_not_embedded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = (
        resolve(Model(str(embedded_model("rtd")), cache_dir=tmp_path / name, device="cpu")) for name in ("a", "b")
    )
    some, every = Extraction.of(here, TEXTS[:50]), Extraction.of(elsewhere, TEXTS).embed()
    some.embed()
    sizes = []
    monkeypatch.setattr(embed, "tokens_of", lambda *args, of=embed.tokens_of: sizes.append(len(args[1])) or of(*args))
    both = Extraction.of(here, TEXTS).of_texts(TEXTS, earlier=(some.texts,)).embed()
    assert sizes == [len(TEXTS), len(TEXTS) - 50]
    for layer in range(every.n_layers):
        np.testing.assert_allclose(both.layer(layer), every.layer(layer), atol=2e-6)


@pytest.mark.parametrize("rows", [7, 50])
def test_so_they_have_in_whichever_shard_they_are(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_SHARD_ROWS", rows)
    monkeypatch.setattr(module, "SHARD_BYTES", 1)
    options = Model(cache_dir=tmp_path / "whole", device="cpu", batch_tokens=40)
    whole = extract(given(embedded_model("rtd"), options), TEXTS)
    assert whole.stored.manifest.n_shards == -(-len(TEXTS) // rows)
    layers = np.stack([whole.layer(layer) for layer in range(whole.n_layers)])
    assert_one_embedding(layers)
    half = extract(given(embedded_model("rtd"), dataclasses.replace(options, store_dtype="float16")), TEXTS)
    assert_one_embedding(np.stack([half.layer(layer) for layer in range(half.n_layers)]))

    # one that was interrupted, and has lost a shard since
    def interrupt(_: str, done: float, total: float) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    again = given(embedded_model("rtd"), dataclasses.replace(options, cache_dir=tmp_path / "again"))
    with pytest.raises(KeyboardInterrupt), settings(progress=interrupt):
        extract(again, TEXTS)
    for shard in sorted((tmp_path / "again").rglob("shard-*"))[:1]:
        shard.unlink()
    resumed = extract(again, TEXTS)
    np.testing.assert_array_equal([resumed.layer(layer) for layer in range(resumed.n_layers)], layers)


def test_so_they_have_where_a_smaller_model_is_scored(rtd: Encoder) -> None:
    model = SharedModel(resolve(Model(str(embedded_model("rtd")), device="cpu", batch_tokens=40)))
    assert_one_embedding(embedder(model)(rtd.tokenize(TEXTS))[np.newaxis])


def test_pairs_of_the_same_tokens_tie_where_fine_tuning_is_scored(rtd: Encoder) -> None:
    task = embedded_task(train=2, validation=2, test=len(TEXTS))
    test = dataclasses.replace(task.test, first=tuple(TEXTS), second=(*TEXTS[2:], *TEXTS[:2]))
    criterion = criterion_of(task, width=rtd.description.hidden_size)
    items = criterion.prepare(rtd, test, max_length=64)
    model = TruncatedEncoder(rtd, rtd.n_layers - 1)
    how = {"protocol": Protocol(), "criteria": [criterion], "kind": "sts", "limit": TokenLimit(40)}
    outputs, _ = evaluate(rtd, model, items, **how)  # type: ignore[arg-type]
    pairs = list(zip(FIRST, [*FIRST[2:], *FIRST[:2]], strict=True))
    first = [pairs.index(pair) for pair in pairs]
    assert len(set(first)) < len(TEXTS)
    np.testing.assert_array_equal(outputs[0], outputs[0][first])


def test_only_equal_tokens_are_copies() -> None:
    def texts(ids: list[list[int]], types: list[list[int]] | None = None) -> TokenizedTexts:
        return TokenizedTexts(
            ids=np.concatenate([[], *ids]).astype(np.int32),
            types=None if types is None else np.concatenate(types).astype(np.uint8),
            ends=np.cumsum([0, *map(len, ids)]),
            pad_id=0,
            pad_type=0,
            padding_side="right",
            n_truncated=0,
        )

    ids = [[1, 2], [1, 2, 0], [2, 1], [1, 2], [3], [2, 1], [1, 2]]
    again, first = copies(texts(ids))
    assert (again.tolist(), first.tolist()) == ([3, 5, 6], [0, 2, 0])
    again, first = copies(texts(ids, [[0, 0], [0, 0, 0], [0, 0], [0, 1], [0], [0, 0], [0, 0]]))
    assert (again.tolist(), first.tolist()) == ([5, 6], [2, 0])
    assert copies(texts([]))[0].tolist() == []
