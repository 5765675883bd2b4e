"""The embedded pair: its encoders, and its language: what it says, in which words, and how alike two sayings are."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from scipy.stats import spearmanr

from layerprobe.embedded import (
    LANGUAGE_SEED,
    Language,
    Scene,
    concept_similarity,
    embedded_model,
    embedded_task,
    scene_similarity,
)
from layerprobe.encoders.loading import load_encoder
from layerprobe.extraction.check import examine
from layerprobe.lab.pretraining.models import SPECIAL_TOKENS

N_PAIRS = 2000


# ---- encoders and task ----------------------------------------------------------------------------------


def test_both_encoders_are_small_healthy_and_of_one_architecture() -> None:
    files = [embedded_model(objective) / "model.safetensors" for objective in ("mlm", "rtd")]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    for file in files:
        with safe_open(file, framework="np") as weights:
            assert sum(weights.get_tensor(name).size for name in weights.keys()) < 2_000_000  # noqa: SIM118
    mlm, rtd = (load_encoder(str(file.parent), device="cpu") for file in files)
    assert mlm.description.parameters == rtd.description.parameters
    assert (mlm.description.architecture, rtd.description.architecture) == ("bert", "electra")
    assert mlm.tokenizer.get_vocab() == rtd.tokenizer.get_vocab()
    assert set(mlm.tokenizer.get_vocab()) == {*SPECIAL_TOKENS, *Language(seed=LANGUAGE_SEED).vocabulary}
    sentence = embedded_task(train=4, validation=4, test=4).test.first[0]
    ids = mlm.tokenizer(sentence)["input_ids"]
    assert len(ids) == len(sentence.split()) + 2
    assert mlm.tokenizer.unk_token_id not in ids
    for encoder in (mlm, rtd):
        assert (diagnosis := examine(encoder)).healthy, diagnosis


def test_the_task_is_the_same_every_time_and_its_splits_do_not_meet() -> None:
    task = embedded_task()
    assert task.digest == embedded_task().digest
    splits = [set(zip(pairs.first, pairs.second, strict=True)) for pairs in (task.train, task.validation, task.test)]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]
    assert 0 <= min(task.test.targets) <= 0.1
    assert max(task.test.targets) == 1
    assert np.std(task.test.targets) > 0.2


# ---- the language ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(seed=0)


@pytest.fixture(scope="module")
def scenes(language: Language) -> list[Scene]:
    rng = random.Random(0)
    return [language.scene(rng) for _ in range(300)]


@pytest.fixture(scope="module")
def pairs(language: Language) -> list[tuple[str, str, float]]:
    return list(language.pairs(N_PAIRS, seed=0))


def test_one_seed_is_one_language_whatever_was_drawn_before(language: Language, pairs: list) -> None:
    again, other = Language(seed=0), Language(seed=1)
    assert again.vocabulary == language.vocabulary != other.vocabulary
    assert list(again.sentences(50, seed=3)) == list(language.sentences(50, seed=3))
    assert list(again.pairs(50, seed=0)) == pairs[:50]
    assert list(language.sentences(50, seed=3)) != list(language.sentences(50, seed=4))
    assert list(language.pairs(50, seed=3)) != list(language.pairs(50, seed=4))


def test_words_are_of_a_closed_vocabulary_some_much_more_frequent(language: Language, pairs: list) -> None:
    words = [word for sentence in language.sentences(3000, seed=1) for word in sentence.split()]
    distinct, counts = np.unique(words, return_counts=True)
    assert {*distinct, *(word for *texts, _ in pairs for word in " ".join(texts).split())} <= set(language.vocabulary)
    assert len(distinct) > 0.5 * len(language.vocabulary)
    assert list(language.vocabulary) == sorted(set(language.vocabulary))
    assert counts.max() > 50 * np.median(counts)


def test_similarity_of_scenes_is_symmetric_1_for_the_same_and_less_for_any_change(scenes: list[Scene]) -> None:
    for a, b in itertools.pairwise(scenes):
        assert scene_similarity(a, a) == pytest.approx(1)
        assert scene_similarity(a, b) == scene_similarity(b, a)
        assert 0 <= scene_similarity(a, b) <= 1
    for scene in scenes:
        for slot in ("place", "tool", "time"):
            if getattr(scene, slot) is not None:
                assert scene_similarity(scene, replace(scene, **{slot: None})) < 1
        if scene.patient.role == "agent" and scene.patient != scene.agent:
            assert scene_similarity(scene, replace(scene, agent=scene.patient, patient=scene.agent)) < 0.8
    a, b = next((a, b) for a, b in itertools.combinations(scenes, 2) if a.time and b.time and a.time != b.time)
    other_action = next(scene.action for scene in scenes if scene.action.topic != a.action.topic)
    assert scene_similarity(a, replace(a, action=other_action)) < scene_similarity(a, replace(a, time=b.time)) < 1


def test_concepts_of_one_topic_are_somewhat_alike(scenes: list[Scene]) -> None:
    concepts = list({scene.agent: None for scene in scenes})
    for a, b in itertools.combinations(concepts, 2):
        similarity = concept_similarity(a, b)
        assert similarity == concept_similarity(b, a)
        assert (0 < similarity < 1) if a.topic == b.topic else similarity == 0
    assert concept_similarity(concepts[0], concepts[0]) == 1
    assert concept_similarity(concepts[0], None) == concept_similarity(None, concepts[0]) == 0


def test_gold_scores_span_the_scale_and_are_not_the_overlap_of_words(pairs: list) -> None:
    scores = np.array([score for *_, score in pairs])
    assert (scores.min(), scores.max()) == (0, 5)
    np.testing.assert_array_equal(scores, scores.round(1))
    assert np.histogram(scores, bins=5, range=(0, 5))[0].min() > 0.05 * N_PAIRS
    words = [(set(first.split()), set(second.split())) for first, second, _ in pairs]
    overlaps = np.array([len(a & b) / len(a | b) for a, b in words])
    assert 0.2 < spearmanr(overlaps, scores).statistic < 0.8
    same = overlaps[scores == 5]  # one scene in other words
    assert len(same) > 50
    assert same.min() < 0.3
    assert same.mean() < 0.8
    assert ((overlaps == 1) & (scores < 4.5)).any()
