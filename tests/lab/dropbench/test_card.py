"""The card of the zoos says what they hold, and their checksums are theirs."""

import functools
from collections.abc import Iterator

import pytest

from layerprobe.files.atomic import SUMS, folder_problems
from layerprobe.lab.dropbench.zoo import SHIPPED, read_kept_out, read_searched, read_zoo
from layerprobe.lab.recipe import load_recipe

CARD = (SHIPPED / "README.md").read_text()


def rows() -> Iterator[list[str]]:
    """The cells of the table of zoos."""
    for line in CARD.splitlines():
        if line.startswith("| `"):
            yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def test_the_checksums_are_those_of_the_files() -> None:
    """Where one differs: make a new version, say so on the card and in the changelog."""
    assert not list(folder_problems(SHIPPED))
    listed = {line.split("  ")[1] for line in (SHIPPED / SUMS).read_text().splitlines()[1:]}
    there = {file.relative_to(SHIPPED).as_posix() for file in SHIPPED.rglob("*") if file.suffix in (".json", ".toml")}
    assert listed == there


def test_the_card_names_every_zoo_once() -> None:
    zoos = sorted(file.relative_to(SHIPPED).as_posix() for file in SHIPPED.rglob("*.json"))
    assert sorted(row[0] for row in rows()) == zoos


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0])
def test_a_row_of_the_card_is_its_zoo(row: list[str]) -> None:
    file, models, blocks, objectives, corpus, task, held_out, steps = row
    entries, recipe = read_zoo(SHIPPED / file).entries, load_recipe((SHIPPED / file).with_suffix(".toml"))
    assert int(models) == len(entries)
    assert blocks == ", ".join(map(str, sorted({each.n_blocks for each in entries})))
    assert objectives.split(", ") == list(dict.fromkeys(each.family for each in entries))
    assert {corpus} == {each.corpus for each in entries}
    assert {task == "STSB"} == {each.task != "embedded" for each in entries}
    assert recipe.pretraining is not None
    assert int(steps) == recipe.pretraining.protocol.steps
    assert (held_out == "yes") == (entries[0].name in held_out_names())


@functools.cache
def held_out_names() -> set[str]:
    """The models of the zoos that no rule is fitted on."""
    return {each.name for each in (*read_kept_out().entries, *read_searched().entries)}
