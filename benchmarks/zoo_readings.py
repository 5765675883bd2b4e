"""Readings that a zoo of DropBench does not hold yet, from its encoders made again.

    python benchmarks/zoo_readings.py ZOO.json --out FOLDER [--part 0/2]     # data beside the study
    python benchmarks/zoo_readings.py ZOO.json --out FOLDER --write          # put them into the zoo

A zoo holds numbers and no weights, and the study beside it pretrains its encoders again, which gives the same weights
on the same kind of processor. Each is left in FOLDER/models and its readings in FOLDER/readings; what is there is not
made twice. InfoNCE is read again, too: where it is not the recorded one, the encoder is another one and its readings
are not kept. On another kind of processor it is not quite the recorded one; `--within 0.1` takes encoders whose InfoNCE
differs by that many nats at no layer, for a copy of the zoo and never for the zoo itself. Readings are those of rivals
by default, of the texts and the validation split that the zoo's are of. A zoo that was written into is a new version:
its line in SHA256SUMS has to be made anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rival_readings import READINGS as RIVALS

from layerprobe.context import settings
from layerprobe.files.atomic import make_directory, read_kept, write_kept
from layerprobe.lab.dropbench.entry import TEXTS, rounded_curves
from layerprobe.lab.dropbench.zoo import ZooEntry, read_zoo, write_zoo
from layerprobe.lab.pretraining.run import corpus_texts, pretrain
from layerprobe.lab.pretraining.values import LANGUAGE
from layerprobe.lab.recipe import load_recipe, loaded_task
from layerprobe.readings.reading import INFONCE, READINGS, LayerCurve
from layerprobe.readings.source import read_curves
from layerprobe.tasks.loading import load_corpus
from layerprobe.tasks.values import Task

TOLERANCE = 1e-5
"""By which InfoNCE may differ: readings of later zoos have six digits."""


NAMES = ("LOES without labels", "alpha-ReQ", "subspace displacement", "neighbour retention", "LOES", "KITE")


def read_again(zoo: Path, out: Path, names: Collection[str], part: tuple[int, int], within: float) -> None:
    """Make every encoder of a part of the study, and keep its readings."""
    study = load_recipe(zoo.with_suffix(".toml"))
    recorded = {entry.name: entry for entry in read_zoo(zoo).entries}
    step = study.pretraining
    assert step is not None
    language = step.corpus == (LANGUAGE,)
    corpus = corpus_texts(LANGUAGE, step.protocol) if language else load_corpus(step.corpus, columns=step.column)
    [task] = map(loaded_task, study.tasks)
    for model in step.models[part[0] :: part[1]]:
        entry = recorded[study.entry_name(model, study.tasks[0])]
        file = out / "readings" / f"{entry.name}.json"
        there = read_kept(dict[str, LayerCurve], file, root=out) or {}
        if there.keys() >= set(names):
            continue
        folder = out / "models" / model.name
        with settings(progress=None):
            pretrain(folder, corpus, protocol=model.protocol, seed=model.seed, device="cpu")
            curves, differs = of_same_texts(folder, task, entry, names, within)
        print(f"{entry.name}: InfoNCE differs by {differs:.2g}", "" if curves else "- another encoder", flush=True)
        if curves:
            make_directory(file.parent)
            write_kept(file, there | curves, root=out)


def of_same_texts(
    folder: Path, task: Task, entry: ZooEntry, names: Collection[str], within: float = TOLERANCE
) -> tuple[dict[str, LayerCurve], float]:
    """Return readings of the texts whose InfoNCE is the recorded one, the first 2,000 or in the oldest zoos all.

    Returns:
        None of them where neither is within some nats; and the largest difference over layers.
    """
    recorded, texts = np.array(entry.metrics[INFONCE].values), task.test.texts

    def difference(number: int) -> float:
        found = read_curves(str(folder), texts[:number], [INFONCE], task=task)[INFONCE]
        return float(np.abs(np.array(found.values) - recorded).max())

    differences = {number: difference(number) for number in sorted({min(TEXTS, len(texts)), len(texts)})}
    number = min(differences, key=differences.__getitem__)
    if differences[number] >= within:
        return {}, differences[number]
    rivals = {name: RIVALS[name] for name in names if name in RIVALS}
    return rounded_curves(
        read_curves(str(folder), texts[:number], set(names) - RIVALS.keys(), task=task, others=rivals)
    ), differences[number]


def write(zoo: Path, out: Path) -> None:
    """Put what was read into the zoo."""
    data, entries, readings = read_zoo(zoo), [], READINGS.usable() | RIVALS
    for entry in data.entries:
        curves = read_kept(dict[str, LayerCurve], out / "readings" / f"{entry.name}.json", root=out)
        if curves is None:
            raise SystemExit(f"{entry.name} was not read yet")
        alone = {name: curve for name, curve in curves.items() if readings[name].alone}
        labelled = {name: curve for name, curve in curves.items() if readings[name].labelled}
        entries.append(replace(entry, metrics=entry.metrics | alone, labelled=entry.labelled | labelled))
    write_zoo(replace(data, entries=tuple(entries)), zoo)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="I/N: every Nth encoder from the Ith on")
    parser.add_argument("--reading", action="append", help="in place of those of rivals; can be repeated")
    parser.add_argument("--within", type=float, default=TOLERANCE, help="by which InfoNCE may differ, in nats")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    if options.write:
        write(options.zoo, options.out)
        return
    first, step = map(int, options.part.split("/"))
    read_again(options.zoo, options.out, options.reading or NAMES, (first, step), options.within)


if __name__ == "__main__":
    main()
