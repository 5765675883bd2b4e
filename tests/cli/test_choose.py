"""layerprobe find and finetune: of several models, what they will cost, and labels drawn at random."""

import csv
import random
from pathlib import Path

import pytest

from layerprobe.embedded import Language, embedded_model
from layerprobe.files.atomic import write_kept
from layerprobe.results import words
from layerprobe.results.shown import read_result
from layerprobe.versions import versions
from tests.cli.conftest import QUICK, Layerprobe, Pair


def test_it_names_model_and_layer_and_what_comes_next(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "found.html"
    command = ("find", *pair, "-t", pairs_file, "--name", "ours", *QUICK)
    done = layerprobe(*command, "--report", page)
    assert done.code == 0, done.err
    assert done.err.count("They share this budget") == 1
    result = read_result(layerprobe(*command, "--json").out)
    assert [finding.model.name for finding in result.models] == ["ours", str(pair[1])]
    answer, table, last = done.out.split("\n\n")
    assert answer.startswith(words.headline(result.conclusion))
    rows = table.splitlines()
    assert rows[0].split()[:3] == ["model", "keep", "expected"]
    assert sum(line.split()[0] in result.labels for line in rows[1:]) == sum(
        one.model.n_layers for one in result.models
    )
    assert words.cost(result.conclusion) in last
    final = done.commands[0]
    assert final[:3] == ["find", *map(str, pair)]
    assert final[-1] == "--final"
    assert "--name" in final
    assert words.headline(result.conclusion) in page.read_text(encoding="utf-8")


TWO_LAYERS = ("--layers", "0,3", "--seeds", "2", "--epochs", "1", "--learning-rate", "1e-3")


def test_several_models(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    command = ("finetune", *pair, "-t", pairs_file, *TWO_LAYERS)
    report = tmp_path / "out" / "tuned.html"
    done = layerprobe(*command, "--report", report)
    assert done.code == 0, done.err
    rows = [words[:2] for line in done.out.splitlines() if (words := line.split())[1:2] and words[1] in ("0", "3")]
    assert rows == [["electra", "0"], ["electra", "3"], ["bert", "0"], ["bert", "3"]]
    assert f"Why: {report}" in done.out
    planned = layerprobe(*command, "--json").json
    assert len(planned["runs"]) == 8
    alone = layerprobe("finetune", pair[0], "-t", pairs_file, *TWO_LAYERS, "--json").json
    assert alone["runs"] == planned["runs"][:4]
    assert alone["outcomes"] == planned["outcomes"][:2]

    lost = Path(planned["runs"][3]["directory"])
    (lost / "result.json").unlink()
    write_kept(lost / "failed.json", {**versions(), "message": "the loss became nan"}, root=lost.parents[1])
    failed = layerprobe(*command)
    assert failed.code == 1
    assert "1 run of 8 failed: try again with --retry-failed" in failed.out
    assert "layer 3, seed 1: the loss became nan (this run failed before" in failed.err
    assert failed.err.count("error: ") == 0
    assert layerprobe(*command, "--retry-failed").code == 0


@pytest.mark.parametrize("command", ["find", "finetune --scan", "finetune"])
def test_a_dry_run_fine_tunes_nothing_and_writes_nothing(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, command: str
) -> None:
    model, reference = pair
    against = ["-r", reference] if command == "find" else []
    arguments = [*command.split(), model, *against, "-t", pairs_file, "--seeds", "2"]
    planned = layerprobe(*arguments, "--dry-run")
    assert (planned.code, planned.out.startswith("Fine-tuning electra (3 blocks) takes at most ")) == (0, True), planned
    plan = layerprobe(*arguments, "--dry-run", "--json").json
    assert plan["full_sweep"] in (20, 50)
    assert plan["run_seconds"] > 0
    assert not list((tmp_path / "cache").rglob("*seed-*"))


def test_seeds_to_compare_with_the_last_layer_are_as_many_as_are_given(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path
) -> None:
    """3 blocks with a seed are 10 block-steps; only a second seed of two layers is beyond that sweep."""
    arguments = ("find", pair[0], "-t", pairs_file, "--seeds", "1", "--dry-run", "--json")
    final = layerprobe(*arguments, "--final").json["block_steps"]
    assert layerprobe(*arguments).json["block_steps"] == 10
    assert final > 10 + 4
    assert layerprobe(*arguments, "--against-last", "2").json["block_steps"] == 10 + 2 * 4


SEARCHES, ALLOWED = 16, 2
"""With 5 % of false claims, more than two of sixteen come in 4 % of tries."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_run_at_a_time")
def test_random_labels_give_no_worse_layers(layerprobe: Layerprobe, tmp_path: Path) -> None:
    language, false = Language(seed=0), []
    for seed in range(SEARCHES):
        rng = random.Random(seed)
        for split, n in (("train", 100), ("validation", 60), ("test", 60)):
            rows = [(a, b, rng.randint(0, 50) / 10) for a, b, _ in language.pairs(n, seed=100 * seed + n + len(split))]
            with (tmp_path / f"{split}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows])
        outcome = layerprobe(
            *("find", embedded_model("rtd"), "--task", tmp_path, "--epochs", "2", "--learning-rate", "3e-4", "--json")
        )
        assert outcome.code == 0, outcome.err
        false.append(outcome.json["answer"]["worse"])
    assert sum(bool(layers) for layers in false) <= ALLOWED, false
