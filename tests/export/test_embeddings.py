"""Pooling, prompt, length, sides and random weights reach the folder; the files are those that others read."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from layerprobe.encoders.batching import pool
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, Pooling
from layerprobe.export.folder import Layout, write_layout
from layerprobe.export.run import export_model
from tests.models import HIDDEN, TEXTS, save_tiny, tiny_tokenizer
from tests.results.contract import assert_keeps_contract

from .judges import (
    layerprobe_embeddings,
    read_layout,
    sentence_transformer,
    sentence_transformers_embeddings,
    transformers_mean,
)

LAYER = 2
MODES: tuple[Pooling, ...] = get_args(Pooling)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pooling", MODES)
def test_pooling(pooling: Pooling, side: str, tmp_path: Path) -> None:
    model = save_tiny("roberta", tmp_path / "model", tokenizer=tiny_tokenizer(padding_side=side))
    export_model(Model(model, pooling=pooling), tmp_path / "out", layer=LAYER)
    expected = layerprobe_embeddings(model, LAYER, pooling=pooling)
    np.testing.assert_allclose(sentence_transformers_embeddings(tmp_path / "out"), expected, rtol=0, atol=1e-5)
    assert read_layout(tmp_path / "out").pooling == pooling


def test_the_four_ways_of_pooling_differ(bert: Path) -> None:
    found = [layerprobe_embeddings(bert, LAYER, pooling=pooling) for pooling in MODES]
    assert min(np.abs(a - b).max() for i, a in enumerate(found) for b in found[:i]) > 0.01


def test_prompt(bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(Model(bert, prompt="a query: "), out, layer=LAYER)
    expected = layerprobe_embeddings(bert, LAYER, prompt="a query: ")
    judge = sentence_transformer(out)
    texts = list(TEXTS)
    for found in (judge.encode(texts), judge.encode_query(texts), judge.encode_document(texts)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.abs(judge.encode(texts, prompt="") - expected).max() > 0.01
    np.testing.assert_allclose(judge.encode(texts, prompt=""), layerprobe_embeddings(bert, LAYER), rtol=0, atol=1e-5)


def test_length(bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(Model(bert, max_length=5), out, layer=LAYER)
    expected = layerprobe_embeddings(bert, LAYER, max_length=5)
    np.testing.assert_allclose(sentence_transformers_embeddings(out), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(transformers_mean(out), expected, rtol=0, atol=1e-5)
    assert np.abs(layerprobe_embeddings(bert, LAYER) - expected).max() > 0.01
    assert sentence_transformer(out).max_seq_length == 5
    assert AutoTokenizer.from_pretrained(out).model_max_length == 5


def test_the_length_of_the_model_is_the_default_and_similarity_is_the_cosine(bert: Path, tmp_path: Path) -> None:
    assert export_model(bert, tmp_path / "out", layer=1).max_length == 64
    judge = sentence_transformer(tmp_path / "out")
    assert judge.max_seq_length == 64
    assert judge.similarity_fn_name == "cosine"
    assert judge.get_embedding_dimension() == HIDDEN


def test_token_types_that_a_model_would_look_up_among_its_words_are_not_given(tmp_path: Path) -> None:
    model = save_tiny("gpt2", tmp_path / "model")
    assert "token_type_ids" in AutoTokenizer.from_pretrained(model).model_input_names
    export_model(model, tmp_path / "out", layer=LAYER)
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path / "out")("a")
    other = save_tiny("bert", tmp_path / "bert")
    export_model(other, tmp_path / "bert-out", layer=LAYER)
    assert "token_type_ids" in AutoTokenizer.from_pretrained(tmp_path / "bert-out")("a")


def test_random_weights(bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = export_model(Model(str(bert), random_init=7), out, layer=LAYER)
    assert "random init 7" in done.model
    encoder = load_encoder(resolve(Model(str(bert), random_init=7)), device="cpu")
    encoder.tokenizer.padding_side = "right"
    batch = encoder.tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    with torch.inference_mode():
        state = list(encoder.layer_states(batch))[LAYER]
    expected = pool(state, batch["attention_mask"], "mean").numpy()
    np.testing.assert_allclose(sentence_transformers_embeddings(out), expected, rtol=0, atol=1e-5)


def test_nothing_of_this_machine_is_in_the_files(bert: Path, tmp_path: Path) -> None:
    """Neither where the model lay, nor what the last call asked the tokenizer for."""
    out = tmp_path / "out"
    config = json.loads((bert / "config.json").read_text())
    model = tmp_path / "local-model"
    model.mkdir()
    for file in bert.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "code.Model"}}))
    export_model(model, out, layer=1)
    written = "".join(file.read_text() for file in out.rglob("*") if file.suffix in (".json", ".md"))
    assert str(tmp_path) not in written
    assert "auto_map" not in written
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    assert AutoConfig.from_pretrained(out).num_hidden_layers == 1


def test_an_export_can_be_exported(bert: Path, tmp_path: Path) -> None:
    export_model(bert, tmp_path / "two", layer=2)
    export_model(tmp_path / "two", tmp_path / "one", layer=1)
    expected = layerprobe_embeddings(bert, 1)
    np.testing.assert_allclose(sentence_transformers_embeddings(tmp_path / "one"), expected, rtol=0, atol=1e-5)


# ---- the files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", MODES)
@pytest.mark.parametrize("prompt", ["", 'say "ünï": ', "\n日本 "])
def test_a_layout_is_read_as_it_was_written(pooling: Pooling, prompt: str, tmp_path: Path) -> None:
    layout = Layout(pooling=pooling, width=16, max_length=64, prompt=prompt)
    write_layout(tmp_path, layout)
    assert read_layout(tmp_path) == layout
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unchanged_weights_keep_their_precision(dtype: torch.dtype, bert: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    AutoModel.from_pretrained(bert).to(dtype).save_pretrained(model)
    AutoTokenizer.from_pretrained(bert).save_pretrained(model)
    out, name = tmp_path / "out", str(dtype).removeprefix("torch.")
    done = export_model(model, out, layer=LAYER)
    assert (done.dtype, done.changes) == (name, ())
    assert done.conclusion.names["dtype"] == name
    assert_keeps_contract(done, long_names=True)
    assert f"- **Precision:** {name}\n" in (out / "README.md").read_text()
    assert AutoConfig.from_pretrained(out).dtype == dtype
    assert {weight.dtype for weight in load_file(out / "model.safetensors").values()} == {dtype}
    random = export_model(Model(model, random_init=1), tmp_path / "random", layer=LAYER)
    assert random.changes == (f"weights are in float32 instead of {name}",)
    assert [check.names["change"] for check in random.conclusion.checks] == list(random.changes)


def test_what_is_not_as_in_the_model_is_said(bert: Path, tmp_path: Path) -> None:
    done = export_model(Model(bert, max_length=5), tmp_path / "out", layer=LAYER)
    assert done.changes == ("texts are truncated at 5 tokens instead of 64",)
    assert done.changes[0] in str(done)
    assert done.changes[0] in [value for line in done.table.lines for value in line]
    assert f"- **Not as in the base model:** {done.changes[0]}" in (tmp_path / "out" / "README.md").read_text()
