"""What each kind of task trains: losses by hand, the head, and a whole run of each."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn import metrics as peer

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning import tmft
from layerprobe.finetuning.losses import Loss, TextClasses, TextValue, criterion_of, prepared_sides
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.tasks.kind import KINDS
from tests.finetuning.finished import evaluated, tuned
from tests.mps import on_mps
from tests.toy_task import OF_EXAMPLES, toy_task_of

LABELLED = ("paraphrase", "entailment", "classification")
rng = np.random.default_rng(0)
U, V = rng.normal(size=(2, 5, 3)).astype(np.float32)


def loss_for(kind: str, *, n_labels: int = 0) -> Loss:
    criterion: Loss = KINDS[kind].learning().loss(width=3, n_labels=n_labels)
    return criterion


def arrays(criterion: Loss) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(criterion, TextClasses)
    return criterion.head.weight.detach().double().numpy(), criterion.head.bias.detach().double().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def cosines() -> np.ndarray:
    return (U * V).sum(axis=1) / np.linalg.norm(U, axis=1) / np.linalg.norm(V, axis=1)


# ---- losses by hand -----------------------------------------------------------------------------------


def value_of(criterion: Loss, targets: np.ndarray, *, pairs: bool = True) -> float:
    outputs = criterion(torch.from_numpy(U), torch.from_numpy(V) if pairs else None)
    return criterion.loss(outputs, torch.from_numpy(targets).float()).item()


def test_sts_is_the_squared_error_of_the_cosine() -> None:
    gold = np.array([0, 0.25, 0.5, 1, 0.75])
    assert value_of(loss_for("sts"), gold) == pytest.approx(np.mean((cosines() - gold) ** 2), rel=1e-5)


def test_paraphrase_takes_the_cosine_as_a_logit() -> None:
    gold = np.array([0.0, 1, 1, 0, 1])
    probability = 1 / (1 + np.exp(-cosines()))
    expected = -np.mean(gold * np.log(probability) + (1 - gold) * np.log(1 - probability))
    assert value_of(loss_for("paraphrase", n_labels=2), gold) == pytest.approx(expected, rel=1e-5)


def test_entailment_sees_both_texts_and_their_difference() -> None:
    criterion, gold = loss_for("entailment", n_labels=4), np.array([0, 3, 1, 2, 3])
    W, b = arrays(criterion)
    assert W.shape == (4, 9)
    logits = np.concatenate([U, V, np.abs(U - V)], axis=1) @ W.T + b
    assert value_of(criterion, gold) == pytest.approx(-log_softmax(logits)[range(5), gold].mean(), rel=1e-5)


def test_classification_sees_one_text() -> None:
    criterion, gold = loss_for("classification", n_labels=2), np.array([0, 1, 1, 0, 1])
    W, b = arrays(criterion)
    assert W.shape == (2, 3)
    expected = -log_softmax(U @ W.T + b)[range(5), gold].mean()
    assert value_of(criterion, gold, pairs=False) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", OF_EXAMPLES)
def test_arrays_and_tensors_have_the_same_outputs(kind: str) -> None:
    criterion = loss_for(kind, n_labels=3)
    v = V if KINDS[kind].pairs else None
    outputs = criterion(torch.from_numpy(U), None if v is None else torch.from_numpy(v)).detach().numpy()
    np.testing.assert_allclose(criterion.outputs(U, v), outputs, rtol=1e-5, atol=1e-6)


def test_outputs_leave_a_device_without_float64() -> None:
    criterion = loss_for("regression")
    expected = criterion.outputs(U, None)
    assert isinstance(criterion, TextValue)
    criterion.head.weight = torch.nn.Parameter(on_mps(criterion.head.weight.detach()))
    np.testing.assert_array_equal(criterion.outputs(U, None), expected)


def test_only_classes_have_a_head() -> None:
    sizes = {kind: sum(p.numel() for p in loss_for(kind, n_labels=2).parameters()) for kind in OF_EXAMPLES}
    heads = {"entailment": 2 * 9 + 2, "regression": 3 + 1, "classification": 2 * 3 + 2}
    assert sizes == {"sts": 0, "paraphrase": 0, **heads}


# ---- training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LABELLED)
def test_a_kind_is_learnt(encoder: Encoder, kind: str) -> None:
    task = toy_task_of(kind, train=128)
    run = tuned(encoder, 2, task, protocol=Protocol(learning_rate=1e-2, epochs=8, batch_size=16))
    losses = [epoch.train_loss for epoch in run.epochs]
    assert losses[-1] < losses[0]
    assert run.primary == task.primary
    assert tuple(run.test) == tuple(run.validation) == KINDS[kind].metrics
    assert (run.threshold is not None) == (kind == "paraphrase")
    common = max(task.test.targets.count(target) for target in set(task.test.targets)) / len(task.test)
    assert run.test["accuracy"] > 100 * common
    assert from_json(FineTuningRun, to_json(run)) == run


def test_the_head_is_drawn_by_the_seed_and_trained(encoder: Encoder, protocol: Protocol) -> None:
    task = toy_task_of("entailment")
    torch.manual_seed(3)
    criterion = criterion_of(task, width=16)
    model = TruncatedEncoder(encoder, 1)
    trainer = FineTuner(encoder, model, protocol, steps_per_epoch=8, criteria=[criterion])
    before = arrays(criterion)
    decay = {id(p): group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert isinstance(criterion, TextClasses)
    assert decay[id(criterion.head.weight)] == protocol.weight_decay
    assert decay[id(criterion.head.bias)] == 0.0
    examples = prepared_sides(encoder, task.train, max_length=64)
    for _ in range(3):
        trainer.update(examples, np.arange(8))
    assert all((old != new).any() for old, new in zip(before, arrays(criterion), strict=True))
    torch.manual_seed(3)
    np.testing.assert_array_equal(arrays(criterion_of(task, width=16))[0], before[0])


def test_the_test_split_meets_the_head_and_the_threshold_of_the_best_epoch(
    encoder: Encoder, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation scores are made up."""
    heads, at = [], []
    scores = iter([(10.0, 0.1), (30.0, 0.3), (20.0, 0.2), (1.0, 0.9)])

    def recording(
        *arguments: object, criteria: Sequence[Loss], thresholds: Sequence[float | None] = (None,), **settings: object
    ) -> tuple[np.ndarray, list[Evaluation]]:
        heads.append(arrays(criteria[0]))
        at.extend(thresholds)
        score, found = next(scores)
        return np.zeros((1, 2, 3)), [Evaluation(metrics={"macro f1": score, "accuracy": 0.0}, threshold=found)]

    monkeypatch.setattr(tmft, "evaluate", recording)
    run = tuned(encoder, 1, toy_task_of("entailment"), protocol=protocol)
    assert (run.best_epoch, run.threshold) == (2, 0.3)
    assert at == [None, None, None, 0.3]
    np.testing.assert_array_equal(heads[3][0], heads[1][0])
    assert (heads[3][0] != heads[2][0]).any()


def test_paraphrase_is_scored_at_the_threshold_of_the_validation_split(encoder: Encoder, protocol: Protocol) -> None:
    task = toy_task_of("paraphrase")
    model, criterion = TruncatedEncoder(encoder, 2), criterion_of(task, width=16)
    validation, test = (prepared_sides(encoder, part, max_length=64) for part in (task.validation, task.test))
    chosen = evaluated(encoder, model, validation, protocol, criterion, kind="paraphrase")
    found = evaluated(encoder, model, test, protocol, criterion, kind="paraphrase", threshold=chosen.threshold)
    assert chosen.threshold is not None

    texts = task.test.texts
    tokens = encoder.tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = encoder.model(**tokens, output_hidden_states=True).hidden_states[2]
    mask = tokens["attention_mask"].unsqueeze(-1)
    vectors = dict(zip(texts, ((states * mask).sum(1) / mask.sum(1)).double().numpy(), strict=True))
    assert task.test.second is not None
    pairs = [(vectors[a], vectors[b]) for a, b in zip(task.test.first, task.test.second, strict=True)]
    cosine = np.array([u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in pairs])
    predicted = cosine >= chosen.threshold
    assert found.metrics["f1"] == pytest.approx(100 * peer.f1_score(task.test.targets, predicted))
    assert found.metrics["accuracy"] == pytest.approx(100 * peer.accuracy_score(task.test.targets, predicted))
    expected = 100 * peer.average_precision_score(task.test.targets, cosine)
    assert found.metrics["average precision"] == pytest.approx(expected, abs=0.5)
