"""What is about to be spent is said before it is."""

from pathlib import Path

import pytest

from tests.cli.conftest import Layerprobe, Pair


@pytest.mark.parametrize("command", ["find", "finetune --scan", "finetune"])
def test_a_dry_run_fine_tunes_nothing_and_writes_nothing(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, command: str
) -> None:
    model, reference = pair
    against = ["-r", reference] if command == "find" else []
    given = [*command.split(), model, *against, "-t", pairs_file, "--seeds", "2"]
    said = layerprobe(*given, "--dry-run")
    assert (said.code, said.out.startswith("Fine-tuning electra (3 blocks) takes at most ")) == (0, True), said
    plan = layerprobe(*given, "--dry-run", "--json").json
    assert plan["full_sweep"] in (20, 50)
    assert plan["run_seconds"] > 0
    assert not list((tmp_path / "cache").rglob("*seed-*"))


def test_seeds_to_compare_with_the_last_layer_are_as_many_as_are_given(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path
) -> None:
    """3 blocks with a seed are 10 block-steps; only a second seed of two layers is beyond that sweep."""
    given = ("find", pair[0], "-t", pairs_file, "--seeds", "1", "--dry-run", "--json")
    final = layerprobe(*given, "--final").json["block_steps"]
    assert layerprobe(*given).json["block_steps"] == 10
    assert final > 10 + 4
    assert layerprobe(*given, "--against-last", "2").json["block_steps"] == 10 + 2 * 4
