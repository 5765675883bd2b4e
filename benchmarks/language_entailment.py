"""Entailment in the synthetic language: a second task for encoders that were pretrained on it.

    python benchmarks/language_entailment.py PAIRS.csv [--pairs 8400] [--seed 0]

A premise tells a scene; the hypothesis tells, in words and an order of its own, one of these:

    entailment     the same scene, of which some details (qualities, place, tool, time) may be left open
    neutral        such a scene with a detail that the premise leaves open
    contradiction  such a scene with another concept in one of its slots, or with agent and patient exchanged

Each label is drawn as often, and what is added or exchanged is in half of the pairs what is usual there. The columns
are premise, hypothesis and label, so that a lab study can name the file:

    [task]
    source = "PAIRS.csv"
    kind = "entailment"
    columns = ["premise", "hypothesis", "label"]
    examples = [2000, 400, 6000]
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from layerprobe.embedded import DETAILS, LANGUAGE_SEED, Concept, Language, Scene

LABELS = ("entailment", "neutral", "contradiction")


class Entailments(Language):
    """The language, and what follows from its sentences."""

    def entailments(self, n: int, *, seed: int) -> Iterator[tuple[str, str, str]]:
        """Yield `n` premises, hypotheses and labels."""
        rng = random.Random(f"entailments {seed}")
        for _ in range(n):
            label = rng.choice(LABELS)
            scene = self.scene(rng)
            while label == "neutral" and None not in details(scene).values():
                scene = self.scene(rng)
            yield self.tell(scene, rng), self.tell(self.hypothesis(scene, label, rng), rng), label

    def hypothesis(self, scene: Scene, label: str, rng: random.Random) -> Scene:
        """Return a scene that follows from `scene`, may be or cannot be."""
        left_out = {slot: None for slot, told in details(scene).items() if told and rng.random() < 0.5}
        less = replace(scene, **left_out)
        if label == "neutral":
            slot = rng.choice([slot for slot, told in details(scene).items() if told is None])
            return replace(less, **{slot: self.another(scene, slot, rng)})
        if label == "contradiction":
            if scene.patient.role == "agent" and scene.patient != scene.agent and rng.random() < 0.5:
                return replace(less, agent=scene.patient, patient=scene.agent)
            slot = rng.choice([field.name for field in fields(less) if getattr(less, field.name)])
            return replace(less, **{slot: self.another(scene, slot, rng)})
        return less

    def another(self, scene: Scene, slot: str, rng: random.Random) -> Concept:
        """Draw a concept for a slot that is not there: one that is usual in such a scene, or one of another scene."""
        usual = rng.random() < 0.5
        while True:
            found = self._fill(rng, slot, scene if usual else self.scene(rng))
            if found != getattr(scene, slot):
                return found


def details(scene: Scene) -> dict[str, Concept | None]:
    """Return what a sentence may leave open, by its slot."""
    return {slot: getattr(scene, slot) for slot in DETAILS}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=8400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with given.out.open("w", encoding="utf-8", newline="") as file:
        rows = Entailments(seed=LANGUAGE_SEED).entailments(given.pairs, seed=given.seed)
        csv.writer(file, lineterminator="\n").writerows([("premise", "hypothesis", "label"), *rows])


if __name__ == "__main__":
    main()
