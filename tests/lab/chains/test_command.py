"""layerprobe lab chain: what it prints, in which order it refuses, and that nothing is done twice."""

import json
from pathlib import Path

import pytest

from layerprobe.files.serialisation import from_json
from layerprobe.lab.chains.values import ChainResult
from tests.cli.conftest import Layerprobe

CHAIN = """
model = "{model}"
layers = [1, 3]
seeds = 2
control = [7]
[[step]]
adapt = "texts.txt"
max_steps = 4
accumulation = 1
batch_size = 4
validation_share = 0.1
[[step]]
finetune = "words-train.csv"
epochs = 1
[[step]]
finetune = "pairs-train.csv"
epochs = 1
learning_rate = 1e-3
"""


@pytest.fixture
def chain_file(model: Path, data: Path) -> Path:
    file = data / "two.toml"
    file.write_text(CHAIN.format(model=model))
    return file


@pytest.mark.slow
def test_a_dry_run_says_what_is_stored(layerprobe: Layerprobe, chain_file: Path, tmp_path: Path) -> None:
    before = layerprobe("lab", "chain", chain_file, "--dry-run")
    assert before.out.startswith("two: layers 1, 3, 2 seeds\n")
    assert "fine-tuning on pairs-train.csv, without the steps before it" in before.out
    plan = layerprobe("lab", "chain", chain_file, "--dry-run", "--json").json
    assert [step["trainings"] for step in plan["jobs"]] == [1, 4, 4, 1, 4, 4, 4]
    assert {step["stored"] for step in plan["jobs"]} == {0}
    assert not (tmp_path / "cache").exists()
    layerprobe("lab", "chain", chain_file)
    after = layerprobe("lab", "chain", chain_file, "--dry-run", "--json").json
    assert [step["stored"] for step in after["jobs"]] == [1, 4, 4, 1, 4, 4, 4]


@pytest.mark.slow
def test_the_table_and_the_sentences(layerprobe: Layerprobe, chain_file: Path, tmp_path: Path) -> None:
    done = layerprobe("lab", "chain", chain_file, "--report", tmp_path / "chain.html")
    assert done.code == 0
    header = next(line for line in done.out.splitlines() if line.startswith("layer  "))
    for column in ("words-train.csv Spearman", "pairs-train.csv Spearman", "without", "95 % interval", "random 7"):
        assert column in header
    assert "Adaptation: 4 steps, held-out loss" in done.out
    assert "Adaptation to texts.txt, then fine-tuning on words-train.csv first adds" in done.out
    assert "Debiased linear CKA of the last layer kept with the same layer of the start, on 46 texts" in done.out
    assert done.out.endswith(f"Report: {tmp_path / 'chain.html'}\n")
    assert (tmp_path / "chain.html").read_text().startswith("<!DOCTYPE html>")


def test_json_is_the_result(layerprobe: Layerprobe, chain_file: Path) -> None:
    chain_file.write_text(chain_file.read_text().replace("seeds = 2\ncontrol = [7]\n", "seeds = 1\n"))
    done = layerprobe("lab", "chain", chain_file, "--json", "--level", "0.9")
    result = from_json(ChainResult, done.out)
    assert result.level == 0.9
    assert [outcome.layer for outcome in result.outcomes] == [1, 3]
    assert json.loads(done.out)["chain"]["name"] == "two"


def test_wrong_files_are_one_line(layerprobe: Layerprobe, chain_file: Path, tmp_path: Path) -> None:
    assert layerprobe("lab", "chain", tmp_path / "no.toml").error.startswith("error: cannot read the chain")
    for old, new, message in (
        ("epochs = 1\n", "epoch = 1\n", "two.toml, step 2: unknown key epoch"),
        ("words-train.csv", "nothing.csv", "nothing.csv"),
        ("texts.txt", "missing.txt", "missing.txt"),
        ("[1, 3]", "[1, 9]", "expected layers from 0 to 3"),
    ):
        file = chain_file.with_name("two.toml")
        file.write_text(chain_file.read_text().replace(old, new, 1))
        outcome = layerprobe("lab", "chain", file)
        assert outcome.code == 1
        assert message in outcome.error
        file.write_text(file.read_text().replace(new, old, 1))
