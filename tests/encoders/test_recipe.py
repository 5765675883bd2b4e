"""How texts become embeddings where nobody says: by the model's own configuration, or by how it reads."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertTokenizer, GPTNeoXTokenizer, PreTrainedTokenizerFast

from layerprobe.encoders import encoder, identity
from layerprobe.encoders import recipe as recipes
from layerprobe.encoders.identity import resolve, resolve_all
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.encoders.recipe import default_recipe, with_end_token
from layerprobe.errors import ModelError
from layerprobe.export.run import export_model
from layerprobe.extraction.check import check_model
from layerprobe.extraction.embeddings import extract
from tests.few import few_architectures
from tests.models import (
    ARCHITECTURES,
    N_BLOCKS,
    ROTARY,
    SIZES,
    TEXTS,
    VOCABULARY,
    given,
    save_tiny,
    tiny_config,
    tiny_tokenizer,
)

WORDS = {word: i for i, word in enumerate(VOCABULARY)}
CAUSAL = {"gpt2", "llama", "qwen3"}


def without_end(**options: str) -> PreTrainedTokenizerFast:
    """A tokenizer as decoders have: nothing after a text, though it knows an end token."""
    tokenizer = tiny_tokenizer(eos_token="[SEP]", **options)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", 2)]
    )
    return tokenizer


def endless() -> PreTrainedTokenizerFast:
    tokenizer = without_end()
    tokenizer.eos_token = None
    return tokenizer


def sentence_transformer(model: Path, pooling: str, **settings: object) -> Path:
    """Write the configuration of sentence-transformers 6 beside a model."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    base = "sentence_transformers.models"
    modules = [{"idx": i, "name": str(i), "path": p, "type": f"{base}.{kind}"} for i, (p, kind) in enumerate(kinds)]
    (model / "1_Pooling").mkdir()
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling/config.json").write_text(
        json.dumps({"embedding_dimension": SIZES["hidden_size"], "pooling_mode": pooling, "include_prompt": True})
    )
    (model / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return model


@pytest.mark.parametrize("name", few_architectures(sorted(ARCHITECTURES)))
def test_decoders_are_told_by_how_they_read(name: str) -> None:
    kind, settings = ARCHITECTURES[name]
    assert default_recipe(AutoConfig.for_model(kind, **settings)).causal == (name in CAUSAL)


LARGE = {
    "bloom": ({"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}, True),
    "qwen3": (
        {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"head_dim": 128, "num_hidden_layers": 36, "is_causal": False},
        False,
    ),
}


@pytest.mark.parametrize(("kind", "settings", "causal"), [(kind, *row) for kind, row in LARGE.items()])
def test_a_large_block_is_tried(kind: str, settings: dict[str, object], causal: bool) -> None:
    config = AutoConfig.for_model(kind, **settings)
    recipe = default_recipe(config)
    assert (recipe.causal, recipe.untried) == (causal, "")


@pytest.mark.parametrize("size", [3, 4, 7, 16])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_small_vocabulary_is_tried(name: str, size: int) -> None:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    recipe = default_recipe(tiny_config(name, vocab_size=size, **special))
    assert (recipe.causal, recipe.untried) == (name in CAUSAL, "")


def test_the_direction_depends_on_neither_vocabulary_nor_attention_of_a_gpu_but_on_a_setting() -> None:
    config = AutoConfig.for_model("llama", **SIZES | ROTARY | {"vocab_size": 10**6, "pad_token_id": 10**5})
    config._attn_implementation = "flash_attention_2"
    assert default_recipe(config).causal
    assert default_recipe(AutoConfig.for_model("bert", **SIZES, is_decoder=True)).causal


def test_every_kind_of_block_is_tried() -> None:
    """The first blocks of a model may read from left to right where a later one does not."""
    sizes = SIZES | ROTARY | {"conv_L_cache": 3, "num_hidden_layers": 4}
    config = AutoConfig.for_model("lfm2", **sizes, layer_types=["conv", "conv", "full_attention", "conv"])
    assert recipes._blocks_of_all_kinds(config) == 3
    assert default_recipe(config).causal


def test_what_cannot_be_tried_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise MemoryError("no room for it")

    folder = save_tiny("gpt2", tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "empty_model", no_room)
        patch.setattr(identity, "default_recipe", default_recipe.__wrapped__)  # type: ignore[attr-defined]
        checkpoint = resolve(Model(folder, cache_dir=tmp_path / "store"))
    assert (checkpoint.pooling, checkpoint.recipe.causal) == ("mean", False)
    (warning,) = extract(checkpoint, list(TEXTS)).warnings
    assert warning.endswith("mean pooling, because the test of its reading direction failed (no room for it)")
    assert extract(Model(folder, pooling="last", cache_dir=tmp_path / "store"), list(TEXTS)).pooling == "last"


def test_the_end_token_is_appended_once() -> None:
    plain = without_end()
    ended, token = with_end_token(plain)
    assert token == "[SEP]"
    assert ended("ab c")["input_ids"] == [*plain("ab c")["input_ids"], 3]
    assert ended("ab c", max_length=3, truncation=True)["input_ids"] == [2, plain("ab c")["input_ids"][1], 3]
    again, token = with_end_token(ended)
    assert again is ended
    assert token == ""


def test_pairs_keep_their_own_marks() -> None:
    plain = tiny_tokenizer(eos_token="[SEP]", bos_token="[CLS]")
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [MASK] $B:1", special_tokens=[("[CLS]", 2), ("[MASK]", 4)]
    )
    ended, _ = with_end_token(plain)
    assert ended("ab", "c")["input_ids"] == [*plain("ab", "c")["input_ids"], 3]
    assert ended.num_special_tokens_to_add(pair=True) == 3


def test_words_are_where_they_were(tmp_path: Path) -> None:
    plain = without_end()
    ended, _ = with_end_token(plain)
    ended.save_pretrained(tmp_path)
    words = [["ab", "c"]]
    before = plain(words, is_split_into_words=True).word_ids(0)
    for tokenizer in (ended, AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer(words, is_split_into_words=True).word_ids(0) == [*before, None]


def test_a_byte_tokenizer_keeps_its_offsets() -> None:
    backend = Tokenizer(BPE({"A": 0, "B": 1, "Ġ": 2, "ĠB": 3, "<the end>": 4}, [("Ġ", "B")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for trims in (True, False):
        backend.post_processor = processors.ByteLevel(trim_offsets=trims)
        plain = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<the end>")
        ended, _ = with_end_token(plain)
        offsets = [each("A B", return_offsets_mapping=True)["offset_mapping"] for each in (plain, ended)]
        assert offsets[1] == [*offsets[0], (0, 0)]


@pytest.mark.slow
def test_a_decoder_is_read_at_its_end_token(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path / "model", tokenizer=without_end())
    found = extract(given(model, Model(cache_dir=tmp_path / "store")), TEXTS)
    assert found.pooling == "last"
    assert found.settings == {"pooling": "last", "end_token": "[SEP]"}
    message = (
        "is read with last pooling and the end token '[SEP]' after every text, because it reads from left to right"
    )
    assert found.warnings[0].endswith(message)
    written = extract(
        given(Model(str(model), end_token=False), Model(cache_dir=tmp_path / "store", pooling="last")),
        [f"{text} [SEP]" for text in TEXTS],
    )
    np.testing.assert_allclose(found.layer(N_BLOCKS), written.layer(N_BLOCKS), rtol=1e-5, atol=1e-5)
    (check,) = (check for check in check_model(given(model, Model(device="cpu"))).checks if check.name == "read with")
    assert f"is read with {check.finding}" in found.warnings[0]
    mean = extract(given(model, Model(cache_dir=tmp_path / "store", pooling="mean")), TEXTS)
    assert mean.pooling == "mean"
    assert mean.fingerprint != found.fingerprint


def test_what_the_user_says_goes_before_the_folder(tmp_path: Path) -> None:
    model = sentence_transformer(
        save_tiny("bert", tmp_path / "model"), "cls", prompts={"q": "a "}, default_prompt_name="q"
    )
    checkpoint = resolve(model)
    by_folder, by_user = (given(checkpoint, each).settled for each in (Model(), Model(pooling="mean", prompt="")))
    assert (by_folder.pooling, by_folder.prompt) == ("cls", "a ")
    note = "cls pooling and the prompt 'a ', from its sentence-transformers configuration"
    assert checkpoint.recipe.notes("cls", "a ") == [note]
    assert (by_user.pooling, by_user.prompt) == ("mean", "")


def test_the_length_of_the_folder_goes_before_that_of_the_tokenizer(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = sentence_transformer(
        save_tiny("bert", tmp_path / "model", tokenizer=tiny_tokenizer(model_max_length=6)), "cls"
    )
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    length = library.SentenceTransformer(str(model), device="cpu").max_seq_length
    assert (load_encoder(str(model), device="cpu").limit(), length) == (8, 8)
    assert export_model(model, tmp_path / "out", layer=1).max_length == 8


def test_other_scores_are_said(tmp_path: Path) -> None:
    model = sentence_transformer(
        save_tiny("bert", tmp_path / "model"),
        "mean",
        prompts={"passage": "c "},
        truncate_dim=8,
        similarity_fn_name="manhattan",
    )
    assert resolve(model).recipe.left_out == (
        "no prompt before documents: sentence-transformers does not use its 'passage' prompt for them",
        "cosines, but its configuration has Manhattan distances",
    )
    warnings = export_model(model, tmp_path / "out", layer=1).warnings
    assert any(warning.endswith("keeps Manhattan distances; layerprobe's results use cosines") for warning in warnings)
    card = (tmp_path / "out" / "README.md").read_text()
    assert ", the first 8 of 16 features, with Normalize as in the base model; compared by manhattan" in card


def test_a_decoder_in_memory_is_one_while_it_is_trained(tmp_path: Path) -> None:
    folder = save_tiny("gpt2", tmp_path / "model", tokenizer=without_end())
    model = AutoModel.from_pretrained(folder).train()
    before = torch.get_rng_state()
    checkpoint = resolve((model, AutoTokenizer.from_pretrained(folder)))
    assert (checkpoint.recipe.causal, checkpoint.recipe.pooling, checkpoint.recipe.end_token) == (True, "last", "[SEP]")
    assert checkpoint.tokenizer_digest == resolve(folder).tokenizer_digest
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


def test_the_end_token_is_part_of_what_a_model_is(tmp_path: Path) -> None:
    folder = str(save_tiny("llama", tmp_path / "model", tokenizer=without_end()))
    identities = [resolve(Model(folder, end_token=end)).identity for end in (None, True, False)]
    assert identities[0] == identities[1] != identities[2]


def test_models_given_by_name_have_the_end_token_of_the_first(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model", tokenizer=without_end())
    loaded = AutoModel.from_pretrained(folder), without_end()
    models = [Model(folder, end_token=False), str(folder), folder, Model(str(folder)), loaded]
    assert [each.asked.end_token for each in resolve_all(models)] == [False, False, False, None, None]


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_an_export_keeps_the_end_token_and_the_lower_case(name: str, tmp_path: Path) -> None:
    """Transformers 5 makes the rules of tokenizers of these classes anew when it loads them."""
    model = tmp_path / "model"
    if name == "bert":
        sentence_transformer(save_tiny("bert", model, tokenizer=BertTokenizer(WORDS, do_lower_case=False)), "mean")
        (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": True}))
    else:
        AutoModel.from_config(AutoConfig.for_model(name, **SIZES | {"vocab_size": 64})).save_pretrained(model)
        GPTNeoXTokenizer(WORDS, []).save_pretrained(model)
    checkpoint = resolve(model)
    export_model(checkpoint, tmp_path / "out", layer=1)
    texts = ["a B c", "A"]
    assert checkpoint.tokenizer(texts)["input_ids"] != AutoTokenizer.from_pretrained(model)(texts)["input_ids"]
    assert (
        checkpoint.tokenizer(texts)["input_ids"] == AutoTokenizer.from_pretrained(tmp_path / "out")(texts)["input_ids"]
    )


def test_a_tokenizer_that_reads_differently_once_saved_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_reads_alike", lambda *_: False)
    with pytest.raises(ModelError, match=r"the tokenizer of .* reads texts differently after saving"):
        export_model(save_tiny("bert", tmp_path / "model"), tmp_path / "out", layer=1)


def test_an_end_token_that_cannot_be_appended_is_one_line(tmp_path: Path) -> None:
    folder = str(save_tiny("llama", tmp_path / "model", tokenizer=endless()))
    assert resolve(folder).recipe.end_token == ""
    with pytest.raises(ModelError, match="cannot append an end token: expected a fast tokenizer with such a"):
        resolve(Model(folder, end_token=True))


@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "a b ", "document": ""},
        {"query": "a b "},
        {"document": "c d ", "other": "e "},
        {"query": "a b ", "passage": "c d "},
    ],
)
def test_prompts_of_retrieval_are_those_of_sentence_transformers(prompts: dict[str, str], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    default = next(iter(prompts))
    model = sentence_transformer(
        save_tiny("bert", tmp_path / "model"), "mean", prompts=prompts, default_prompt_name=default
    )
    whole = library.SentenceTransformer(str(model), device="cpu")
    for source in (model, whole):
        found = resolve(source).recipe.retrieval_prompts
        assert found == (whole.prompts["query"], whole.prompts["document"])
        np.testing.assert_array_equal(whole.encode_document(["a"]), whole.encode([f"{found[1]}a"], prompt=""))


def test_an_export_keeps_prompts_of_retrieval_and_pooling_that_layerprobe_does_not_have(tmp_path: Path) -> None:
    prompts = {"query": "a b ", "document": "c "}
    model = sentence_transformer(save_tiny("bert", tmp_path / "model"), "weightedmean", prompts=prompts)
    done = export_model(model, tmp_path / "out", layer=1)
    assert done.pooling == "weightedmean"
    assert any("keeps its weightedmean pooling; layerprobe's results use mean" in warning for warning in done.warnings)
    assert resolve(tmp_path / "out").recipe.prompts == prompts
    export_model(Model(model, prompt=""), tmp_path / "bare", layer=1)
    assert resolve(tmp_path / "bare").recipe.prompts == {}
