"""Chains as values and as TOML: what is written reads back, and each mistake is one line."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.files.toml import parse_toml
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.chains.values import (
    AdaptStep,
    Chain,
    ChainResult,
    FinetuneStep,
    chain_of,
    chain_to_toml,
    load_chain,
)
from layerprobe.lab.pretraining.values import AdaptationProtocol
from layerprobe.stats.crossed import crossed
from layerprobe.stats.values import CrossedInterval
from layerprobe.tasks.values import TaskSettings


def chain_from_toml(content: str, folder: Path | None = None) -> Chain:
    return chain_of(parse_toml(content, where="the chain", folder=folder), name="chain")


STS = FinetuneStep(task=TaskSettings(source="stsb"))
ADAPT = AdaptStep(texts=("captions.txt",))

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
positive = st.floats(1e-9, 1e3, allow_nan=False)
seeds = st.integers(0, 2**63 - 1)
tasks = st.one_of(
    st.builds(TaskSettings, source=names, merge=st.just(True), split_seed=seeds),
    st.builds(
        TaskSettings,
        source=names,
        kind=st.sampled_from([None, "sts", "entailment"]),
        columns=st.none() | st.lists(names, min_size=2, max_size=3).map(tuple),
        score_range=st.none() | st.tuples(st.floats(-5, 0), st.floats(1, 100)),
        validation=st.none() | names,
        test=st.none() | names,
    ),
)
finetunings = st.builds(
    FinetuneStep,
    task=tasks,
    protocol=st.builds(Protocol, learning_rate=positive, epochs=st.integers(1, 99), warmup=st.floats(0, 1)),
)
adaptations = st.builds(
    AdaptStep,
    texts=st.lists(names, min_size=1, max_size=3).map(tuple),
    protocol=st.builds(AdaptationProtocol, learning_rate=positive, max_steps=st.none() | st.integers(1, 10**6)),
    seed=seeds,
)
numbers = st.lists(st.integers(0, 48), min_size=1, max_size=4, unique=True).map(tuple)
chains = st.builds(
    Chain,
    name=names,
    model=names,
    steps=st.tuples(
        st.lists(adaptations, max_size=2).map(tuple), st.lists(finetunings, min_size=1, max_size=3).map(tuple)
    ).map(lambda both: both[0] + both[1]),
    random_init=st.none() | st.integers(50, 99),
    reference=st.none() | names,
    layers=st.none() | numbers,
    seeds=numbers,
    control=st.just(()) | numbers,
    baseline=st.booleans(),
)


@given(chain=chains)
@settings(max_examples=25, deadline=None)
def test_what_is_written_reads_back(chain: Chain) -> None:
    assert chain_from_toml(chain_to_toml(chain)) == chain
    assert from_json(Chain, to_json(chain)) == chain


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("a,b,1\n")
    (tmp_path / "paper.toml").write_text(
        """
        model = "google/electra-base-discriminator"
        reference = "google-bert/bert-base-cased"
        layers = [3, 9, 12]
        seeds = 5
        control = [0]
        [[step]]
        adapt = "captions.txt"
        max_steps = 200
        [[step]]
        finetune = "words.csv"
        columns = "a,b,score"
        epochs = 50
        batch_size = 128
        [[step]]
        finetune = "stsb"
        """
    )
    assert load_chain(tmp_path / "paper.toml") == Chain(
        name="paper",
        model="google/electra-base-discriminator",
        reference="google-bert/bert-base-cased",
        layers=(3, 9, 12),
        seeds=(0, 1, 2, 3, 4),
        control=(0,),
        steps=(
            AdaptStep(texts=(str(tmp_path / "captions.txt"),), protocol=AdaptationProtocol(max_steps=200)),
            FinetuneStep(
                task=TaskSettings(source=str(tmp_path / "words.csv"), columns=("a", "b", "score")),
                protocol=Protocol(epochs=50, batch_size=128),
            ),
            STS,
        ),
    )


def test_adapters_have_a_rate_of_their_own() -> None:
    chain = chain_from_toml('model = "bert"\n[[step]]\nfinetune = "stsb"\nlora = 8')
    assert chain.finetunings[0].protocol == Protocol(lora=8, learning_rate=2e-4)


def test_folders_are_relative_to_the_file_and_hub_ids_are_not(tmp_path: Path) -> None:
    (tmp_path / "here" / "model").mkdir(parents=True)
    text = 'model = "{}"\nreference = "./other"\n[[step]]\nfinetune = "org/data"'
    chain = chain_from_toml(text.format("here/model"), folder=tmp_path)
    assert chain.model == str(tmp_path / "here" / "model")
    assert chain.reference == str(tmp_path / "other")
    assert chain.finetunings[0].task.source == "org/data"
    assert chain_from_toml(text.format("org/model"), folder=tmp_path).model == "org/model"


def test_a_chain_written_down_elsewhere_names_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chains" / "model").mkdir(parents=True)
    (tmp_path / "copies").mkdir()
    text = 'model = "model"\n[[step]]\nadapt = "~/a.txt"\n[[step]]\nfinetune = "data.csv"\nvalidation = "../b.csv"'
    (tmp_path / "chains" / "here.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    chain = load_chain("chains/here.toml")
    assert chain.model == str(tmp_path / "chains" / "model")
    (tmp_path / "copies" / "here.toml").write_text(chain_to_toml(chain))
    assert load_chain("copies/here.toml") == chain


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the chain .*nothing\.toml: .*; expected a TOML file"):
        load_chain(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"cannot read the chain .*binary\.toml"):
        load_chain(tmp_path / "binary.toml")


def test_weights_are_kept_only_where_something_needs_them() -> None:
    chain = Chain(name="c", model="m", steps=(STS, STS), seeds=(5, 6))
    kept: list[Any] = [[chain.keeps_weights(number, seed) for seed in (5, 6)] for number in (0, 1)]
    assert kept == [[True, True], [True, False]]
    without = dataclasses.replace(chain, cka=False)
    assert [[without.keeps_weights(number, seed) for seed in (5, 6)] for number in (0, 1)] == [
        [True, True],
        [False] * 2,
    ]


def test_a_result_reads_back(whole: ChainResult) -> None:
    assert from_json(ChainResult, to_json(whole)) == whole


def with_effects(whole: ChainResult, effects: Sequence[CrossedInterval | None]) -> ChainResult:
    """Return it with effects at as many layers, which score the difference more."""
    alone = [dataclasses.replace(whole.direct[0], layer=layer) for layer in range(len(effects))]
    after = [
        dataclasses.replace(
            outcome,
            test={
                name: tuple(score + (effect.value if effect else 0.0) for score in scores)
                for name, scores in outcome.test.items()
            },
        )
        for outcome, effect in zip(alone, effects, strict=True)
    ]
    trail = dataclasses.replace(whole.trail, outcomes=(*whole.trail.outcomes[:-1], tuple(after)))
    return dataclasses.replace(whole, trail=trail, direct=tuple(alone), effects=tuple(effects))


def test_effects_of_before_are_read(whole: ChainResult) -> None:
    data = json.loads(to_json(whole))
    data["effects"] = [
        {"layer": layer, "value": value, "interval": effect and effect.interval, "joint": None, "error": error}
        for (layer, (value, effect)), error in zip(whole.added.items(), data["effects"], strict=True)
    ]
    assert from_json(ChainResult, json.dumps(data)) == whole
    for effect in data["effects"]:
        del effect["error"]
    read = from_json(ChainResult, json.dumps(data))
    assert [effect and effect.interval for effect in read.effects] == [e and e.interval for e in whole.effects]
    assert all(effect and effect.items_error is None for effect in read.effects)


def test_a_sentence_lists_few_layers_and_of_many_the_certain_ones(whole: ChainResult) -> None:
    assert whole.effect_sentence.count(" at layer ") == 2
    many = tuple(crossed([0.9 - n, 1.1 - n] * 10, None) for n in range(6))
    result = with_effects(whole, many)
    wide, told = [result.joint(effect).interval for effect in (many[0], many[2]) if effect], result.effect_sentence
    first, third = (f"[{low:.2f}, {high:.2f}]" for low, high in wide)
    assert f"adds +1.00 {first} at layer 0, -1.00 {third} at layer 2," in told
    assert "at layer 1," not in told
    assert told.endswith("; at 1 other layer the interval holds 0.")
    assert (
        "95% intervals for all 6 layers together over new seeds only, as outputs by item were not kept, 2 seeds" in told
    )
    unsure = tuple(crossed([-9.0, 9.0], None) for _ in many)
    assert "adds nothing that is sure at any of 6 layers" in with_effects(whole, unsure).effect_sentence


def test_few_chains_without_an_effect_name_a_layer(whole: ChainResult) -> None:
    rng, n_layers, n_chains = np.random.default_rng(0), 13, 200
    named = 0
    for _ in range(n_chains):
        differences = rng.normal(size=(n_layers, 5))
        effects = tuple(crossed(values, None) for values in differences.tolist())
        named += "at layer" in with_effects(whole, effects).effect_sentence
    assert 0.02 < named / n_chains < 0.09, "expected about 5 %; intervals of single layers would name one in 47 %"


def test_a_sentence_says_the_range_of_cka_where_there_are_many_layers(whole: ChainResult) -> None:
    found = whole.similarities
    assert found is not None
    assert whole.cka_sentence.count(" after ") == 3
    more = dataclasses.replace(found, trained=found.trained * 2)
    told = dataclasses.replace(whole, similarities=more).cka_sentence
    ends = sorted(each.to_start.values[-1] for each in found.trained)
    assert f"from {ends[0]:.2f}" in told
    assert f"to {ends[-1]:.2f}" in told
