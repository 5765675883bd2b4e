"""Which models a study has, what each is compared with, and what a file may say."""

from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import DataError
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.values import SIZES
from layerprobe.lab.studies.values import LabTask, load_lab
from layerprobe.tasks.values import TaskSettings
from tests.lab.studies.studies import SMALL, TOML, changed


def test_a_size_is_complete_before_the_next_and_the_twins_come_first() -> None:
    study = changed(sizes={"a": SIZES["tiny"], "b": SIZES["mini"]}, objectives=("mlm", "rtd"))
    assert [model.name for model in study.models] == [
        *("a-mlm-seed0", "a-mlm-seed1", "a-rtd-seed0", "a-rtd-seed1"),
        *("b-mlm-seed0", "b-mlm-seed1", "b-rtd-seed0", "b-rtd-seed1"),
    ]
    assert study.models[-1].protocol.size == SIZES["mini"]


def test_only_objectives_with_a_generator_have_its_sizes() -> None:
    study = changed(generator_sizes=(0.25, 0.5), seeds=(3, 4))
    families = list(dict.fromkeys(model.family for model in study.models))
    assert families == ["mlm", "rtd-0.25", "rtd-0.5", "random"]
    sizes = {model.family: model.protocol.generator_size for model in study.models}
    assert (sizes["rtd-0.25"], sizes["rtd-0.5"]) == (0.25, 0.5)


def test_a_model_is_compared_with_both_twins_and_never_with_itself() -> None:
    study = changed(seeds=(0, 1, 2))
    by_name = {model.name: model for model in study.models}

    def references(name: str) -> dict[str, str]:
        return {what: model.name for what, model in study.references(by_name[name]).items()}

    assert references("s-rtd-seed2") == {"mlm twin, same seed": "s-mlm-seed2", "mlm twin, other seed": "s-mlm-seed0"}
    assert references("s-mlm-seed0") == {"mlm twin, other seed": "s-mlm-seed1"}


def test_a_file_says_what_a_study_is(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    assert load_lab(file) == SMALL


def test_paths_are_relative_to_the_file_and_presets_have_names(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").touch()
    file = tmp_path / "study.toml"
    file.write_text(
        'corpus = "texts.txt"\n[sizes]\nx = "tiny"\n[task]\nsource = "pairs.csv"\nscore_range = [0, 5]\n[budget.one]\n'
    )
    study = load_lab(file)
    assert study.corpus == (str(tmp_path / "texts.txt"),)
    assert study.tasks == (LabTask(settings=TaskSettings(source=str(tmp_path / "pairs.csv"), score_range=(0.0, 5.0))),)
    assert study.sizes == {"x": SIZES["tiny"]}
    assert study.name == "study"


def test_adapters_have_a_rate_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('corpus = "language"\n[sizes]\nx = "tiny"\n[budget.low]\nlora = 8\n[budget.all]\n')
    assert load_lab(file).budgets == {"low": Protocol(lora=8, learning_rate=2e-4), "all": Protocol()}


def test_a_study_can_have_several_tasks_and_scans(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        '[sizes]\nx = "tiny"\n[task.pairs]\nsource = "pairs.csv"\nexamples = [20, 10, "rest"]\n'
        '[task.words]\nsource = "language"\n[scans]\nfalling = 2\nequal = [3]\n[budget.one]\n'
    )
    study = load_lab(file)
    pairs, words = study.tasks
    assert (pairs.name, pairs.examples) == ("pairs", (20, 10, None))
    assert (words.name, words.settings.source, words.examples) == ("words", "language", None)
    assert study.scans == {"falling": (0, 1), "equal": (3,)}
    assert study.entry_name(study.models[0], words) == "x-mlm-seed0-words"
    assert SMALL.entry_name(SMALL.models[0], SMALL.tasks[0]) == "s-mlm-seed0"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the study .*none\.toml"):
        load_lab(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budgets": {}}, "at least one size and one budget"),
        ({"finetuning_seeds": (-1,)}, "expected seeds from 0 to 2"),
        ({"corpus": ()}, "expected a corpus"),
        ({"tasks": ()}, "expected tasks with names of their own, got none"),
        ({"tasks": (LabTask(), LabTask(name="a"))}, "expected tasks with names of their own, got None, a"),
        ({"scans": {"falling": ()}}, "expected at least one seed of falling scans, got none"),
    ],
)
def test_a_study_by_hand_is_checked_too(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        changed(**values)
