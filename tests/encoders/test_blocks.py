"""A model of some blocks is what taking the other modules out of the list gives, whatever its architecture."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, ModelDescription
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json, to_json
from tests.few import few_architectures
from tests.models import ARCHITECTURES, N_BLOCKS, TEXTS, tiny_model, tiny_tokenizer

NO_LIST = ("albert", "xlm")
"""All blocks are one; a block is spread over several lists."""
FIRST_STAYS = {
    "t5": "weights that the full model lacks, such as encoder.block",  # the first block has the position embeddings
    "modernbert": "depends on the presence of others",  # the first block alone has no norm before its attention
    "deberta-v2-conv": "depends on the presence of others",  # a convolution follows the first block
}
CUT = sorted(set(ARCHITECTURES) - set(NO_LIST))


def with_modules_taken_out(encoder: Encoder, blocks: tuple[int, ...]) -> Any:
    """The oracle: the whole model, the other modules of whose list are gone."""
    model = copy.deepcopy(encoder.model)
    path = encoder.stack.blocks or ""
    parent, _, name = path.rpartition(".")
    kept = nn.ModuleList([model.get_submodule(f"{path}.{block - 1}") for block in blocks])
    setattr(model.get_submodule(parent), name, kept)
    model.config.num_hidden_layers = len(blocks)
    return model


@pytest.mark.parametrize("blocks", [(1, 3), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", few_architectures(CUT))
@torch.inference_mode()
def test_a_model_of_some_blocks(
    name: str, blocks: tuple[int, ...], loaded: Callable[..., Encoder], checkpoint: Any
) -> None:
    model = Model(checkpoint(name), blocks=blocks)
    if name in FIRST_STAYS and 1 not in blocks:
        with pytest.raises(UnsupportedArchitectureError, match=FIRST_STAYS[name]):
            load_encoder(model)
        return
    whole, cut = loaded(name), load_encoder(model)
    batch = collate(whole.tokenize(TEXTS[:3]), range(3))
    expected = with_modules_taken_out(whole, blocks)(**batch).last_hidden_state
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(list(cut.layer_states(batch))[-1][mask], expected[mask], atol=1e-5, rtol=1e-5)
    described = cut.description
    assert (described.n_blocks, described.name) == (
        len(blocks),
        f"{checkpoint(name)} (blocks {', '.join(map(str, blocks))})",
    )
    sizes = [
        after - before
        for before, after in zip(whole.description.parameters, whole.description.parameters[1:], strict=False)
    ]
    assert described.parameters[-1] == whole.description.parameters[0] + sum(sizes[block - 1] for block in blocks)
    first = TruncatedEncoder(cut, 1)(batch)
    torch.testing.assert_close(first[mask], list(cut.layer_states(batch))[1][mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NO_LIST)
def test_models_without_a_list_of_blocks_are_refused(name: str, checkpoint: Any) -> None:
    with pytest.raises(
        UnsupportedArchitectureError, match=r"are not separate modules|depends on the presence of others"
    ):
        load_encoder(Model(checkpoint(name), blocks=(1, 3)))


def test_all_blocks_are_the_whole_model(checkpoint: Any) -> None:
    whole = resolve(str(checkpoint("bert")))
    assert resolve(Model(checkpoint("bert"), blocks=(1, 2, 3))).identity == whole.identity
    cut = whole.with_blocks((1, 3))
    assert cut.identity == {**whole.identity, "blocks": (1, 3)}
    assert cut.with_blocks((2, 3)).config.num_hidden_layers == 2
    assert cut.with_blocks(None).config.num_hidden_layers == N_BLOCKS
    assert resolve(cut.asked).identity == cut.identity
    assert replace(cut.asked, blocks=None) == Model(str(checkpoint("bert")))


def test_what_is_said_of_a_model_names_its_blocks(checkpoint: Any, tmp_path: Path) -> None:
    model = Model(checkpoint("bert"), blocks=(1, 3), cache_dir=tmp_path)
    for _ in range(2):  # computed, then from the store
        described = extract(model, TEXTS).model
        assert described.blocks == (1, 3)
    assert from_json(ModelDescription, to_json(described)) == described
    assert extract(replace(model, blocks=None), TEXTS).model.blocks is None


def test_of_a_model_that_is_loaded() -> None:
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    whole, cut = load_encoder((model, tokenizer)), load_encoder(Model((model, tokenizer), blocks=[1, 3]))
    batch = collate(whole.tokenize(TEXTS[:1]), range(1))
    expected = with_modules_taken_out(whole, (1, 3))(**batch).last_hidden_state
    torch.testing.assert_close(list(cut.layer_states(batch))[-1], expected)
