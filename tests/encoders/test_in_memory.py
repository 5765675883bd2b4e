"""A loaded model gives what its folder gives, is found again by its content, and is never changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from transformers import (
    MODEL_MAPPING,
    AttentionInterface,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BigBirdConfig,
    BigBirdModel,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.llama.modeling_llama import LlamaMLP

import layerprobe as lp
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.lab.pretraining.masking import check_masked_lm
from tests.models import SIZES, given, save_tiny, tiny_tokenizer

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


def patch_method(model: Any) -> None:
    dense = model.encoder.layer[1].output.dense
    dense.forward = lambda states: 2 * torch.nn.functional.linear(states, dense.weight, dense.bias)


def add_hook(model: Any) -> None:
    model.encoder.layer[1].output.dense.register_forward_hook(lambda module, args, output: 2 * output)


def change_epsilon(model: Any) -> None:
    model.embeddings.LayerNorm.eps = 1e-5


def change_configuration(model: Any) -> None:
    model.config.hidden_act = "relu"


def parametrize(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.encoder.layer[1].output.dense)


def quantize(model: Any) -> None:
    dense = model.encoder.layer[1].output.dense
    dense.weight = torch.nn.Parameter(dense.weight.to(torch.int8), requires_grad=False)


SOMETHING_ELSE = r"does not match its configuration and weights \(difference .* of the largest state\)"
CHANGED = {
    "method": (patch_method, SOMETHING_ELSE),
    "hook": (add_hook, SOMETHING_ELSE),
    "epsilon": (change_epsilon, SOMETHING_ELSE),
    "configuration": (change_configuration, SOMETHING_ELSE),
    "parametrization": (parametrize, r"lacks 1 of its weights \(such as encoder\.layer\.1\.output\.dense\.weight\)"),
    "quantized": (quantize, r"the weights of .* do not match its configuration: "),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_computes_something_else_is_one_line_whatever_is_kept(change: str, tmp_path: Path) -> None:
    folder = Path(save_tiny("bert", tmp_path / "model"))
    layers(loaded(folder), tmp_path / "used")
    alter, words = CHANGED[change]
    for store in ("empty", "used"):
        model, tokenizer = loaded(folder)
        alter(model)
        with pytest.raises(ModelError, match=words) as raised:
            layers((model, tokenizer), tmp_path / store)
        assert "\n" not in str(raised.value)


class BothWays(LlamaModel):  # type: ignore[misc]
    """As LLM2Vec makes it."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **more: Any) -> Any:
        mask = torch.zeros(len(input_ids), 1, *2 * input_ids.shape[1:])
        mask = mask.masked_fill(attention_mask[:, None, None] == 0, -1e9)
        return super().forward(input_ids=input_ids, attention_mask=mask, **more)


class UnderAHead(LlamaForCausalLM):  # type: ignore[misc]
    """The same by a head that passes a mask to its model."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **more: Any) -> Any:
        mask = torch.zeros(len(input_ids), 1, *2 * input_ids.shape[1:])
        return super().forward(input_ids=input_ids, attention_mask=mask, **more)


@pytest.mark.parametrize("kind", [BothWays, UnderAHead])
def test_a_class_that_reads_otherwise_is_one_line(kind: Any, tmp_path: Path) -> None:
    folder = Path(save_tiny("llama", tmp_path / "model"))
    model = kind.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ModelError, match=SOMETHING_ELSE):
        layers(model, tmp_path)
    with pytest.raises(ModelError, match=SOMETHING_ELSE):
        lp.export_model(Model(model), tmp_path / "out", layer=1)


def read_both_ways_alone(model: Any) -> None:
    for layer in model.layers:  # the mask of padding is still causal
        layer.self_attn.is_causal = False


def read_long_texts_otherwise(model: Any) -> None:
    words = model.get_input_embeddings()
    words.register_forward_hook(lambda _, args, states: torch.cat([states[:, :40], 2 * states[:, 40:]], 1))


@pytest.mark.parametrize("change", [read_both_ways_alone, read_long_texts_otherwise])
def test_a_model_that_reads_some_texts_otherwise_is_one_line(change: Any, tmp_path: Path) -> None:
    model, tokenizer = loaded(Path(save_tiny("llama", tmp_path / "model")))
    change(model)
    with pytest.raises(ModelError, match=SOMETHING_ELSE):
        layers((model, tokenizer), tmp_path)


class SeesPadding(Transformer):
    """A module of sentence-transformers that passes another mask to its model."""

    def forward(self, features: Any, **more: Any) -> Any:
        return super().forward(features | {"attention_mask": torch.ones_like(features["attention_mask"])}, **more)


def test_a_module_of_sentence_transformers_that_reads_otherwise_is_one_line(tmp_path: Path) -> None:
    module = SeesPadding(str(save_tiny("bert", tmp_path / "model")))
    model = SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())], device="cpu")
    with pytest.raises(ModelError, match=SOMETHING_ELSE):
        layers(model, tmp_path)


class Prefixing(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A tokenizer whose class puts a word before texts."""

    def __call__(self, text: Any, *args: Any, **more: Any) -> Any:
        before = f"b {text}" if isinstance(text, str) else [f"b {one}" for one in text]
        return super().__call__(before, *args, **more)


def test_a_tokenizer_is_known_by_what_it_does(tmp_path: Path) -> None:
    model, tokenizer = loaded(Path(save_tiny("bert", tmp_path / "model")))
    plain = layers((model, tokenizer), tmp_path / "used")
    tokenizer.__class__ = Prefixing
    used, empty = (layers((model, tokenizer), tmp_path / store) for store in ("used", "empty"))
    np.testing.assert_array_equal(used[-1], empty[-1])
    assert np.abs(used[-1] - plain[-1]).max() > 0.01


def test_what_only_looks_on_or_is_not_in_evaluation_mode_changes_nothing(folder: Path, tmp_path: Path) -> None:
    expected = layers(loaded(folder), tmp_path / "plain")
    model, tokenizer = loaded(folder)
    seen: list[object] = []
    model.train()
    for module in model.modules():
        module.register_forward_hook(lambda module, args, output: seen.append(output))
    for got, plain in zip(layers((model, tokenizer), tmp_path / "other"), expected, strict=True):
        np.testing.assert_array_equal(got, plain)
    assert all(module.training for module in model.modules())
    assert seen


def test_code_that_was_changed_for_all_models_has_entries_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(save_tiny("llama", tmp_path / "model"))
    plain = layers(loaded(folder), tmp_path)
    with monkeypatch.context() as patch:
        usual = LlamaMLP.forward
        patch.setattr(LlamaMLP, "forward", lambda self, states: 2 * usual(self, states))
        patched, afresh = (layers(loaded(folder), tmp_path / store) for store in (".", "another"))
    np.testing.assert_array_equal(patched[-1], afresh[-1])
    assert np.abs(patched[-1] - plain[-1]).max() > 0.01
    np.testing.assert_array_equal(layers(loaded(folder), tmp_path)[-1], plain[-1])


def test_a_model_that_a_pass_changes_stays_as_it_is(tmp_path: Path) -> None:
    model = BigBirdModel(BigBirdConfig(**SIZES | {"max_position_embeddings": 4096}))
    before = [type(module) for module in model.modules()]
    layers((model, tiny_tokenizer()), tmp_path)
    assert [type(module) for module in model.modules()] == before
    assert model.attention_type == "block_sparse"


def test_how_a_loaded_model_reads_is_tried_on_itself(tmp_path: Path) -> None:
    def both_ways(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        return sdpa_attention_forward(module, query, key, value, None, **more | {"is_causal": False})

    AttentionInterface.register("both_ways", both_ways)
    model, tokenizer = loaded(Path(save_tiny("llama", tmp_path / "model")))
    assert resolve((model, tokenizer)).pooling == "last"
    model.config._attn_implementation = "both_ways"
    assert resolve((model, tokenizer)).pooling == "mean"


# ---- classes that transformers does not know -------------------------------------------------------------


class Wave(PreTrainedConfig):  # type: ignore[misc]
    model_type = "wave"

    def __init__(self, hidden_size: int = 8, num_hidden_layers: int = 2, vocab_size: int = 61, **more: Any) -> None:
        self.hidden_size, self.num_hidden_layers, self.vocab_size = hidden_size, num_hidden_layers, vocab_size
        super().__init__(**more)


class WaveBlock(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = torch.nn.Linear(size, size)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + torch.tanh(self.out(states.cumsum(1)))


class WaveModel(PreTrainedModel):  # type: ignore[misc]
    config_class = Wave

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(WaveBlock(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **more: Any) -> Any:
        states = self.words(input_ids)
        for layer in self.layers:
            states = layer(states)
        return BaseModelOutput(last_hidden_state=states)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing asks at the terminal."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))


OWN_CODE = {"AutoConfig": "modeling_wave.WaveConfig", "AutoModel": "modeling_wave.WaveModel"}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("auto_map", [{}, OWN_CODE])
def test_an_unknown_class_is_one_line_and_a_registered_one_is_read(auto_map: dict[str, str], tmp_path: Path) -> None:
    config = Wave(auto_map=auto_map) if auto_map else Wave()
    model = WaveModel(config).eval(), tiny_tokenizer()
    with pytest.raises(ModelError, match=r"with AutoModel\.register\(Wave, WaveModel\), so that it can be truncated$"):
        layers(model, tmp_path)
    AutoModel.register(Wave, WaveModel)
    try:
        tokens = model[1](TEXTS[2], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = model[0](tokens).last_hidden_state[0, -1]
        np.testing.assert_allclose(layers(model, tmp_path)[-1][2], expected, rtol=1e-5)
        with pytest.raises(ModelError, match="needs its own code, which an export does not contain"):
            lp.export_model(model, tmp_path / "out", layer=1)
    finally:
        MODEL_MAPPING._extra_content.clear()


@pytest.mark.usefixtures("asked")
def test_neighbours_of_an_unknown_class_are_one_line(tmp_path: Path) -> None:
    class NoDepth(PreTrainedConfig):  # type: ignore[misc]
        model_type = "none"

    class Needs(WaveModel):
        def __init__(self, config: Any, more: int) -> None:
            super().__init__(config)

    class Reads(WaveModel):
        def forward(self, words: Any) -> Any:  # type: ignore[override]
            return super().forward(words)

    wave, tokenizer = WaveModel(Wave()), tiny_tokenizer()
    wave.config = NoDepth()
    with pytest.raises(ModelError, match="its configuration has no single number of blocks"):
        layers((wave, tokenizer), tmp_path)
    for kind, arguments, words in ((Needs, (1,), "making a copy of Needs failed"), (Reads, (), "of Reads failed")):
        AutoModel.register(Wave, kind, exist_ok=True)
        try:
            with pytest.raises(ModelError, match=words):
                layers((kind(Wave(), *arguments), tokenizer), tmp_path)
        finally:
            MODEL_MAPPING._extra_content.clear()


FOR_NAMES_ALONE: dict[str, Any] = {
    "random_init": 0,
    "end_token": False,
    "token": "hf_secret",
    "local_files_only": True,
    "model_kwargs": {"a": 1},
    "processor_kwargs": {"a": 1},
}


@pytest.mark.parametrize("option", FOR_NAMES_ALONE)
def test_what_a_loaded_model_cannot_be_is_one_line(option: str) -> None:
    with pytest.raises(ModelError, match=f"expected no {option} for a loaded model, got (?!'hf_secret')"):
        lp.Model((None, None), **{option: FOR_NAMES_ALONE[option]})


def test_a_loaded_model_is_run_like_a_named_one_and_loaded_as_it_is() -> None:
    named = lp.Model("a", token="hf_secret", local_files_only=True, model_kwargs={"a": 1}, max_length=9)
    loaded = lp.Model.of((None, None), like=named)
    assert (loaded.max_length, loaded.token, loaded.local_files_only, loaded.model_kwargs) == (9, None, False, {})


def test_a_sentence_transformer_without_an_encoder_is_one_line() -> None:
    static = SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=4)])
    words = "a SentenceTransformer whose first module is a model of transformers, got a SentenceTransformer"
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

    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", refuse)
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


def test_what_cannot_be_taken_is_said(tmp_path: Path) -> None:
    model, tokenizer = loaded(Path(save_tiny("bert", tmp_path / "bert")))
    with pytest.raises(ModelError, match=r"expected the name of a model, .* got a BertModel"):
        resolve(model)
    with pytest.raises(ModelError, match="got a int"):
        resolve(3)  # type: ignore[arg-type]
    checkpoint = resolve((model, tokenizer))
    with pytest.raises(ModelError, match="it was passed loaded, without its head; save it and pass the folder"):
        check_masked_lm(checkpoint)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(ModelError, match="was changed after it was resolved: resolve it again"):
        load_encoder(checkpoint, device="cpu")
    model.encoder.layer[0].output.dense = torch.nn.Identity()
    with pytest.raises(ModelError, match=r"lacks 2 of its weights \(such as encoder\.layer\.0\.output\.dense\.bias"):
        load_encoder((model, tokenizer), device="cpu")
