"""layerprobe lab study: what it prints, what it leaves, and what it refuses."""

from pathlib import Path

import pytest

from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.lab.studies.values import LabResult, load_lab
from layerprobe.results.terminal import spelled
from tests.cli.conftest import Layerprobe
from tests.lab.studies.studies import TOML

SHIPPED = Path("layerprobe/lab/dropbench/zoos/dropbench.toml")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return file


@pytest.mark.slow
def test_a_dry_run_says_what_is_stored(
    layerprobe: Layerprobe, result: LabResult, study: Path, folder: Path, tmp_path: Path
) -> None:
    before = layerprobe("lab", "study", study, "--out", tmp_path / "new", "--dry-run")
    assert before.out.startswith("small: 6 models on language\n")
    assert "3 steps" in before.out
    assert not (tmp_path / "new").exists()
    here = ("--out", folder, "--cache-dir", folder / "cache", "--device", "cpu")
    plan = layerprobe("lab", "study", study, *here, "--dry-run", "--json").json
    assert [(job["pretraining"], job["stored"]) for job in plan["jobs"]] == [("stored", 6)] * 6


def test_the_table_the_sentences_and_the_files(
    layerprobe: Layerprobe, result: LabResult, study: Path, folder: Path
) -> None:
    done = layerprobe("lab", "study", study, "--out", folder, "--device", "cpu", "--quiet")
    assert done.code == 0
    assert done.out.count("s-rtd-seed1") == 2  # a row a budget
    assert all(spelled(sentence, None) in done.out for sentence in result.sentences)
    assert (folder / "lab.html").is_file()
    assert read_zoo(folder / "zoo.json").entries == result.zoo.entries


def test_a_wrong_key_is_one_line(layerprobe: Layerprobe, study: Path) -> None:
    study.write_text(TOML.replace("[budget.fast]", "[budgets.fast]"))
    done = layerprobe("lab", "study", study)
    assert done.code == 1
    assert "unknown key budgets, expected task, sizes, budget, scans, name" in done.error


def test_the_study_that_made_the_shipped_zoo_has_24_models() -> None:
    assert len(load_lab(Path(__file__).parents[3] / SHIPPED).models) == 24
