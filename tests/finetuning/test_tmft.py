"""One fine-tuning run: that it does what the protocol says, and what a naive loop does."""

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.errors import TrainingError
from layerprobe.finetuning import tmft
from layerprobe.finetuning.losses import CosineScore, prepared_sides
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.tasks.values import Task
from tests.finetuning.finished import evaluated, tuned
from tests.models import tiny_model
from tests.mps import on_mps
from tests.toy_task import toy_pairs, toy_task

STS = CosineScore(width=16, n_labels=0)


def numbers(run: FineTuningRun) -> FineTuningRun:
    """A run without what differs from time to time."""
    return dataclasses.replace(run, seconds=0.0, peak_memory=0)


def without_dropout(encoder: Encoder) -> Encoder:
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.load_state_dict(encoder.model.state_dict(), strict=False)
    return dataclasses.replace(encoder, model=model)


def broken(encoder: Encoder, change: Callable[[Any], None]) -> Encoder:
    model = copy.deepcopy(encoder.model)
    with torch.no_grad():
        change(model)
    return dataclasses.replace(encoder, model=model)


def trainer_of(encoder: Encoder, protocol: Protocol, *, layer: int = 3, steps_per_epoch: int = 8) -> FineTuner:
    model = TruncatedEncoder(encoder, layer)
    return FineTuner(encoder, model, protocol, steps_per_epoch=steps_per_epoch, criteria=[STS])


@pytest.fixture(scope="module")
def run(encoder: Encoder, task: Task, protocol: Protocol) -> FineTuningRun:
    """At the last layer with seed 0."""
    return tuned(encoder, 3, task, protocol=protocol)


# ---- the protocol -------------------------------------------------------------------------------------


def test_the_default_protocol_is_the_papers() -> None:
    """Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3 and appendix."""
    assert Protocol() == Protocol(
        learning_rate=2e-5,
        weight_decay=0.01,
        epochs=10,
        batch_size=32,
        warmup=0.1,
        max_grad_norm=1.0,
        pooling="mean",
        max_length=128,  # the paper names none; no sentence of STSB is cut at this one
    )


@pytest.mark.parametrize(("limit", "clipped"), [(1e-3, True), (1e3, False)])
def test_the_gradient_norm_is_clipped(encoder: Encoder, task: Task, limit: float, clipped: bool) -> None:
    trainer = trainer_of(encoder, Protocol(max_grad_norm=limit))
    pairs = prepared_sides(encoder, task.train, max_length=64)
    trainer.update(pairs, np.arange(8))
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients).item()
    assert norm == pytest.approx(limit, rel=1e-3) if clipped else 1e-3 < norm < limit


def test_an_epoch_has_every_example_once_and_sums_losses_where_float64_is(encoder: Encoder, protocol: Protocol) -> None:
    trainer, batches = trainer_of(encoder, protocol, steps_per_epoch=2), list[np.ndarray]()
    trainer.encoder = dataclasses.replace(encoder, device=torch.device("mps"))

    def recording(pairs: Any, rows: Any) -> Tensor:
        batches.append(rows)
        return on_mps(torch.tensor([float(len(rows))]))

    trainer.update = recording  # type: ignore[method-assign]
    order = np.random.default_rng(0).permutation(13)
    (mean,) = trainer.epoch(prepared_sides(encoder, toy_pairs(13, 0), max_length=64), order, task="")
    assert [len(rows) for rows in batches] == [8, 5]
    np.testing.assert_array_equal(np.concatenate(batches), order)
    assert mean == pytest.approx((8 * 8 + 5 * 5) / 13)


# ---- the loss -----------------------------------------------------------------------------------------


def by_hand(encoder: Encoder, text: str, *, layer: int) -> np.ndarray:
    """The mean of the token states of one text alone."""
    tokens = encoder.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        states = encoder.model(**tokens, output_hidden_states=True).hidden_states[layer]
    return states[0].double().numpy().mean(axis=0)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_naive_loop_has_the_same_losses(encoder: Encoder, task: Task, layer: int) -> None:
    """The paper's way: the full model with two forward passes a pair, its hidden state at the layer, AdamW."""
    encoder = without_dropout(encoder)
    protocol = Protocol(learning_rate=1e-3, epochs=1, batch_size=8)
    n_steps, pairs = 8, task.train
    trainer = trainer_of(encoder, protocol, layer=layer)
    prepared = prepared_sides(encoder, pairs, max_length=64)
    batches = np.random.default_rng(0).permutation(64).reshape(8, 8)
    losses = [trainer.update(prepared, rows).item() for rows in batches[:5]]

    model = copy.deepcopy(encoder.model).train()
    exempt = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(exempt)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(exempt)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for number, rows in enumerate(batches[:5]):
        for group in optimizer.param_groups:  # one of eight steps is warm-up
            group["lr"] = 0.0 if number == 0 else 1e-3 * (n_steps - number) / (n_steps - 1)
        embeddings = []
        for side in (pairs.first, pairs.second):
            tokens = encoder.tokenizer([side[row] for row in rows], padding=True, return_tensors="pt")
            states = model(**tokens, output_hidden_states=True).hidden_states[layer]
            mask = tokens["attention_mask"].unsqueeze(-1)
            embeddings.append((states * mask).sum(1) / mask.sum(1))
        gold = torch.tensor([pairs.targets[row] for row in rows])
        loss = F.mse_loss(F.cosine_similarity(*embeddings), gold)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert losses[number] == pytest.approx(loss.item(), abs=1e-5)
    assert losses[0] != losses[4]


# ---- the run ------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits(
    encoder: Encoder, task: Task, protocol: Protocol, run: FineTuningRun
) -> None:
    torch.manual_seed(12345)  # the state outside does not matter
    assert numbers(tuned(encoder, 3, task, protocol=protocol)) == numbers(run)
    other = tuned(encoder, 3, task, protocol=protocol, seed=1)
    assert other.epochs != run.epochs
    assert other.seed == 1


def test_seeds_decide_dropout_beside_the_order(encoder: Encoder, protocol: Protocol) -> None:
    """With a single pair there is no order."""
    task, protocol = toy_task(train=1), dataclasses.replace(protocol, epochs=1)
    losses = {tuned(encoder, 2, task, protocol=protocol, seed=seed).epochs[0].train_loss for seed in range(3)}
    assert len(losses) == 3


def test_seeds_decide_the_order_beside_dropout(encoder: Encoder, task: Task, protocol: Protocol) -> None:
    encoder, protocol = without_dropout(encoder), dataclasses.replace(protocol, epochs=1)
    losses = {tuned(encoder, 2, task, protocol=protocol, seed=seed).epochs[0].train_loss for seed in range(3)}
    assert len(losses) == 3


def test_nothing_outside_is_changed(encoder: Encoder, task: Task, protocol: Protocol) -> None:
    weights = copy.deepcopy(encoder.model.state_dict())
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    tuned(encoder, 3, task, protocol=protocol)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    torch.testing.assert_close(encoder.model.state_dict(), weights, rtol=0, atol=0)
    assert not encoder.model.training
    assert all(parameter.grad is None for parameter in encoder.model.parameters())


def test_a_run_says_what_it_was(run: FineTuningRun, encoder: Encoder, protocol: Protocol) -> None:
    assert (run.layer, run.seed, run.protocol) == (3, 0, protocol)
    assert run.parameters == encoder.description.parameters[3]
    assert run.seconds > 0
    assert run.peak_memory is not None
    assert run.peak_memory > 10 * 2**20
    best = run.epochs[run.best_epoch - 1]
    assert run.primary == "spearman"
    assert best.validation == run.validation
    assert run.validation["spearman"] == max(epoch.validation["spearman"] for epoch in run.epochs)
    assert run.threshold is None


@pytest.mark.parametrize(
    ("scores", "best"), [((10, 30, 20), 2), ((30, 20, 10), 1), ((10, 20, 20), 2), ((-5, -9, -7), 1)]
)
def test_the_test_score_is_that_of_the_best_epoch(
    encoder: Encoder,
    task: Task,
    protocol: Protocol,
    monkeypatch: pytest.MonkeyPatch,
    scores: tuple[float, ...],
    best: int,
) -> None:
    """The validation scores are made up; the weights that the test split meets are looked at."""
    weights: list[dict[str, Tensor]] = []
    made_up = iter([*((score, 1.0) for score in scores), (77.0, 66.0)])

    def recording(
        encoder: Encoder, model: TruncatedEncoder, *arguments: Any, **settings: Any
    ) -> tuple[np.ndarray, list[Evaluation]]:
        weights.append(copy.deepcopy(model.state_dict()))
        spearman, pearson = next(made_up)
        return np.zeros((1, 2)), [Evaluation(metrics={"spearman": spearman, "pearson": pearson})]

    monkeypatch.setattr(tmft, "evaluate", recording)
    run = tuned(encoder, 1, task, protocol=protocol)
    assert (run.best_epoch, run.validation["spearman"]) == (best, scores[best - 1])
    assert run.test == {"spearman": 77.0, "pearson": 66.0}
    assert len(weights) == 4
    torch.testing.assert_close(weights[3], weights[best - 1], rtol=0, atol=0)
    for other in {1, 2, 3} - {best}:
        assert any(not torch.equal(weights[3][name], weights[other - 1][name]) for name in weights[3])


# ---- evaluation ---------------------------------------------------------------------------------------


def test_scores_are_correlations_of_cosines_by_hand(encoder: Encoder, task: Task) -> None:
    from scipy import stats

    def cosine(first: str, second: str) -> float:
        u, v = by_hand(encoder, first, layer=2), by_hand(encoder, second, layer=2)
        return float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))

    pairs = task.test
    cosines = [cosine(*pair) for pair in zip(pairs.first, pairs.second, strict=True)]
    model = TruncatedEncoder(encoder, 2).train()
    metrics = evaluated(
        encoder, model, prepared_sides(encoder, pairs, max_length=64), Protocol(), STS, kind="sts"
    ).metrics
    assert metrics["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, pairs.targets).statistic, abs=0.2)
    assert metrics["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, pairs.targets).statistic, abs=1e-3)


# ---- what fails ---------------------------------------------------------------------------------------


def test_embeddings_that_are_all_the_same_are_an_error(encoder: Encoder, task: Task) -> None:
    def flatten(model: Any) -> None:
        for embedding in model.embeddings.word_embeddings, model.embeddings.position_embeddings:
            embedding.weight.zero_()

    protocol = Protocol(learning_rate=1e-30, epochs=1)
    with pytest.raises(TrainingError, match="the embeddings at layer 1 cannot be scored: x is 1 for all 32 pairs"):
        tuned(broken(encoder, flatten), 1, task, protocol=protocol)
