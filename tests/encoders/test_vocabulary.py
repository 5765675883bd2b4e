"""Taking tokens out of a model: what it says of texts whose tokens all stay is equal, in every family of tokenizers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.encoders.vocabulary import WHOLE, missing_share, tokenizer_rules
from layerprobe.errors import DataError, ModelError
from layerprobe.export.run import export_model
from layerprobe.extraction.embeddings import extract
from layerprobe.shrinking.teacher import tokens_to_keep
from tests.encoders.vocabularies import ENGLISH, FAMILIES, GREEK, save


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {family: save(family, root / family) for family in FAMILIES}


@pytest.fixture(autouse=True, scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERPROBE_CACHE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_whose_tokens_all_stay_have_the_embeddings_of_the_whole_model(
    folders: dict[str, Path], family: str, tmp_path: Path
) -> None:
    whole = resolve(str(folders[family]))
    tokens, missing = tokens_to_keep(whole, ENGLISH, "corpus")
    assert missing == 0
    assert len(tokens) < 0.75 * len(whole.tokenizer), "expected that other languages need tokens of their own"
    cut = whole.with_tokens(tokens)
    ids = [cut.tokenizer(text)["input_ids"] for text in ENGLISH]
    assert [[tokens[i] for i in row] for row in ids] == [whole.tokenizer(text)["input_ids"] for text in ENGLISH]
    np.testing.assert_allclose(extract(cut, ENGLISH).layer(2), extract(whole, ENGLISH).layer(2), atol=1e-6)

    out = tmp_path / "export"
    export_model(Model(str(folders[family]), tokens=tokens, end_token=False), out, layer=2)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert [tokenizer(text)["input_ids"] for text in ENGLISH] == ids
    auto = AutoModelForTextEncoding if family == "fallback_bpe" else AutoModel
    model = auto.from_pretrained(out)
    assert model.get_input_embeddings().weight.shape[0] == model.config.vocab_size == len(tokenizer) == len(tokens)
    for name in ("pad_token_id", "eos_token_id", "bos_token_id"):
        expected, said = getattr(whole.tokenizer, name), getattr(model.config, name, None)
        assert said is None or tokens[said] == expected == tokens[getattr(tokenizer, name)]
    np.testing.assert_allclose(extract(str(out), ENGLISH).layer(2), extract(whole, ENGLISH).layer(2), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_that_went_is_spelt_with_shorter_ones(folders: dict[str, Path], family: str) -> None:
    whole = resolve(str(folders[family]))
    few = len(tokenizer_rules(whole.tokenizer, name="it").always(whole.tokenizer, whole.config)) + 10
    tokens, missing = tokens_to_keep(whole, ENGLISH, few)
    assert len(tokens) == few
    cut = whole.with_tokens(tokens).tokenizer
    assert 0 < missing < 1
    assert 0 < missing_share(cut, ENGLISH) < missing_share(cut, GREEK)
    assert missing_share(whole.tokenizer, GREEK) == 0
    for text in (*ENGLISH, *GREEK):
        ids, of_whole = cut(text)["input_ids"], whole.tokenizer(text)["input_ids"]
        assert cut.unk_token_id not in ids, "expected every letter to stay"
        assert len(ids) >= len(of_whole)
        assert cut.decode(ids).replace(" ", "") == whole.tokenizer.decode(of_whole).replace(" ", "")


def test_more_texts_keep_more_tokens_and_the_most_frequent_first(folders: dict[str, Path]) -> None:
    whole = resolve(str(folders["wordpiece"]))
    of_one, of_all = (set(tokens_to_keep(whole, texts, "corpus")[0]) for texts in (ENGLISH, [*ENGLISH, *GREEK]))
    assert of_one < of_all
    always = tokenizer_rules(whole.tokenizer, name="it").always(whole.tokenizer, whole.config)
    words = {whole.tokenizer.convert_tokens_to_ids(word): ENGLISH.count(word) for word in ("The", "horses")}
    one_more, _ = tokens_to_keep(whole, ENGLISH, len(always) + 1)
    (first,) = {*one_more} - always
    counts = np.bincount([i for text in ENGLISH for i in whole.tokenizer(text)["input_ids"] if i not in always])
    assert counts[first] == counts.max() >= max(words.values())
    half, _ = tokens_to_keep(whole, ENGLISH, 0.5)
    assert len(half) == round(0.5 * len(whole.tokenizer))
    with pytest.raises(DataError, match=rf"expected {len(always):,} to {len(whole.tokenizer) - 1:,} tokens .*, got 3$"):
        tokens_to_keep(whole, ENGLISH, 3)


def test_blocks_and_tokens_go_together(folders: dict[str, Path]) -> None:
    whole = resolve(str(folders["wordpiece"]))
    tokens, _ = tokens_to_keep(whole, ENGLISH, "corpus")
    (both,) = {
        load_encoder(model).description
        for model in (
            Model(str(folders["wordpiece"]), tokens=tokens, blocks=(2,)),
            whole.with_blocks((2,)).with_tokens(tokens),
            whole.with_tokens(tokens).with_blocks((2,)),
        )
    }
    assert both.vocabulary == (len(tokens), len(whole.tokenizer))
    assert both.name.endswith(f"(blocks 2; {len(tokens)} tokens)")
    wholly = load_encoder(whole).description.parameters
    assert both.whole_parameters == wholly
    assert both.parameters[0] == wholly[0] - 16 * (len(whole.tokenizer) + 3 - len(tokens))
    assert whole.with_tokens(tokens).with_blocks(None).asked.tokens == tokens
    with pytest.raises(ModelError, match="expected a model with all of its tokens"):
        whole.with_tokens(tokens).with_tokens(tokens)


def test_a_loaded_model_is_not_changed(folders: dict[str, Path]) -> None:
    folder = folders["unigram"]
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = len(model.get_input_embeddings().weight)
    tokens, _ = tokens_to_keep(resolve((model, tokenizer)), ENGLISH, "corpus")
    encoder = load_encoder(resolve((model, tokenizer)).with_tokens(tokens), share=True)
    assert len(encoder.model.get_input_embeddings().weight) == len(tokens)
    assert len(model.get_input_embeddings().weight) == model.config.vocab_size == rows
    assert len(tokenizer) > len(tokens)


def test_texts_of_another_language_are_warned_of_once(folders: dict[str, Path], tmp_path: Path) -> None:
    whole = resolve(str(folders["unigram"]))
    tokens, _ = tokens_to_keep(whole, ENGLISH, "corpus")
    out = tmp_path / "export"
    export_model(Model(str(folders["unigram"]), tokens=tokens), out, layer=2)
    assert (out / f"{WHOLE}.json").is_file()
    for model in (whole.with_tokens(tokens), str(out)):
        assert extract(model, ENGLISH).warnings == ()
        (warning,) = extract(model, GREEK).warnings
        assert f"% of their tokens were removed from its vocabulary, which has {len(tokens)} of" in warning
        assert extract(model, GREEK).warnings == (warning,), "expected it of embeddings in the store, too"
    again = tmp_path / "again"
    export_model(str(out), again, layer=1)
    assert (again / f"{WHOLE}.json").read_bytes() == (out / f"{WHOLE}.json").read_bytes()


def test_vocabularies_that_cannot_be_cut_are_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    words = json.loads((folders["wordpiece"] / "tokenizer.json").read_text())
    words["model"] = {"type": "WordLevel", "vocab": words["model"]["vocab"], "unk_token": "<unk>"}
    folder = shutil.copytree(folders["wordpiece"], tmp_path / "words")
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(
        ModelError, match="a tokenizer of WordLevel, whose vocabulary cannot be reduced: expected a fast"
    ):
        tokens_to_keep(resolve(str(folder)), ENGLISH, "corpus")
    with pytest.raises(ModelError, match=r"expected token ids of .*, got 90000, which it does not have"):
        resolve(Model(str(folders["wordpiece"]), tokens=(0, 1, 90000)))


def test_a_model_that_reads_ids_otherwise_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = resolve(str(folders["wordpiece"]))
    tokens, _ = tokens_to_keep(whole, ENGLISH, "corpus")
    embed = torch.nn.Embedding.forward

    def forward(table: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        states = embed(table, ids)
        return states + table.num_embeddings if table.num_embeddings == len(tokens) else states

    monkeypatch.setattr(torch.nn.Embedding, "forward", forward)
    with pytest.raises(ModelError, match=f"with only {len(tokens)} tokens, texts of these tokens have other states"):
        load_encoder(whole.with_tokens(tokens))
