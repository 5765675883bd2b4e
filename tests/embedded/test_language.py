"""The synthetic language: what it says, in which words, and how alike two sayings are."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from layerprobe.embedded.language import Concept, Language, Scene, concept_similarity, scene_similarity

N_PAIRS = 2000


@pytest.fixture(scope="module")
def language() -> Language:
    language = Language(seed=0)
    assert 500 < len(language.vocabulary) < 5000
    return language


@pytest.fixture(scope="module")
def scenes(language: Language) -> list[Scene]:
    rng = random.Random(0)
    return [language.scene(rng) for _ in range(300)]


@pytest.fixture(scope="module")
def pairs(language: Language) -> list[tuple[str, str, float]]:
    pairs = list(language.pairs(N_PAIRS, seed=0))
    assert len(pairs) == N_PAIRS
    return pairs


def overlap(first: str, second: str) -> float:
    """Jaccard index of the words."""
    a, b = set(first.split()), set(second.split())
    return len(a & b) / len(a | b)


def test_one_seed_is_one_language(language: Language, pairs: list) -> None:
    again = Language(seed=0)
    assert again.vocabulary == language.vocabulary
    assert list(again.sentences(50, seed=3)) == list(language.sentences(50, seed=3))
    assert list(again.pairs(50, seed=0)) == pairs[:50]


def test_seeds_differ(language: Language) -> None:
    assert Language(seed=1).vocabulary != language.vocabulary
    assert list(language.sentences(50, seed=3)) != list(language.sentences(50, seed=4))
    assert list(language.pairs(50, seed=3)) != list(language.pairs(50, seed=4))


def test_drawing_one_corpus_leaves_the_next_as_it_was(language: Language) -> None:
    before = list(language.sentences(20, seed=5))
    list(language.pairs(20, seed=6))
    assert list(language.sentences(20, seed=5)) == before


def test_vocabulary_is_closed_sorted_and_without_repeats(language: Language, pairs: list) -> None:
    words = {word for sentence in language.sentences(3000, seed=1) for word in sentence.split()}
    words |= {word for first, second, _ in pairs for word in f"{first} {second}".split()}
    assert words <= set(language.vocabulary)
    assert len(words) > 0.5 * len(language.vocabulary)
    assert list(language.vocabulary) == sorted(set(language.vocabulary))


def test_frequent_words_are_much_more_frequent(language: Language) -> None:
    words = [word for sentence in language.sentences(3000, seed=1) for word in sentence.split()]
    _, counts = np.unique(words, return_counts=True)
    assert counts.max() > 50 * np.median(counts)


def test_sentences_say_each_word_of_the_scene_in_one_register(language: Language, scenes: list[Scene]) -> None:
    for scene in scenes[:50]:
        said = set(language.tell(scene, random.Random(0)).split())
        concepts = [concept for slot in Scene.__slots__ if (concept := getattr(scene, slot))]
        registers = range(len(scene.agent.words))
        assert any(all(concept.words[register] in said for concept in concepts) for register in registers)


# ---- gold similarity ----------------------------------------------------------------------------------


def test_a_scene_is_wholly_like_itself(scenes: list[Scene]) -> None:
    assert [scene_similarity(scene, scene) for scene in scenes] == pytest.approx([1.0] * len(scenes))


def test_similarity_is_symmetric_and_between_0_and_1(scenes: list[Scene]) -> None:
    for a, b in itertools.pairwise(scenes):
        assert scene_similarity(a, b) == scene_similarity(b, a)
        assert 0 <= scene_similarity(a, b) <= 1


def test_trading_places_lowers_the_similarity(scenes: list[Scene]) -> None:
    traded = [
        (scene, replace(scene, agent=scene.patient, patient=scene.agent))
        for scene in scenes
        if scene.patient.role == "agent" and scene.patient != scene.agent
    ]
    assert len(traded) > 20
    for scene, other in traded:
        assert scene_similarity(scene, other) < 0.8


def test_leaving_something_out_lowers_the_similarity(scenes: list[Scene]) -> None:
    for scene in scenes:
        for slot in ("place", "tool", "time"):
            if getattr(scene, slot) is not None:
                assert scene_similarity(scene, replace(scene, **{slot: None})) < 1


def test_the_action_counts_more_than_the_time(scenes: list[Scene]) -> None:
    a, b = next((a, b) for a, b in itertools.combinations(scenes, 2) if a.time and b.time and a.time != b.time)
    other_action = next(scene.action for scene in scenes if scene.action.topic != a.action.topic)
    action_changed = scene_similarity(a, replace(a, action=other_action))
    assert action_changed < scene_similarity(a, replace(a, time=b.time)) < 1


def test_concepts_of_one_topic_are_somewhat_alike(scenes: list[Scene]) -> None:
    concepts: list[Concept] = list({scene.agent: None for scene in scenes})
    for a, b in itertools.combinations(concepts, 2):
        similarity = concept_similarity(a, b)
        assert similarity == concept_similarity(b, a)
        assert (0 < similarity < 1) if a.topic == b.topic else similarity == 0
    assert concept_similarity(concepts[0], concepts[0]) == 1
    assert concept_similarity(concepts[0], None) == concept_similarity(None, concepts[0]) == 0


# ---- sentence pairs -----------------------------------------------------------------------------------


def test_scores_span_the_scale_in_tenths(pairs: list) -> None:
    scores = np.array([score for *_, score in pairs])
    assert scores.min() == 0
    assert scores.max() == 5
    np.testing.assert_array_equal(scores, scores.round(1))
    assert np.histogram(scores, bins=5, range=(0, 5))[0].min() > 0.05 * N_PAIRS


def test_the_same_scene_in_other_words_scores_5(pairs: list) -> None:
    same = [overlap(first, second) for first, second, score in pairs if score == 5]
    assert len(same) > 50
    assert min(same) < 0.3
    assert np.mean(same) < 0.8


def test_many_shared_words_do_not_make_the_same_scene(pairs: list) -> None:
    assert any(overlap(first, second) == 1 and score < 4.5 for first, second, score in pairs)


def test_word_overlap_is_related_to_the_score_but_is_not_it(pairs: list) -> None:
    overlaps = [overlap(first, second) for first, second, _ in pairs]
    correlation = spearmanr(overlaps, [score for *_, score in pairs]).statistic
    assert 0.2 < correlation < 0.8
