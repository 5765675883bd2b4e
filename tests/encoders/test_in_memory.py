"""A loaded model gives what its folder gives, is found again by its content, and is never changed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import layerprobe as lp
from layerprobe.encoders.in_memory import content_digest
from layerprobe.encoders.loading import load_encoder, resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.study.predict import as_models
from layerprobe.training.objective import check_masked_lm
from tests.models import given, save_tiny, tiny_tokenizer

TEXTS = ["a b c", "d e", "f g h a", "b", "c d e f g"]


@pytest.fixture(scope="module", params=["bert", "modernbert", "t5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_tiny(request.param, tmp_path_factory.mktemp("model") / request.param))


def loaded(folder: Path, auto: type = AutoModel) -> tuple:
    return auto.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)  # type: ignore[attr-defined]


def layers(model: object, cache: Path) -> list[np.ndarray]:
    embedded = lp.extract(given(model, Model(cache_dir=cache, device="cpu")), TEXTS)  # type: ignore[arg-type]
    return [np.asarray(embedded.layer(layer)) for layer in range(embedded.model.n_blocks + 1)]


def test_as_from_its_folder(folder: Path, tmp_path: Path) -> None:
    model = loaded(folder)
    before = {name: weight.clone() for name, weight in model[0].state_dict().items()}
    for mine, theirs in zip(layers(model, tmp_path), layers(str(folder), tmp_path), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all(torch.equal(before[name], weight) for name, weight in model[0].state_dict().items())


def test_it_changes_neither_configuration_nor_random_numbers(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = AutoModel.from_pretrained(folder, dtype=torch.float16), AutoTokenizer.from_pretrained(folder)
    before, state = model.config.to_dict(), torch.get_rng_state()
    layers((model, tokenizer), tmp_path)
    assert model.config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_another_module_than_the_configuration_says_is_one_line(tmp_path: Path) -> None:
    model, tokenizer = loaded(Path(save_tiny("bert", tmp_path / "model")))
    model.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.ReLU()
    with pytest.raises(ModelError, match=r"has a ReLU as encoder.layer.0.* expected the GELUActivation"):
        layers((model, tokenizer), tmp_path)


@pytest.mark.parametrize("option", [{"random_init": 0}, {"end_token": False}])
def test_what_a_loaded_model_cannot_be_is_one_line(option: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=f"expected no {next(iter(option))} for a model that is given loaded"):
        lp.Model((None, None), **option)  # type: ignore[arg-type]


def test_a_sentence_transformer_without_an_encoder_is_one_line() -> None:
    static = SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=4)])
    words = "a SentenceTransformer whose first module holds a model of transformers, got a SentenceTransformer"
    with pytest.raises(ModelError, match=words):
        resolve(static)


def test_what_is_kept_is_found_again_by_content(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = layers(loaded(folder), tmp_path)
    changed = loaded(folder)
    with torch.no_grad():
        next(changed[0].parameters()).add_(1.0)
    assert not np.array_equal(layers(changed, tmp_path)[-1], first[-1])

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("loaded again")

    monkeypatch.setattr("layerprobe.encoders.first_use.load_encoder", refuse)
    for mine, kept in zip(layers(loaded(folder), tmp_path), first, strict=True):
        np.testing.assert_array_equal(mine, kept)


def test_a_head_and_a_sentence_transformer_are_their_encoders(tmp_path: Path) -> None:
    folder = Path(save_tiny("bert", tmp_path / "bert"))
    bare, with_head = loaded(folder), loaded(folder, AutoModelForMaskedLM)
    transformer = Transformer(str(folder))
    whole = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu")
    expected = layers(bare, tmp_path / "a")
    for number, model in enumerate((with_head, whole)):
        for mine, theirs in zip(layers(model, tmp_path / f"b{number}"), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert resolve(whole).tokenizer_digest == resolve(str(folder)).tokenizer_digest


def test_the_digest_is_of_configuration_and_weights(tmp_path: Path) -> None:
    model, _ = loaded(Path(save_tiny("bert", tmp_path / "bert")))
    digest = content_digest(model)
    assert digest == content_digest(loaded(tmp_path / "bert")[0])
    model.config.layer_norm_eps *= 2
    assert content_digest(model) != digest


def test_what_cannot_be_taken_is_said(tmp_path: Path) -> None:
    model, tokenizer = loaded(Path(save_tiny("bert", tmp_path / "bert")))
    with pytest.raises(ModelError, match=r"expected the name of a model, .* got a BertModel"):
        resolve(model)
    with pytest.raises(ModelError, match="got a int"):
        resolve(3)  # type: ignore[arg-type]
    checkpoint = resolve((model, tokenizer))
    with pytest.raises(ModelError, match="it was given loaded, without its head; save it and give the folder"):
        check_masked_lm(checkpoint)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(ModelError, match="was changed after it was resolved: resolve it again"):
        load_encoder(checkpoint, device="cpu")
    model.encoder.layer[0].output.dense = torch.nn.Identity()
    with pytest.raises(ModelError, match=r"lacks 2 of its weights \(such as encoder\.layer\.0\.output\.dense\.bias"):
        load_encoder((model, tokenizer), device="cpu")


def test_one_loaded_model_is_one_reference(tmp_path: Path) -> None:
    model = loaded(Path(save_tiny("bert", tmp_path / "bert")))
    assert as_models(model) == (model,)
    assert as_models((model, "other")) == (model, "other")
