"""The encoders that ship with the package."""

import numpy as np
import pytest
from safetensors import safe_open

from layerprobe.embedded.language import Language
from layerprobe.embedded.pair import LANGUAGE_SEED, embedded_model, embedded_task
from layerprobe.encoders.loading import load_encoder
from layerprobe.extraction.check import examine
from layerprobe.lab.pretraining.models import SPECIAL_TOKENS

OBJECTIVES = ("mlm", "rtd")


def test_the_weights_are_small() -> None:
    files = [embedded_model(objective) / "model.safetensors" for objective in OBJECTIVES]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    for file in files:
        with safe_open(file, framework="np") as weights:
            assert sum(weights.get_tensor(name).size for name in weights.keys()) < 2_000_000  # noqa: SIM118


def test_both_have_the_same_architecture() -> None:
    mlm, rtd = (load_encoder(str(embedded_model(objective)), device="cpu") for objective in OBJECTIVES)
    assert mlm.description.parameters == rtd.description.parameters
    assert (mlm.description.architecture, rtd.description.architecture) == ("bert", "electra")
    assert mlm.tokenizer.get_vocab() == rtd.tokenizer.get_vocab()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_tokenizer_knows_the_language(objective: str) -> None:
    encoder = load_encoder(str(embedded_model(objective)), device="cpu")
    assert set(encoder.tokenizer.get_vocab()) == {*SPECIAL_TOKENS, *Language(seed=LANGUAGE_SEED).vocabulary}
    sentence = embedded_task(train=4, validation=4, test=4).test.first[0]
    ids = encoder.tokenizer(sentence)["input_ids"]
    assert len(ids) == len(sentence.split()) + 2
    assert encoder.tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_models_are_healthy(objective: str) -> None:
    diagnosis = examine(load_encoder(str(embedded_model(objective)), device="cpu"))
    assert diagnosis.healthy, diagnosis


def test_the_task_is_the_same_every_time_and_its_splits_do_not_meet() -> None:
    task = embedded_task()
    assert task.digest == embedded_task().digest
    splits = [set(zip(pairs.first, pairs.second, strict=True)) for pairs in (task.train, task.validation, task.test)]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]
    assert 0 <= min(task.test.targets) <= 0.1
    assert max(task.test.targets) == 1
    assert np.std(task.test.targets) > 0.2
