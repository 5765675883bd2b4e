"""Are the last blocks of an encoder spoilt, or has it too many? Subsets of its blocks, fine-tuned.

    python benchmarks/blocks_or_depth.py SCORES [--size 3] [--seeds 2] [--study STUDY.toml --models FOLDER]

Every subset of so many blocks of `rtd` and of its MLM twin is fine-tuned behind the embeddings, and each block alone,
and all of them. By default these are the models, pairs and budget of the demo; with a lab study, all of
its pairs that `layerprobe lab run` left in a folder, as NAME-rtd-seedN and NAME-mlm-seedN, under its budget
`converged`. Scores are appended to SCORES, a file of JSON lines, and none is made twice; the table is of all in it.

Test Spearman x 100, mean over seeds:

    all, first     of all blocks, and of the first ones (TMFT)
    subsets        mean over all subsets of the size
    chosen         of the subset that scores highest on validation pairs
    with the last  by how much subsets with the last block score more than those without it
    alone          the last block alone less the first one alone

Below it are the means over pairs and, from three pairs on, 95 % intervals by Student's t.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

import layerprobe as lp
from layerprobe.embedded import DEMO_PROTOCOL, DEMO_SIZES, embedded_model, embedded_task
from layerprobe.lab.recipe import load_recipe, loaded_task

Key = tuple[str, str, tuple[int, ...]]
"""A pair, an objective, and the blocks that are kept."""
OBJECTIVES = ("rtd", "mlm")
COLUMNS = ("all", "first", "subsets", "chosen", "with the last", "alone")


def models_of(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield each pair, objective and folder of a lab study."""
    for path in sorted(folder.glob("*-rtd-seed*")):
        twin = path.with_name(path.name.replace("-rtd-", "-mlm-"))
        if (path / "config.json").is_file() and (twin / "config.json").is_file():
            yield path.name.replace("-rtd", ""), "rtd", path
            yield path.name.replace("-rtd", ""), "mlm", twin


def measure(scores: Path, given: argparse.Namespace) -> None:
    """Append what is not there yet."""
    models: list[tuple[str, str, Path]]
    if given.study is None:
        task, protocol = embedded_task(**DEMO_SIZES), DEMO_PROTOCOL
        models = [("embedded", objective, embedded_model(objective)) for objective in OBJECTIVES]
    else:
        study = load_recipe(given.study)
        task, models = loaded_task(study.tasks[0]), list(models_of(given.models))
        protocol = study.budgets["converged"]
    there = {(row["pair"], row["objective"], tuple(row["blocks"]), row["seed"]) for row in rows(scores)}
    with scores.open("a") as out:
        for seed, (pair, objective, folder) in itertools.product(range(given.seeds), models):
            n_blocks = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
            for size in (n_blocks, 1, given.size):
                for blocks in itertools.combinations(range(1, n_blocks + 1), size):
                    if (pair, objective, blocks, seed) in there:
                        continue
                    model = lp.Model(folder, blocks=blocks) if size < n_blocks else lp.Model(folder)
                    run = lp.finetune(model, task, [size], seeds=(seed,), protocol=protocol).runs[0]
                    row: dict[str, Any] = {"pair": pair, "objective": objective, "blocks": blocks, "seed": seed}
                    row |= {"test": run.test[run.primary], "validation": run.validation[run.primary]}
                    out.write(json.dumps(row) + "\n")
                    out.flush()


def rows(scores: Path) -> list[dict[str, Any]]:
    """Return what is in the file."""
    return [json.loads(line) for line in scores.read_text().splitlines()] if scores.is_file() else []


def summary(found: dict[Key, tuple[float, float]], pair: str, objective: str, size: int) -> dict[str, float]:
    """Return the columns of a model; `found` has the mean test and validation scores."""
    own = {blocks: score for (of, by, blocks), score in found.items() if (of, by) == (pair, objective)}
    last = max(block for blocks in own for block in blocks)
    subsets = {blocks: score for blocks, score in own.items() if len(blocks) == size}
    chosen = max(subsets, key=lambda blocks: subsets[blocks][1])
    has, lacks = (
        [test for blocks, (test, _) in subsets.items() if (last in blocks) is with_it] for with_it in (True, False)
    )
    return {
        "all": own[tuple(range(1, last + 1))][0],
        "first": own[tuple(range(1, size + 1))][0],
        "subsets": statistics.mean(test for test, _ in subsets.values()),
        "chosen": subsets[chosen][0],
        "with the last": statistics.mean(has) - statistics.mean(lacks),
        "alone": own[(last,)][0] - own[(1,)][0],
    }


def interval(values: list[float], form: str = ".1f") -> str:
    """Return the mean, and its 95 % interval where there are three values or more."""
    mean = statistics.mean(values)
    if len(values) < 3:
        return f"{mean:{form}}"
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:{form}} [{mean - half:{form}}, {mean + half:{form}}]"


def report(scores: Path, size: int) -> Iterator[str]:
    """Yield the lines of the table."""
    grouped: dict[Key, list[tuple[float, float]]] = {}
    for row in rows(scores):
        key = (row["pair"], row["objective"], tuple(row["blocks"]))
        grouped.setdefault(key, []).append((row["test"], row["validation"]))
    found = {key: (float(np.mean(each, axis=0)[0]), float(np.mean(each, axis=0)[1])) for key, each in grouped.items()}
    yield f"| pair | objective | {' | '.join(COLUMNS)} |"
    yield "|---" * (2 + len(COLUMNS)) + "|"
    of: dict[str, list[dict[str, float]]] = {objective: [] for objective in OBJECTIVES}
    for pair in dict.fromkeys(pair for pair, _, _ in found):
        for objective in OBJECTIVES:
            of[objective].append(summary(found, pair, objective, size))
            cells = [f"{of[objective][-1][name]:.1f}" for name in COLUMNS]
            yield f"| {pair} | {objective} | {' | '.join(cells)} |"
    for objective in OBJECTIVES:
        cells = [interval([each[name] for each in of[objective]]) for name in COLUMNS]
        yield f"| all pairs | {objective} | {' | '.join(cells)} |"
    apart = [[a[name] - b[name] for a, b in zip(of["rtd"], of["mlm"], strict=True)] for name in COLUMNS]
    yield f"| all pairs | rtd less mlm | {' | '.join(map(interval, apart))} |"
    for objective in OBJECTIVES:
        more = [each["subsets"] - each["all"] for each in of[objective]]
        yield f"| all pairs | {objective}: subsets less all | {interval(more)} |"


def main(arguments: list[str] | None = None) -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--models", type=Path)
    given = parser.parse_args(arguments)
    if (given.study is None) != (given.models is None):
        parser.error("expected --study and --models together")
    measure(given.scores, given)
    print("\n".join(report(given.scores, given.size)))


if __name__ == "__main__":
    main()
