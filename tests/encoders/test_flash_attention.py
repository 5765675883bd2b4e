"""Flash attention takes 16 bits alone: models are looked at with another one, and computed with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel, modeling_utils

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel, load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.extraction.check import examine
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.shrinking.teacher import block_embeddings, tokenized
from tests.models import TEXTS, save_tiny
from tests.toy_task import toy_task

FLASH: Any = {"attn": "flash_attention_2", "dtype": "bfloat16", "device": "cpu"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Have transformers take a stand-in for flash attention; return the dtypes that it is given."""
    given: list[torch.dtype] = []

    def stand_in(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
    ) -> tuple[Tensor, None]:
        given.append(query.dtype)
        if query.dtype == torch.float32:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", stand_in)
    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda *_, **how: True)
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda *_, **how: None)
    return given


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "store"))
    return Model(str(save_tiny("bert", tmp_path / "model")), **FLASH)


def test_texts_are_embedded_by_it(model: Model, calls: list[torch.dtype]) -> None:
    embeddings = extract(model, TEXTS)
    assert set(calls) == {torch.bfloat16}
    plain = extract(Model(model.name, **(FLASH | {"attn": "sdpa"})), TEXTS)
    for layer in range(embeddings.n_layers):
        np.testing.assert_allclose(embeddings.layer(layer), plain.layer(layer), atol=0.1)


def test_truncated_models_are_trained_by_it(model: Model, calls: list[torch.dtype]) -> None:
    finetune(model, toy_task(), (1,), seeds=(0,), protocol=Protocol(epochs=1))
    assert set(calls) == {torch.bfloat16}


def test_models_of_some_blocks_have_it(model: Model, calls: list[torch.dtype]) -> None:
    whole = SharedModel(resolve(model))
    block_embeddings(whole, tokenized(whole, TEXTS), (1, 3))
    assert set(calls) == {torch.bfloat16}


def test_it_is_the_models_again_once_it_was_looked_at(model: Model, calls: list[torch.dtype]) -> None:
    encoder: Encoder = load_encoder(Model(model.name, **FLASH))
    assert encoder.model.config._attn_implementation == "flash_attention_2"
    assert encoder.padding_invariant
    assert all(check.passed for check in examine(encoder).checks)
    assert encoder.model.config._attn_implementation == "flash_attention_2"
    assert set(calls) == {torch.bfloat16}


def test_float32_is_refused_with_what_to_use(model: Model) -> None:
    message = (
        "expected dtype bfloat16 or float16 with attn flash_attention_2, which does not support float32, got float32"
    )
    with pytest.raises(ModelError, match=message):
        load_encoder(Model(model.name, **(FLASH | {"dtype": "float32"})))


def test_attention_that_cannot_be_changed_is_refused(
    model: Model, calls: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreTrainedModel, "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(ModelError, match=r"the attention of .* cannot be changed to flash_attention_2: use attn auto"):
        load_encoder(Model(model.name, **FLASH))
    assert not calls
