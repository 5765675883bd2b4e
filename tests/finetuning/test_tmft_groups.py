"""Groups of like lengths: their gradients are those of one pass over the batch, for every kind and architecture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from layerprobe.encoders.batching import collate, padded_groups, pool
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.finetuning import step
from layerprobe.finetuning.losses import Loss, PreparedItems, prepared_sides
from layerprobe.finetuning.step import FineTuner, TableGradients
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Task
from tests.few import few_architectures
from tests.finetuning.test_tmft import without_dropout
from tests.models import ARCHITECTURES, MIXES_PADDING, save_tiny, tiny_model, tiny_tokenizer
from tests.toy_task import OF_EXAMPLES

# Lengths from 3 to 12 tokens; the two texts of a pair are not of one length.
WORDS = ("a", "b c", "d e f", "g h i j", "k l m n o p", "q r s t u v w x y z")
PAIRS = [(WORDS[i % 6], WORDS[(i * i + 1) % 6]) for i in range(13)]
# What architectures call their dropout.
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embd_pdrop"),
    *("attn_pdrop", "resid_pdrop", "dropout_rate", "embedding_dropout", "mlp_dropout"),
)


def examples(kind: str) -> Examples:
    classes = tuple(float(i % 2) for i in range(13))
    return Examples(
        first=tuple(u for u, _ in PAIRS),
        second=tuple(v for _, v in PAIRS) if KINDS[kind].pairs else None,
        targets=tuple(i / 12 for i in range(13)) if not KINDS[kind].labelled else classes,
    )


def loss_for(kind: str) -> Loss:
    torch.manual_seed(0)
    criterion: Loss = KINDS[kind].learning().loss(width=16, n_labels=2)
    return criterion


def one_pass(trainer: FineTuner, prepared: PreparedItems, rows: np.ndarray) -> Tensor:
    """The gradients of the batch, padded to its longest text, from one forward pass; the loss."""
    trainer.optimizer.zero_grad()
    sides = [side[rows] for side in prepared.sides]
    batch = collate(prepared.texts, np.concatenate(sides).tolist())
    embeddings = pool(trainer.model(batch), batch["attention_mask"], trainer.protocol.pooling)
    parts = embeddings.split(len(rows))
    outputs = trainer.criteria[0](parts[0], parts[1] if len(parts) == 2 else None)
    loss: Tensor = trainer.criteria[0].loss(outputs, torch.from_numpy(prepared.targets[rows]).float())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()[None]


def gradients(trainer: FineTuner) -> list[Tensor]:
    return [p.grad.to_dense().clone() for p in trainer.trained if p.grad is not None]


def trainer_of(encoder: Encoder, kind: str, *, layer: int = 2, batch_tokens: int | None = None) -> FineTuner:
    model = TruncatedEncoder(encoder, layer).train()
    protocol = Protocol(max_grad_norm=1e9)
    criterion = loss_for(kind)
    return FineTuner(encoder, model, protocol, steps_per_epoch=2, criteria=[criterion], batch_tokens=batch_tokens)


def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the batches that follow."""
    seen: list[tuple[int, int]] = []

    def recording(*arguments: Any) -> dict[str, Tensor]:
        batch = collate(*arguments)
        seen.append(tuple(batch["input_ids"].shape))
        return batch

    monkeypatch.setattr(step, "collate", recording)
    return seen


# ---- the gradient -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OF_EXAMPLES)
@pytest.mark.parametrize("batch_tokens", [1, 30, None])
def test_groups_add_up_to_the_gradient_of_the_batch(
    encoder: Encoder, kind: str, batch_tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = without_dropout(encoder)
    trainer, rows = trainer_of(encoder, kind, batch_tokens=batch_tokens), np.arange(13)[::-1]
    prepared = prepared_sides(encoder, examples(kind), max_length=64)
    expected_loss = one_pass(trainer, prepared, rows)
    expected = gradients(trainer)
    shapes = widths(monkeypatch)
    loss = trainer.update(prepared, rows)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(trainer), expected, rtol=1e-4, atol=1e-6)
    sides = 2 if KINDS[kind].pairs else 1
    assert len(shapes) > 1
    assert sum(n for n, _ in shapes) == 13 * sides
    if batch_tokens == 1:
        assert [n for n, _ in shapes] == [sides] * 13


def test_a_step_after_a_step_has_the_gradient_of_one_pass_too(encoder: Encoder) -> None:
    """Nothing of the first step is left in the table."""
    encoder = without_dropout(encoder)
    trainer = trainer_of(encoder, "sts", batch_tokens=24)
    prepared = prepared_sides(encoder, examples("sts"), max_length=64)
    again = trainer_of(encoder, "sts")
    trainer.update(prepared, np.arange(6))
    again.model.load_state_dict(trainer.model.state_dict())
    trainer.update(prepared, np.array([7, 8]))
    one_pass(again, prepared, np.array([7, 8]))
    torch.testing.assert_close(gradients(trainer), gradients(again), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", few_architectures(sorted(ARCHITECTURES)))
def test_every_architecture_has_the_gradient_of_texts_alone(tmp_path: Path, name: str) -> None:
    """Also where padding would change a text's states: there nothing is padded, as in evaluation."""
    config = tiny_model(name).config
    save_tiny(name, tmp_path, **{option: 0.0 for option in DROPOUTS if hasattr(config, option)})
    encoder = load_encoder(str(tmp_path), device="cpu")
    assert encoder.padding_invariant == (name not in MIXES_PADDING)
    prepared = prepared_sides(encoder, examples("sts"), max_length=64)
    trainer = trainer_of(encoder, "sts", batch_tokens=60)
    rows = np.array([4, 0, 9, 5, 7])
    total: Any = 0
    for row in rows:
        u, v = (
            pool(trainer.model(batch), batch["attention_mask"], "mean")
            for side in prepared.sides
            if side is not None
            for batch in [collate(prepared.texts, [int(side[row])])]
        )
        targets = torch.tensor([prepared.targets[row]]).float()
        total = total + trainer.criteria[0].loss(trainer.criteria[0](u, v), targets) / len(rows)
    trainer.optimizer.zero_grad()
    total.backward()
    expected = {n: p.grad.to_dense().clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    loss = trainer.update(prepared, rows)
    torch.testing.assert_close(loss, total.detach()[None], rtol=1e-4, atol=1e-5)
    scale = max(float(g.abs().max()) for g in expected.values())
    found = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for parameter, gradient in found.items():
        torch.testing.assert_close(gradient, expected[parameter], rtol=1e-3, atol=2e-5 * scale, msg=parameter)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_does_not_matter(tmp_path: Path, side: str) -> None:
    save_tiny(
        "bert",
        tmp_path,
        tokenizer=tiny_tokenizer(padding_side=side),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    encoder = load_encoder(str(tmp_path), device="cpu")
    prepared = prepared_sides(encoder, examples("sts"), max_length=64)
    assert prepared.texts.padding_side == side
    together, alone = trainer_of(encoder, "sts"), trainer_of(encoder, "sts", batch_tokens=1)
    rows = np.arange(13)
    torch.testing.assert_close(together.update(prepared, rows), alone.update(prepared, rows), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(together), gradients(alone), rtol=1e-4, atol=1e-6)


def test_the_option_reaches_the_run_and_is_a_part_of_its_name(
    folder: Path, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the name is the same as ever."""
    shapes = widths(monkeypatch)

    def run(batch_tokens: int | None) -> Any:
        options = Model(device="cpu", cache_dir=tmp_path, batch_tokens=batch_tokens)
        return finetune(Model.of(str(folder), options), task, [1], seeds=[0], protocol=Protocol(epochs=1, batch_size=8))

    small = run(10)
    assert {n for n, _ in shapes} == {1, 2}  # of up to 6 tokens: single texts in evaluation, pairs in training
    default = run(None)
    assert len(list(tmp_path.rglob("result.json"))) == 2
    shapes.clear()
    assert (run(10), run(None)) == (small, default)
    assert shapes == []


# ---- the groups ---------------------------------------------------------------------------------------


def every_cut(lengths: list[int], budget: int | None, overhead: int) -> int:
    """The least cost over all ways to cut the sorted lengths."""
    if not lengths:
        return 0
    costs = []
    for n in range(1, len(lengths) + 1):
        tokens = n * lengths[0]
        if n == 1 or budget is None or tokens <= budget:
            costs.append(tokens + overhead + every_cut(lengths[n:], budget, overhead))
    return min(costs)


@given(
    lengths=st.lists(st.integers(1, 30), max_size=9),
    budget=st.none() | st.integers(1, 100),
    overhead=st.integers(0, 40),
)
def test_groups_cost_the_least_and_have_every_row_once(lengths: list[int], budget: int | None, overhead: int) -> None:
    groups = padded_groups(lengths, budget=budget, overhead=overhead)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    sizes = [len(group) * max(lengths[row] for row in group) for group in groups]
    ordered = [lengths[row] for group in groups for row in group]
    assert ordered == sorted(lengths, reverse=True)
    assert budget is None or all(size <= budget or len(g) == 1 for size, g in zip(sizes, groups, strict=True))
    assert sum(sizes) + overhead * len(groups) == every_cut(sorted(lengths, reverse=True), budget, overhead)


@pytest.mark.parametrize("budget", [None, 10**9])
def test_a_batch_that_is_not_worth_cutting_takes_no_time(budget: int | None) -> None:
    """As on an accelerator, where the overhead is larger than any padding: so many rows have 10^10 pairs."""
    lengths = np.random.default_rng(0).integers(5, 120, 10**5).tolist()
    (group,) = padded_groups(lengths, budget=budget, overhead=step.WHOLE_BATCH)
    assert len(group) == 10**5
    assert [lengths[row] for row in group] == sorted(lengths, reverse=True)


# ---- the gradients of tables --------------------------------------------------------------------------


def test_the_gradients_of_a_table_are_the_dense_ones() -> None:
    torch.manual_seed(0)
    table, words = torch.nn.Embedding(50, 4, padding_idx=0), torch.tensor([[3, 3, 0], [7, 49, 3]])
    factor = torch.randn(2, 3, 4)
    (table(words) * factor).sum().backward()
    assert table.weight.grad is not None
    once = table.weight.grad.clone()
    table.weight.grad = None
    rows = TableGradients(table)
    for _ in range(2):
        rows.clear()
        for _ in range(3):
            (table(words) * factor).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        rows.expand()
        torch.testing.assert_close(table.weight.grad, 3 * once)
        assert not table.weight.grad.is_sparse
    rows.clear()
    assert table.weight.grad is None
    table(torch.tensor([[5]])).sum().backward()
    rows.expand()
    assert table.weight.grad is not None
    assert table.weight.grad.any(dim=1).nonzero().flatten().tolist() == [5]


def test_a_table_that_is_also_a_matrix_has_its_gradient() -> None:
    table, words = torch.nn.Embedding(9, 4), torch.tensor([[3, 5]])
    rows = TableGradients(table)
    (table(words) @ table.weight.T).sum().backward()
    rows.expand()
    assert table.weight.grad is not None
    found = table.weight.grad.clone()
    weight = table.weight.detach().clone().requires_grad_()
    (weight[words] @ weight.T).sum().backward()
    torch.testing.assert_close(found, weight.grad)
