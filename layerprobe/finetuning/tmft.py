"""Truncated model fine-tuning (TMFT): a run for one layer and one seed, or a run with a loss at every layer.

Knows a truncated encoder, an optimiser and examples; knows no files.
Sources: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3. For a loss at every layer: deep supervision (Lee et
al., AISTATS 2015), one-shot search (Bender et al., ICML 2018), the sandwich rule (Yu and Huang, ICCV 2019); for
embeddings, Li et al. 2024 (2402.14776) and `AdaptiveLayerLoss` of sentence-transformers.
"""

import contextlib
import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.context import report, settings
from layerprobe.encoders.batching import Batch, ModelInputs, collate, copies, padded_groups, token_batches
from layerprobe.encoders.device import float64_device
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, InsufficientMemoryError, TrainingError
from layerprobe.finetuning.adapters import merge_adapters, prepare_model
from layerprobe.finetuning.losses import Criterion, PreparedItems, criterion_of, pooled
from layerprobe.finetuning.memory import TableGradients, TokenLimit, cached_gradients, plain_gradients
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.saved import Epochs
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, Protocol, Weighting
from layerprobe.metrics.names import Split
from layerprobe.rng import restore_rng, rng_states, seeded
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.training.loop import adamw, rate

logger = logging.getLogger(__name__)

# Largest number of tokens of a forward pass: a CPU is fastest if a group fits its cache.
CPU_BATCH_TOKENS, EVALUATION_BATCH_TOKENS = 1024, 4096
# Cost of one more group of examples on a CPU, in tokens: its calls, and one more addition to every gradient.
CPU_GROUP_OVERHEAD = 48
# More than any padding, so that all examples of a step are in one group.
WHOLE_BATCH = 2**40
# Steps between two checks of the loss on an accelerator, which has to wait for it.
LOOK_EVERY = 100

Reader = Callable[[Tensor, Batch, Pooling], Tensor]
"""Function from the token states of a layer to values of each text, such as `Criterion.read`."""

LayerWeights = Callable[[int], NDArray[np.float64]]
"""Function from a step (from 0) to the (layers,) weights of the losses; a weight of 0 leaves a layer out."""


def fine_tune(
    encoder: Encoder,
    layer: int,
    task: Task,
    *,
    protocol: Protocol | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    save_to: Path | None = None,
    unfinished: Path | None = None,
) -> tuple[FineTuningRun, RunOutputs]:
    """Fine-tune the encoder truncated at `layer` and score its best epoch on the test split.

    Loss, head and metrics are those of the task's kind, see `Criterion`.

    The examples of a step pass through the model in groups of similar lengths, whose gradients add up to that of the
    step. If the loss of an example depends on the others of its step (`Criterion.whole_batch`), the texts of the step
    are grouped, and the loss is computed on all of them. Without dropout, the grouping changes the numbers only by
    rounding; with dropout, another grouping is another draw. When memory runs out, the groups become smaller and the
    step is repeated.

    The encoder is not changed. The best epoch has the highest primary metric on the validation split; `save_to` is a
    folder for its encoder, without a head. The seed determines the initial weights of the head, the order of examples
    and dropout. `batch_tokens` is the largest number of tokens of a group, with padding, also in evaluation: by
    default 1,024 on a CPU and a whole step elsewhere; 4,096 in evaluation. If given, it also bounds the memory of a
    loss on the whole step, whose texts are then embedded twice. `unfinished` is a folder of this run's own, where an
    interrupted run leaves its last epoch to continue from. Scores are x 100.

    Returns:
        The run, and the outputs of its best epoch for every validation and test example.
    """
    (run,), outputs = train_layers(
        encoder,
        layer,
        task,
        protocol or Protocol(),
        seed=seed,
        batch_tokens=batch_tokens,
        save_to=save_to,
        unfinished=unfinished,
    )
    return run, outputs


def train_layers(
    encoder: Encoder,
    layer: int,
    task: Task,
    protocol: Protocol,
    *,
    weighting: Weighting | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    save_to: Path | None = None,
    unfinished: Path | None = None,
) -> tuple[tuple[FineTuningRun, ...], RunOutputs]:
    """Train the encoder up to `layer` with the task's loss there or, with a `weighting`, at each layer up to the last.

    With one loss this is TMFT, see `fine_tune`, and a failure is raised. With a loss at every layer of one forward
    pass, the loss of a step is the sum of the layers' losses times their weights, see `layer_weights`; each layer has
    its own head if the kind of task needs one. A layer whose loss or scores are not finite is left out from then on,
    with the reason. The best epoch, common to all layers, has the highest primary metric on the validation split,
    averaged over layers; its model is saved to `save_to`, and can be truncated at any layer.

    Returns:
        The run of each layer, and the outputs of the best epoch for every validation and test example.
    """
    what = f"TMFT layer {layer} seed {seed}" if weighting is None else f"joint run seed {seed}"
    _check_splits(task)
    encoder.check_pooling(protocol.pooling)
    began = time.perf_counter()
    if encoder.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(encoder.device)
    train, validation, test = (
        KINDS[task.kind].learning().loss.prepare(encoder, items, max_length=protocol.max_length)
        for items in (task.train, task.validation, task.test)
    )
    loss: type[Criterion] = KINDS[task.kind].learning().loss
    loss.check_batch(train, protocol.batch_size)
    # influences of items are computed from the outputs when needed
    with _memory_errors(encoder, layer), seeded(seed, encoder.device), settings(by_item=False):
        model = TruncatedEncoder(encoder, layer, every=weighting is not None)
        prepare_model(model, protocol)
        width = encoder.description.hidden_size
        criteria = [criterion_of(task, width=width).to(encoder.device) for _ in model.layers]
        parts = nn.ModuleList([model, *criteria])
        rng = np.random.default_rng(seed)
        tuner = FineTuner(
            encoder,
            model,
            protocol,
            steps_per_epoch=math.ceil(len(train) / protocol.batch_size),
            criteria=criteria,
            weights=None if weighting is None else layer_weights(weighting, encoder.n_layers, seed=seed),
            batch_tokens=batch_tokens,
        )
        limit = TokenLimit(batch_tokens or EVALUATION_BATCH_TOKENS)
        scored = functools.partial(evaluate, encoder, model, protocol=protocol, criteria=criteria, limit=limit)
        saved: dict[str, Any] = {"folder": unfinished, "keeps_last": protocol.kept_epoch > 0}
        epochs = Epochs(tuner, parts, limit, primary=task.primary, began=began, **saved)
        for epoch in range(protocol.epochs):
            parts_of_epoch = _parts(rng.permutation(len(train)), protocol)
            for number, order in enumerate(parts_of_epoch, epoch * len(parts_of_epoch)):
                if number < len(epochs) or len(epochs) == protocol.kept_epoch > 0:
                    continue  # finished before the run was interrupted, or not wanted
                losses = tuner.epoch(train, order, task=what)
                epochs.add(losses, *scored(validation, kind=task.kind, failures=tuner.failures))
        epochs.restore_best()
        thresholds = [None if evaluation is None else evaluation.threshold for evaluation in epochs.best]
        test_outputs, tested = scored(test, kind=task.kind, failures=tuner.failures, thresholds=thresholds)
    if save_to is not None:
        merge_adapters(model)
        model.save(save_to, encoder.tokenizer)
    seconds, peak_memory = epochs.seconds, _peak_memory(encoder.device)
    runs = []
    for at, kept in enumerate(model.layers):
        test, failed = tested[at], tuner.failures.get(kept)
        best = None if failed else epochs.best[at]
        each_epoch = zip(epochs.train_losses, epochs.scores, strict=True)
        of_layer = ((losses[at], scores[at]) for losses, scores in each_epoch)
        run = FineTuningRun(
            layer=kept,
            seed=seed,
            protocol=protocol,
            parameters=encoder.description.parameters[kept],
            primary=task.primary,
            best_epoch=epochs.best_epoch,
            validation={} if best is None else best.metrics,
            test={} if test is None else test.metrics,
            epochs=tuple(
                EpochMetrics(
                    epoch=epoch,
                    train_loss=loss,
                    validation=scores.metrics if weighting is None else {task.primary: scores.metrics[task.primary]},
                )
                for epoch, (loss, scores) in enumerate(of_layer, 1)
                if scores is not None and math.isfinite(loss)
            ),
            seconds=seconds,
            peak_memory=peak_memory,
            threshold=None if best is None else best.threshold,
            weighting=weighting,
            error="" if failed is None else str(failed),
        )
        runs.append(run)
    return tuple(runs), RunOutputs(layers=model.layers, validation=epochs.outputs, test=test_outputs)


def _parts(order: NDArray[np.int64], protocol: Protocol) -> list[NDArray[np.int64]]:
    """Return the examples of an epoch in parts of whole steps, one per evaluation, at most one per step."""
    steps = math.ceil(len(order) / protocol.batch_size)
    ends = [protocol.batch_size * (i * steps // protocol.evaluations) for i in range(1, protocol.evaluations)]
    return [part for part in np.split(order, ends) if len(part)]


def _check_splits(task: Task) -> None:
    for name in get_args(Split):
        items = task.split(name)
        if not len(items):
            raise DataError(f"expected examples to fine-tune on in every split, got none in the {name} split")
        # neither correlation nor precision is defined for them
        if name != "train" and not KINDS[task.kind].one_target and items.one_target:
            raise DataError(
                f"expected different targets in the {name} split of a task of kind {task.kind}, got the same for all "
                f"{len(items)} examples"
            )


@contextlib.contextmanager
def _memory_errors(encoder: Encoder, layer: int) -> Iterator[None]:
    """Raise InsufficientMemoryError when memory runs out and nothing is left to halve."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # weights, gradients and two moments
        needed = 4 * 4 * encoder.description.parameters[layer] / 1e6
        raise InsufficientMemoryError(
            f"layer {layer} does not fit into the memory of {encoder.device}: weights, gradients and optimiser take "
            f"{needed:,.0f} MB and leave no room for an example; lower the maximum length, use an earlier layer, or a "
            "device with more memory"
        ) from error


class FineTuner:
    """The optimiser, its schedule, and one plain epoch.

    The loss of a step is the sum of the layers' losses, each with its criterion, times their weights.
    """

    def __init__(
        self,
        encoder: Encoder,
        model: TruncatedEncoder,
        protocol: Protocol,
        *,
        steps_per_epoch: int,
        criteria: Sequence[Criterion],
        weights: LayerWeights | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.encoder, self.model, self.protocol = encoder, model, protocol
        self.criteria = criteria
        self.weights = weights or (lambda step: np.ones(len(model.layers)))
        self.failures: dict[int, TrainingError] = {}
        """Reasons why layers are left out from now on, by layer."""
        on_cpu = encoder.device.type == "cpu"
        self.limit = TokenLimit(batch_tokens or (CPU_BATCH_TOKENS if on_cpu else None))
        self.cached = batch_tokens is not None
        """Whether a loss on the whole batch keeps one group in memory at a time."""
        # an accelerator is fastest with few large kernels; without padding there is nothing to save
        self.group_overhead = CPU_GROUP_OVERHEAD if on_cpu and encoder.padding_invariant else WHOLE_BATCH
        self.looks_every = 1 if on_cpu else LOOK_EVERY
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * protocol.epochs
        self.step = 0
        self._losses: list[Tensor] = []
        self.tables = TableGradients(model) if on_cpu else None
        self.drops = protocol.dropout and any(
            isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()
        )
        self.trained = [p for part in (model, *criteria) for p in part.parameters() if p.requires_grad]
        self.optimizer = adamw(self.trained, protocol, fused=True)
        self.share = functools.partial(rate, total_steps=self.total_steps, warmup=protocol.warmup)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.share)

    def epoch(self, examples: PreparedItems, order: NDArray[np.int64], *, task: str) -> list[float]:
        """Train once on every example in this order; return the mean loss of every layer."""
        self.model.train(self.protocol.dropout)
        place = float64_device(self.encoder.device)
        total = torch.zeros(len(self.criteria), dtype=torch.float64, device=place)
        for start in range(0, len(order), self.protocol.batch_size):
            rows = order[start : start + self.protocol.batch_size]
            losses = self.update(examples, rows)
            total += losses.to(place).double() * len(rows)
            self._losses.append(losses)
            if len(self._losses) >= self.looks_every or start + len(rows) == len(order):
                self._look_at_losses()
            report(task, self.step, self.total_steps)
        means: list[float] = (total / len(order)).tolist()
        return means

    def go_on_from(self, step: int) -> None:
        """Set the schedule to the given step."""
        self.step = step
        self.schedule.load_state_dict({**self.schedule.state_dict(), "last_epoch": step, "_step_count": step + 1})
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.share(step)

    def _look_at_losses(self) -> None:
        """Check for losses that are not finite; an accelerator waits here, not at every step."""
        first = self.step - len(self._losses) + 1
        steps = torch.stack(self._losses).tolist()
        self._losses.clear()
        for step, losses in enumerate(steps, start=first):
            for layer, loss in zip(self.model.layers, losses, strict=True):
                if not math.isfinite(loss):
                    self._fail(layer, loss, step)

    def _fail(self, layer: int, loss: float, step: int) -> None:
        """Leave a layer out from now on; raise TrainingError if it was the last one."""
        if layer in self.failures:
            return
        epoch = math.ceil(step / self.steps_per_epoch)
        self.failures[layer] = TrainingError(
            f"the loss at layer {layer} became {loss} at step {step} of {self.total_steps}, in "
            f"epoch {epoch}: lower the learning rate "
            f"(now {self.protocol.learning_rate:g}) or use float32"
        )
        if len(self.failures) == len(self.criteria):
            raise self.failures[min(self.failures)]

    def update(self, examples: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Take one step on the examples `rows`; return the mean loss of every layer."""
        states = rng_states(self.encoder.device)
        weights = self.weights(self.step)

        def work() -> Tensor:
            restore_rng(states, self.encoder.device)
            return self._gradients(examples, rows, weights)

        but = "; dropout is drawn differently than with more memory"
        losses = self.limit.run(work, f"at step {self.step + 1} of {self.total_steps}", but=but if self.drops else "")
        nn.utils.clip_grad_norm_(self.trained, self.protocol.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return losses

    def _gradients(self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> Tensor:
        """Compute the gradients of the mean loss of the examples `rows`, summed over groups.

        Returns:
            (layers,) unweighted losses.
        """
        if self.tables:
            self.tables.clear()
        self.optimizer.zero_grad()
        whole_batch = self.criteria[0].whole_batch
        losses = (self._whole_batch_gradients if whole_batch else self._grouped_gradients)(examples, rows, weights)
        if self.tables:
            self.tables.expand()
        return losses

    def _grouped_gradients(
        self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """Add up the gradients of groups of examples."""
        total = torch.zeros(len(self.criteria), device=self.encoder.device)
        tokens = examples.tokens[rows].tolist()
        groups = padded_groups(tokens, budget=self.limit.tokens, overhead=self.group_overhead)
        for group in self.limit.watched(groups, tokens):
            share = len(group) / len(rows)
            losses = [loss * share for loss in self._layer_losses(examples, rows[group])]
            self._weighted(losses, weights).backward()  # type: ignore[no-untyped-call]
            total += torch.stack(losses).detach()
        return total

    def _whole_batch_gradients(
        self, examples: PreparedItems, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """Compute the gradients of a loss that is not a mean over groups: groups of the step's texts are joined.

        When memory runs out, or if the tokens of a pass are given, one group is in memory at a time.
        """
        texts, places = np.unique(np.concatenate([side[rows] for side in examples.sides]), return_inverse=True)
        lengths = [examples.texts.length(text) for text in texts]
        groups = padded_groups(lengths, budget=self.limit.tokens, overhead=self.group_overhead)
        order = np.argsort(np.concatenate(groups))
        at = torch.from_numpy(order[places]).to(self.encoder.device)
        readers = [criterion.read for criterion in self.criteria]

        def read(group: Sequence[int]) -> list[Tensor]:
            pooling = self.protocol.pooling
            return read_layers(self.encoder, self.model, examples.texts, texts[group].tolist(), readers, pooling)

        def loss(layers: list[Tensor]) -> tuple[Tensor, Tensor]:
            losses = [
                criterion.example_loss(layer.index_select(0, at), examples, rows)
                for criterion, layer in zip(self.criteria, layers, strict=True)
            ]
            return self._weighted(losses, weights), torch.stack(losses).detach()

        watched = functools.partial(self.limit.watched, groups, lengths)
        if self.cached and len(groups) > 1:
            return cached_gradients(watched, read, loss, device=self.encoder.device)
        states = rng_states(self.encoder.device)
        try:
            return plain_gradients(watched, read, loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or len(groups) == 1:
                raise
        # outside the handler the graphs of the groups are free
        logger.warning(
            "out of memory at step %d of %d: continuing with every text embedded twice, and the graph of one group of "
            "texts in memory at a time, which gives the same gradients",
            self.step + 1,
            self.total_steps,
        )
        self.cached = True
        restore_rng(states, self.encoder.device)
        return self._gradients(examples, rows, weights)

    def _weighted(self, losses: list[Tensor], weights: NDArray[np.float64]) -> Tensor:
        """Return the weighted sum of the layers' losses for the gradient.

        With several layers, a loss that is not finite is left out: even times 0 it would spoil shared weights.
        """
        if len(losses) == 1:
            return losses[0]
        for layer, loss in zip(self.model.layers, torch.stack(losses).tolist(), strict=True):
            if not math.isfinite(loss):
                self._fail(layer, loss, self.step + 1)
        left = [i for i, layer in enumerate(self.model.layers) if layer not in self.failures]
        used = [i for i in left if weights[i]] or left
        return torch.stack([losses[i] * float(weights[i]) for i in used]).sum()

    def _layer_losses(self, items: PreparedItems, rows: NDArray[np.int64]) -> list[Tensor]:
        """Return the mean losses of the examples `rows` by layer. All texts of an example share one pass."""
        texts = np.concatenate([side[rows] for side in items.sides]).tolist()
        readers = [criterion.read for criterion in self.criteria]
        layers = read_layers(self.encoder, self.model, items.texts, texts, readers, self.protocol.pooling)
        return [
            criterion.example_loss(states, items, rows) for criterion, states in zip(self.criteria, layers, strict=True)
        ]


def embed(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: ModelInputs,
    rows: Sequence[int],
    protocol: Protocol,
) -> list[Tensor]:
    """Return the pooled embeddings of the texts `rows`, (text, feature), by layer."""
    return read_layers(encoder, model, texts, rows, [pooled] * len(model.layers), protocol.pooling)


def read_layers(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: ModelInputs,
    rows: Sequence[int],
    readers: Sequence[Reader],
    pooling: Pooling,
) -> list[Tensor]:
    """Return the (text, ...) values of the texts `rows` from the reader of each layer; see `Criterion.read`.

    Values per token begin with the text's own tokens, on whichever side it is padded.

    The texts take one forward pass, or one per length if padding would change the output.
    """
    lengths = [texts.length(row) for row in rows]
    if not encoder.padding_invariant and len(set(lengths)) > 1:
        batches = list(token_batches(lengths, budget=sum(lengths), same_length=True))
        parts = [read_layers(encoder, model, texts, [rows[i] for i in batch], readers, pooling) for batch in batches]
        places = torch.tensor([i for batch in batches for i in batch]).argsort().to(encoder.device)
        return [_as_wide(layer)[places] for layer in zip(*parts, strict=True)]
    batch = collate(texts, rows, encoder.device)
    with encoder.precision():
        states = list(model.layer_states(batch))
    pooled = [read(state, batch, pooling) for read, state in zip(readers, states, strict=True)]
    if texts.padding_side == "left" and pooled[0].ndim > 2:
        width = max(lengths)
        return [
            torch.stack([text.roll(n - width, 0) for text, n in zip(layer, lengths, strict=True)]) for layer in pooled
        ]
    return pooled


def _as_wide(parts: Sequence[Tensor]) -> Tensor:
    """Join parts of (text, ...), or of (text, token, ...) with fewer tokens than others, which get zeros."""
    width = max(part.shape[1] for part in parts)
    wide = [part.new_zeros(len(part), width, *part.shape[2:]) for part in parts]
    for into, part in zip(wide, parts, strict=True):
        into[:, : part.shape[1]] = part
    return torch.cat(wide)


@torch.inference_mode()
def evaluate(
    encoder: Encoder,
    model: TruncatedEncoder,
    items: PreparedItems,
    *,
    protocol: Protocol,
    criteria: Sequence[Criterion],
    kind: str,
    thresholds: Sequence[float | None] | None = None,
    limit: TokenLimit | None = None,
    failures: dict[int, TrainingError] | None = None,
) -> tuple[NDArray[np.float64], list[Evaluation | None]]:
    """Return the outputs of a model at each of its layers, and their scores by the metrics of a kind of task.

    If the kind has a threshold, each layer has its own: by default the best on `items`, or by the protocol's share of
    positives. Layers in `failures` are skipped; a layer that cannot be scored is added to them, or raises if it was
    the last one.

    Returns:
        (layers, examples) or (layers, examples, classes) outputs, NaN at layers that failed; and the scores by layer,
        None there.
    """
    model.eval()
    failures = {} if failures is None else failures
    limit, lengths = limit or TokenLimit(EVALUATION_BATCH_TOKENS), items.texts.lengths
    layers, readers = model.layers, [criterion.read for criterion in criteria]

    def work() -> list[Kept]:
        by_layer: list[Kept] = [[] for _ in layers]
        assert limit.tokens is not None
        batches = token_batches(lengths, budget=limit.tokens, same_length=not encoder.padding_invariant)
        for rows in limit.watched(batches, lengths):
            read = read_layers(encoder, model, items.texts, rows, readers, protocol.pooling)
            for i, layer in enumerate(read):
                by_layer[i] = _keep(by_layer[i], layer.float().cpu().numpy(), rows, lengths)
        for again, first in zip(*copies(items.texts), strict=True):
            for of_layer in by_layer:
                of_layer[again] = of_layer[first]
        return by_layer

    embedded = limit.run(work, "while embeddings were scored")
    outputs: list[NDArray[np.float64] | None] = []
    scores: list[Evaluation | None] = []
    for i, (layer, criterion) in enumerate(zip(layers, criteria, strict=True)):
        output, score = None, None
        if layer not in failures:
            try:
                output = criterion.item_outputs(embedded[i], items)
                threshold = None if thresholds is None else thresholds[i]
                if thresholds is None and protocol.positive_share is not None:
                    threshold = float(np.quantile(output, 1 - protocol.positive_share))
                score = evaluate_outputs(kind, output, items.gold, threshold=threshold)
            except DataError as error:
                failures[layer] = TrainingError(f"the embeddings at layer {layer} cannot be scored: {error}")
                failures[layer].__cause__ = error
                output = None
        outputs.append(output)
        scores.append(score)
    if len(failures) == len(layers):
        raise failures[min(failures)]
    shape = next(output.shape for output in outputs if output is not None)
    return np.stack([np.full(shape, np.nan) if output is None else output for output in outputs]), scores


Kept = NDArray[np.float32] | list[NDArray[np.float32]]
"""Values of all texts from a criterion: (text, ...), or one (token, ...) for each text."""


def _keep(by_batch: Kept, read: NDArray[np.float32], rows: Sequence[int], lengths: Sequence[int]) -> Kept:
    """Store the values of the texts `rows` among those of all texts."""
    if read.ndim == 2:
        array = (
            by_batch
            if isinstance(by_batch, np.ndarray)
            else np.empty((len(lengths), *read.shape[1:]), dtype=np.float32)
        )
        array[rows] = read
        return array
    by_text = by_batch if isinstance(by_batch, list) and by_batch else [read[0, :0]] * len(lengths)
    for row, values in zip(rows, read, strict=True):
        by_text[row] = values[: lengths[row]]
    return by_text


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def layer_weights(weighting: Weighting, n_layers: int, *, seed: int) -> LayerWeights:
    """Return a function from a step, from 0, to the (n_layers,) weights of the layers' losses.

    falling: from 1 at layer 0 in equal steps down to 1 / n_layers at the last; equal: 1 everywhere; random: 1 at one
    layer drawn for the step, 0 elsewhere; sandwich: 1 at the first, the last and a random layer.

    Examples:
        >>> layer_weights("falling", 4, seed=0)(0).tolist()
        [1.0, 0.75, 0.5, 0.25]
    """
    if weighting in ("falling", "equal"):
        fixed = np.linspace(1, 1 / n_layers, n_layers) if weighting == "falling" else np.ones(n_layers)
        return lambda step: fixed

    def drawn(step: int) -> NDArray[np.float64]:
        weights = np.zeros(n_layers)
        weights[np.random.default_rng([seed, step]).integers(n_layers)] = 1
        if weighting == "sandwich":
            weights[[0, -1]] = 1
        return weights

    return drawn
