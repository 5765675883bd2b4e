"""Does a flag of `predict`, or the size of a fall, tell which pretrained encoders drop? By the recorded readings.

    python benchmarks/what_a_flag_says.py

Prints, of the default rule with several floors, how many recorded encoders it flags, those that drop and those that do
not, pretrained ones and random weights apart, and the regret of its layer beside that of the last layer. Then the area
under the ROC curve of how far InfoNCE falls, of pretrained encoders alone; and whether any of seven statistics of any
reading tells better: chosen on the encoders that chose the rule, with what the best of as many reaches where drops are
shuffled, and what the chosen one reaches on the others. A minute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.lab.dropbench.bench import RIVALS, known_drops
from layerprobe.lab.dropbench.zoo import read_kept_out, read_searched, read_zoo
from layerprobe.prediction.rule import KnownDrop
from layerprobe.prediction.rules import fall
from layerprobe.readings.reading import INFONCE, READINGS, cka_with

NEW = {entry.name for entry in read_searched(unseen=True).entries}
ZOOS = {
    "34, chose the rule": read_zoo().entries,
    "20 of these, other pairs": tuple(entry for entry in read_searched().entries if entry.name not in NEW),
    "20 new": read_searched(unseen=True).entries,
    "6 of 12 blocks": read_kept_out().entries,
}
SHUFFLES = 500
Array = NDArray[np.float64]


def main() -> None:
    """Print all of it."""
    for budget in "converged", "gentle":
        sorts = {name: known_drops(entries, budget) for name, entries in ZOOS.items()}
        for floor in 0.0, READINGS[INFONCE].floor, 0.1, 0.12, 0.15:
            for name, models in sorts.items():
                for random in False, True:
                    flagged(f"{budget}, floor {floor}: {name}", models, floor, random=random)
    pretrained = {
        name: [encoder for encoder in known_drops(entries, "converged") if encoder.family != "random"]
        for name, entries in ZOOS.items()
    }
    first = next(iter(pretrained))
    rows = {sort: list(map(statistics_of, models)) for sort, models in pretrained.items()}
    drops = {sort: np.array([encoder.truth.drop for encoder in models]) for sort, models in pretrained.items()}
    names = [name for name in rows[first][0] if all(name in row for row in rows[first])]
    observed = areas(names, rows[first], drops[first])
    best, rng = names[int(observed.argmax())], np.random.default_rng(0)
    shuffled = [areas(names, rows[first], rng.permutation(drops[first])).max() for _ in range(SHUFFLES)]
    print(f"best of {len(names)} statistics on {first}: {best}, {observed.max():.2f}")
    print(f"with drops shuffled: {np.mean(shuffled):.2f}; as good in {np.mean(shuffled >= observed.max()):.0%}")
    for name in f"{INFONCE}, fall", f"{INFONCE}, fall as a share", best:
        print(name, {sort: round(float(areas([name], rows[sort], drops[sort])[0]), 2) for sort in rows})


def flagged(title: str, models: list[KnownDrop], floor: float, *, random: bool) -> None:
    """Print what the default rule says of some models."""
    chosen = [encoder for encoder in models if (encoder.family == "random") == random]
    if not chosen:
        return
    rule = fall(INFONCE, replace(READINGS[INFONCE], floor=floor))
    predict = rule.make(first=1, direction=1, threshold=0.03)
    layers = [predict(encoder.model)[0] for encoder in chosen]
    drops = np.array([encoder.truth.drop for encoder in chosen])
    flags = np.array([layer < encoder.model.n_blocks for encoder, layer in zip(chosen, layers, strict=True)])
    lost = np.mean([encoder.regrets[layer] for encoder, layer in zip(chosen, layers, strict=True)])
    last = np.mean([encoder.regrets[-1] for encoder in chosen])
    print(
        f"{title}, {'random' if random else 'pretrained'}: flags {(flags & drops).sum()} of {drops.sum()} that drop, "
        f"{(flags & ~drops).sum()} of {(~drops).sum()} that do not; regret {lost:.2f}, last layer {last:.2f}"
    )


def statistics_of(encoder: KnownDrop) -> dict[str, float]:
    """Return seven numbers of each reading of a model, of the blocks alone; more promises a drop."""
    readings = {**RIVALS, **READINGS.usable()}  # a recorded reading that has neither is tried in both directions
    numbers: dict[str, float] = {}
    for name, curve in encoder.model.curves.items():
        if name.startswith(cka_with("")):
            continue
        directions = readings[name].directions if name in readings else (1, -1)
        for direction in directions:
            blocks = direction * np.array(curve.values[1:])
            below = blocks.max() - blocks
            title = f"{name}{'' if direction == directions[0] else ' turned'}"
            numbers |= {
                f"{title}, fall": below[-1],
                f"{title}, fall as a share": below[-1] / (np.abs(blocks).max() or 1.0),
                f"{title}, last step": blocks[-2] - blocks[-1],
                f"{title}, last layer": -blocks[-1],
                f"{title}, best layer": -(blocks.argmax() + 1) / len(blocks),
                f"{title}, slope": -np.polyfit(np.linspace(0, 1, len(blocks)), blocks, 1)[0],
                f"{title}, area": below.mean(),
            }
    return numbers


def areas(names: list[str], rows: list[dict[str, float]], drops: NDArray[np.bool_]) -> Array:
    """Return (statistics,) areas under the ROC curve."""
    columns = np.array([[row[name] for name in names] for row in rows])
    dropping, others = columns[drops], columns[~drops][:, None]
    observed: Array = ((dropping > others) + 0.5 * (dropping == others)).mean(axis=(0, 1))
    return observed


if __name__ == "__main__":
    main()
