"""What a recipe may say, as a value and as a file."""

from pathlib import Path

import pytest

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import Protocol
from layerprobe.lab import dropbench
from layerprobe.lab.dropbench.zoo import SHIPPED
from layerprobe.lab.pretraining.values import SIZES, AdaptationProtocol
from layerprobe.lab.recipe import (
    AdaptStep,
    AverageStep,
    PretrainStep,
    Recipe,
    RecipeModel,
    RecipeTask,
    TuneStep,
    load_recipe,
)
from layerprobe.lab.reproduction import RECIPES
from layerprobe.tasks.values import TaskSettings
from tests.lab.recipes import SMALL, STUDY, study
from tests.plugins import register_electric

HERE = Path(__file__).parents[2]


def written(tmp_path: Path, text: str) -> Recipe:
    (tmp_path / "x.toml").write_text(text)
    return load_recipe(tmp_path / "x.toml")


def test_a_file_says_what_a_study_is(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    assert load_recipe(tmp_path / "small.toml") == SMALL
    assert from_json(Recipe, to_json(SMALL)) == SMALL


def test_a_file_says_what_a_chain_is(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("a,b,1\n")
    (tmp_path / "here").mkdir()
    text = """
        layers = [3, 9, 12]
        seeds = [4, 5]
        cka = true
        [[models]]
        id = "google/electra-base-discriminator"
        reference = "./other"
        [[models]]
        id = "here"
        name = "mine"
        random_init = 1
        layers = "all"
        family = "rtd"
        [[step]]
        adapt = "captions.txt"
        max_steps = 200
        [[step]]
        tune = "words.csv"
        columns = "a,b,score"
        epochs = 50
        [[step]]
        average = "layers"
        layers = [9, 12]
        [[tasks]]
        source = "stsb"
        [[tasks]]
        source = "org/data"
        name = "other"
        examples = [20, 10, "rest"]
        [scans]
        falling = 2
        [budget.low]
        lora = 8
        [options]
        pooling = "cls"
        """
    assert written(tmp_path, text.replace('pooling = "cls"', "")) == Recipe(
        name="x",
        models=(
            RecipeModel(
                name="electra-base-discriminator",
                model=Model("google/electra-base-discriminator"),
                reference=str(tmp_path / "other"),
            ),
            RecipeModel(
                name="mine", model=Model(str(tmp_path / "here"), random_init=1, display_name="mine"), family="rtd"
            ),
        ),
        steps=(
            AdaptStep(texts=(str(tmp_path / "captions.txt"),), protocol=AdaptationProtocol(max_steps=200)),
            TuneStep(
                task=RecipeTask(settings=TaskSettings(source=str(tmp_path / "words.csv"), columns=("a", "b", "score"))),
                protocol=Protocol(epochs=50),
            ),
            AverageStep(of="layers", layers=(9, 12)),
        ),
        tasks=(
            RecipeTask(settings=TaskSettings(source="stsb")),
            RecipeTask(settings=TaskSettings(source="org/data"), name="other", examples=(20, 10, None)),
        ),
        layers=(3, 9, 12),
        seeds=(4, 5),
        scans={"falling": (0, 1)},
        budgets={"low": Protocol(lora=8, learning_rate=2e-4)},
        cka=True,
    )
    with pytest.raises(DataError, match="expected one way of pooling"):
        written(tmp_path, text + "[budget.cls]\npooling = 'cls'")


@pytest.mark.parametrize(
    "file",
    [
        *sorted(RECIPES.glob("*.toml")),
        *sorted(SHIPPED.rglob("*.toml")),
        Path(dropbench.__file__).with_name("contest.toml"),
        *sorted((HERE / "docs" / "results" / "lab").glob("*.toml")),
    ],
    ids=lambda file: file.stem,
)
def test_recipes_that_come_with_layerprobe_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_electric(monkeypatch)
    assert load_recipe(file).name == file.stem


def test_a_size_is_complete_before_the_next_and_the_twins_come_first() -> None:
    both = study({"sizes": {"a": SIZES["tiny"], "b": SIZES["mini"]}, "objectives": ("mlm", "rtd")})
    assert [model.name for model in both.everything] == [
        *("a-mlm-seed0", "a-mlm-seed1", "a-rtd-seed0", "a-rtd-seed1"),
        *("b-mlm-seed0", "b-mlm-seed1", "b-rtd-seed0", "b-rtd-seed1"),
    ]


def test_a_model_is_compared_with_both_twins_and_never_with_itself() -> None:
    (step,) = study({"seeds": (0, 1, 2)}).of(PretrainStep)
    by_name = {model.name: model for model in step.models}

    def references(name: str) -> dict[str, str]:
        return {what: model.name for what, model in step.references(by_name[name]).items()}

    assert references("s-rtd-seed2") == {"mlm twin, same seed": "s-mlm-seed2", "mlm twin, other seed": "s-mlm-seed0"}
    assert references("s-mlm-seed0") == {"mlm twin, other seed": "s-mlm-seed1"}
