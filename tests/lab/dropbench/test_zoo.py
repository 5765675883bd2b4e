"""A zoo in a file: the same when it is read again, and refused in one line where it is none."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.errors import DataError
from layerprobe.lab.dropbench import zoo as module
from layerprobe.lab.dropbench.bench import bench_predictors, tuned_rules
from layerprobe.lab.dropbench.zoo import Zoo, ZooEntry, ZooProvenance, read_kept_out, read_searched, read_zoo, write_zoo
from layerprobe.lab.recipe import load_recipe
from layerprobe.readings.reading import LayerCurve
from layerprobe.study.predict import DEFAULT_RULE, WORDLESS_RULE

from .zoos import RISING, entry, known_zoo, zoo


def test_a_zoo_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    data = zoo(entry("ä", "a", RISING, cka=RISING, metrics={"curvature": RISING}), *known_zoo().entries)
    write_zoo(data, tmp_path / "zoo.json")
    assert read_zoo(tmp_path / "zoo.json") == data
    assert len((tmp_path / "zoo.json").read_text().splitlines()) == 1


def test_several_zoos_are_put_together(tmp_path: Path) -> None:
    first, second = zoo(entry("x", "a", RISING)), replace(known_zoo(), provenance=provenance("2026-02-01", "again"))
    write_zoo(first, tmp_path / "1.json")
    write_zoo(second, tmp_path / "2.json")
    both = read_zoo(tmp_path / "1.json", tmp_path / "2.json")
    assert both.entries == (*first.entries, *second.entries)
    assert both.provenance.command == f"{first.provenance.command}; again"
    assert both.provenance.created == "2026-02-01"
    assert both.provenance.notes == (*first.provenance.notes, "again it is")


def provenance(created: str, command: str) -> ZooProvenance:
    return ZooProvenance(layerprobe="1", created=created, command=command, notes=(f"{command} it is",))


SHIPPED = sorted(module.SHIPPED.rglob("*.json"))


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
def test_a_shipped_zoo_is_what_its_study_asks_for(file: Path) -> None:
    study, result = load_recipe(file.with_suffix(".toml")), read_zoo(file)
    assert study.pretraining is not None
    jobs = {study.entry_name(model, task): model for model in study.everything for task in study.tasks}
    asked = {name: (model.family, model.size, model.seed) for name, model in jobs.items()}
    assert {each.name: (each.family, each.size, each.seed) for each in result.entries} == asked
    for each in result.entries:
        assert {budget: tuned.protocol for budget, tuned in each.budgets.items()} == study.budgets
        assert {tuned.seeds for tuned in each.budgets.values()} == {study.seeds}
        scanned = {(scan.weighting, scan.seed) for tuned in each.budgets.values() for scan in tuned.scans}
        assert scanned == {(weighting, seed) for weighting, seeds in study.scans.items() for seed in seeds}
        assert set(each.cka) == set(study.pretraining.references(jobs[each.name]))
        assert all(0 <= value <= 1.01 for curve in each.cka.values() for value in curve.values)
    curves = {frozenset(replace(each, cka={}).curves) for each in result.entries}
    assert len(curves) == 1, "expected the same numbers of every model"


def test_no_rule_is_tuned_on_the_models_that_were_kept_out_or_searched() -> None:
    zoos = [read_zoo().entries, read_kept_out().entries, read_searched().entries]
    for one, other in itertools.combinations(zoos, 2):
        assert not {entry.name for entry in one} & {entry.name for entry in other}
        assert not {entry.size for entry in one} & {entry.size for entry in other}
    assert {entry.n_blocks for entry in zoos[1]} == {12}
    searched = [runs for entry in zoos[2] for runs in entry.budgets.values()]
    assert all(runs.epochs and runs.validation_errors is not None for runs in searched), (
        "expected searches to be played"
    )


def test_the_default_held_on_the_models_that_were_kept_out() -> None:
    """As the README says: F1 of 0.9, less regret than the effective rank, and under a quarter of the cost."""
    for budget in bench_predictors(read_kept_out(), rules=tuned_rules(), strategies=(), draws=1).budgets:
        scores = {rule.name: rule for rule in budget.rules}
        result = scores[DEFAULT_RULE]
        assert result.f1 is not None
        assert result.f1.value > 0.9
        assert result.cost.value < 0.25
        assert result.mean_regret.value < min(1.0, scores[WORDLESS_RULE].mean_regret.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": []}', '{"provenance": 3, "entries": []}'])
def test_what_is_no_zoo_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "zoo.json").write_text(text)
    with pytest.raises(DataError, match=r"zoo.json is not a zoo: expected a Zoo as JSON") as caught:
        read_zoo(tmp_path / "zoo.json")
    assert "\n" not in str(caught.value)


def test_models_have_names_of_their_own() -> None:
    first: ZooEntry = known_zoo().entries[0]
    with pytest.raises(DataError, match="expected models with unique names, got a0 more than once"):
        zoo(first, first)
    with pytest.raises(DataError, match="expected at least one model in a zoo, got none"):
        Zoo(provenance=known_zoo().provenance, entries=())
    with pytest.raises(DataError, match="expected 2 standard errors, got 1"):
        LayerCurve(values=(1.0, 2.0), standard_errors=(0.1,))
