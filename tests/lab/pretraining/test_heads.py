"""Heads for masked language modelling, architecture by architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, DebertaV2ForMaskedLM, PreTrainedModel

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.lab.pretraining.masking import check_masked_lm, logits_at, with_masked_lm_head
from tests.few import few_architectures
from tests.models import ARCHITECTURES, VOCABULARY, save_tiny, tiny_config, tiny_tokenizer

WITHOUT = {"gpt2", "llama", "qwen3", "t5"}
WITH = [name for name in ARCHITECTURES if name not in WITHOUT]
UNTIED = {"eurobert"}


def head_of(folder: Path, *, seed: int = 0, random_init: int | None = None) -> tuple[Any, tuple[str, ...]]:
    checkpoint = resolve(Model(str(folder), random_init=random_init))
    return with_masked_lm_head(checkpoint, load_encoder(checkpoint, device="cpu"), seed=seed)


def save_with_head(name: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """Write a tiny model with its head, all of whose weights show."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: PreTrainedModel = AutoModelForMaskedLM.from_config(tiny_config(name, **changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


def a_batch() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(VOCABULARY), (3, 9), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}, (torch.rand(3, 9, generator=rng) < 0.4) & mask.bool()


@pytest.mark.parametrize("name", few_architectures(WITH))
def test_the_checkpoints_own_head_gives_its_own_scores(name: str, tmp_path: Path) -> None:
    """Scores at the selected positions alone are those of the whole model of transformers."""
    original = save_with_head(name, tmp_path)
    model, fresh = head_of(tmp_path)
    batch, selected = a_batch()
    with torch.inference_mode():
        expected = original(**batch).logits[selected]
        logits = logits_at(model, batch, selected)
    assert fresh == ()
    assert logits.shape == (selected.sum(), len(VOCABULARY))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", few_architectures(WITH))
def test_a_missing_head_is_fresh_and_tied(name: str, tmp_path: Path) -> None:
    folder = save_tiny(name, tmp_path)
    checkpoint = resolve(str(folder))
    encoder = load_encoder(checkpoint, device="cpu")
    model, fresh = with_masked_lm_head(checkpoint, encoder, seed=0)
    assert fresh
    assert model.base_model is encoder.model
    words, scores = model.get_input_embeddings(), model.get_output_embeddings()
    assert (scores.weight is words.weight) == (name not in UNTIED)
    assert words is encoder.model.get_input_embeddings()
    batch, selected = a_batch()
    assert torch.isfinite(logits_at(model, batch, selected)).all()
    # none is what was in the memory: biases are 0, norms 1, matrices small
    weights = dict(model.named_parameters(remove_duplicate=False))
    for weight_name in fresh:
        weight = weights[weight_name].detach()
        if weight.ndim > 1 and not weight_name.endswith("bias"):
            assert 0 < weight.std() < 0.2, weight_name
        else:
            assert (weight == float(not weight_name.endswith("bias"))).all(), weight_name


def test_the_head_that_microsoft_published_for_deberta_is_found(tmp_path: Path) -> None:
    """Its weights have the names of `legacy=False`, its configuration does not say so."""
    original = save_with_head("deberta-v3", tmp_path, legacy=False)
    assert isinstance(original, DebertaV2ForMaskedLM)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"legacy": false', '"legacy": true'))
    model, fresh = head_of(tmp_path)
    batch, selected = a_batch()
    with torch.inference_mode():
        torch.testing.assert_close(logits_at(model, batch, selected), original(**batch).logits[selected])
    assert fresh == ()


def test_tokenizers_without_a_mask_are_refused(tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path, tokenizer=tiny_tokenizer(mask_token=None))
    with pytest.raises(ModelError, match="its tokenizer has no mask token; expected an encoder with a mask token"):
        check_masked_lm(resolve(str(folder)))


def test_a_mask_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path, tokenizer=tiny_tokenizer(mask_token="<mask>"))
    with pytest.raises(
        ModelError, match=f"it knows {len(VOCABULARY)} tokens, but the mask is number {len(VOCABULARY)}"
    ):
        check_masked_lm(resolve(str(folder)))
