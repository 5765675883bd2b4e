"""Adapters in folders and around loaded models, and other wrappers: read as their libraries do, or refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from layerprobe.checks import EXTRAS
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import MissingPackageError, ModelError
from layerprobe.extraction.embeddings import extract
from tests.models import N_BLOCKS, TEXTS, save_tiny, tiny_model, tiny_tokenizer

peft = pytest.importorskip("peft")


def lora(**changes: Any) -> Any:
    return peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, **changes)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny("bert", tmp_path / "base")


@pytest.fixture
def adapted(base: Path, tmp_path: Path) -> Path:
    """A folder as `save_pretrained` of a model with an adapter writes it."""
    torch.manual_seed(1)
    model = AutoModel.from_pretrained(base)
    model.add_adapter(lora())
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def last_layer(model: Any, tmp_path: Path) -> Any:
    return extract(Model(model, device="cpu", cache_dir=tmp_path / "store"), TEXTS).layer(N_BLOCKS)


def by_transformers(folder: Path) -> Any:
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), tiny_tokenizer()
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    return np.stack([state.mean(0).numpy() for state in states])


def test_an_adapter_is_read_as_transformers_reads_it(base: Path, adapted: Path, tmp_path: Path) -> None:
    expected = by_transformers(adapted)
    bare = last_layer(base, tmp_path)
    np.testing.assert_allclose(last_layer(adapted, tmp_path), expected, atol=2e-5)
    assert np.abs(bare - expected).max() > 0.01
    np.testing.assert_array_equal(last_layer(base, tmp_path), bare)
    trained = resolve(str(adapted))
    assert trained.identity["revision"] != resolve(str(base)).identity["revision"]
    (weights,) = adapted.glob("adapter_model*")
    weights.write_bytes(weights.read_bytes() + b" ")
    assert resolve(str(adapted)).identity != trained.identity


def test_a_sentence_transformer_with_an_adapter_is_read_where_it_was_saved(base: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules
    parts = [modules.Transformer(str(base)), modules.Pooling(16, "cls")]
    whole = library.SentenceTransformer(modules=parts, device="cpu")
    torch.manual_seed(1)
    whole.add_adapter(lora())
    with pytest.raises(ModelError, match=r"lacks .* of its weights .*, or save it with .* and pass the folder$"):
        last_layer(whole, tmp_path)
    whole.save_pretrained(str(tmp_path / "saved"))
    expected = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(last_layer(tmp_path / "saved", tmp_path), expected, atol=2e-5)


def test_an_adapter_beside_its_model_is_to_be_merged(base: Path, adapted: Path, tmp_path: Path) -> None:
    last_layer(base, tmp_path)
    for file in adapted.glob("adapter_*"):
        (base / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"has an adapter beside a model: merge it into the weights"):
        last_layer(base, tmp_path)


def test_what_an_adapter_lacks_is_named(base: Path, adapted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (adapted / "adapter_config.json").read_text()
    with monkeypatch.context() as patched:
        patched.setitem(EXTRAS, "lora", ("no_such_package",))
        with pytest.raises(MissingPackageError, match=r"the adapter in .* needs no_such_package.*layerprobe\[lora\]"):
            last_layer(adapted, adapted)
    for name, message in (
        ("/no/base", r"for /no/base: there is no folder /no/base"),
        ("", "does not name its base model"),
    ):
        (adapted / "adapter_config.json").write_text(settings.replace(str(base), name))
        with pytest.raises(ModelError, match=message):
            resolve(str(adapted))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # by peft, of a name that transformers has changed
def test_what_runs_a_model_elsewhere_is_taken_off(tmp_path: Path) -> None:
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    expected = resolve((model, tokenizer)).identity
    assert resolve((torch.nn.DataParallel(model), tokenizer)).identity == expected
    compiled: Any = torch.compile(model, backend="eager")
    assert resolve((compiled, tokenizer)).identity == expected
    advice = r"got a tuple of PeftModel and \w+: pass \(model\.merge_and_unload\(\), tokenizer\)$"
    with pytest.raises(ModelError, match=advice):
        resolve((peft.get_peft_model(model, lora()), tokenizer))
