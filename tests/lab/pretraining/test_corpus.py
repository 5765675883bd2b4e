"""Token ids of many texts, what is held out, and the batches of an epoch."""

import gzip
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.encoders.batching import TokenizedTexts, collate
from layerprobe.encoders.encoder import Encoder
from layerprobe.errors import DataError
from layerprobe.lab.pretraining import masking as module
from layerprobe.lab.pretraining.masking import epoch_batches, hold_out, pack, tokenize_corpus
from layerprobe.tasks.formats import Format
from layerprobe.tasks.loading import load_corpus
from tests.models import TEXTS

WINDOW = 50


def test_padded_texts_are_those_of_the_encoder(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    corpus = tokenize_corpus(partial(encoder.tokenize, max_length=8), TEXTS)
    tokens = encoder.tokenize(TEXTS, max_length=8)
    assert (len(corpus), corpus.n_truncated) == (len(TEXTS), tokens.n_truncated)
    assert corpus.n_truncated > 0
    assert corpus.lengths == tokens.lengths
    for rows in ([0], [3, 0, 1], list(range(len(TEXTS)))):
        batch, expected = collate(corpus, rows), collate(tokens, rows)
        assert batch.keys() == {"input_ids", "attention_mask"}
        for name, values in batch.items():
            np.testing.assert_array_equal(values, expected[name])


@given(n=st.integers(2, 300), share=st.floats(0.001, 0.999), seed=st.integers(0, 9))
def test_every_text_is_trained_on_or_held_out(n: int, share: float, seed: int) -> None:
    rows, held_out = hold_out(n, share, seed=seed)
    assert sorted([*rows, *held_out]) == list(range(n))
    assert len(rows) >= 1
    assert len(held_out) >= 1
    assert abs(len(held_out) - share * n) <= 1


@given(n=st.integers(1, 700), size=st.integers(1, 9), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_an_epoch_has_every_text_once_in_batches_of_one_size(n: int, size: int, seed: int, epoch: int) -> None:
    rows, lengths = np.arange(1, 2 * n, 2), np.arange(2 * n) % 40
    batches = epoch_batches(rows, lengths, batch_size=size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches)) == rows.tolist()
    assert sorted(map(len, batches), reverse=True)[: n // size] == [size] * (n // size)
    assert len(batches) == -(-n // size)


def test_batches_hold_texts_of_similar_length_and_differ_by_epoch() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 4 * WINDOW)
    rows = np.arange(len(lengths))
    first, second = (epoch_batches(rows, lengths, batch_size=4, seed=0, epoch=epoch) for epoch in (0, 1))
    assert max(np.ptp(lengths[batch]) for batch in first) <= 5
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]
    means = [lengths[batch].mean() for batch in first]
    assert means != sorted(means)
    assert len({int(batch.min()) for batch in first} & {int(batch.min()) for batch in second}) < WINDOW


def test_texts_from_plain_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("dré\r\n\nvi\x00er\n".encode(), mtime=0))
    found = load_corpus([tmp_path / "a.txt", tmp_path / "b.txt.gz"])
    assert found.texts == ("one", "two", "dré", "vi er")
    assert [warning.split(": ")[1] for warning in found.warnings] == [
        "left out texts that cannot be used, 1 with an empty line (line 2)",
        "replaced control characters by spaces in 1 text",
    ]


def test_a_format_is_that_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("à l'été".encode("cp1252"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("dré".encode("cp1252")))
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    assert load_corpus(paths, format=Format(encoding="cp1252")).texts == ("à l'été", "dré")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt.gz", b"plain", "is not a complete gzip file: Not a gzipped file"),
        (
            "a.txt.gz",
            gzip.compress(b"text of some length", mtime=0)[:-9],
            "not a complete gzip file: Compressed file ended",
        ),
        ("a.txt.gz", gzip.compress(b"\xff\0", mtime=0), r"is not UTF-8 \(byte 0xff in line 1\): save it"),
        ("a.txt.gz", gzip.compress(b"\n \n", mtime=0), "has no texts"),
        ("a.csv.gz", gzip.compress(b"a,b", mtime=0), "expected compressed texts to be a .txt.gz file"),
    ],
)
def test_files_that_are_no_compressed_texts(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_corpus([tmp_path / name])


def test_no_files_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one file"):
        load_corpus([])
    with pytest.raises(DataError, match="does not exist"):
        load_corpus([tmp_path / "none.txt.gz"])


@given(lengths=st.lists(st.integers(2, 12), min_size=1, max_size=40), max_length=st.integers(12, 40))
def test_packed_texts_keep_their_order_and_lose_their_first_tokens(lengths: list[int], max_length: int) -> None:
    """Each text is 1, its number, ..., 2; a sequence is one 1 and whole texts without theirs."""
    texts = [[1, *[10 + i] * (n - 2), 2] for i, n in enumerate(lengths)]
    corpus = TokenizedTexts(
        ids=np.concatenate(texts).astype(np.int32),
        types=None,
        ends=np.cumsum([0, *lengths]),
        pad_id=0,
        pad_type=0,
        padding_side="right",
        n_truncated=0,
    )
    packed = pack(corpus, max_length=max_length, n_leading=1)
    sequences = [packed.ids[a:b].tolist() for a, b in zip(packed.ends[:-1], packed.ends[1:], strict=True)]
    assert max(map(len, sequences)) <= max_length
    assert all(sequence[0] == 1 and sequence.count(1) == 1 and sequence[-1] == 2 for sequence in sequences)
    assert [i for sequence in sequences for i in sequence[1:]] == [i for text in texts for i in text[1:]]
    for first, second in itertools.pairwise(sequences):
        assert len(first) + second.index(2) > max_length  # the next text would not have fitted
