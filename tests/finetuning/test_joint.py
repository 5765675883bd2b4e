"""One run with a loss at every layer: the same losses and gradients as layer by layer, and a model to cut anywhere."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel

from layerprobe.encoders.batching import collate
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.finetuning import runs
from layerprobe.finetuning.losses import prepared_sides
from layerprobe.finetuning.outcomes import RunOutputs, read_outputs
from layerprobe.finetuning.runs import run_directory
from layerprobe.finetuning.step import FineTuner, embed
from layerprobe.finetuning.tmft import fine_tune, layer_weights
from layerprobe.finetuning.values import Protocol, Runs, Weighting
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Task
from tests.few import few_architectures
from tests.finetuning.sweeps import one_run, runs_of
from tests.finetuning.test_tmft import STS, broken, trainer_of, without_dropout
from tests.models import ARCHITECTURES, MIXES_PADDING, N_BLOCKS, save_tiny
from tests.toy_task import TOY_KINDS, toy_task_of

SHORT = Protocol(learning_rate=1e-3, epochs=3, batch_size=8)


def fine_tune_jointly(encoder: Encoder, task: Task, *, protocol: Protocol, **options: Any) -> tuple[Runs, RunOutputs]:
    return fine_tune(encoder, encoder.n_layers - 1, task, protocol=protocol, weighting="falling", **options)


@pytest.fixture(scope="module")
def run(encoder: Encoder, task: Task) -> Runs:
    run, _ = fine_tune_jointly(encoder, task, protocol=SHORT)
    return run


def numbers(run: Runs) -> Runs:
    return tuple(dataclasses.replace(layer, seconds=0.0, peak_memory=0) for layer in run)


# ---- the layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few_architectures(sorted(ARCHITECTURES)))
def test_every_layer_is_what_the_truncated_model_outputs(tmp_path: Path, name: str) -> None:
    save_tiny(name, tmp_path)
    encoder = load_encoder(str(tmp_path), device="cpu")
    assert encoder.padding_invariant == (name not in MIXES_PADDING)
    texts = encoder.tokenize(["one two three", "four five"])
    whole = embed(encoder, TruncatedEncoder(encoder, N_BLOCKS, every=True).eval(), texts, [0, 1], Protocol())
    for layer in range(encoder.n_layers):
        (alone,) = embed(encoder, TruncatedEncoder(encoder, layer).eval(), texts, [0, 1], Protocol())
        torch.testing.assert_close(whole[layer], alone, rtol=1e-4, atol=1e-5)


def test_the_norm_is_that_of_the_copy(tmp_path: Path) -> None:
    """Training the copy must train its own final norm, and leave the encoder's as it is."""
    save_tiny("gpt2", tmp_path)
    encoder = load_encoder(str(tmp_path), device="cpu")
    model = TruncatedEncoder(encoder, N_BLOCKS, every=True)
    batch = collate(encoder.tokenize(["one two"]), [0])
    sum(state.sum() for state in model.layer_states(batch)).backward()  # type: ignore[union-attr]
    assert encoder.stack.tail
    assert all(parameter.grad is None for parameter in encoder.model.parameters())
    assert sum(parameter.grad is not None for parameter in model.parameters()) > 10


# ---- the gradient -------------------------------------------------------------------------------------


def test_the_gradient_is_the_weighted_sum_of_the_layers_own(encoder: Encoder, task: Task) -> None:
    encoder, rows = without_dropout(encoder), np.arange(8)
    prepared = prepared_sides(encoder, task.train, max_length=64)
    weights = np.array([1.0, 0.75, 0.5, 0.25])
    protocol = Protocol(max_grad_norm=1e9)
    model = TruncatedEncoder(encoder, N_BLOCKS, every=True)
    joint = FineTuner(
        encoder, model, protocol, steps_per_epoch=8, criteria=[STS] * 4, weights=lambda step: weights, batch_tokens=40
    )
    losses = joint.update(prepared, rows)
    summed: dict[str, Any] = {}
    for layer, weight in enumerate(weights):
        alone = trainer_of(encoder, protocol, layer=layer)
        torch.testing.assert_close(alone.update(prepared, rows)[0], losses[layer], rtol=1e-4, atol=1e-6)
        for name, parameter in alone.model.named_parameters():
            if parameter.grad is not None:
                summed[name] = summed.get(name, 0) + weight * parameter.grad.to_dense()
    gradients = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == summed.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, summed[name], rtol=1e-3, atol=1e-6)


def test_a_naive_loop_has_the_same_losses(encoder: Encoder, task: Task) -> None:
    encoder = without_dropout(encoder)
    protocol = Protocol(learning_rate=1e-3, epochs=1, batch_size=8, warmup=0.0, weight_decay=0.0)
    criteria = [STS] * encoder.n_layers
    falling = layer_weights("falling", encoder.n_layers, seed=0)
    trainer = FineTuner(
        encoder,
        TruncatedEncoder(encoder, N_BLOCKS, every=True),
        protocol,
        steps_per_epoch=8,
        criteria=criteria,
        weights=falling,
    )
    prepared = prepared_sides(encoder, task.train, max_length=64)
    batches = np.random.default_rng(0).permutation(64).reshape(8, 8)
    losses = [trainer.update(prepared, rows).tolist() for rows in batches[:4]]

    model = copy.deepcopy(encoder.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step, rows in enumerate(batches[:4]):
        optimizer.param_groups[0]["lr"] = 1e-3 * (8 - step) / 8
        pooled = []
        for side in (task.train.first, task.train.second):
            assert side is not None
            tokens = encoder.tokenizer([side[row] for row in rows], padding=True, return_tensors="pt")
            mask = tokens["attention_mask"].unsqueeze(-1)
            states = model(**tokens, output_hidden_states=True).hidden_states
            pooled.append([(state * mask).sum(1) / mask.sum(1) for state in states])
        gold = torch.tensor([task.train.targets[row] for row in rows])
        by_layer = [F.mse_loss(F.cosine_similarity(u, v), gold) for u, v in zip(*pooled, strict=True)]
        loss = sum(weight * each for weight, each in zip((1, 0.75, 0.5, 0.25), by_layer, strict=True))
        assert isinstance(loss, torch.Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert losses[step] == pytest.approx([each.item() for each in by_layer], abs=2e-5)


@pytest.mark.parametrize("weighting", ["falling", "equal", "random", "sandwich"])
def test_weights_say_which_layers_count(weighting: Weighting) -> None:
    at = layer_weights(weighting, 5, seed=3)
    drawn = np.array([at(step) for step in range(200)])
    assert drawn.shape == (200, 5)
    np.testing.assert_array_equal(drawn, [layer_weights(weighting, 5, seed=3)(step) for step in range(200)])
    expected = {"falling": {3.0}, "equal": {5.0}, "random": {1.0}, "sandwich": {2.0, 3.0}}
    assert set(drawn.sum(axis=1).round(9).tolist()) == expected[weighting]
    assert (drawn.sum(axis=0) > 0).all()
    if weighting in ("random", "sandwich"):
        assert (drawn != [layer_weights(weighting, 5, seed=4)(step) for step in range(200)]).any()
    if weighting == "sandwich":
        assert (drawn[:, [0, -1]] == 1).all()


# ---- the run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOY_KINDS)
def test_outputs_have_the_scores_of_the_run(encoder: Encoder, kind: str) -> None:
    task = toy_task_of(kind)
    run, outputs = fine_tune_jointly(encoder, task, protocol=dataclasses.replace(SHORT, epochs=1))
    for layer in range(4):
        scored = evaluate_outputs(kind, outputs.of(layer), task.test.gold, threshold=run[layer].threshold)
        assert scored.metrics == run[layer].test
        validation = evaluate_outputs(kind, outputs.of(layer, "validation"), task.validation.gold)
        assert validation.metrics == run[layer].validation


def test_the_saved_model_can_be_cut_at_any_layer(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    run, outputs = fine_tune_jointly(encoder, task, protocol=SHORT, save_to=tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.num_hidden_layers == 3
    loaded = load_encoder(str(tmp_path), device="cpu")
    test = prepared_sides(loaded, task.test, max_length=SHORT.max_length)
    for layer in range(4):
        (embeddings,) = embed(
            loaded, TruncatedEncoder(loaded, layer).eval(), test.texts, range(len(test.texts.lengths)), SHORT
        )
        first, second = (embeddings[side] for side in test.sides)
        cosines = F.cosine_similarity(first, second)
        np.testing.assert_allclose(cosines.detach(), outputs.of(layer), atol=1e-4)
    assert run[-1].parameters == sum(p.numel() for p in TruncatedEncoder(encoder, N_BLOCKS, every=True).parameters())


# ---- a layer that fails -------------------------------------------------------------------------------


def spoiled(encoder: Encoder) -> Encoder:
    return broken(encoder, lambda model: model.encoder.layer[1].output.dense.weight.fill_(torch.inf))


def test_a_layer_without_a_finite_loss_is_reported_and_the_others_go_on(encoder: Encoder, task: Task) -> None:
    run, outputs = fine_tune_jointly(spoiled(encoder), task, protocol=SHORT)
    assert [bool(layer.error) for layer in run] == [False, False, True, True]
    assert run[2].error.startswith("the loss at layer 2 became nan at step 1 of 24, in epoch 1: lower")
    assert [bool(layer.test) for layer in run] == [True, True, False, False]
    assert [len(layer.epochs) for layer in run] == [3, 3, 0, 0]
    assert np.isnan(outputs.of(2)).all()
    assert np.isfinite(outputs.of(1)).all()
    assert run[1].epochs[-1].train_loss < run[1].epochs[0].train_loss


# ---- on disk ------------------------------------------------------------------------------------------


def test_a_joint_run_is_read_and_not_repeated(
    encoder: Encoder, task: Task, tmp_path: Path, run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = one_run(runs_of(lambda: encoder, tmp_path, task, SHORT), 3, 0, scan=True)
    assert numbers(made) == numbers(run)
    directory = run_directory(tmp_path, 3, 0, "falling")
    assert {layer.directory for layer in made} == {directory}
    outputs = read_outputs(directory)
    assert outputs is not None
    assert outputs.layers == (0, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.delattr(runs, "fine_tune")
        assert one_run(runs_of(lambda: encoder, tmp_path, task, SHORT), 3, 0, scan=True) == made
    (directory / "outputs.safetensors").unlink()
    again = one_run(runs_of(lambda: encoder, tmp_path, task, SHORT), 3, 0, scan=True)
    assert numbers(again) == numbers(run)
