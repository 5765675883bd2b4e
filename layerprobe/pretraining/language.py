"""A small synthetic language: scenes, the sentences that tell them, and how alike two scenes are.

Knows words, meanings and chance; knows no tensors and no models. Everything is drawn from seeds, so the
language, its corpus and its sentence pairs are the same on every machine.

The language has what makes masked words predictable in a natural one: topics in Zipf order with words of
their own, groups of concepts that behave alike, selectional preferences between neighbouring roles, and a
register that picks among synonyms throughout a sentence. It has what makes similarity more than shared
words: synonyms, active, passive, fronted and cleft forms, and agents and patients that can trade places.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

N_TOPICS = 30
N_REGISTERS = 3
# role -> (groups, concepts a group) within a topic
CONCEPTS = {"agent": (3, 3), "thing": (3, 4), "action": (3, 3), "quality": (3, 2), "place": (1, 4)}
N_TIMES = 12

# Function words. THE and A are articles, BE with BY makes the passive, IT with THAT makes the cleft.
THE, A, BE, BY, IT, THAT, IN, WITH = "la", "un", "eso", "pe", "ti", "ke", "ni", "zu"

# How much a slot counts in the similarity of two scenes.
SLOT_WEIGHTS = {
    "action": 0.28,
    "agent": 0.22,
    "patient": 0.22,
    "place": 0.10,
    "tool": 0.08,
    "time": 0.04,
    "agent_quality": 0.03,
    "patient_quality": 0.03,
}
SAME_GROUP, SAME_TOPIC = 0.5, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Concept:
    """One meaning and its words."""

    role: str
    """agent, thing, action, quality, place or time."""
    topic: int
    """0 is the most frequent; -1 for times, which belong to no topic."""
    group: int
    """Concepts of one group of a topic occur in the same surroundings."""
    rank: int
    """Frequency rank within the group, 0 first."""
    words: tuple[str, ...]
    """One word a register; registers may share a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a sentence says: who does what to whom, where, when and with what."""

    agent: Concept
    action: Concept
    patient: Concept
    agent_quality: Concept | None = None
    patient_quality: Concept | None = None
    place: Concept | None = None
    tool: Concept | None = None
    time: Concept | None = None


def concept_similarity(a: Concept | None, b: Concept | None) -> float:
    """Return 1 for the same concept, less for the same group or topic, 0 otherwise."""
    if a is None or b is None:
        return 0.0
    if a == b:
        return 1.0
    if a.topic != b.topic or a.topic < 0:
        return 0.0
    return SAME_GROUP if (a.role, a.group) == (b.role, b.group) else SAME_TOPIC


def scene_similarity(a: Scene, b: Scene) -> float:
    """Return how alike two scenes are, in [0, 1]: the weighted mean over the slots that either fills."""
    total = score = 0.0
    for slot, weight in SLOT_WEIGHTS.items():
        x, y = getattr(a, slot), getattr(b, slot)
        if x is None and y is None:
            continue
        total += weight
        score += weight * concept_similarity(x, y)
    return score / total


def _new_words(rng: random.Random, taken: set[str]) -> Iterator[str]:
    """Yield pronounceable words that nothing else in the language is called."""
    onsets, vowels, codas = "b d f g k l m n p r s t v z br dr kl pl st tr".split(), "aeiou", ("", "", "n", "r", "s", "l")
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(onsets) + rng.choice(vowels) for _ in range(syllables)) + rng.choice(codas)
        if word not in taken:
            taken.add(word)
            yield word


def _zipf(n: int) -> list[float]:
    return list(itertools.accumulate(1 / (rank + 1) for rank in range(n)))


class Language:
    """The lexicon and the habits of one language, all drawn from `seed`.

    Example:
        >>> language = Language(seed=0)
        >>> sentence = next(language.sentences(1, seed=1))
        >>> all(word in language.vocabulary for word in sentence.split())
        True
    """

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        taken = {THE, A, BE, BY, IT, THAT, IN, WITH}
        words = _new_words(rng, taken)

        def synonyms() -> tuple[str, ...]:
            # two or three different words; the plain register may share with its neighbour
            first, second = next(words), next(words)
            return (first, second, next(words) if rng.random() < 0.4 else rng.choice((first, second)))

        self._concepts: dict[tuple[str, int, int], list[Concept]] = {}
        for topic in range(N_TOPICS):
            for role, (groups, size) in CONCEPTS.items():
                for group in range(groups):
                    self._concepts[role, topic, group] = [
                        Concept(role=role, topic=topic, group=group, rank=rank, words=synonyms())
                        for rank in range(size)
                    ]
        self._times = [Concept(role="time", topic=-1, group=0, rank=i, words=synonyms()) for i in range(N_TIMES)]
        # the group that a group of the role before prefers, different in every topic
        self._preferred = {
            (link, topic): rng.sample(range(3), 3)
            for link in ("agent-action", "action-thing", "action-agent", "noun-quality", "action-tool")
            for topic in range(N_TOPICS)
        }
        self._topic_times = [rng.sample(self._times, 4) for _ in range(N_TOPICS)]
        self._topic_weights = _zipf(N_TOPICS)
        self.vocabulary: tuple[str, ...] = tuple(sorted(taken))
        """All words of the language, sorted."""

    # ---- scenes ---------------------------------------------------------------------------------------

    def _concept(self, rng: random.Random, role: str, topic: int, group: int) -> Concept:
        concepts = self._concepts[role, topic, group]
        return rng.choices(concepts, cum_weights=_zipf(len(concepts)))[0]

    def _follow(self, rng: random.Random, link: str, topic: int, group: int) -> int:
        """Return the group that usually goes with `group`; one time in five any other."""
        return self._preferred[link, topic][group] if rng.random() < 0.8 else rng.randrange(3)

    def scene(self, rng: random.Random) -> Scene:
        """Draw a scene with the language's own preferences."""
        topic = rng.choices(range(N_TOPICS), cum_weights=self._topic_weights)[0]
        agent = self._concept(rng, "agent", topic, rng.randrange(3))
        action = self._concept(rng, "action", topic, self._follow(rng, "agent-action", topic, agent.group))
        if rng.random() < 0.3:
            patient = self._concept(rng, "agent", topic, self._follow(rng, "action-agent", topic, action.group))
        else:
            patient = self._concept(rng, "thing", topic, self._follow(rng, "action-thing", topic, action.group))
        scene = Scene(agent=agent, action=action, patient=patient)
        return self._with_details(rng, scene)

    def _with_details(self, rng: random.Random, scene: Scene) -> Scene:
        details: dict[str, Callable[[], Concept]] = {
            "agent_quality": lambda: self._fill(rng, "agent_quality", scene),
            "patient_quality": lambda: self._fill(rng, "patient_quality", scene),
            "place": lambda: self._fill(rng, "place", scene),
            "tool": lambda: self._fill(rng, "tool", scene),
            "time": lambda: self._fill(rng, "time", scene),
        }
        chances = {"agent_quality": 0.5, "patient_quality": 0.5, "place": 0.7, "tool": 0.35, "time": 0.6}
        return replace(scene, **{slot: draw() for slot, draw in details.items() if rng.random() < chances[slot]})

    def _fill(self, rng: random.Random, slot: str, scene: Scene) -> Concept:
        """Draw what usually stands in `slot` of such a scene."""
        topic = scene.action.topic
        if slot == "action":
            return self._concept(rng, "action", topic, self._follow(rng, "agent-action", topic, scene.agent.group))
        if slot == "agent":
            return self._concept(rng, "agent", topic, rng.randrange(3))
        if slot == "patient":
            role = "agent" if scene.patient.role == "agent" else "thing"
            return self._concept(rng, role, topic, self._follow(rng, f"action-{role}", topic, scene.action.group))
        if slot == "time":
            return rng.choices(self._topic_times[topic], cum_weights=_zipf(4))[0]
        if slot == "place":
            return self._concept(rng, "place", topic, 0)
        if slot == "tool":
            return self._concept(rng, "thing", topic, self._follow(rng, "action-tool", topic, scene.action.group))
        noun = scene.agent if slot == "agent_quality" else scene.patient
        return self._concept(rng, "quality", noun.topic, self._follow(rng, "noun-quality", noun.topic, noun.group))

    # ---- sentences ------------------------------------------------------------------------------------

    def tell(self, scene: Scene, rng: random.Random) -> str:
        """Say `scene` in one register and one of four forms."""
        register = rng.randrange(N_REGISTERS)
        article = THE if rng.random() < 0.7 else A

        def word(concept: Concept | None) -> list[str]:
            return [] if concept is None else [concept.words[register]]

        agent = [article, *word(scene.agent_quality), *word(scene.agent)]
        patient = [article, *word(scene.patient_quality), *word(scene.patient)]
        action = word(scene.action)
        place = [IN, THE, *word(scene.place)] if scene.place else []
        tool = [WITH, A, *word(scene.tool)] if scene.tool else []
        time = word(scene.time)
        form = rng.random()
        if form < 0.4:
            words = [*agent, *action, *patient, *tool, *place, *time]
        elif form < 0.65:
            words = [*patient, BE, *action, BY, *agent, *tool, *place, *time]
        elif form < 0.85:
            words = [*time, *place, *agent, *action, *patient, *tool]
        else:
            words = [IT, *patient, THAT, *agent, *action, *place, *time, *tool]
        return " ".join(words)

    def sentences(self, n: int, *, seed: int) -> Iterator[str]:
        """Yield `n` sentences of the language."""
        rng = random.Random(f"sentences {seed}")
        for _ in range(n):
            yield self.tell(self.scene(rng), rng)

    # ---- sentence pairs -------------------------------------------------------------------------------

    def pairs(self, n: int, *, seed: int) -> Iterator[tuple[str, str, float]]:
        """Yield `n` sentence pairs with their gold similarity, 0 to 5 with one decimal.

        The gold value is `scene_similarity` of the two scenes: words play no part in it. The two sentences
        are told on their own, so the same scene may come in other words and another order.
        """
        rng = random.Random(f"pairs {seed}")
        for _ in range(n):
            first = self.scene(rng)
            second = self._variation(rng, first)
            score = round(5 * scene_similarity(first, second), 1)
            yield self.tell(first, rng), self.tell(second, rng), score

    def _variation(self, rng: random.Random, scene: Scene) -> Scene:
        """Return a scene somewhere between the same and an unrelated one."""
        if rng.random() < 0.1:
            return self.scene(rng)
        if scene.patient.role == "agent" and rng.random() < 0.35:
            scene = replace(scene, agent=scene.patient, patient=scene.agent)
        slots = [f.name for f in fields(scene)]
        changed = rng.sample(slots, rng.randint(0, len(slots) - 1))
        filled = {
            slot: None if slot not in ("agent", "action", "patient") and rng.random() < 0.3 else self._fill(rng, slot, scene)
            for slot in changed
        }
        return replace(scene, **filled)
