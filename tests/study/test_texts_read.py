"""A prediction reads as many texts as it needs, says how many, and embeds none of them again."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerprobe as lp
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.errors import DataError
from layerprobe.extraction import embed as extraction_pass
from layerprobe.extraction.embeddings import Extraction, extract
from layerprobe.readings.source import text_views
from layerprobe.results import words
from layerprobe.scoring.score import score_by_item
from layerprobe.stats.crossed import item_covariance
from layerprobe.store.shards import StoredEmbeddings
from layerprobe.study import predict as module
from layerprobe.study.predict import numbers_of_texts, score_untrained, settled
from tests.cli.conftest import layerprobe

__all__ = ["layerprobe"]

TEXTS = lp.embedded_task(train=2, validation=2, test=150).texts("test")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many texts each pass embeds."""
    passes: Counter[int] = Counter()
    embed = extraction_pass.embed_layers

    def counted(encoder: Encoder, texts: Any, **how: Any) -> Any:
        passes["texts"] += len(texts.lengths)
        return embed(encoder, texts, **how)

    monkeypatch.setattr(extraction_pass, "embed_layers", counted)
    return passes


@pytest.fixture
def model(tmp_path: Path) -> lp.Model:
    return lp.Model(str(lp.embedded_model("rtd")), cache_dir=tmp_path / "cache")


def test_few_texts_are_enough_where_they_settle_it(
    model: lp.Model, embedded: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_TEXTS", 64)
    drop = lp.predict(model, TEXTS).drop
    assert drop.n_texts == (64, len(TEXTS))
    assert drop.same is not None
    assert drop.same >= 0.99
    assert embedded["texts"] <= 3 * 64
    assert (drop.facts["texts"].value, drop.facts["available"].value) == (64, len(TEXTS))
    assert drop.facts["same"].value == drop.same
    everything = lp.predict(model, TEXTS, n_texts="all").drop
    assert everything.n_texts == (len(TEXTS), len(TEXTS))
    assert everything.recommended_layer == drop.recommended_layer
    # the number is of as many competing texts
    np.testing.assert_allclose(drop.read["InfoNCE"][:2], everything.read["InfoNCE"][:2], atol=0.3)


@pytest.mark.slow
def test_they_double_until_they_run_out_and_none_is_embedded_again(
    model: lp.Model, embedded: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_TEXTS", 16)
    monkeypatch.setattr(module, "CERTAIN", 1.1)
    drop = lp.predict(model, TEXTS).drop
    copies = {copy for view in text_views(TEXTS) for copy in view}
    assert embedded["texts"] == len(TEXTS) + len(copies)
    assert drop.n_texts == (len(TEXTS), len(TEXTS))
    again = lp.predict(model, TEXTS, n_texts="all").drop
    assert again == drop
    assert embedded["texts"] == len(TEXTS) + len(copies)


def test_what_is_in_the_store_is_not_embedded_again(model: lp.Model, embedded: Counter[int]) -> None:
    whole = extract(model, TEXTS)
    seen = embedded["texts"]
    checkpoint = resolve(model)
    few = Extraction.of(checkpoint, TEXTS).drawn(20).embed()
    assert embedded["texts"] == seen == len(TEXTS)
    for layer in range(few.n_layers):
        np.testing.assert_array_equal(few.layer(layer), whole.layer(layer)[whole.rows(few.texts)])


def test_what_is_in_the_store_is_opened_once_for_all_new_shards(
    model: lp.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MIN_SHARD_ROWS", "MAX_SHARD_ROWS"):
        monkeypatch.setattr(f"layerprobe.store.store.{limit}", 8)
    extract(model, TEXTS)
    opened, rows = Counter[int](), StoredEmbeddings.rows
    monkeypatch.setattr(StoredEmbeddings, "rows", lambda self, n: opened.update([n]) or rows(self, n))
    checkpoint = resolve(model)
    few = Extraction.of(checkpoint, TEXTS).drawn(20).embed()
    assert len(few.stored.manifest.shards) == 3
    # and of what was made, the ends: do they differ between texts?
    assert opened == Counter(range(few.n_layers)) + Counter([0, few.n_layers - 1])


@pytest.mark.parametrize("rule", ["fall of effective rank", "fall of mean cosine"])
def test_a_rule_whose_numbers_depend_on_how_many_texts_there_are_reads_all(rule: str) -> None:
    assert numbers_of_texts(rule, None, 5000) == (5000,)


@pytest.mark.slow
def test_a_rule_that_reads_all_is_no_baseline_beside_fewer(model: lp.Model) -> None:
    few, everything = (lp.predict(model, TEXTS, n_texts=n).drop for n in (50, "all"))
    assert module.WORDLESS_RULE not in few.baselines
    by_rank = lp.predict(model, TEXTS, rule=module.WORDLESS_RULE).drop
    assert everything.baselines[module.WORDLESS_RULE] == by_rank.recommended_layer


def test_how_many_are_read_next() -> None:
    rule = "fall of InfoNCE"
    assert numbers_of_texts(rule, None, 1000) == (128, 256, 512, 1000)
    assert numbers_of_texts(rule, None, 128) == (128,)
    assert numbers_of_texts(rule, "all", 1000) == (1000,)
    assert numbers_of_texts(rule, 3000, 1000) == (1000,)
    with pytest.raises(DataError, match="expected a number of texts, 4 or more, or 'all', got 3"):
        numbers_of_texts(rule, 3, 1000)


@pytest.fixture
def task() -> lp.Task:
    return lp.embedded_task(train=2, validation=160, test=2)


def test_of_labels_as_many_are_scored_as_settle_what_is_said(
    tmp_path: Path, embedded: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_ITEMS", 40)
    task = lp.embedded_task(train=2, validation=640, test=2)
    model = lp.Model(str(lp.embedded_model("mlm")), cache_dir=tmp_path / "cache")
    prediction = lp.predict(model, task, n_texts=64)
    scores = prediction.zero_shot
    assert scores is not None
    assert scores.n_items == (40, 640)
    assert not scores.influences
    lines = [words.line(check, prediction.conclusion)[0] for check in prediction.conclusion.checks]
    assert "Layers without fine-tuning were scored on 40 of 640 validation items" in lines
    assert embedded["texts"] <= 80 + 3 * 64
    everything, _ = score_untrained(resolve(model), task, prediction.drop, all_items=True)
    assert everything.n_items is None
    # what the store has does not change what is scored
    assert lp.predict(model, task, n_texts=64) == prediction


def test_labels_settle_whether_a_flagged_layer_is_far_ahead(model: lp.Model, task: lp.Task) -> None:
    scores = score_by_item(resolve(model), task, split="validation")[0]
    drop = lp.predict(model, task, n_texts="all").drop
    flagged = dataclasses.replace(drop, drop_layers=(4,), onset=4, recommended_layer=3)
    psi, values = np.array(scores.influences), np.array(scores.scores)
    error = 1.96 * np.sqrt((psi[4] - psi[3]).var(ddof=1) / psi.shape[1])
    for ahead, expected in ((5 + 1.1 * error, True), (5 + 0.9 * error, False), (5 - 0.9 * error, False), (-40, True)):
        moved = dataclasses.replace(
            scores, metrics={scores.primary: (*values[:4], values[3] + ahead, *values[5:])}, primary=scores.primary
        )
        assert settled(moved, flagged) is expected
    assert settled(scores, dataclasses.replace(drop, drop_layers=(), onset=None, recommended_layer=drop.n_layers - 1))
    errors = np.sqrt(np.diag(item_covariance(psi[4] - psi[3])))
    np.testing.assert_allclose(1.96 * errors, error, rtol=0.05)
