"""Truncated model fine-tuning on a task: one layer, one seed, one run.

Knows a truncated encoder, an optimiser and examples; knows no files.
Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3.
"""

import contextlib
import copy
import functools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders.batching import TokenizedTexts, collate, padded_groups, token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.pooling import pool
from layerprobe.errors import DataError, InsufficientMemoryError, TrainingError
from layerprobe.finetuning.losses import Loss, loss_of
from layerprobe.finetuning.memory import TokenLimit, is_out_of_memory
from layerprobe.finetuning.tables import TableGradients
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, Protocol
from layerprobe.metrics.names import Split
from layerprobe.progress import Progress, silent
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs
from layerprobe.tasks.kinds.kind import KINDS
from layerprobe.tasks.values import Examples, Task
from layerprobe.training.optimizer import adamw, rate
from layerprobe.training.rng import restore_rng, rng_states, seeded

# Tokens of a forward pass at most: a CPU is fastest where a group fits its cache.
CPU_BATCH_TOKENS, EVALUATION_BATCH_TOKENS = 1024, 4096
# What another group of examples costs on a CPU, in tokens: its calls, and one more addition to every gradient.
CPU_GROUP_OVERHEAD = 48
# More than any padding: all examples of a step in one group.
WHOLE_BATCH = 2**40
# Steps between two looks at the loss on an accelerator, which must wait for it.
LOOK_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedExamples:
    """Examples as token ids."""

    texts: TokenizedTexts
    """The distinct ones."""
    first: NDArray[np.int64]
    """(example,): row of the text, or of the first one, in `texts`."""
    second: NDArray[np.int64] | None
    """(example,): row of the second; None for single texts."""
    tokens: NDArray[np.int64]
    """(example,): its texts' tokens, both texts of a pair padded to the longer one."""
    targets: NDArray[np.float64]
    """(example,): gold similarity 0 .. 1, or class number."""


def prepare(encoder: Encoder, examples: Examples, *, max_length: int) -> PreparedExamples:
    """Tokenise the distinct texts of `examples` once, for all epochs."""
    texts = examples.texts
    row = {text: i for i, text in enumerate(texts)}
    tokenized = encoder.tokenize(texts, max_length=max_length)
    first = np.array([row[text] for text in examples.first])
    second = None if examples.second is None else np.array([row[text] for text in examples.second])
    lengths = np.array(tokenized.lengths)
    return PreparedExamples(
        texts=tokenized,
        first=first,
        second=second,
        tokens=lengths[first] if second is None else 2 * np.maximum(lengths[first], lengths[second]),
        targets=np.array(examples.targets),
    )


def fine_tune(
    encoder: Encoder,
    layer: int,
    task: Task,
    *,
    protocol: Protocol | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    save_to: Path | None = None,
    progress: Progress = silent,
) -> FineTuningRun:
    """Fine-tune the encoder truncated at `layer` and score its best epoch on the test split.

    Loss, head and metrics are those of the task's kind, see `Loss`.

    The examples of a step go through the model in groups of like lengths, whose gradients add up to that of the
    step. How they are grouped changes the numbers by no more than float rounding where nothing is dropped out;
    with dropout, another grouping is another draw. Where memory runs out the groups are made smaller, and the step
    is done again.

    The encoder is not changed. The best epoch is the one with the highest primary metric on the validation split;
    `save_to` is a folder for its encoder, without a head. The seed is that of the head's first weights, the order of
    examples and dropout. `batch_tokens` are the tokens of a group at most, padding included, also in evaluation: by
    default 1,024 on a CPU and all of a step elsewhere; 4,096 in evaluation. Scores are x 100.

    Raises:
        DataError: If a split has no examples, or one to score has a single value where that leaves nothing to score.
        ModelError: If the model has no such layer.
        TrainingError: If the loss is not finite, or an epoch leaves embeddings that cannot be scored.
        InsufficientMemoryError: If a single example does not fit the memory.
    """
    protocol = protocol or Protocol()
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to fine-tune in, got float16, whose small gradients vanish")
    _check_splits(task)
    start = time.perf_counter()
    if encoder.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(encoder.device)
    train, validation, test = (
        prepare(encoder, examples, max_length=protocol.max_length)
        for examples in (task.train, task.validation, task.test)
    )
    with _memory_errors(encoder, layer), seeded(seed, encoder.device):
        model = TruncatedEncoder(encoder, layer)
        criterion = loss_of(task, width=encoder.description.hidden_size).to(encoder.device)
        rng = np.random.default_rng(seed)
        steps_per_epoch = math.ceil(len(train.targets) / protocol.batch_size)
        trainer = FineTuner(
            encoder, model, protocol, steps_per_epoch=steps_per_epoch, criterion=criterion, batch_tokens=batch_tokens
        )
        limit = TokenLimit(batch_tokens or EVALUATION_BATCH_TOKENS)
        history: list[EpochMetrics] = []
        best, chosen = Evaluation(metrics={task.primary: -math.inf}), 0
        weights: list[dict[str, Tensor]] = []
        for epoch in range(1, protocol.epochs + 1):
            loss = trainer.epoch(train, rng, progress=progress, task=f"TMFT layer {layer} seed {seed}")
            scores = evaluate(encoder, model, validation, protocol, criterion, kind=task.kind, limit=limit)
            history.append(EpochMetrics(epoch=epoch, train_loss=loss, validation=scores.metrics))
            if scores.metrics[task.primary] > best.metrics[task.primary]:
                best, chosen = scores, epoch
                weights = [copy.deepcopy(part.state_dict()) for part in (model, criterion)]
        model.load_state_dict(weights[0])
        criterion.load_state_dict(weights[1])
        tested = evaluate(
            encoder, model, test, protocol, criterion, kind=task.kind, threshold=best.threshold, limit=limit
        )
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


def _check_splits(task: Task) -> None:
    for name in get_args(Split):
        targets = task.split(name).targets
        if not targets:
            raise DataError(f"expected examples to fine-tune on in every split, got none in the {name} split")
        # no correlation and no precision is defined there
        if name != "train" and not KINDS[task.kind].one_target and len(set(targets)) == 1:
            raise DataError(
                f"expected different targets in the {name} split of a task of kind {task.kind}, got {targets[0]:g} for "
                f"all of {len(targets)} examples"
            )


@contextlib.contextmanager
def _memory_errors(encoder: Encoder, layer: int) -> Iterator[None]:
    """Raise InsufficientMemoryError where memory runs out and nothing is left to halve."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # weights, gradients and two moments
        needed = 4 * 4 * encoder.description.parameters[layer] / 1e6
        raise InsufficientMemoryError(
            f"layer {layer} does not fit the memory of {encoder.device}: weights, gradients and optimiser take "
            f"{needed:,.0f} MB, and then no example fits; lower the maximum length, take an earlier layer, or a "
            "device with more memory"
        ) from error


class FineTuner:
    """The optimiser, its schedule, and one plain epoch."""

    def __init__(
        self,
        encoder: Encoder,
        model: TruncatedEncoder,
        protocol: Protocol,
        *,
        steps_per_epoch: int,
        criterion: Loss,
        batch_tokens: int | None = None,
    ) -> None:
        self.encoder, self.model, self.protocol, self.criterion = encoder, model, protocol, criterion
        on_cpu = encoder.device.type == "cpu"
        self.limit = TokenLimit(batch_tokens or (CPU_BATCH_TOKENS if on_cpu else None))
        # an accelerator is fastest with few and large kernels; and where nothing is padded, nothing is to be saved
        self.group_overhead = CPU_GROUP_OVERHEAD if on_cpu and encoder.padding_invariant else WHOLE_BATCH
        self.looks_every = 1 if on_cpu else LOOK_EVERY
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * protocol.epochs
        self.step = 0
        self._losses: list[Tensor] = []
        self.tables = TableGradients(model) if on_cpu else None
        self.drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
        self.trained = [p for part in (model, criterion) for p in part.parameters() if p.requires_grad]
        self.optimizer = adamw(self.trained, protocol, fused=True)
        share = functools.partial(rate, total_steps=self.total_steps, warmup=protocol.warmup)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share)

    def epoch(self, examples: PreparedExamples, rng: np.random.Generator, *, progress: Progress, task: str) -> float:
        """Train once on every example in a random order; return the mean loss."""
        self.model.train()
        order = rng.permutation(len(examples.targets))
        total = torch.zeros((), dtype=torch.float64, device=self.encoder.device)
        for start in range(0, len(order), self.protocol.batch_size):
            rows = order[start : start + self.protocol.batch_size]
            loss = self.update(examples, rows)
            total += loss.double() * len(rows)
            self._losses.append(loss)
            if len(self._losses) >= self.looks_every or start + len(rows) == len(order):
                self._look_at_losses()
            progress(task, self.step, self.total_steps)
        return (total / len(order)).item()

    def _look_at_losses(self) -> None:
        """Raise TrainingError at the first loss that is not finite; an accelerator waits here, not at every step."""
        first = self.step - len(self._losses) + 1
        losses = torch.stack(self._losses).tolist()
        self._losses.clear()
        for step, loss in enumerate(losses, start=first):
            if not math.isfinite(loss):
                epoch = math.ceil(step / self.steps_per_epoch)
                raise TrainingError(
                    f"the loss at layer {self.model.layer} became {loss} at step {step} of {self.total_steps}, in "
                    f"epoch {epoch}: expected a finite one; lower the learning rate "
                    f"(now {self.protocol.learning_rate:g}) or use float32",
                    step=step,
                )

    def update(self, examples: PreparedExamples, rows: NDArray[np.int64]) -> Tensor:
        """Take one step on the examples `rows`; return the loss, the mean over them."""
        states = rng_states(self.encoder.device)

        def work() -> Tensor:
            restore_rng(states, self.encoder.device)
            return self._gradients(examples, rows)

        but = ", so that what is dropped out is another draw than with more memory"
        loss = self.limit.run(work, f"at step {self.step + 1} of {self.total_steps}", but=but if self.drops else "")
        nn.utils.clip_grad_norm_(self.trained, self.protocol.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss

    def _gradients(self, examples: PreparedExamples, rows: NDArray[np.int64]) -> Tensor:
        """Leave the gradients of the mean loss of the examples `rows`, those of its groups added up; return it."""
        if self.tables:
            self.tables.clear()
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.encoder.device)
        tokens = examples.tokens[rows].tolist()
        groups = padded_groups(tokens, budget=self.limit.tokens, overhead=self.group_overhead)
        for group in self.limit.watched(groups, tokens):
            loss = self._loss(examples, rows[group]) * (len(group) / len(rows))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if self.tables:
            self.tables.expand()
        return total

    def _loss(self, examples: PreparedExamples, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of the examples `rows`. Both texts of a pair go through one forward pass."""
        sides = [side[rows] for side in (examples.first, examples.second) if side is not None]
        embeddings = embed(self.encoder, self.model, examples.texts, np.concatenate(sides).tolist(), self.protocol)
        u, v = embeddings[: len(rows)], embeddings[len(rows) :]
        targets = torch.from_numpy(examples.targets[rows]).to(self.encoder.device, torch.float32)
        return self.criterion.loss(self.criterion(u, v if len(sides) == 2 else None), targets)


def embed(
    encoder: Encoder, model: TruncatedEncoder, texts: TokenizedTexts, rows: Sequence[int], protocol: Protocol
) -> Tensor:
    """Return the pooled embeddings of the texts `rows`, (text, feature).

    They go through one forward pass, or one for each length where padding would change what comes out.
    """
    lengths = [len(texts.features["input_ids"][row]) for row in rows]
    if not encoder.padding_invariant and len(set(lengths)) > 1:
        batches = list(token_batches(lengths, budget=sum(lengths), same_length=True))
        parts = [embed(encoder, model, texts, [rows[i] for i in batch], protocol) for batch in batches]
        places = torch.tensor([i for batch in batches for i in batch]).argsort()
        return torch.cat(parts)[places.to(encoder.device)]
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
    criterion: Loss,
    *,
    kind: str,
    threshold: float | None = None,
    limit: TokenLimit | None = None,
) -> Evaluation:
    """Return the metrics of a kind of task, at a threshold where it has one: by default the best on `examples`."""
    model.eval()
    limit, lengths = limit or TokenLimit(EVALUATION_BATCH_TOKENS), examples.texts.lengths

    def work() -> NDArray[np.float32]:
        embeddings = np.empty((len(lengths), encoder.description.hidden_size), dtype=np.float32)
        assert limit.tokens is not None
        batches = token_batches(lengths, budget=limit.tokens, same_length=not encoder.padding_invariant)
        for rows in limit.watched(batches, lengths):
            embeddings[rows] = embed(encoder, model, examples.texts, rows, protocol).float().cpu().numpy()
        return embeddings

    embeddings = limit.run(work, "while embeddings were scored")
    try:
        second = None if examples.second is None else embeddings[examples.second]
        outputs = criterion.outputs(embeddings[examples.first], second)
        return evaluate_outputs(kind, outputs, examples.targets, threshold=threshold)
    except DataError as error:
        raise TrainingError(f"the embeddings at layer {model.layer} cannot be scored: {error}") from error


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
