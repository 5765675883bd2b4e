"""Searches and predictions on two tiny models and a toy task: end to end, twice, and where it has to refuse."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from layerprobe.comparison.arrays import as_layers
from layerprobe.comparison.compare import compare, compare_all, diagnostics
from layerprobe.comparison.values import Comparison
from layerprobe.context import settings
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, ModelDescription
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.prediction.values import PLATEAU
from layerprobe.readings.frozen import rank_curve
from layerprobe.readings.reading import LayerCurve
from layerprobe.scoring.score import zero_shot
from layerprobe.scoring.values import LayerScores
from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.maps import measure_layers
from layerprobe.similarity.measures import CKA, MutualKNN, Procrustes
from layerprobe.similarity.values import LayerMeasure, SimilarityCurve, SimilarityMap
from layerprobe.store.store import Store
from layerprobe.study.find import find
from layerprobe.study.predict import DEFAULT_RULE, WORDLESS_RULE, default_rule, drop_cautions, predict, predict_drop
from layerprobe.study.values import Finding, Weights
from layerprobe.tasks.values import Examples, Task
from tests.models import given, save_tiny, tiny_model, tiny_tokenizer
from tests.similarity.oracle import map_by_cka
from tests.toy_task import toy_task

TEXTS = ("a b c", "d", "the quick fox", "a b c d e f g h", "h g f", "b")
RBF = CKA(kernel="rbf", bandwidth_multiplier=1.0)
RANKS = {"effective rank": LayerCurve(values=(3.0, 4.0, 4.0, 4.0, 4.0))}
SHORT = Protocol(epochs=1, learning_rate=1e-3, batch_size=16)


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task(train=32, validation=24, test=24)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of a BERT and an ELECTRA of three blocks and a BERT of five."""
    root = tmp_path_factory.mktemp("models")
    tiny = {
        "bert": tiny_model("bert"),
        "electra": tiny_model("electra", seed=1),
        "deep": tiny_model("bert", seed=2, num_hidden_layers=5),
    }
    for name, model in tiny.items():
        model.save_pretrained(root / name)
        tiny_tokenizer().save_pretrained(root / name)
        assert sum(p.numel() for p in model.parameters()) < 20_000
    return {name: str(root / name) for name in tiny}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the tests that do not mind what is in it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def options(cache: Path) -> Model:
    return Model(device="cpu", cache_dir=cache)


@pytest.fixture(scope="module")
def complete(models: dict[str, str], task: Task, options: Model) -> Finding:
    """What is found with a reference."""
    return whole(models, task, options)


def whole(models: dict[str, str], task: Task, options: Model, **changes: Any) -> Finding:
    settings: dict[str, Any] = {"seeds": 2, "protocol": SHORT, "against_last": 2, "final": True, **changes}
    return find(given(models["electra"], options), task, reference=models["bert"], **settings)


def untimed(finding: Finding) -> Finding:
    """The finding without what differs from time to time."""
    still = [
        dataclasses.replace(made, run=dataclasses.replace(made.run, seconds=0.0, peak_memory=None))
        for made in finding.runs
        if made.run
    ]
    final = finding.final and dataclasses.replace(finding.final, seconds=0.0, peak_memory=None)
    return dataclasses.replace(
        finding,
        runs=tuple(still),
        final=final,
        rounds_by_layer=(),
        weights=Weights(directory=""),
    )


def fail(*arguments: Any, **settings: Any) -> Any:
    raise AssertionError("this was to be read from the store")


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no weights can be loaded but to time the layers that a search found, and nothing is trained."""
    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", fail)
    monkeypatch.setattr("layerprobe.encoders.loading.load", load_encoder)
    monkeypatch.setattr("layerprobe.finetuning.runs.fine_tune", fail)


# ---- the whole ----------------------------------------------------------------------------------------


def test_a_finding_holds_together(complete: Finding, models: dict[str, str], task: Task) -> None:
    assert complete.comparison
    (comparison,) = complete.comparison.comparisons
    assert (comparison.model.name, comparison.reference.name) == (models["electra"], models["bert"])
    assert comparison.model == complete.model
    assert comparison.curve.values == tuple(np.diag(comparison.map.values))
    assert comparison.map.n_samples == len(set(task.texts()))
    prediction = complete.prediction
    assert prediction
    assert prediction.rule == "fall of InfoNCE"
    assert "prediction" in {check.name for check in complete.conclusion.checks}
    assert [result.layer for result in complete.outcomes] == [0, 1, 2, 3]  # so few blocks are all fine-tuned
    assert (complete.against_last is None) == (complete.best_layer == 3)
    assert (complete.task, complete.kind, complete.task_digest) == ("toy", "sts", task.digest)
    assert complete.versions["torch"] == torch.__version__


def test_without_a_reference_the_search_and_the_prediction_are_the_same(
    complete: Finding, models: dict[str, str], task: Task, options: Model
) -> None:
    alone = find(given(models["electra"], options), task, seeds=2, protocol=SHORT, against_last=2, final=True)
    assert alone.comparison is None
    assert untimed(alone) == untimed(dataclasses.replace(complete, comparison=None))


@pytest.mark.usefixtures("no_models")
def test_a_second_time_nothing_is_loaded_and_all_values_are_the_same(
    complete: Finding, models: dict[str, str], task: Task, options: Model
) -> None:
    assert untimed(whole(models, task, options)) == untimed(complete)


def test_a_prediction_without_a_reference_is_that_beside_one(
    models: dict[str, str], task: Task, options: Model
) -> None:
    """The rule reads the model alone."""
    alone, beside = (
        predict(given(models["electra"], options), task, reference=reference) for reference in (None, models["bert"])
    )
    assert (alone.comparison.alone, beside.comparison.alone) == (True, False)
    assert dataclasses.replace(beside.conclusion, subject=alone.conclusion.subject) == alone.conclusion
    assert alone.drop.flagged_in == beside.drop.flagged_in
    assert alone.drop.evidence is None
    assert alone.zero_shot == beside.zero_shot
    assert not any("itself" in warning for warning in alone.warnings)
    with pytest.raises(DataError, match="the rule 'fall of CKA' reads CKA with a reference"):
        predict(given(models["electra"], options), task, rule="fall of CKA")


# ---- extract ------------------------------------------------------------------------------------------


def test_a_text_that_comes_twice_is_embedded_once(models: dict[str, str], options: Model) -> None:
    texts = (TEXTS[1], *TEXTS, TEXTS[1], TEXTS[0])
    embeddings, alone = (extract(given(models["bert"], options), given_texts) for given_texts in (texts, TEXTS))
    assert embeddings.texts == texts
    assert embeddings.distinct == (TEXTS[1], TEXTS[0], *TEXTS[2:])
    assert repr(embeddings).endswith("4 layers of 16 features, 9 texts (6 different)>")
    assert embeddings.rows(["d", "a b c", "d"]).tolist() == [0, 1, 0]
    order = alone.rows(texts)
    np.testing.assert_allclose(embeddings.layer(2), alone.layer(2)[order], atol=1e-6)
    np.testing.assert_allclose(embeddings, np.asarray(alone)[order], atol=1e-6)


def test_embeddings_are_an_array_of_samples_layers_and_features(models: dict[str, str], options: Model) -> None:
    embeddings = extract(given(models["bert"], options), TEXTS)
    whole = np.stack([embeddings.layer(layer) for layer in range(4)], axis=1)
    assert embeddings.shape == whole.shape == (len(embeddings), 4, 16)
    np.testing.assert_array_equal(np.asarray(embeddings), whole)
    for key in (0, -1, slice(1, 3), [2, 0], (slice(None), 2), (slice(None), -1), (1, [0, 3]), (0, 1, slice(4))):
        np.testing.assert_array_equal(embeddings[key], whole[key])
    np.testing.assert_array_equal(embeddings["d"], whole[1])
    np.testing.assert_array_equal(embeddings[["d", "a b c"], 3], whole[[1, 0], 3])
    with pytest.raises(IndexError):
        embeddings[:, 4]
    for layer, alone in zip(as_layers(embeddings), as_layers(whole), strict=True):
        np.testing.assert_array_equal(layer.rows(slice(1, 4)), alone.rows(slice(1, 4)))


def test_a_text_that_was_not_embedded_is_an_error(models: dict[str, str], options: Model) -> None:
    embeddings = extract(given(models["bert"], options), TEXTS)
    with pytest.raises(MisalignedSamplesError, match="the text 'q' is not among the 6 embedded ones: extract it first"):
        embeddings.rows(["a b c", "q"])


def test_the_fingerprint_names_all_that_the_numbers_depend_on(models: dict[str, str], options: Model) -> None:
    def fingerprint(texts: tuple[str, ...] = TEXTS, *, seed: int | None = None, **changes: Any) -> str:
        return extract(
            given(Model(models["bert"], random_init=seed), dataclasses.replace(options, **changes)), texts
        ).fingerprint

    same = [fingerprint(), fingerprint(batch_tokens=8), fingerprint(attn="eager"), fingerprint(dtype="float32")]
    assert len(set(same)) == 1
    others = [
        fingerprint(max_length=4),
        fingerprint(prompt="query. "),
        fingerprint(pooling="cls"),
        fingerprint(pooling="max"),
        fingerprint(pooling="last"),
        fingerprint(norm="raw"),
        fingerprint(dtype="bfloat16"),
        fingerprint(seed=0),
        fingerprint(seed=1),
        fingerprint(TEXTS[::-1]),
        fingerprint(TEXTS[1:]),
        extract(given(models["electra"], options), TEXTS).fingerprint,
    ]
    assert len({same[0], *others}) == 1 + len(others)


def test_a_moved_model_is_known_by_its_content(
    models: dict[str, str], options: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(options, max_length=5)
    before = extract(given(models["bert"], short), TEXTS)
    moved = str(tmp_path / "elsewhere")
    shutil.copytree(models["bert"], moved)
    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", fail)
    after = extract(given(moved, short), TEXTS)
    assert after.fingerprint == before.fingerprint
    assert after.model == dataclasses.replace(before.model, name=moved)
    assert after.warnings == (f"2 of 6 texts were cut at 5 tokens for {moved}",)
    np.testing.assert_array_equal(after.layer(2), before.layer(2))


def test_another_model_at_the_same_place_is_another(tmp_path: Path) -> None:
    result = []
    for seed in (0, 1):
        save_tiny("bert", tmp_path / "model", seed=seed)
        options = Model(device="cpu", cache_dir=tmp_path / "cache")
        result.append(extract(given(str(tmp_path / "model"), options), TEXTS))
    assert result[0].fingerprint != result[1].fingerprint
    assert not np.allclose(result[0].layer(1), result[1].layer(1))


# ---- compare ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(models: dict[str, str], task: Task, options: Model) -> dict[str, Embeddings]:
    return {name: extract(given(folder, options), task.test.texts) for name, folder in models.items()}


def kept_in(root: Path, embeddings: Embeddings) -> Embeddings:
    """The same embeddings with a store of their own for what is made of them."""
    return dataclasses.replace(embeddings, store=Store(root))


def test_a_comparison_is_the_map_of_the_layers(embedded: dict[str, Embeddings], cache: Path) -> None:
    comparison = compare(embedded["electra"], embedded["bert"], measure=RBF)
    layers = [[embedded[name].layer(layer) for layer in range(4)] for name in ("electra", "bert")]
    assert comparison.map == map_by_cka(*layers, measure=RBF)
    assert comparison.other_normalization == map_by_cka(*layers, measure=CKA(kernel="rbf", normalize="zscore"))
    assert (comparison.map.measure, comparison.pooling) == (RBF, "mean")
    assert [d.norm for d in comparison.model_diagnostics] == ["none"] * 4
    assert [step.label for step in comparison.steps] == [f"layer {i + 1} minus layer {i}" for i in range(3)]
    assert comparison.steps[0].value == pytest.approx(comparison.curve.values[1] - comparison.curve.values[0])


def test_several_references_are_compared_in_one_pass(embedded: dict[str, Embeddings]) -> None:
    comparisons = compare_all(embedded["electra"], [embedded["bert"], embedded["deep"], embedded["electra"]])
    for comparison, name in zip(comparisons.comparisons, ("bert", "deep", "electra"), strict=True):
        alone = compare(embedded["electra"], embedded[name])
        np.testing.assert_allclose(comparison.map.values, alone.map.values, atol=1e-6)
        assert comparison.reference == embedded[name].model
    np.testing.assert_allclose(np.diag(comparisons.comparisons[2].map.values), 1, atol=1e-6)
    deeper, itself = comparisons.differences
    assert [each.label for each in deeper] == [f"layer {layer}" for layer in range(4)]
    first = comparisons.comparisons[0].curve.values
    np.testing.assert_allclose([each.value for each in itself], [1 - value for value in first], atol=1e-6)
    assert all(each.interval[0] < each.value < each.interval[1] for each in deeper)


def test_a_model_is_compared_with_itself_a_layer_apart(embedded: dict[str, Embeddings]) -> None:
    comparison = compare(embedded["deep"], embedded["deep"], alignment="previous-layer")
    assert comparison.curve.reference_layers == (0, 0, 1, 2, 3, 4)
    assert comparison.curve.values[3] == comparison.map.values[3][2]
    # layer 0 with itself is 1 by definition: that layer 1 is less is no change
    changes = comparison.table.data["change"]
    assert changes[:2] == (None, None)
    assert [each is None for each in changes[2:]] == [False] * 4
    between = compare(embedded["deep"], embedded["electra"], alignment="relative-depth")
    assert list(between.changes) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("measure", [MutualKNN(neighbours=3), Procrustes()])
def test_other_measures_have_maps_and_curves(embedded: dict[str, Embeddings], measure: LayerMeasure[Any]) -> None:
    comparisons = compare_all(embedded["electra"], [embedded["bert"], embedded["deep"]], measure=measure)
    layers = [[embedded[name].layer(layer) for layer in range(4)] for name in ("electra", "bert")]
    first = comparisons.comparisons[0]
    assert first.map.values == measure_layers(*layers, measure, level=None).map.values
    assert first.curve.uncertainty is not None
    assert first.other_normalization is None
    assert len(comparisons.differences[0]) == len(first.steps) + 1 == 4


def test_groups_are_the_units_of_intervals(embedded: dict[str, Embeddings]) -> None:
    pair = embedded["electra"], embedded["bert"]
    texts = pair[0].texts
    alone = compare(*pair, groups={text: text for text in texts}).map.uncertainty
    groups = {text: str(i // 4) for i, text in enumerate(texts)}
    comparison = compare(*pair, groups=groups)
    errors = comparison.map.uncertainty
    assert alone is not None
    assert errors is not None
    assert (alone.n_groups, errors.n_groups) == (len(texts), -(-len(texts) // 4))
    assert comparison.curve.uncertainty is not None
    layers = [[embeddings.layer(layer) for layer in range(4)] for embeddings in pair]
    names = [groups[text] for text in texts]
    (by_hand,) = estimate_cka([("a", layers[0]), ("b", layers[1])], groups=names)
    assert by_hand.map.uncertainty is not None
    np.testing.assert_allclose(by_hand.map.uncertainty.standard_errors, errors.standard_errors, rtol=1e-4)
    assert any("groups are few" in warning for warning in comparison.warnings)
    measure = Procrustes()
    assert any("groups are few" in w for w in compare(*pair, measure=measure, groups=groups).warnings)
    with pytest.raises(DataError, match="expected a group for every text, got none for"):
        compare(*pair, groups={texts[0]: "a"})
    with pytest.raises(DataError, match="expected groups as a mapping of texts to groups, got a tuple: pass"):
        compare(*pair, groups=tuple(groups.values()))  # type: ignore[arg-type]


def test_what_was_embedded_otherwise_is_reported(
    embedded: dict[str, Embeddings], models: dict[str, str], options: Model
) -> None:
    texts = embedded["bert"].texts
    other = extract(given(models["bert"], dataclasses.replace(options, prompt="a b ", max_length=5)), texts)
    comparison = compare(embedded["electra"], other)
    assert (comparison.settings, comparison.reference_settings) == ({}, {"max_length": "5", "prompt": "a b "})
    assert any("were embedded with different max_length and prompt" in warning for warning in comparison.warnings)
    assert from_json(Comparison, to_json(comparison)) == comparison


def test_a_comparison_is_made_once_for_its_settings(
    embedded: dict[str, Embeddings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[dict[str, Any]] = [
        {},
        {"measure": RBF},
        {"measure": dataclasses.replace(RBF, bandwidth_multiplier=0.5)},
        {"measure": CKA(estimator="biased")},
        {"measure": CKA(normalize="zscore")},
        {"alignment": "best-match"},
    ]
    pair = kept_in(tmp_path, embedded["electra"]), embedded["bert"]
    result = [compare(*pair, **changes) for changes in changed]
    with settings(level=0.9):
        result.append(compare(*pair))
    assert len({to_json(comparison) for comparison in result}) == len(changed) + 1
    turned = compare(*pair[::-1])
    np.testing.assert_allclose(turned.map.values, np.transpose(result[0].map.values), atol=1e-6)
    monkeypatch.setattr("layerprobe.comparison.compare.estimate_cka", fail)
    assert [compare(*pair, **changes) for changes in changed] == result[:-1]


def test_different_texts_are_refused(
    embedded: dict[str, Embeddings], models: dict[str, str], task: Task, options: Model
) -> None:
    for texts, what in ((task.test.texts[1:], r"\d+ others"), (task.test.texts[::-1], "the same in another order")):
        other = extract(given(models["bert"], options), texts)
        with pytest.raises(MisalignedSamplesError, match=f"{what}: extract both with the same texts in") as caught:
            compare(embedded["electra"], other)
        assert models["electra"] in str(caught.value)


def test_different_depths_are_compared_at_relative_depth(embedded: dict[str, Embeddings], cache: Path) -> None:
    comparison = compare(embedded["deep"], embedded["bert"])
    assert comparison.curve.alignment == "relative-depth"
    assert comparison.curve.reference_layers == (0, 1, 1, 2, 2, 3)
    assert np.shape(comparison.map.values) == (6, 4)
    with pytest.raises(DataError, match=r"has 6 layers and .* 4, expected equally many for same-index"):
        compare(embedded["deep"], embedded["bert"], alignment="same-index")
    assert compare(embedded["bert"], embedded["electra"]).curve.alignment == "same-index"


# ---- zero-shot and prediction -------------------------------------------------------------------------


def test_zero_shot_scores_are_those_by_hand(embedded: dict[str, Embeddings], task: Task) -> None:
    scores = zero_shot(embedded["bert"], task)
    assert scores.split == "test"
    values = embedded["bert"].layer(2).astype(np.float64)
    row = {text: i for i, text in enumerate(embedded["bert"].texts)}
    cosines = []
    for first, second in zip(task.test.first, task.test.second, strict=True):
        u, v = values[row[first]], values[row[second]]
        cosines.append(u @ v / np.sqrt((u @ u) * (v @ v)))
    assert scores.scores[2] == pytest.approx(100 * stats.spearmanr(cosines, task.test.targets).statistic)
    assert scores.metrics["pearson"][2] == pytest.approx(100 * stats.pearsonr(cosines, task.test.targets).statistic)


def test_the_first_token_before_the_first_block_is_left_out(models: dict[str, str], options: Model) -> None:
    """It is the same in every text."""
    task = toy_task(test=8)
    embeddings = extract(given(models["bert"], dataclasses.replace(options, pooling="cls")), task.test.texts)
    assert zero_shot(embeddings, task).first_layer == 1


def spearman_of(split: str, scores: tuple[float, ...]) -> LayerScores:
    return LayerScores(split=split, method="cosine", primary="spearman", metrics={"spearman": scores})


def test_labels_add_a_baseline_and_change_nothing_else(embedded: dict[str, Embeddings], cache: Path) -> None:
    comparison = compare(embedded["electra"], embedded["bert"])
    labels = spearman_of("validation", (10.0, 50.0, 20.0, 30.0))
    without, labelled = (predict_drop(comparison, rule=WORDLESS_RULE, zero_shot=scores) for scores in (None, labels))
    assert without.baselines.keys() == {"last layer", "fixed fraction of depth", PLATEAU}
    assert labelled.baselines == {**without.baselines, "best zero-shot layer": 1}
    assert dataclasses.replace(labelled, baselines=without.baselines) == without


def described(name: str, **changes: Any) -> ModelDescription:
    kind: dict[str, Any] = {"revision": name, "architecture": "bert", "n_blocks": 4, "hidden_size": 8, "norm": "none"}
    return ModelDescription(name=name, dtype="float32", parameters=(1, 2, 3, 4, 5), **{**kind, **changes})


def compared(model: ModelDescription, reference: ModelDescription, values: tuple[float, ...]) -> Comparison:
    rows = tuple((value,) * 5 for value in values)
    return Comparison(
        model=model,
        reference=reference,
        texts_digest="0",
        pooling="mean",
        map=SimilarityMap(measure=CKA(), values=rows, n_samples=9),
        curve=SimilarityCurve(values=values, reference_layers=(0, 1, 2, 3, 4), alignment="same-index"),
    )


def test_what_speaks_against_a_prediction_is_a_caution() -> None:
    falling, level = (0.9, 0.9, 0.9, 0.5, 0.4), (0.9,) * 5
    electra, bert, random = described("electra"), described("bert"), described("bert", random_init=0)
    dropping, steady = compared(electra, bert, falling), compared(electra, bert, level)
    drop, none = predict_drop(dropping, rule=PLATEAU), predict_drop(steady, rule=PLATEAU)
    assert (drop.recommended_layer, drop.drop_layers, none.drops) == (2, (3, 4), False)

    def labels(*spearman: float) -> LayerScores:
        return spearman_of("validation", spearman)

    ahead, hardly, before = labels(0, 0, 50, 60, 40), labels(0, 0, 50, 55, 40), labels(0, 90, 50, 60, 40)
    (caution,) = drop_cautions(dropping, drop, ahead)
    assert "the flagged layer 3 scores 60.0 and the recommended layer 2 50.0 (validation Spearman x 100)" in caution
    for prediction, labelled in (drop, hardly), (drop, before), (drop, None), (none, ahead):
        assert drop_cautions(dropping, prediction, labelled) == ()
    other = dataclasses.replace(dropping, map=dataclasses.replace(dropping.map, measure=Procrustes()))
    by_rsa, by_rank = (predict_drop(other, rule=rule, curves=RANKS) for rule in (PLATEAU, WORDLESS_RULE))
    assert (by_rsa.record, drop.record is None, by_rank.record is None) == (None, False, False)
    (caution,) = drop_cautions(other, by_rsa)
    assert caution.startswith("the thresholds of the rule 'plateau of CKA' were fitted on debiased linear CKA, and it")
    assert drop_cautions(other, by_rank) == ()
    (caution,) = drop_cautions(compared(electra, random, falling), drop)
    assert caution.startswith("the reference has random weights")
    assert drop_cautions(compared(electra, random, level), none, ahead) == ()
    elsewhere = described("./bert", revision="bert")
    (caution,) = drop_cautions(compared(bert, elsewhere, level), none)
    assert caution.startswith("the model was compared with itself")


def test_ranks_have_errors_that_are_made_once(
    embedded: dict[str, Embeddings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kept_in(tmp_path, embedded["electra"])
    groups = {text: str(i // 4) for i, text in enumerate(model.texts)}
    settings: list[dict[str, Any]] = [{}, {"level": 0.9}, {"groups": groups}]
    result = [rank_curve(model, **{"level": 0.95, **changes}) for changes in settings]
    values = tuple(layer.effective_rank for layer in diagnostics(model))
    assert [error.values for error in result] == [pytest.approx(values)] * 3
    errors = [error.uncertainty for error in result]
    assert [error and error.level for error in errors] == [0.95, 0.9, 0.95]
    assert errors[0] != errors[2]
    monkeypatch.setattr("layerprobe.readings.frozen.rank_influences", fail)
    assert [rank_curve(model, **{"level": 0.95, **changes}) for changes in settings] == result
    with pytest.raises(DataError, match="expected a group for every text, got none for"):
        rank_curve(model, level=0.95, groups={model.texts[0]: "a"})


def test_the_default_rule_is_one_that_can_read_the_texts(models: dict[str, str], options: Model) -> None:
    """Copies without some of the words are all the same where a text is one word, or has no spaces."""
    sentences, words = ("a b c", "d", "the quick fox"), ("a", "the", "b c")
    assert default_rule(sentences) == "fall of InfoNCE"
    assert default_rule(words) == default_rule(("我喜欢猫", "他在跑步")) == "fall of effective rank"
    by_words = predict(given(models["bert"], options), TEXTS).drop
    by_letters = predict(given(models["bert"], options), [*"abcdefgh"]).drop
    assert (by_words.rule, set(by_words.read)) == (DEFAULT_RULE, {"InfoNCE"})
    assert (by_letters.rule, set(by_letters.read)) == (WORDLESS_RULE, {"effective rank"})
    beside = predict(given(models["bert"], options), TEXTS, rule=WORDLESS_RULE).drop
    assert by_words.baselines[WORDLESS_RULE] == beside.recommended_layer


# ---- fine-tuning --------------------------------------------------------------------------------------


def test_a_prompt_stands_before_every_sentence_in_fine_tuning_too(
    models: dict[str, str], task: Task, options: Model
) -> None:
    def prompted(pairs: Examples) -> Examples:
        first, second = (tuple(f"b {text}" for text in texts) for texts in (pairs.first, pairs.second))
        return dataclasses.replace(pairs, first=first, second=second)

    protocol = Protocol(epochs=1, learning_rate=1e-3)
    by_option = finetune(
        given(models["bert"], dataclasses.replace(options, prompt="b ")), task, [1], seeds=[0], protocol=protocol
    )
    splits = {name: prompted(getattr(task, name)) for name in ("train", "validation", "test")}
    by_hand = finetune(
        given(models["bert"], options), dataclasses.replace(task, **splits), [1], seeds=[0], protocol=protocol
    )
    without = finetune(given(models["bert"], options), task, [1], seeds=[0], protocol=protocol)
    assert by_option.outcomes[0].mean == by_hand.outcomes[0].mean != without.outcomes[0].mean


def test_fine_tuning_reads_and_pools_as_the_model_was_told(models: dict[str, str], task: Task, options: Model) -> None:
    model = given(models["bert"], dataclasses.replace(options, max_length=4, pooling="cls"))
    (made,) = finetune(model, task, [1], seeds=[0], protocol=SHORT).runs
    assert (made.protocol.max_length, made.protocol.pooling) == (4, "cls")
    assert find(model, task, seeds=1, protocol=SHORT).runs[0].run.protocol == made.protocol
    with pytest.raises(DataError, match="one maximum length, got 4 of the model and 8 of the protocol"):
        finetune(model, task, [1], protocol=dataclasses.replace(SHORT, max_length=8))
