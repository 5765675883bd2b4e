"""A contest of ready encoders: what it costs, and that it gives a zoo on which everything can be played."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    DebertaV2Config,
    ElectraConfig,
    ModernBertConfig,
    PreTrainedConfig,
    RobertaConfig,
)

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError
from layerprobe.finetuning.values import Protocol
from layerprobe.lab import dropbench
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.lab.studies.contest import load_contest, plan_contest, run_contest
from tests.cli.conftest import Layerprobe, Pair, layerprobe, pair, pairs_file  # noqa: F401

SHIPPED = Path(dropbench.__file__).with_name("contest.toml")
OUTSIDE = Path(__file__).parents[2] / "outside"
CONFIGS: dict[str, PreTrainedConfig] = {
    "google/electra-base-discriminator": ElectraConfig(
        embedding_size=768, hidden_size=768, intermediate_size=3072, num_attention_heads=12
    ),
    "microsoft/deberta-v3-base": DebertaV2Config(
        vocab_size=128100,
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
        num_hidden_layers=12,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    ),
    "google-bert/bert-base-cased": BertConfig(vocab_size=28996),
    "FacebookAI/roberta-base": RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    "answerdotai/ModernBERT-base": ModernBertConfig(),
    "intfloat/e5-base-v2": BertConfig(),
}
"""Of the published checkpoints."""


def millions(config: PreTrainedConfig) -> tuple[float, float]:
    """Parameters at layer 0 and of the whole, without the pooler, of a model whose weights take no memory."""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    sizes = {name: weights.numel() / 1e6 for name, weights in model.named_parameters() if "pooler" not in name}
    in_blocks = sum(size for name, size in sizes.items() if re.search(r"layers?\.\d", name))
    return sum(sizes.values()) - in_blocks, sum(sizes.values())


def test_the_contest_is_six_encoders_with_the_sizes_of_their_checkpoints() -> None:
    contest = load_contest(SHIPPED)
    assert [model.id for model in contest.models] == list(CONFIGS)
    assert {model.family for model in contest.models} == {"rtd", "mlm", "contrastive"}
    for model in contest.models:
        config = CONFIGS[model.id]
        assert model.blocks == config.num_hidden_layers
        assert model.parameters == pytest.approx(millions(config), rel=0.003)


def test_adapters_have_a_rate_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "contest.toml"
    file.write_text(f"{SHIPPED.read_text()}\n[budget.low]\nlora = 8\n")
    assert load_contest(file).budgets["low"] == Protocol(lora=8, learning_rate=2e-4)


def test_the_hours_are_those_of_all_runs() -> None:
    """By hand: 6 FLOPs a parameter and token of a training step, 2 of an evaluation, at 10 TFLOP/s."""
    contest = load_contest(SHIPPED)
    electra = dataclasses.replace(contest, models=contest.models[:1], scans={"falling": (0, 1)})
    (planned,) = plan_contest(electra).jobs
    layers = [23.84 + (108.89 - 23.84) * layer / 12 for layer in range(13)]
    millions_of_all = 3 * sum(layers) + 2 * 108.89
    tokens = [2 * 38 * (6 * 5749 * epochs + 2 * (1500 * epochs + 1379)) for epochs in (1, 10)]
    assert planned["gpu_hours"] == pytest.approx(millions_of_all * 1e6 * sum(tokens) / 1e13 / 3600)
    assert planned["runs"] == 2 * (39 + 2)
    assert planned["steps"] == 41 * 180 * 11


@pytest.fixture
def toml(pair: Pair, pairs_file: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A contest of two tiny encoders on their own against each other."""
    path, (electra, bert) = tmp_path / "small.toml", pair
    path.write_text(f"""finetuning_seeds = 2
[[models]]
id = "{electra}"
family = "rtd"
reference = "{bert}"
blocks = 3
parameters = [0.1, 0.2]
[[models]]
id = "{bert}"
family = "mlm"
reference = "{electra}"
blocks = 3
parameters = [0.1, 0.2]
[task]
source = "{pairs_file}"
examples = [24, 18, 18]
[scans]
falling = 1
[budget.gentle]
epochs = 1
learning_rate = 1e-3
""")
    return path


@pytest.mark.slow
def test_a_contest_gives_a_zoo_that_is_read_the_next_time(
    toml: Path,
    layerprobe: Layerprobe,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    out = tmp_path / "out"
    arguments = ("lab", "bench", toml, "--out", out, "--device", "cpu", "--entry", "toy_strategy:uphill")
    printed = layerprobe(*arguments)
    assert printed.code == 0, printed.err
    for name in ("toy_strategy:uphill", "fall of InfoNCE", "scan, falling", "sweep, 1 seed", "plateau of CKA"):
        assert f"\n{name}" in printed.out
    made = read_zoo(out / "zoo.json")
    assert [(each.name, each.family, each.n_blocks) for each in made.entries] == [
        ("electra", "rtd", 3),
        ("bert", "mlm", 3),
    ]
    again = run_contest(load_contest(toml), out, options=Model(device="cpu"))
    assert again.entries == made.entries


def test_another_number_of_blocks_is_refused(toml: Path, tmp_path: Path) -> None:
    contest = load_contest(toml)
    deeper = dataclasses.replace(contest, models=(dataclasses.replace(contest.models[0], blocks=12),))
    with pytest.raises(DataError, match=r"expected 12 blocks of .*electra, got 3: correct the contest"):
        run_contest(deeper, tmp_path / "out", options=Model(device="cpu"))
    assert not list((tmp_path / "out").iterdir()), "expected nothing to be trained before"


def test_the_reference_of_every_model_is_checked_before_the_first_is_trained(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.lab.studies.contest.zoo_entry", None)
    contest = load_contest(toml)
    first, last = contest.models
    copy = shutil.copytree(last.id, tmp_path / "copy")
    for reference, error, said in (
        (tmp_path / "none", ModelError, r"the reference of .*bert cannot be used: .*none"),
        (copy, DataError, r"expected a reference other than .*bert itself, got .*copy with the same content"),
    ):
        wrong = dataclasses.replace(contest, models=(first, dataclasses.replace(last, reference=str(reference))))
        with pytest.raises(error, match=said):
            run_contest(wrong, tmp_path / "out", options=Model(device="cpu"))


def test_a_dry_run_needs_no_model(layerprobe: Layerprobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    printed = layerprobe("lab", "bench", SHIPPED, "--dry-run")
    assert printed.code == 0, printed.err
    assert "google/electra-base-discriminator" in printed.out
    hours = plan_contest(load_contest(SHIPPED))["gpu_hours"]
    assert f"about {hours:.1f} GPU hours at 10 TFLOP/s (estimated)" in printed.out
    assert not list(tmp_path.iterdir())


def test_models_are_told_apart_by_their_names(toml: Path) -> None:
    contest: Any = load_contest(toml)
    with pytest.raises(DataError, match="expected at least one model, and each of them once, got none"):
        dataclasses.replace(contest, models=())
    first = contest.models[0]
    twice = (dataclasses.replace(first, id="a/bert"), dataclasses.replace(first, id="b/bert"))
    with pytest.raises(DataError, match="expected models that differ in more than their owner, got a/bert, b/bert"):
        dataclasses.replace(contest, models=twice)


def test_zoos_and_a_contest_are_not_put_together(toml: Path, layerprobe: Layerprobe) -> None:  # noqa: F811
    assert layerprobe("lab", "bench", toml, toml).code == 2
    assert layerprobe("lab", "bench", "--dry-run").code == 2
