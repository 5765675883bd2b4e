"""A model's layers are held against truncated models whenever it is first used, whatever uses it, and only then."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import layerprobe as lp
from layerprobe.context import settings
from layerprobe.encoders import loading
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load, load_encoder, look
from layerprobe.encoders.model import Model, described
from layerprobe.errors import ModelError, UnsupportedArchitectureError
from layerprobe.finetuning.values import Protocol
from layerprobe.profiling.run import profile
from layerprobe.profiling.values import ProfileSettings
from layerprobe.shrinking.teacher import candidates
from tests.encoders.test_stack import READ, saved
from tests.models import TEXTS, given, save_tiny
from tests.toy_task import toy_task

REASON = "cannot be truncated layer by layer: its layers differ from the outputs of truncated models"
READ_BY = r"; extract, score, probe and compare read its layers$"


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> str:
    kind, settings, _ = READ["minicpm3"]
    return str(saved(kind, settings, tmp_path_factory.mktemp("minicpm3")))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that were looked at."""
    seen = []

    def watched(encoder: Encoder) -> str:
        seen.append(encoder.description.name)
        return look(encoder)

    monkeypatch.setattr(loading, "look", watched)
    return seen


CUTS: dict[str, Callable[[str, Model, Path], object]] = {
    "predict": lambda model, options, out: lp.predict(given(model, options), list(TEXTS)),
    "finetune": lambda model, options, out: lp.finetune(
        given(model, options), toy_task(), [1], seeds=[0], protocol=Protocol(epochs=1)
    ),
    "scan": lambda model, options, out: lp.finetune(
        given(model, options), toy_task(), scan=True, protocol=Protocol(epochs=1)
    ),
    "find": lambda model, options, out: lp.find(given(model, options), toy_task(), protocol=Protocol(epochs=1)),
    "profile": lambda model, options, out: profile(given(model, options), settings=ProfileSettings(rounds=1)),
    "export": lambda model, options, out: lp.export_model(model, out, layer=1),
    "shrink": lambda model, options, out: candidates(given(model, options), toy_task(), 1),
}
READS: dict[str, Callable[[str, Model], Any]] = {
    "extract": lambda model, options: lp.extract(given(model, options), TEXTS),
    "score": lambda model, options: lp.score(given(model, options), toy_task()).models[0],
    "score two": lambda model, options: lp.score([Model(model, random_init=1), model], toy_task()).models[1],
    "probe": lambda model, options: lp.probe(given(model, options), toy_task()),
    "compare": lambda model, options: lp.compare(given(model, options), Model(model, random_init=1), TEXTS),
}


@pytest.mark.parametrize("use", CUTS)
def test_whatever_cuts_a_model_refuses_one_whose_layers_are_not_its_truncations(
    use: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "store"))
    with pytest.raises(UnsupportedArchitectureError, match=f"{REASON}.*{READ_BY}") as raised:
        CUTS[use](refused, Model(device="cpu"), tmp_path / "out")
    assert refused in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("use", READS)
def test_whatever_cuts_no_model_reads_its_layers(
    use: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "store"))
    result = READS[use](refused, Model(device="cpu"))
    model = getattr(result, "model", result)
    assert (model.norm, model.read) == ("last", REASON.partition(": ")[2] + " (layers 1, 2)")
    assert len(set(model.parameters)) == 1
    assert described(model)["Model"].endswith("norm last, read, not cut")


def test_the_second_use_looks_no_more(tmp_path: Path, looks: list[str]) -> None:
    model, options = str(save_tiny("bert", tmp_path / "m")), Model(device="cpu", cache_dir=tmp_path / "store")
    first = lp.extract(given(model, options), TEXTS)
    assert looks == [model]
    second = lp.extract(given(model, options), [*TEXTS, "another"])
    load(given(resolve(model), options))
    assert looks == [model]
    assert first.fingerprint != second.fingerprint
    load(given(resolve(Model(model, random_init=1)), options))
    load(given(resolve(model), Model(device="cpu", cache_dir=tmp_path / "store", attn="eager")))
    load(given(resolve(model), Model(device="cpu", cache_dir=tmp_path / "another store")))
    assert len(looks) == 4


def test_a_refusal_is_kept_and_loads_nothing(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve(given(refused, Model(device="cpu", cache_dir=tmp_path)))
    first = lp.extract(model, TEXTS)
    monkeypatch.setattr(loading, "load_encoder", lambda *_, **__: pytest.fail("loaded a model"))
    assert (again := lp.extract(model, TEXTS)).fingerprint == first.fingerprint
    assert again.model.read == first.model.read
    with pytest.raises(UnsupportedArchitectureError, match=REASON):
        load(model)


def test_raw_layers_have_the_key_of_any_model(refused: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "cache_dir": tmp_path}
    raw, read = (lp.extract(given(refused, Model(norm=norm, **options)), TEXTS) for norm in ("raw", "final"))
    assert [one.stored.manifest.key.norm for one in (raw, read)] == ["raw", "read"]
    np.testing.assert_array_equal(raw[:, :-1], read[:, :-1])
    assert not np.allclose(raw[:, -1], read[:, -1], atol=0.1)


def test_a_model_that_can_neither_be_cut_nor_read_is_refused(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "look_inside", lambda encoder: "a block is odd")
    with pytest.raises(
        UnsupportedArchitectureError, match=rf"{REASON} \(layers 1, 2\), and a block is odd; expected an"
    ):
        lp.extract(given(refused, Model(device="cpu", cache_dir=tmp_path)), TEXTS)


@pytest.mark.parametrize("library", ["torch", "transformers", "layerprobe"])
def test_another_version_looks_again(
    library: str, tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = (resolve(str(save_tiny("bert", tmp_path / "m"))), Model(device="cpu", cache_dir=tmp_path))
    load(given(model, options))
    monkeypatch.setitem(LIBRARIES, library, "2.99.0")
    load(given(model, options))
    assert len(looks) == 2


def test_a_store_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    model = resolve(str(save_tiny("bert", tmp_path / "m")))
    with caplog.at_level(logging.WARNING):
        assert load(given(model, Model(device="cpu", cache_dir=tmp_path / "file" / "store"))).n_layers == 4
    (record,) = caplog.records
    assert "it will run again each time: cannot make the folder" in record.getMessage()


def test_numbers_that_are_not_finite_are_left_to_who_uses_them(tmp_path: Path) -> None:
    encoder = load_encoder(str(save_tiny("bert", tmp_path)))
    with torch.no_grad():
        encoder.model.get_parameter("encoder.layer.1.output.dense.bias")[0] = torch.nan
    assert not look(encoder)


def test_an_error_in_a_models_own_code_is_one_line_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("kernel")

    monkeypatch.setattr(BertModel, "forward", broken)
    model = str(save_tiny("bert", tmp_path / "m"))
    with pytest.raises(ModelError, match=r"^a forward pass of .*/m failed: KeyError: 'kernel'; use another") as raised:
        lp.extract(given(model, Model(device="cpu", cache_dir=tmp_path)), TEXTS)
    assert isinstance(raised.value.__cause__, KeyError)


def test_every_layer_is_checked_which_counts_as_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, parts, checked = load_encoder(str(save_tiny("bert", tmp_path))), [], []
    monkeypatch.setattr(loading, "difference", lambda *states: checked.append(states) or 0.0)
    with settings(progress=lambda *part: parts.append(part)):
        assert not look(encoder)
    assert len(checked) == encoder.n_layers
    assert parts == [("checking layers", 0, 1)]


def test_all_layers_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "truncation_errors", lambda _, states, batch: dict.fromkeys(range(len(states)), 1.0))
    assert look(load_encoder(str(save_tiny("bert", tmp_path)))).endswith("(all layers)")
