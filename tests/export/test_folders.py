"""What is exported, by a table of models and options: sentence-transformers, transformers and the card agree with us.

Each case is exported, loaded by both libraries, run by the code on its card, and looked through as files.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer

from layerprobe.embedded import embedded_model
from layerprobe.encoders.architecture import count_blocks, count_parameters, declared_dtype
from layerprobe.encoders.batching import pool
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load, load_encoder
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.export.folder import Layout, written_bytes
from layerprobe.export.run import export_model
from tests.few import USUAL_ARCHITECTURES, few
from tests.models import (
    ARCHITECTURES,
    HIDDEN,
    MIXES_PADDING,
    N_BLOCKS,
    TEXTS,
    save_tiny,
    store_as,
    stored_bytes,
    tiny_tokenizer,
)
from tests.results.contract import assert_keeps_contract

from .judges import layerprobe_embeddings, read_layout, run_card, sentence_transformer, transformers_mean

NEEDS_A_BLOCK = frozenset({"deberta-v2", "deberta-v3", "deberta-v2-conv", "modernbert"})


@dataclass(frozen=True)
class Case:
    """A tiny model, the layer that is exported, and options."""

    name: str
    layer: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    tokenizer: Callable[[], Any] | None = None
    store: Callable[[Path], str] = str
    dtype: str = "float32"
    changes: tuple[str, ...] = ()


OF_ARCHITECTURES = {
    f"{name}, layer {layer}": Case(name, layer, options={"pooling": "mean"})
    for name in ARCHITECTURES
    for layer in (0, 1, N_BLOCKS)
    if layer or name not in NEEDS_A_BLOCK
}
OF_OPTIONS = {
    **{
        f"{pooling}, padded on the {side}": Case(
            "roberta", options={"pooling": pooling}, tokenizer=lambda side=side: tiny_tokenizer(padding_side=side)
        )
        for pooling in get_args(Pooling)
        for side in ("left", "right")
    },
    "usual pooling of a decoder": Case("gpt2"),
    "prompt": Case("bert", options={"prompt": 'a "query": ', "pooling": "max"}),
    "length": Case("bert", options={"max_length": 5}, changes=("texts are truncated at 5 tokens instead of 64",)),
    "some blocks": Case("bert", options={"blocks": (1, 3)}),
    "half precision": Case("bert", store=lambda folder: store_as(folder, "float16"), dtype="float16"),
    "brain floats": Case("bert", store=lambda folder: store_as(folder, "bfloat16"), dtype="bfloat16"),
    "several precisions": Case(
        "bert",
        store=lambda folder: store_as(folder, "bfloat16", norms="float32"),
        changes=("weights are in float32 instead of bfloat16",),
    ),
}
CASES = OF_ARCHITECTURES | OF_OPTIONS
USUAL = {*OF_OPTIONS, *(f"{name}, layer 1" for name in USUAL_ARCHITECTURES)}


@pytest.mark.parametrize("name", few(CASES, USUAL.__contains__))
def test_everyone_has_the_same_embeddings(name: str, tmp_path: Path) -> None:
    case, out = CASES[name], tmp_path / "out"
    folder = save_tiny(case.name, tmp_path / "local-model", tokenizer=case.tokenizer and case.tokenizer())
    model = Model(case.store(folder), **case.options)
    done = export_model(model, out, layer=case.layer)
    together = case.name not in MIXES_PADDING
    assert done.difference <= 1e-5
    assert any(warning.startswith("padding changes") for warning in done.warnings) == (not together)
    assert (done.dtype, done.changes) == (case.dtype, case.changes)
    assert_keeps_contract(done, long_names=True)

    how = {key: value for key, value in case.options.items() if key in ("prompt", "max_length")}
    how["pooling"] = done.pooling

    def ours(texts: Any) -> np.ndarray:
        if "blocks" not in case.options:
            return layerprobe_embeddings(folder, case.layer, texts=texts, **how)
        return layerprobe_embeddings(resolve(model), case.layer, texts=texts, **how)

    expected, judge = ours(TEXTS), sentence_transformer(out).float()
    assert np.abs(expected).max() > 0.01
    for encode in (judge.encode, judge.encode_query, judge.encode_document):
        found = encode(list(TEXTS), batch_size=len(TEXTS) if together else 1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert (judge.similarity_fn_name, judge.max_seq_length) == ("cosine", done.max_length)
    if done.pooling == "mean" and not done.prompt and case.dtype == "float32":
        np.testing.assert_allclose(transformers_mean(out, together=together), expected, rtol=0, atol=1e-5)
    for texts, embeddings in run_card(out):
        np.testing.assert_allclose(embeddings, ours(texts), rtol=0, atol=1e-5 if case.dtype == "float32" else 0.05)

    encoder, config = load(resolve(model)), AutoConfig.from_pretrained(out)
    assert count_blocks(config) == case.layer
    assert count_parameters(config)[-1] == encoder.description.parameters[case.layer] == done.parameters
    assert done.whole_parameters == load_encoder(str(folder), device="cpu").description.parameters[-1]
    assert read_layout(out) == Layout(
        pooling=how["pooling"], width=HIDDEN, max_length=done.max_length or 0, prompt=how.get("prompt", "")
    )
    assert {str(weight.dtype) for weight in load_file(out / "model.safetensors").values()} == {f"torch.{case.dtype}"}
    written = "".join(file.read_text() for file in out.rglob("*") if file.suffix in (".json", ".md"))
    assert str(tmp_path) not in written

    loader: Any = AutoModelForTextEncoding if case.name == "t5" else AutoModel
    loaded, info = loader.from_pretrained(out, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not any(weight.any() for key, weight in loaded.named_parameters() if "pooler" in key.split("."))


@pytest.mark.parametrize("name", sorted(NEEDS_A_BLOCK))
def test_layer_0_that_does_not_run_is_refused(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    with pytest.raises(UnsupportedArchitectureError, match="does not run without a block, so layer 0 cannot"):
        export_model(model, tmp_path / "out", layer=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", ["embedded", "half", "mixed", "albert", "t5"])
def test_the_bytes_that_are_said_are_those_that_are_written(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    match case:
        case "embedded":
            model = embedded_model("rtd")
        case "half" | "mixed":
            save_tiny("bert", folder)
            model = Model(store_as(folder, "bfloat16", norms="bfloat16" if case == "half" else "float32"))
        case _:
            model = Model(str(save_tiny(case, folder)))  # weights that are shared, or tied
    resolved = resolve(model)
    encoder = load(resolved)
    result = export_model(model, tmp_path / "out", layer=encoder.n_layers - 1)
    assert result.dtype == {"embedded": "float16", "half": "bfloat16"}.get(case, "float32")
    assert written_bytes(encoder, declared_dtype(resolved.config)) == stored_bytes(Path(result.path))


def test_token_types_that_a_model_would_look_up_among_its_words_are_not_given(bert: Path, tmp_path: Path) -> None:
    model = save_tiny("gpt2", tmp_path / "model")
    assert "token_type_ids" in AutoTokenizer.from_pretrained(model).model_input_names
    for folder, given in ((model, False), (bert, True)):
        export_model(folder, tmp_path / str(given), layer=2)
        assert ("token_type_ids" in AutoTokenizer.from_pretrained(tmp_path / str(given))("a")) == given


def test_random_weights(bert: Path, tmp_path: Path) -> None:
    model = store_as(Path(shutil.copytree(bert, tmp_path / "half")), "float16")
    done = export_model(Model(model, random_init=7), tmp_path / "out", layer=2)
    assert "random init 7" in done.model
    assert done.changes == ("weights are in float32 instead of float16",)
    encoder = load_encoder(resolve(Model(str(bert), random_init=7)), device="cpu")
    encoder.tokenizer.padding_side = "right"
    batch = encoder.tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    with torch.inference_mode():
        state = list(encoder.layer_states(batch))[2]
    expected = pool(state, batch["attention_mask"], "mean").numpy()
    np.testing.assert_allclose(sentence_transformer(tmp_path / "out").encode(list(TEXTS)), expected, rtol=0, atol=1e-5)


def test_code_and_calls_of_before_are_not_in_the_files(bert: Path, tmp_path: Path) -> None:
    """An export of an export is one, too."""
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    config = json.loads((bert / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "code.Model"}}))
    export_model(model, tmp_path / "two", layer=2)
    export_model(tmp_path / "two", tmp_path / "one", layer=1)
    assert not re.search("auto_map", (tmp_path / "one" / "config.json").read_text())
    tokenizer = json.loads((tmp_path / "one" / "tokenizer.json").read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    found = sentence_transformer(tmp_path / "one").encode(list(TEXTS))
    np.testing.assert_allclose(found, layerprobe_embeddings(bert, 1), rtol=0, atol=1e-5)
