"""Low-rank adapters: what is trained, what is left, and that they are what the formula says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import DataError, ModelError
from layerprobe.files.serialisation import to_json
from layerprobe.finetuning.losses import CosineScore, prepared_sides
from layerprobe.finetuning.step import FineTuner, prepare_model
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.values import Task
from tests.finetuning.finished import evaluated
from tests.models import N_BLOCKS, save_tiny, tiny_model

LORA = Protocol(learning_rate=3e-3, epochs=2, batch_size=8, lora=2)


def trained_names(model: nn.Module) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def test_only_what_is_of_low_rank_changes(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    (run,), _ = fine_tune(encoder, 2, task, protocol=LORA, save_to=tmp_path / "model")
    saved = load_encoder(str(tmp_path / "model"), device="cpu")
    before, after = TruncatedEncoder(encoder, 2).model.state_dict(), saved.model.state_dict()
    assert before.keys() == after.keys()
    ranks = {
        name: int(torch.linalg.matrix_rank(after[name] - before[name], atol=1e-6))
        for name in before
        if before[name].ndim == 2
    }
    changed = {name: rank for name, rank in ranks.items() if rank}
    assert set(changed.values()) <= {1, 2}
    assert len(changed) == 12
    assert all(".layer." in name for name in changed)
    test = prepared_sides(saved, task.test, max_length=LORA.max_length)
    scores = evaluated(saved, TruncatedEncoder(saved, 2), test, LORA, CosineScore(width=16, n_labels=0), kind="sts")
    assert scores.metrics == pytest.approx(run.test, abs=1e-3)


def test_without_a_block_the_embedding_tables_have_them(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    fine_tune(encoder, 0, task, protocol=LORA, save_to=tmp_path / "model")
    saved, plain = load_encoder(str(tmp_path / "model"), device="cpu"), TruncatedEncoder(encoder, 0).model
    name = "embeddings.word_embeddings.weight"
    change = saved.model.state_dict()[name] - plain.state_dict()[name]
    assert 0 < int(torch.linalg.matrix_rank(change, atol=1e-6)) <= 2


@pytest.mark.parametrize("modules", [(), ("query", "value")], ids=["all", "named"])
@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_a_block_that_is_not_run_has_none(family: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    """ModernBERT keeps a block for layer 0, whose output is not read."""
    model = TruncatedEncoder(load_encoder(str(save_tiny(family, tmp_path)), device="cpu"), 0)
    prepare_model(model, dataclasses.replace(LORA, lora_modules=modules))
    names = trained_names(model)
    assert names
    assert all("lora_embedding_" in name for name in names)


@pytest.mark.parametrize("joint", [False, True])
def test_computing_activations_again_changes_no_gradient(encoder: Encoder, task: Task, joint: bool) -> None:
    still = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    still.load_state_dict(encoder.model.state_dict(), strict=False)
    encoder = dataclasses.replace(encoder, model=still)
    prepared, gradients = prepared_sides(encoder, task.train, max_length=64), []
    for again in (False, True):
        protocol = Protocol(gradient_checkpointing=again)
        model = TruncatedEncoder(encoder, N_BLOCKS, every=joint)
        prepare_model(model, protocol)
        criteria = [CosineScore(width=16, n_labels=0) for _ in model.layers]
        tuner = FineTuner(encoder, model, protocol, steps_per_epoch=8, criteria=criteria)
        model.train()
        tuner._gradients(prepared, np.arange(8), np.ones(len(criteria)))
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert len(gradients[0]) > 10
    for plain, again in zip(*gradients, strict=True):
        assert_close(again, plain, atol=1e-6, rtol=1e-5)


def test_modules_are_named(encoder: Encoder) -> None:
    model = TruncatedEncoder(encoder, 2)
    prepare_model(model, dataclasses.replace(LORA, lora_modules=("query", "attention.self.value")))
    assert len(trained_names(model)) == 2 * 2 * 2
    message = "no linear module of .* is named q_proj: choose from dense, key, query, value, or give the end of a path"
    with pytest.raises(ModelError, match=message):
        prepare_model(TruncatedEncoder(encoder, 2), dataclasses.replace(LORA, lora_modules=("q_proj", "query")))


def test_a_protocol_without_them_is_written_as_before() -> None:
    assert "lora" not in to_json(Protocol())
    assert "gradient_checkpointing" not in to_json(Protocol())
    with pytest.raises(DataError, match="expected alpha and modules with a rank only"):
        Protocol(lora_modules=("query",))
