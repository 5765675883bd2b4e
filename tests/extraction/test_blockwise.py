"""A model whose blocks are in memory one at a time gives the embeddings of the whole model, or says why it cannot."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from layerprobe.context import settings
from layerprobe.encoders.blockwise import BlockByBlock
from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, DegenerateLayerError, ModelError, StoreError, UnsupportedArchitectureError
from layerprobe.extraction import embeddings as module
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.results.estimate import Estimate
from tests.few import few, few_architectures
from tests.images import save_towers
from tests.models import ARCHITECTURES, ROTARY, SIZES, TEXTS, given, save_tiny

FULL = "full_attention"
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2", {**SIZES, **ROTARY, "sliding_window": 4}),
    "gemma3": (
        "gemma3_text",
        {**SIZES, **ROTARY, "sliding_window": 4, "layer_types": [FULL, "sliding_attention", FULL]},
    ),
    "mistral": ("mistral", {**SIZES, **ROTARY}),
    "gpt-neox": ("gpt_neox", SIZES),
    "gpt-neo": (
        "gpt_neo",
        {
            **SIZES,
            "num_layers": 3,
            "num_heads": 2,
            "attention_types": [[["global", "local", "local"], 1]],
            "window_size": 4,
        },
    ),
    "mamba": ("mamba", {**SIZES, "state_size": 4}),
    "squeezebert": (
        "squeezebert",
        {
            **SIZES,
            "embedding_size": 16,
            "q_groups": 2,
            "k_groups": 2,
            "v_groups": 2,
            "post_attention_groups": 1,
            "intermediate_groups": 2,
            "output_groups": 2,
        },
    ),
    "bigbird": ("big_bird", {**SIZES, "block_size": 4, "num_random_blocks": 1}),
    "xlnet": ("xlnet", {"vocab_size": SIZES["vocab_size"], "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24}),
    "gpt2-scaled": ("gpt2", {**SIZES, "scale_attn_by_inverse_layer_idx": True}),
}

ALIKE = (
    "bert",
    "deberta-v3",
    "distilbert",
    "gemma3",
    "electra-projected",
    "fnet",
    "gpt2",
    "llama",
    "mamba",
    "mistral",
    "modernbert",
    "mpnet",
    "qwen3",
    "roberta-prelayernorm",
    "xlnet",
)


@pytest.fixture(autouse=True)
def more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models of further architectures."""
    for name, kind in MORE.items():
        monkeypatch.setitem(ARCHITECTURES, name, kind)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder."""
    return save_tiny("bert", tmp_path_factory.mktemp("bert"))


def options(folder: Path, **changes: Any) -> Model:
    """Options with a store of their own."""
    return Model(cache_dir=folder, device="cpu", **changes)


def both_ways(model: Path, folder: Path, **changes: Any) -> tuple[Embeddings, Embeddings]:
    """Embed the texts as always, and block by block."""
    whole = extract(given(model, options(folder / "whole", **changes)), TEXTS)
    return whole, extract(given(model, options(folder / "blocks", **changes)), TEXTS, blockwise=True)


def assert_alike(whole: Embeddings, blocks: Embeddings) -> None:
    """Assert that every layer is the same to rounding, in an entry of the same name."""
    assert blocks.fingerprint == whole.fingerprint
    assert blocks.n_layers == whole.n_layers
    for layer in range(whole.n_layers):
        expected = whole.layer(layer)
        np.testing.assert_allclose(blocks.layer(layer), expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    kept = blocks.stored.manifest.description
    assert kept["model"] == whole.stored.manifest.description["model"]
    assert kept["max_length"] == whole.stored.manifest.description["max_length"]


@pytest.mark.parametrize("name", few_architectures(ALIKE))
def test_every_layer_is_that_of_the_whole_model(name: str, tmp_path: Path) -> None:
    assert_alike(*both_ways(save_tiny(name, tmp_path / "model"), tmp_path))


@pytest.mark.parametrize("pooling", few(["cls", "last", "max"], lambda pooling: pooling == "last"))
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_so_it_is_with_every_pooling(name: str, pooling: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    assert_alike(*both_ways(model, tmp_path, pooling=pooling, batch_tokens=16, prompt="a "))


@pytest.mark.parametrize(
    "changes", [{"norm": "raw"}, {"dtype": "bfloat16"}, {"max_length": 5}], ids=lambda each: next(iter(each))
)
def test_so_it_is_with_other_options(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_alike(*both_ways(save_tiny("llama", tmp_path / "model"), tmp_path, **changes))


def test_weights_in_shards_or_with_a_prefix_or_old_names_are_found(bert: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(bert)
    for name, rename in (
        ("prefix", lambda key: f"bert.{key}"),
        (
            "old",
            lambda key: key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
        ),
    ):
        folder = shutil.copytree(bert, tmp_path / name)
        save_file(
            {rename(key): value for key, value in model.state_dict().items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        assert_alike(*both_ways(folder, tmp_path / f"{name}-store"))
    sharded = shutil.copytree(bert, tmp_path / "sharded", ignore=shutil.ignore_patterns("model.safetensors"))
    model.save_pretrained(sharded, max_shard_size="8KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert_alike(*both_ways(sharded, tmp_path / "sharded-store"))


def test_many_shards_of_the_store_are_written(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.store.store.MIN_SHARD_ROWS", 2)
    monkeypatch.setattr("layerprobe.store.store.MAX_SHARD_ROWS", 2)
    whole, blocks = both_ways(bert, tmp_path, max_length=6)
    assert blocks.stored.manifest.n_shards == 3
    assert_alike(whole, blocks)
    assert blocks.warnings == whole.warnings != ()
    (entry,) = tmp_path.joinpath("blocks", "embeddings").iterdir()
    next(entry.glob("*.safetensors")).unlink()
    assert_alike(whole, extract(given(bert, options(tmp_path / "blocks", max_length=6)), TEXTS, blockwise=True))


def test_what_is_there_is_read_without_the_model(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = extract(given(bert, options(tmp_path)), TEXTS, blockwise=True)
    with monkeypatch.context() as patch:
        for name in ("load", "first_use", "open_blocks"):
            patch.setattr(module, name, lambda *args: pytest.fail("the model was loaded"))
        for blockwise in (False, True):
            assert extract(given(bert, options(tmp_path)), TEXTS, blockwise=blockwise).fingerprint == first.fingerprint
    # the whole model was not looked at yet
    extract(given(bert, options(tmp_path)), TEXTS[:2])
    assert len(list(tmp_path.joinpath("results", "first-use").iterdir())) == 2


def test_no_more_than_a_block_is_in_memory(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    layer = BlockByBlock.layer

    def counted(self: BlockByBlock, *args: Any) -> Any:
        sizes.append(sum(p.numel() for p in self.encoder.model.parameters() if not p.is_meta))
        return layer(self, *args)

    monkeypatch.setattr(BlockByBlock, "layer", counted)
    found = extract(given(bert, options(tmp_path)), TEXTS, blockwise=True)
    embeddings, one, two, three = found.model.parameters
    assert one - embeddings == two - one == three - two
    # looked at: layers 0 to 2; embedded: layers 0 to 3
    assert sizes == [embeddings, one, one, embeddings, one, one, one]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("albert", "all its blocks are one"),
        ("t5", "a block hands more to the next one than its states, so that layer 2 would be another"),
        ("xlm", "it does not run with one of its blocks"),
        ("nomic-bert", "its files have no weight layers.0.*, which transformers makes of others"),
        ("squeezebert", "its blocks are not in a list of their own"),
        ("deberta-v2-conv", "something that stands between two blocks computes, too, so that layer 0 would be another"),
        ("bigbird", "short texts change the model for good"),
    ],
)
def test_what_is_not_alike_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    with pytest.raises(UnsupportedArchitectureError, match=f"cannot be embedded block by block: {reason}"):
        extract(given(model, options(tmp_path / "store")), TEXTS, blockwise=True)
    assert not tmp_path.joinpath("store", "embeddings").exists()


def test_weights_that_are_read_whole_are_refused(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "bin", ignore=shutil.ignore_patterns("model.safetensors"))
    torch.save(AutoModel.from_pretrained(bert).state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no safetensors, and other files are read whole: expected model.safet"):
        extract(given(folder, options(tmp_path)), TEXTS, blockwise=True)
    with pytest.raises(ModelError, match=r"\(random init 1\) has no file of weights to read block by block"):
        extract(given(Model(str(bert), random_init=1), options(tmp_path)), TEXTS, blockwise=True)
    with pytest.raises(
        DataError, match="--blockwise, which is torch's on this machine, or --backend openvino, got both"
    ):
        extract(given(bert, options(tmp_path, backend="openvino")), TEXTS, blockwise=True)
    towers = save_towers("clip", tmp_path / "towers")
    with pytest.raises(UnsupportedArchitectureError, match="that is for models of texts, of one tower"):
        extract(given(towers, options(tmp_path)), TEXTS, blockwise=True)
    with pytest.raises(DataError, match="or --ray, got both: leave one out"):
        extract(given(bert, options(tmp_path)), TEXTS, ray="local", blockwise=True)


def test_one_that_is_stopped_leaves_nothing_half_written(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(task: str, done: float, total: float) -> None:
        if done > total / 2 and task != "checking layers":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"), settings(progress=stop):
        extract(given(bert, options(tmp_path)), TEXTS, blockwise=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embeddings", "locks", "results"]
    (entry,) = tmp_path.joinpath("embeddings").iterdir()
    assert not list(entry.glob("*.safetensors"))
    monkeypatch.setattr("layerprobe.store.store.shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))
    with pytest.raises(StoreError, match=r"of free space in .* to embed block by block, got 9.8 KiB"):
        extract(given(bert, options(tmp_path)), TEXTS, blockwise=True)
    monkeypatch.undo()
    whole = extract(given(bert, options(tmp_path / "whole")), TEXTS)
    assert_alike(whole, extract(given(bert, options(tmp_path)), TEXTS, blockwise=True))


def test_what_it_takes_is_said_before(bert: Path, tmp_path: Path) -> None:
    plans: list[Estimate] = []
    found = extract(given(bert, options(tmp_path)), TEXTS, blockwise=True, on_plan=plans.append)
    (plan,) = plans
    parameters, n_texts = found.model.parameters, len(found.distinct)
    assert plan["weights"] == (bert / "model.safetensors").stat().st_size
    assert plan["outside"] == 4 * parameters[0]
    assert plan["block"] == 4 * (parameters[1] - parameters[0])
    tokens = [len(tokenized) for tokenized in resolve(bert).tokenizer(list(found.distinct))["input_ids"]]
    # all texts are one batch, padded to the longest
    assert plan["meanwhile"] == 4 * found.model.hidden_size * (n_texts * max(tokens) + found.n_layers * n_texts)
    assert "Block by block, files of " in plan.sentence
    assert plan.sentence.startswith(plan.title)


def test_weights_that_are_not_finite_are_found(bert: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(bert)
    model.encoder.layer[2].output.dense.bias.data[:] = torch.inf
    folder = shutil.copytree(bert, tmp_path / "model")
    model.save_pretrained(folder)
    with pytest.raises(DegenerateLayerError, match=r"layer 3 of .* is not finite for 5 of 5 texts"):
        extract(given(folder, options(tmp_path / "store")), TEXTS, blockwise=True)


def test_a_model_that_does_not_fit_is_named_before_it_is_loaded(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extract(given(bert, options(tmp_path / "fits")), TEXTS)
    assert "--blockwise" not in caplog.text
    monkeypatch.setattr("layerprobe.encoders.loading._available_memory", lambda: 30_000)
    extract(given(bert, options(tmp_path / "does not")), TEXTS)
    assert (
        "of memory in float32, and 29.3 KiB are free: embed its texts with `layerprobe extract --blockwise`"
        in caplog.text
    )
