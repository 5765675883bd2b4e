"""Readings of a model that need no labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.context import settings
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.readings.reading import READINGS, LayerCurve, Reading, alone
from layerprobe.readings.source import read_curves, text_views
from layerprobe.similarity.diagnostics import infonce_influences
from tests.models import N_BLOCKS, TEXTS, given

DISTINCT = tuple(dict.fromkeys(TEXTS))


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


def test_all_readings_have_every_layer_and_survive_json(bert: Path, tmp_path: Path) -> None:
    options = Model(device="cpu", cache_dir=tmp_path)
    curves = read_curves(given(str(bert), options), TEXTS, alone(), n_altered=4)
    assert list(curves) == alone()
    assert {len(curve.values) for curve in curves.values()} == {N_BLOCKS + 1}
    assert {name: from_json(LayerCurve, to_json(curve)) for name, curve in curves.items()} == curves
    copies = text_views(TEXTS, 4)
    seen = extract(given(str(bert), options), tuple(dict.fromkeys(copy for views in copies for copy in views)))
    for layer in range(N_BLOCKS + 1):
        rows = np.array([seen.layer(layer)[seen.rows(views)] for views in copies])
        assert curves["InfoNCE"].values[layer] == pytest.approx(infonce_influences(rows)[0])
    assert read_curves(given(str(bert), options), TEXTS, alone(), n_altered=4) == curves


def test_infonce_comes_with_errors(bert: Path, tmp_path: Path, passes: list[int]) -> None:
    options = Model(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    texts = tuple(f"{a} {b} {c}" for a in ("the", "quick", "fox") for b in "abc" for c in "de")

    def infonce_of(texts: Sequence[str], **further: Any) -> LayerCurve:
        with settings(level=0.9):
            return read_curves(given(str(bert), options), texts, ["InfoNCE"], **further)["InfoNCE"]

    curve = infonce_of(texts)
    assert sum(passes) <= 2 * len(texts)
    assert curve.uncertainty is not None
    assert curve.uncertainty.level == 0.9
    assert curve.standard_errors == curve.uncertainty.standard_errors
    together = infonce_of(texts, groups={text: text.split()[0] + text.split()[1] for text in texts})
    assert together.uncertainty is not None
    assert together.uncertainty.covariance != curve.uncertainty.covariance
    assert infonce_of(texts[:4]).uncertainty is None


def test_views_lack_words_and_keep_their_order() -> None:
    texts = ["the quick brown fox and all of the others", "a lone wolf", "word", *TEXTS]
    views = text_views(texts, 100, 50, dropped=0.5)
    assert {len(each) for each in views} == {len(dict.fromkeys(texts))}
    for each in views:
        for text, copy in zip(dict.fromkeys(texts), each, strict=True):
            words = iter(text.split())
            assert copy
            assert all(word in words for word in copy.split()), "expected words of the text in their order"
    shares = [len(each[0].split()) / 9 for each in views]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.1)
    assert len({each[0] for each in views}) > 25
    assert views == text_views(texts, 100, 50, dropped=0.5)


def test_many_texts_are_a_random_choice() -> None:
    texts = [f"text {number} of many" for number in range(50)]
    (first, _), (other, _) = (text_views(texts, 5, seed=seed) for seed in (0, 1))
    assert len(first) == len(other) == 5
    assert first != other


def test_no_texts_and_a_single_one_are_refused(bert: Path, tmp_path: Path) -> None:
    options = Model(device="cpu", cache_dir=tmp_path)
    with pytest.raises(DataError, match="expected texts to embed, got none"):
        read_curves(given(str(bert), options), [], alone())
    with pytest.raises(DataError, match="expected at least two texts, to compare their copies, got one"):
        read_curves(given(str(bert), options), ["a b c"], alone())


def test_only_what_is_asked_for_is_measured(bert: Path, tmp_path: Path, passes: list[int]) -> None:
    options = Model(device="cpu", cache_dir=tmp_path, batch_tokens=10_000)
    rank = read_curves(given(str(bert), options), TEXTS, ["effective rank"])
    assert passes == [len(DISTINCT)], "expected no pass of views"
    whole = read_curves(given(str(bert), options), TEXTS, alone())
    assert rank == {"effective rank": whole["effective rank"]}
    for names in (["InfoNCE"], ["self CKA", "effective rank"], ["mean cosine"]):
        assert read_curves(given(str(bert), options), TEXTS, names) == {name: whole[name] for name in names}
    with pytest.raises(DataError, match=r"expected a reading, one of self CKA, .*, got 'beauty'"):
        read_curves(given(str(bert), options), TEXTS, ["beauty"])
    with pytest.raises(DataError, match="expected a task for probe, got texts alone"):
        read_curves(given(str(bert), options), TEXTS, ["probe"])
    with pytest.raises(DataError, match="CKA needs a reference: use compare"):
        read_curves(given(str(bert), options), TEXTS, ["CKA"])


def test_what_is_not_defined_is_left_out(bert: Path, tmp_path: Path) -> None:
    """The tokenizer makes these texts two, which leaves no text with two neighbours."""
    texts, names = ["the fox", "The Fox", "a dog", "A Dog"], ["intrinsic dimension", "effective rank"]
    assert list(read_curves(given(str(bert), Model(device="cpu", cache_dir=tmp_path)), texts, names)) == names[1:]


def test_a_reading_says_what_it_is() -> None:
    for name, reading in READINGS.items():
        assert reading.description
        assert (reading.maximum == 1) >= reading.similarity, name
    with pytest.raises(DataError, match="expected a reading with a function compute"):
        Reading(description="nothing", direction=None)
    with pytest.raises(DataError, match="needs is 'time', expected one of 'embeddings'"):
        Reading(description="time", direction=None, needs="time", compute=lambda source: None)  # type: ignore[arg-type]
