"""The embedded pair: two small encoders that come with layerprobe, the language they read, and a task in it.

`mlm` was pretrained by masked language modelling, `rtd` as an ELECTRA discriminator by replaced token detection, both
on the same sentences, in the same order and number of steps; the recipe is with the other pretraining in the lab.
The language is synthetic: scenes, sentences that describe them, and the similarity of scenes. It knows words and
meanings, and is drawn from seeds, so that its corpus and its sentence pairs are the same on every machine.

Masked words are predictable as in natural languages: by topics in Zipf order with their own
words, selectional preferences (each agent has typical actions, each action typical patients and tools, each
noun typical qualities), and a register that selects synonyms throughout a sentence. Similarity is
more than shared words: there are synonyms, active, passive, fronted and cleft forms, and agents and
patients that can swap places.
"""

import csv
import io
import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.atomic import write_file
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.values import Examples, Task

N_TOPICS = 30
N_REGISTERS = 3
# role -> concepts within a topic
CONCEPTS = {"agent": 8, "thing": 11, "action": 9, "quality": 6, "place": 4}
N_TIMES = 12
# In natural texts about one word in ten belongs to another topic.
STRAY = 0.1

# Function words. THE and A are articles, BE with BY makes the passive, IT with THAT makes the cleft.
THE, A, BE, BY, IT, THAT, IN, WITH = "la", "un", "eso", "pe", "ti", "ke", "ni", "zu"

# Weight of a slot in the similarity of two scenes.
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
SAME_TOPIC = 0.3
# Probability of filling an optional slot.
DETAILS = {"agent_quality": 0.5, "patient_quality": 0.5, "place": 0.7, "tool": 0.35, "time": 0.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Concept:
    """One meaning with its words."""

    role: str
    """agent, thing, action, quality, place or time."""
    topic: int
    """Number of the topic, 0 is the most frequent; -1 for times, which have no topic."""
    rank: int
    """Frequency rank among the concepts of its role and topic, from 0."""
    words: tuple[str, ...]
    """One word per register; registers may share a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The content of a sentence: who does what to whom, where, when and with what."""

    agent: Concept
    action: Concept
    patient: Concept
    agent_quality: Concept | None = None
    patient_quality: Concept | None = None
    place: Concept | None = None
    tool: Concept | None = None
    time: Concept | None = None


def concept_similarity(a: Concept | None, b: Concept | None) -> float:
    """Return 1 for the same concept, less for the same topic, 0 otherwise."""
    if a is None or b is None:
        return 0.0
    if a == b:
        return 1.0
    return SAME_TOPIC if a.topic == b.topic >= 0 else 0.0


def scene_similarity(a: Scene, b: Scene) -> float:
    """Return the similarity of two scenes, in [0, 1]: the weighted mean over the slots that either of them fills."""
    total = score = 0.0
    for slot, weight in SLOT_WEIGHTS.items():
        x, y = getattr(a, slot), getattr(b, slot)
        if x is not None or y is not None:
            total += weight
            score += weight * concept_similarity(x, y)
    return score / total


ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kl", "pl", "st", "tr")
CODAS = ("", "", "n", "r", "s", "l")


def _new_words(rng: random.Random, taken: set[str]) -> Iterator[str]:
    """Yield pronounceable words that are unused in the language."""
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(ONSETS) + rng.choice("aeiou") for _ in range(syllables)) + rng.choice(CODAS)
        if word not in taken:
            taken.add(word)
            yield word


def _zipf(n: int, exponent: float = 1.0) -> list[float]:
    """Return cumulative weights of ranks 0 .. n - 1."""
    return list(itertools.accumulate((rank + 1) ** -exponent for rank in range(n)))


class Language:
    """The lexicon and the preferences of one language, all drawn from `seed`.

    Examples:
        >>> language = Language(seed=0)
        >>> sentence = next(language.sentences(1, seed=1))
        >>> all(word in language.vocabulary for word in sentence.split())
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        taken = {THE, A, BE, BY, IT, THAT, IN, WITH}
        self._words = _new_words(self._rng, taken)
        self._concepts = {
            (role, topic): [self._new_concept(role, topic, rank) for rank in range(size)]
            for topic in range(N_TOPICS)
            for role, size in CONCEPTS.items()
        }
        times = [self._new_concept("time", -1, rank) for rank in range(N_TIMES)]
        for topic in range(N_TOPICS):
            self._concepts["time", topic] = self._rng.sample(times, 4)
        # concept and role -> its partners in that role, the most frequent first
        self._liked = {
            (concept, role): self._rng.sample(self._concepts[role, topic], len(self._concepts[role, topic]))
            for (_, topic), concepts in list(self._concepts.items())
            for concept in concepts
            for role in ("agent", "thing", "action", "quality", "place")
            if concept.role != "time"
        }
        self._topic_weights = _zipf(N_TOPICS)
        self.vocabulary: tuple[str, ...] = tuple(sorted(taken))
        """All words of the language, sorted."""

    def _new_concept(self, role: str, topic: int, rank: int) -> Concept:
        # two or three different words; the last register may share one with another
        first, second = next(self._words), next(self._words)
        third = next(self._words) if self._rng.random() < 0.4 else self._rng.choice((first, second))
        return Concept(role=role, topic=topic, rank=rank, words=(first, second, third))

    def _topic(self, rng: random.Random) -> int:
        return rng.choices(range(N_TOPICS), cum_weights=self._topic_weights)[0]

    def _any(self, rng: random.Random, role: str, topic: int) -> Concept:
        """Draw a concept of a topic by frequency."""
        concepts = self._concepts[role, topic]
        return rng.choices(concepts, cum_weights=_zipf(len(concepts)))[0]

    def _with(self, rng: random.Random, concept: Concept, role: str) -> Concept:
        """Draw a partner of `concept` in `role`: mostly a preferred one, sometimes one of another topic."""
        if rng.random() < STRAY:
            return self._any(rng, role, self._topic(rng))
        liked = self._liked[concept, role]
        return rng.choices(liked, cum_weights=_zipf(len(liked), 1.5))[0]

    def scene(self, rng: random.Random) -> Scene:
        """Draw a scene with the language's preferences."""
        agent = self._any(rng, "agent", self._topic(rng))
        action = self._with(rng, agent, "action")
        patient = self._with(rng, action, "agent" if rng.random() < 0.3 else "thing")
        scene = Scene(agent=agent, action=action, patient=patient)
        filled = {slot: self._fill(rng, slot, scene) for slot, share in DETAILS.items() if rng.random() < share}
        return replace(scene, **filled)

    def _fill(self, rng: random.Random, slot: str, scene: Scene) -> Concept:
        """Draw a typical concept for `slot` of a scene."""
        if slot in ("agent", "time"):
            return self._any(rng, slot, (scene.agent if slot == "agent" else scene.action).topic)
        neighbour, role = {
            "action": (scene.agent, "action"),
            "patient": (scene.action, scene.patient.role),
            "agent_quality": (scene.agent, "quality"),
            "patient_quality": (scene.patient, "quality"),
            "place": (scene.action, "place"),
            "tool": (scene.action, "thing"),
        }[slot]
        return self._with(rng, neighbour, role)

    def tell(self, scene: Scene, rng: random.Random) -> str:
        """Describe `scene` in one register and one of four forms."""
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

    def pairs(self, n: int, *, seed: int) -> Iterator[tuple[str, str, float]]:
        """Yield `n` sentence pairs with their gold similarity, 0 to 5 with one decimal.

        The gold value is `scene_similarity` of the two scenes: words play no part in it. The two sentences
        are worded independently, so the same scene may appear in other words and another order.
        """
        rng = random.Random(f"pairs {seed}")
        for _ in range(n):
            first = self.scene(rng)
            second = self._variation(rng, first)
            yield self.tell(first, rng), self.tell(second, rng), round(5 * scene_similarity(first, second), 1)

    def _variation(self, rng: random.Random, scene: Scene) -> Scene:
        """Return a scene between the same and an unrelated one."""
        if rng.random() < 0.2:
            return self.scene(rng)
        if scene.patient.role == "agent" and rng.random() < 0.25:
            scene = replace(scene, agent=scene.patient, patient=scene.agent)
        slots = [f.name for f in fields(scene)]
        changed = rng.sample(slots, rng.randint(0, len(slots) - 1))
        others: dict[str, Any] = {slot: self._other(rng, slot, scene) for slot in changed}
        return replace(scene, **others)

    def _other(self, rng: random.Random, slot: str, scene: Scene) -> Concept | None:
        """Draw another value for `slot`: nothing, a typical concept, or one of another scene."""
        if slot in DETAILS and rng.random() < 0.3:
            return None
        return self._fill(rng, slot, scene if rng.random() < 0.5 else self.scene(rng))


LANGUAGE_SEED = 0
# training, validation and test pairs
TASK_SIZES = (1500, 500, 1000)
TASK_SEED = 10
N_TEXTS, TEXTS_SEED = 2000, 20
# The demo has more test pairs and a short training: with six epochs the last layers recover half of the drop.
DEMO_SIZES = {"train": 1500, "validation": 1000, "test": 2000}
DEMO_PROTOCOL = Protocol(learning_rate=3e-4, epochs=1, batch_size=16)


Objective = Literal["mlm", "rtd"]


def embedded_model(objective: str) -> Path:
    """Return the folder of the shipped encoder pretrained by `objective`: mlm or rtd; DataError for others."""
    check_choice(objective, Objective, name="objective")
    return Path(__file__).parent / "weights" / objective


def embedded_task(*, train: int = TASK_SIZES[0], validation: int = TASK_SIZES[1], test: int = TASK_SIZES[2]) -> Task:
    """Return sentence pairs of the synthetic language with the similarity of their scenes as gold scores.

    Raises:
        DataError: If a split would be empty.
    """
    if not all(isinstance(size, Integral) and size >= 1 for size in (train, validation, test)):
        raise DataError(f"expected at least one pair per split, got {train}, {validation} and {test}")
    language = Language(seed=LANGUAGE_SEED)

    def split(n: int, seed: int) -> Examples:
        first, second, scores = zip(*language.pairs(n, seed=seed), strict=True)
        return Examples(first=first, second=second, targets=tuple(score / 5 for score in scores))

    return Task(
        name="embedded",
        kind="sts",
        train=split(train, TASK_SEED),
        validation=split(validation, TASK_SEED + 1),
        test=split(test, TASK_SEED + 2),
        score_range=(0.0, 5.0),
        notes=("sentence pairs of the synthetic language; gold similarity is that of their scenes",),
    )


def write_embedded(folder: Path, *, pairs: int = sum(TASK_SIZES), texts: int = N_TEXTS) -> None:
    """Write the embedded pair and its language as ordinary files: `rtd`, `mlm`, `pairs.csv` and `texts.txt`.

    Args:
        folder: Folder to write, created if missing; existing files with these names are replaced.
        pairs: Rows of `pairs.csv`: two sentences and their gold similarity from 0 to 5.
        texts: Number of lines of `texts.txt`: sentences that are in none of the pairs' splits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for objective in ("rtd", "mlm"):
        shutil.copytree(embedded_model(objective), folder / objective, dirs_exist_ok=True)
    language = Language(seed=LANGUAGE_SEED)
    rows = [("sentence1", "sentence2", "score"), *language.pairs(pairs, seed=TASK_SEED)]
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(rows)
    write_file(folder / "pairs.csv", lines.getvalue().encode())
    write_file(folder / "texts.txt", "".join(f"{x}\n" for x in language.sentences(texts, seed=TEXTS_SEED)).encode())
