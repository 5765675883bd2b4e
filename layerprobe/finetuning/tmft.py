"""Truncated model fine-tuning on a task: one layer, one seed, one run.

Knows a truncated encoder, an optimiser and examples; knows no files.
Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders import Encoder, TokenizedTexts, TruncatedEncoder, collate, pool, token_batches
from layerprobe.errors import DataError, TrainingError
from layerprobe.finetuning.metrics import Evaluation, evaluate_outputs
from layerprobe.finetuning.objectives import Objective
from layerprobe.progress import Progress, silent
from layerprobe.results import EpochMetrics, Examples, FineTuningRun, Protocol, Task

EVALUATION_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedExamples:
    """Examples as token ids."""

    texts: TokenizedTexts
    """The distinct ones."""
    first: NDArray[np.int64]
    """(example,): row of the text, or of the first one, in `texts`."""
    second: NDArray[np.int64] | None
    """(example,): row of the second; None for single texts."""
    targets: NDArray[np.float64]
    """(example,): gold similarity 0 .. 1, or class number."""


def prepare(encoder: Encoder, examples: Examples, *, max_length: int) -> PreparedExamples:
    """Tokenise the distinct texts of `examples` once, for all epochs."""
    texts = examples.texts
    row = {text: i for i, text in enumerate(texts)}
    return PreparedExamples(
        texts=encoder.tokenize(texts, max_length=max_length),
        first=np.array([row[text] for text in examples.first]),
        second=None if examples.second is None else np.array([row[text] for text in examples.second]),
        targets=np.array(examples.targets),
    )


def fine_tune(
    encoder: Encoder,
    layer: int,
    task: Task,
    *,
    protocol: Protocol | None = None,
    seed: int = 0,
    save_to: Path | None = None,
    progress: Progress = silent,
) -> FineTuningRun:
    """Fine-tune the encoder truncated at `layer` and score its best epoch on the test split.

    The loss, the head and the metrics are those of the task's kind, see `Objective`.

    Args:
        encoder: The pretrained encoder; it is not changed.
        layer: Blocks kept, 0 .. n_blocks.
        task: What to learn; the best epoch is the one with the highest primary metric on the validation split.
        protocol: The paper's by default.
        seed: The head's first weights, the order of the examples and dropout.
        save_to: Folder for the fine-tuned encoder of the best epoch, without a head.
        progress: Told the steps that are done.

    Returns:
        The run, scores x 100.

    Raises:
        ModelError: If the model has no such layer.
        TrainingError: If the loss is not finite, or an epoch leaves embeddings that cannot be scored.
    """
    protocol = protocol or Protocol()
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to fine-tune in, got float16, whose small gradients vanish")
    start = time.perf_counter()
    _reset_peak_memory(encoder.device)
    train, validation, test = (
        prepare(encoder, examples, max_length=protocol.max_length)
        for examples in (task.train, task.validation, task.test)
    )
    # dropout draws from the global generator: leave it as it was found
    with torch.random.fork_rng(devices=[encoder.device] if encoder.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = TruncatedEncoder(encoder, layer)
        objective = Objective.of(task, width=encoder.description.hidden_size).to(encoder.device)
        rng = np.random.default_rng(seed)
        steps_per_epoch = math.ceil(len(train.targets) / protocol.batch_size)
        trainer = Trainer(encoder, model, protocol, steps_per_epoch=steps_per_epoch, objective=objective)
        history: list[EpochMetrics] = []
        best, chosen = Evaluation(metrics={task.primary: -math.inf}), 0
        weights: list[dict[str, Tensor]] = []
        for epoch in range(1, protocol.epochs + 1):
            loss = trainer.epoch(train, rng, progress=progress, task=f"TMFT layer {layer} seed {seed}")
            found = evaluate(encoder, model, validation, protocol, objective)
            history.append(EpochMetrics(epoch=epoch, train_loss=loss, validation=found.metrics))
            if found.metrics[task.primary] > best.metrics[task.primary]:
                best, chosen = found, epoch
                weights = [copy.deepcopy(part.state_dict()) for part in (model, objective)]
        model.load_state_dict(weights[0])
        objective.load_state_dict(weights[1])
        tested = evaluate(encoder, model, test, protocol, objective, threshold=best.threshold)
    if save_to is not None:
        model.save(save_to, encoder.tokenizer)
    return FineTuningRun(
        layer=layer,
        seed=seed,
        protocol=protocol,
        parameters=model.parameters_without_pooler,
        primary=task.primary,
        best_epoch=chosen,
        validation=best.metrics,
        test=tested.metrics,
        epochs=tuple(history),
        seconds=time.perf_counter() - start,
        peak_memory=_peak_memory(encoder.device),
        threshold=best.threshold,
    )


class Trainer:
    """The optimiser, its schedule, and one plain epoch."""

    def __init__(
        self,
        encoder: Encoder,
        model: TruncatedEncoder,
        protocol: Protocol,
        *,
        steps_per_epoch: int,
        objective: Objective,
    ) -> None:
        self.encoder, self.model, self.protocol, self.objective = encoder, model, protocol, objective
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * protocol.epochs
        self.step = 0
        trained = [p for part in (model, objective) for p in part.parameters() if p.requires_grad]
        self.trained = trained
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": protocol.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=protocol.learning_rate)
        warmup = round(protocol.warmup * self.total_steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: (
                step / warmup if step < warmup else (self.total_steps - step) / max(1, self.total_steps - warmup)
            ),
        )

    def epoch(self, examples: PreparedExamples, rng: np.random.Generator, *, progress: Progress, task: str) -> float:
        """Train once on every example in a random order; return the mean loss."""
        self.model.train()
        order = rng.permutation(len(examples.targets))
        total = torch.zeros((), dtype=torch.float64, device=self.encoder.device)
        for start in range(0, len(order), self.protocol.batch_size):
            rows = order[start : start + self.protocol.batch_size]
            total += self.update(examples, rows).double() * len(rows)
            progress(task, self.step, self.total_steps)
        loss = (total / len(order)).item()
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss at layer {self.model.layer} became {loss}: expected a finite one; "
                f"lower the learning rate (now {self.protocol.learning_rate:g}) or use float32"
            )
        return loss

    def update(self, examples: PreparedExamples, rows: NDArray[np.int64]) -> Tensor:
        """Take one step on the examples `rows`; return the loss. Both texts of a pair go through one forward pass."""
        sides = [side[rows] for side in (examples.first, examples.second) if side is not None]
        embeddings = embed(self.encoder, self.model, examples.texts, np.concatenate(sides).tolist(), self.protocol)
        u, v = embeddings[: len(rows)], embeddings[len(rows) :]
        targets = torch.from_numpy(examples.targets[rows]).to(self.encoder.device, torch.float32)
        loss = self.objective.loss(self.objective(u, v if len(sides) == 2 else None), targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.trained, self.protocol.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.detach()


def embed(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: TokenizedTexts,
    rows: Sequence[int],
    protocol: Protocol,
) -> Tensor:
    """Return the pooled embeddings of the texts `rows`, (text, feature)."""
    batch = collate(texts, rows, encoder.device)
    with encoder.precision():
        states = model(batch)
    return pool(states, batch["attention_mask"], protocol.pooling)


@torch.inference_mode()
def evaluate(
    encoder: Encoder,
    model: TruncatedEncoder,
    examples: PreparedExamples,
    protocol: Protocol,
    objective: Objective,
    *,
    threshold: float | None = None,
) -> Evaluation:
    """Return the metrics of the task's kind; for paraphrase at a threshold, by default the best one on `examples`."""
    model.eval()
    lengths = examples.texts.lengths
    embeddings = np.empty((len(lengths), encoder.description.hidden_size), dtype=np.float32)
    for rows in token_batches(lengths, budget=EVALUATION_BATCH_TOKENS, same_length=not encoder.padding_invariant):
        embeddings[rows] = embed(encoder, model, examples.texts, rows, protocol).float().cpu().numpy()
    try:
        second = None if examples.second is None else embeddings[examples.second]
        outputs = objective.outputs(embeddings[examples.first], second)
        return evaluate_outputs(objective.kind, outputs, examples.targets, threshold=threshold)
    except DataError as error:
        raise TrainingError(f"the embeddings at layer {model.layer} cannot be scored: {error}") from error


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
