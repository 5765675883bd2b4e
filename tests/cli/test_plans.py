"""What is about to be spent is said before it is."""

from pathlib import Path

import pytest

from tests.cli.conftest import Layerprobe, Pair


@pytest.mark.parametrize("command", ["run", "find", "finetune --scan", "finetune", "confirm"])
def test_a_dry_run_fine_tunes_nothing_and_writes_nothing(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, command: str
) -> None:
    model, reference = pair
    out = ["--out", tmp_path / "report"] if command == "run" else []
    against = ["-r", reference] if command in ("run", "confirm") else []
    given = [*command.split(), model, *against, "-t", pairs_file, "--seeds", "2", *out]
    said = layerprobe(*given, "--dry-run")
    assert (said.code, said.out.startswith("Fine-tuning electra (3 blocks) takes at most ")) == (0, True), said
    plan = layerprobe(*given, "--dry-run", "--json").json
    assert plan["full_sweep"] in (20, 50)
    assert plan["run_seconds"] > 0
    assert not (tmp_path / "report").exists()
    assert not list((tmp_path / "cache").rglob("*seed-*"))


@pytest.mark.parametrize("command", ["run", "find"])
def test_seeds_to_compare_with_the_last_layer_are_as_many_as_are_given(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, command: str
) -> None:
    """3 blocks with a seed are 10 block-steps; only a second seed of two layers is beyond that sweep."""
    given = (command, pair[0], "-t", pairs_file, "--seeds", "1", "--dry-run", "--json")
    final = layerprobe(*given, "--final").json["block_steps"]
    given = (*given, *(["--no-final"] if command == "run" else []))
    assert layerprobe(*given).json["block_steps"] == 10
    assert final > 10 + 4
    assert layerprobe(*given, "--against-last", "2").json["block_steps"] == 10 + 2 * 4


def test_runs_of_the_reference_have_a_price_of_their_own(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    given = ("run", pair[0], "-r", pair[1], "-t", pairs_file, "--seeds", "2", "--layers", "1", "--dry-run")
    alone = layerprobe(*given, "--json").json
    own, reference = layerprobe(*given, "--reference-layers", "1,3", "--json").json["plans"]
    assert (own["model"], own["block_steps"]) == (alone["model"], alone["block_steps"])
    assert (reference["model"], reference["block_steps"]) == (str(pair[1]), 2 * (2 + 4))
    said = layerprobe(*given, "--reference-layers", "1,3").out
    assert said.count("Fine-tuning ") == 2
    assert "Fine-tuning bert (3 blocks) takes at most about" in said
    assert "share this budget" not in said


def test_a_dry_run_without_fine_tuning_is_refused(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    said = layerprobe("run", pair[0], "-t", pairs_file, "--no-fine-tuning", "--dry-run")
    assert said.code == 2
    assert "expected no --dry-run with --no-fine-tuning" in said.err
