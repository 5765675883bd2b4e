"""Sweeps as TOML: what is read, what is written, and one line for what is wrong."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.finetuning.values import Protocol
from layerprobe.sweeps.values import Sweep, SweepModel, load_sweep, sweep_toml
from layerprobe.tasks.values import TaskSettings

SMALL = '[[models]]\nid = "org/name"\n[[tasks]]\nsource = "stsb"\n'
WHOLE = """
layers = [3, 6]
seeds = [0, 4]

[[models]]
id = "google/electra-base-discriminator@main"
random_init = 7
name = "ELECTRA"
end_token = false
blocks = [1, 6]
layers = [12]

[[models]]
id = "models/mine"

[[tasks]]
source = "pairs.tsv"
columns = "a,b,c"
kind = "sts"
score_range = [0, 5]
validation = "dev.tsv"
test = "~/test.tsv"
split_seed = 3

[[tasks]]
source = "words"
merge = true

[protocol]
epochs = 3
learning_rate = 1e-4

[options]
pooling = "cls"
prompt = "query: \\"ä\\""
dtype = "bfloat16"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "words").mkdir()
    return tmp_path / "sweep.toml"


def test_models_and_tasks_are_enough(file: Path) -> None:
    file.write_text(SMALL)
    assert load_sweep(file) == Sweep(
        models=(SweepModel(model=Model("org/name")),), tasks=(TaskSettings(source="stsb"),)
    )


def test_a_protocol_that_says_the_mean_means_it(file: Path) -> None:
    file.write_text(f'{SMALL}[protocol]\npooling = "mean"\n')
    plan = load_sweep(file)
    assert plan.options.pooling == "mean"
    file.write_text(sweep_toml(plan))
    assert load_sweep(file) == plan


def test_every_key_is_read_and_paths_are_beside_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    file.write_text(WHOLE)
    assert load_sweep(file) == Sweep(
        models=(
            SweepModel(
                model=Model(
                    "google/electra-base-discriminator@main",
                    random_init=7,
                    display_name="ELECTRA",
                    end_token=False,
                    blocks=(1, 6),
                ),
                layers=(12,),
            ),
            SweepModel(model=Model(str(tmp_path / "models/mine"))),
        ),
        tasks=(
            TaskSettings(
                source=str(tmp_path / "pairs.tsv"),
                columns=("a", "b", "c"),
                kind="sts",
                score_range=(0.0, 5.0),
                validation=str(tmp_path / "dev.tsv"),
                test="/home/somebody/test.tsv",
                split_seed=3,
            ),
            TaskSettings(source=str(tmp_path / "words"), merge=True),
        ),
        layers=(3, 6),
        seeds=(0, 4),
        protocol=Protocol(epochs=3, learning_rate=1e-4, pooling="cls"),
        options=Model(pooling="cls", prompt='query: "ä"', dtype="bfloat16"),
    )


@pytest.mark.parametrize("text", [SMALL, WHOLE])
def test_what_is_written_is_read_as_the_same(file: Path, text: str) -> None:
    file.write_text(text)
    found = load_sweep(file)
    file.write_text(sweep_toml(found))
    assert load_sweep(file) == found


def test_adapters_have_a_rate_of_their_own(file: Path) -> None:
    for given, rate in (("", 2e-4), ("learning_rate = 2e-5\n", 2e-5)):
        file.write_text(f"{SMALL}\n[protocol]\nlora = 8\n{given}")
        found = load_sweep(file)
        assert found.protocol == Protocol(lora=8, learning_rate=rate)
        file.write_text(sweep_toml(found))
        assert load_sweep(file) == found


def test_what_is_written_says_the_same_in_another_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of a command line are those of its working folder, paths of a file those beside it."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    found = Sweep(
        models=(SweepModel(model=Model("models/mine")), SweepModel(model=Model("org/name"))),
        tasks=(TaskSettings(source="pairs.tsv", validation="../dev.tsv"), TaskSettings(source="stsb")),
    )
    file = tmp_path / "elsewhere" / "sweep.toml"
    file.write_text(sweep_toml(found))
    again = load_sweep(file)
    assert [model.model.name for model in again.models] == [str(tmp_path / "models/mine"), "org/name"]
    assert [task.source for task in again.tasks] == [str(tmp_path / "pairs.tsv"), "stsb"]
    assert again.tasks[0].validation == str(tmp_path / "../dev.tsv")
    file.write_text(sweep_toml(again))
    assert load_sweep(file) == again


def test_a_character_that_toml_forbids_is_written(file: Path) -> None:
    file.write_text(SMALL)
    found = dataclasses.replace(load_sweep(file), options=Model(prompt="\x7f"))
    file.write_text(sweep_toml(found))
    assert load_sweep(file) == found


def test_seeds_can_be_counted_and_layers_can_be_all(file: Path) -> None:
    file.write_text(f'seeds = 3\nlayers = "all"\n{SMALL}')
    found = load_sweep(file)
    assert (found.seeds, found.layers) == ((0, 1, 2), None)


@pytest.mark.parametrize("common", ["", 'layers = "all"\n', "layers = [1]\n"])
def test_layers_of_a_model_can_be_all(file: Path, common: str) -> None:
    file.write_text(f'{common}[[models]]\nid = "a"\nlayers = "all"\n[[models]]\nid = "b"\n[[tasks]]\nsource = "stsb"\n')
    found = load_sweep(file)
    assert found.layers is None
    assert [model.layers for model in found.models] == [None, (1,) if "1" in common else None]


def test_seeds_of_numpy_are_those_of_python() -> None:
    found = Sweep(models=(SweepModel(model=Model("a")),), tasks=(TaskSettings(source="stsb"),), seeds=np.arange(2))  # type: ignore[arg-type]
    assert "seeds = [0, 1]" in sweep_toml(found)


WRONG = {
    "too large a number": (f"{SMALL}[protocol]\nwarmup = {10**400}", "expected warmup to be a number, got 10"),
    "a number of too many digits": (f"seeds = {'1' * 5000}\n{SMALL}", "is no TOML: Exceeds the limit"),
    "lists of lists": (f"seeds = {'[' * 999}{']' * 999}\n{SMALL}", "expected tables and lists nested at most 16 deep"),
    "tables of tables": (f"[{'.'.join('a' * 999)}]\n{SMALL}", "expected tables and lists nested at most 16 deep"),
}
"""Files that are too long for `tests/mistakes.txt`."""


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_in_one_line_with_the_file(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_sweep(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(file: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the sweep .*sweep.toml: No such file or directory"):
        load_sweep(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"cannot read the sweep .*sweep.toml: .*codec.*; expected a TOML file"):
        load_sweep(file)
