from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction.check import Diagnosis, examine
from tests.models import save_tiny
from tests.results.contract import assert_keeps_contract

Loaded = Callable[[str], Encoder]


def failures(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.finding for check in diagnosis.checks if not check.passed and not check.warning}


def finding(diagnosis: Diagnosis, name: str) -> str:
    (found,) = [check.finding for check in diagnosis.checks if check.name == name]
    return found


def test_a_healthy_model_says_what_was_looked_at(loaded: Loaded) -> None:
    diagnosis = examine(loaded("bert"))
    assert diagnosis.healthy
    assert_keeps_contract(diagnosis)
    assert diagnosis.model == loaded("bert").description
    assert finding(diagnosis, "layers") == "3 blocks, hidden states of layers 0 to 3"
    assert finding(diagnosis, "norm").startswith("post-norm")
    assert finding(diagnosis, "truncation").startswith("truncated models equal the hidden states at every layer")
    assert finding(examine(loaded("gpt2")), "norm").startswith("pre-norm: the final norm is applied at every layer")


@pytest.mark.parametrize("name", ["fnet", "convbert"])
def test_padding_that_leaks_is_a_warning(name: str, loaded: Loaded) -> None:
    diagnosis = examine(loaded(name))
    assert diagnosis.healthy
    assert failures(diagnosis) == {}
    (warned,) = [check for check in diagnosis.checks if check.warning]
    assert (warned.name, warned.passed) == ("padding", False)
    assert "batches have texts of one length" in warned.finding


def test_raw_layers_are_not_held_against_truncated_models(tmp_path: Path) -> None:
    diagnosis = examine(load_encoder(Model(str(save_tiny("gpt2", tmp_path)), norm="raw")))
    assert diagnosis.healthy
    assert finding(diagnosis, "truncation") == "not compared: truncated models apply the final norm"
    assert "left out" in finding(diagnosis, "norm")


def test_a_wrong_number_of_layers_is_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    states = Encoder.layer_states
    monkeypatch.setattr(Encoder, "layer_states", lambda self, batch: list(states(self, batch))[:-1])
    assert failures(examine(loaded("bert"))) == {"layers": "3 blocks, hidden states of layers 0 to 2"}


def test_numbers_are_looked_at_in_the_precision_of_the_encoder(tmp_path: Path) -> None:
    folder = str(save_tiny("bert", tmp_path))
    found = {}
    for dtype in ("float32", "bfloat16", "float16"):
        encoder = load_encoder(Model(folder, dtype=dtype))
        with torch.no_grad():  # too large for float16 alone
            encoder.model.get_parameter("encoder.layer.1.output.dense.bias")[0] = 1e5
        diagnosis = examine(encoder)
        found[dtype] = finding(diagnosis, "finite")
        assert finding(diagnosis, "truncation").startswith("truncated models equal the hidden states")
        assert diagnosis.healthy == (dtype != "float16")
    assert found == {
        "float32": "all states are finite in float32",
        "bfloat16": "all states are finite in bfloat16",
        "float16": "not finite at layers 2, 3 in float16",
    }
