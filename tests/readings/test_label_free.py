"""Label-free metrics of a model: from one forward pass, kept beside the embeddings, and no key of the store moves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder, resolve_checkpoint
from layerprobe.encoders.options import Options
from layerprobe.errors import DataError
from layerprobe.extraction.embed import embed_and_measure
from layerprobe.extraction.embeddings import extract, measure_tokens
from layerprobe.extraction.values import TokenMetrics
from layerprobe.readings.read import readings
from layerprobe.readings.values import LabelFreeMetrics, Views
from layerprobe.readings.views import infonce_curve, label_free_metrics, text_views, view_metrics
from layerprobe.serialisation import from_json, to_json
from layerprobe.similarity.label_free import infonce
from layerprobe.store.store import Store
from tests.models import N_BLOCKS, TEXTS, save_tiny

DISTINCT = tuple(dict.fromkeys(TEXTS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("bert")))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each forward pass had; the pass that looks at a freshly loaded model is not counted."""
    counted: list[int] = []
    states = Encoder.layer_states

    def watched(self: Encoder, batch):  # type: ignore[no-untyped-def]
        counted.append(len(batch["input_ids"]))
        return states(self, batch)

    monkeypatch.setattr(Encoder, "layer_states", watched)
    return counted


def assert_measured(found: TokenMetrics, model: str) -> None:
    encoder = load_encoder(model)
    _, expected = embed_and_measure(encoder, encoder.tokenize(DISTINCT))
    np.testing.assert_allclose(found.prompt_entropy, expected.prompt_entropy.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(found.curvature, np.nanmean(expected.curvature, axis=1), atol=1e-5)
    spread = expected.prompt_entropy.std(axis=1, ddof=1) / math.sqrt(len(DISTINCT))
    np.testing.assert_allclose(found.prompt_entropy_errors, spread, atol=1e-5)
    assert found.n_texts == len(DISTINCT)


def test_one_pass_makes_embeddings_and_metrics(model: str, tmp_path: Path, passes: list[int]) -> None:
    options = Options(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    found = measure_tokens(model, TEXTS, options=options)
    assert passes == [len(DISTINCT)]
    embedded = extract(model, TEXTS, options=options)
    assert measure_tokens(model, TEXTS, options=options) == found
    assert passes == [len(DISTINCT)], "expected both to be read from the store"
    assert_measured(found, model)
    plain = extract(model, TEXTS, options=Options(device="cpu", cache_dir=tmp_path / "other"))
    assert embedded.fingerprint == plain.fingerprint
    for layer in range(N_BLOCKS + 1):
        np.testing.assert_allclose(embedded.layer(layer), plain.layer(layer), atol=1e-5)


def test_embeddings_that_are_there_are_left_as_they_are(model: str, tmp_path: Path, passes: list[int]) -> None:
    options = Options(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    embedded = extract(model, TEXTS, options=options)
    before = {path: path.stat().st_mtime_ns for path in embedded.stored.directory.iterdir()}
    assert_measured(measure_tokens(model, TEXTS, options=options), model)
    assert {path: path.stat().st_mtime_ns for path in embedded.stored.directory.iterdir()} == before
    assert len(passes) >= 2


def test_an_extraction_that_was_cut_short_is_measured_whole(model: str, tmp_path: Path) -> None:
    options = Options(device="cpu", cache_dir=tmp_path)
    embedded = extract(model, TEXTS, options=options)
    shard = next(embedded.stored.directory.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-8])
    assert_measured(measure_tokens(model, TEXTS, options=options), model)
    assert not Store(tmp_path).verify(embedded.fingerprint)


def test_a_damaged_result_is_made_again(model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(device="cpu", cache_dir=tmp_path)
    found = measure_tokens(model, TEXTS, options=options)
    (file,) = (tmp_path / "results" / "tokens").iterdir()
    file.write_text('{"n_texts": 3}')
    assert measure_tokens(model, TEXTS, options=options) == found
    assert "is damaged" in caplog.text


def test_all_metrics_have_every_layer_and_survive_json(model: str, tmp_path: Path) -> None:
    options = Options(device="cpu", cache_dir=tmp_path)
    views = Views(n_texts=4, n_views=3, dropped=0.3, seed=5)
    found = label_free_metrics(model, TEXTS, views=views, options=options)
    assert {len(values) for values in found.by_name.values()} == {N_BLOCKS + 1}
    assert from_json(LabelFreeMetrics, to_json(found)) == found
    copies = text_views(TEXTS, views)
    seen = extract(model, tuple(dict.fromkeys(copy for each in copies for copy in each)), options=options)
    for layer in range(N_BLOCKS + 1):
        rows = np.array([seen.layer(layer)[seen.rows(each)] for each in copies])
        assert found.infonce[layer] == pytest.approx(infonce(rows))
    assert label_free_metrics(model, TEXTS, views=views, options=options) == found


def test_infonce_comes_with_errors(model: str, tmp_path: Path, passes: list[int]) -> None:
    """The same values as those of the metrics, from two views instead of four."""
    options = Options(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    texts = tuple(f"{a} {b} {c}" for a in ("the", "quick", "fox") for b in "abc" for c in "de")
    found = infonce_curve(resolve_checkpoint(model), texts, level=0.9, options=options)
    assert sum(passes) <= 2 * len(texts)
    assert found.values == pytest.approx(label_free_metrics(model, texts, options=options).infonce)
    assert found.uncertainty is not None
    assert (found.uncertainty.level, found.uncertainty.n_clusters) == (0.9, None)
    assert found.standard_errors == found.uncertainty.standard_errors
    documents = {text: text.split()[0] + text.split()[1] for text in texts}
    together = infonce_curve(resolve_checkpoint(model), texts, level=0.9, documents=documents, options=options)
    assert together.uncertainty is not None
    assert together.uncertainty.n_clusters == 9
    assert infonce_curve(resolve_checkpoint(model), texts[:4], level=0.9, options=options).uncertainty is None


def test_views_lack_words_and_keep_their_order() -> None:
    texts = ["the quick brown fox and all of the others", "a lone wolf", "word", *TEXTS]
    views = text_views(texts, Views(n_texts=100, n_views=50, dropped=0.5))
    assert {len(each) for each in views} == {len(dict.fromkeys(texts))}
    for each in views:
        for text, copy in zip(dict.fromkeys(texts), each, strict=True):
            words = iter(text.split())
            assert copy
            assert all(word in words for word in copy.split()), "expected words of the text in their order"
    shares = [len(each[0].split()) / 9 for each in views]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.1)
    assert len({each[0] for each in views}) > 25
    assert views == text_views(texts, Views(n_texts=100, n_views=50, dropped=0.5))


def test_many_texts_are_a_random_choice() -> None:
    texts = [f"text {number} of many" for number in range(50)]
    (first, _), (other, _) = (text_views(texts, Views(n_texts=5, n_views=2, seed=seed)) for seed in (0, 1))
    assert len(first) == len(other) == 5
    assert first != other


@pytest.mark.parametrize("wrong", [{"n_views": 1}, {"n_texts": 1}, {"dropped": 0.0}, {"dropped": 1.0}])
def test_views_that_say_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DataError, match="expected at least two views of two texts"):
        Views(**wrong)  # type: ignore[arg-type]


def test_no_texts_and_a_single_one_are_refused(model: str, tmp_path: Path) -> None:
    options = Options(device="cpu", cache_dir=tmp_path)
    with pytest.raises(DataError, match="expected texts to embed, got none"):
        measure_tokens(model, [], options=options)
    with pytest.raises(DataError, match="expected at least two texts to tell their views apart, got one"):
        label_free_metrics(model, ["a b c"], options=options)


def test_texts_without_a_turn_are_told(tmp_path: Path) -> None:
    gpt2 = str(save_tiny("gpt2", tmp_path / "gpt2"))
    with pytest.raises(DataError, match=r"no text has a curvature at layer 0 of .*: expected texts of at least three"):
        measure_tokens(gpt2, [""" """], options=Options(device="cpu", cache_dir=tmp_path))


def test_only_what_is_asked_for_is_measured(model: str, tmp_path: Path, passes: list[int]) -> None:
    options = Options(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    checkpoint = resolve_checkpoint(model)
    alone = view_metrics(checkpoint, TEXTS, ["dataset entropy"], options=options)
    assert passes == [len(DISTINCT)], "expected no pass of views"
    whole = label_free_metrics(model, TEXTS, options=options).by_name
    assert alone == {"dataset entropy": whole["dataset entropy"]}
    read = readings(checkpoint, TEXTS, ["InfoNCE"], options=options)
    assert {name: curve.values for name, curve in read.items()} == {"InfoNCE": whole["InfoNCE"]}
    read = readings(checkpoint, TEXTS, ["curvature"], options=options)
    assert read["curvature"].values == whole["curvature"]
    assert read["curvature"].standard_errors is not None
    with pytest.raises(DataError, match="expected names of numbers by layer, got beauty"):
        readings(checkpoint, TEXTS, ["beauty"], options=options)
    with pytest.raises(DataError, match="expected a task for probe, got texts alone"):
        readings(checkpoint, TEXTS, ["probe"], options=options)
