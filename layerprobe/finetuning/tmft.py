"""Truncated model fine-tuning (TMFT): a run for one layer and one seed, or a run with a loss at every layer.

Knows a truncated encoder and examples; a folder holds the last epoch of an unfinished run.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.context import settings
from layerprobe.encoders.batching import copies, token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.errors import DataError, InsufficientMemoryError, StoreError, TrainingError, another_folder
from layerprobe.finetuning.losses import Criterion, PreparedItems, criterion_of
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.step import (
    EVALUATION_BATCH_TOKENS,
    FineTuner,
    LayerWeights,
    TokenLimit,
    merge_adapters,
    prepare_model,
    read_layers,
)
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, Protocol, Runs, Weighting
from layerprobe.metrics.names import Split
from layerprobe.rng import restore_rng, rng_states, seeded
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.training import SavedSteps, load_optimizer, optimizer_tensors
from layerprobe.versions import versions

logger = logging.getLogger(__name__)


def fine_tune(
    encoder: Encoder,
    layer: int,
    task: Task,
    *,
    protocol: Protocol | None = None,
    weighting: Weighting | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    save_to: Path | None = None,
    unfinished: Path | None = None,
) -> tuple[Runs, RunOutputs]:
    """Train the encoder truncated at `layer` and score its best epoch on the test split.

    Loss, head and metrics are those of the task's kind, see `Criterion`. The loss is that of the last layer (TMFT);
    with a `weighting`, every layer has one, and the loss of a step is their sum times the weights, see `layer_weights`.

    The examples of a step pass through the model in groups of similar lengths, whose gradients add up to that of the
    step. If the loss of an example depends on the others of its step (`Criterion.whole_batch`), the texts of the step
    are grouped, and the loss is computed on all of them. Without dropout, the grouping changes the numbers only by
    rounding; with dropout, another grouping is another draw. When memory runs out, the groups become smaller and the
    step is repeated.

    The encoder is not changed. The best epoch has the highest primary metric on the validation split, averaged over
    layers; `save_to` is a folder for its encoder, without a head. With several layers, one whose loss or scores are not
    finite is left out from then on, with the reason; the failure of all is raised. The seed determines the initial
    weights of the heads, the order of examples and dropout. `batch_tokens` is the largest number of tokens of a group,
    with padding, also in evaluation: by default 1,024 on a CPU and a whole step elsewhere; 4,096 in evaluation. If
    given, it also bounds the memory of a loss on the whole step, whose texts are then embedded twice. `unfinished` is a
    folder of this run's own, where an interrupted run leaves its last epoch to continue from. Scores are x 100.

    Returns:
        The run of each layer with a loss, and the outputs of the best epoch for every validation and test example.
    """
    protocol = protocol or Protocol()
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
        saved: dict[str, Any] = {"folder": unfinished, "protocol": protocol}
        epochs = Epochs(tuner, parts, limit, primary=task.primary, began=began, **saved)
        for epoch in range(protocol.epochs):
            parts_of_epoch = _parts(rng.permutation(len(train)), protocol)
            for number, order in enumerate(parts_of_epoch, epoch * len(parts_of_epoch)):
                if number < len(epochs) or epochs.are_enough:
                    continue  # finished before the run was interrupted, or not wanted
                losses = tuner.epoch(train, order, task=what)
                epochs.add(losses, *scored(validation, kind=task.kind, failures=tuner.failures))
        epochs.restore_best()
        thresholds = [None if evaluation is None else evaluation.threshold for evaluation in epochs.best]
        test_outputs, tested = scored(test, kind=task.kind, failures=tuner.failures, thresholds=thresholds)
    if save_to is not None:
        merge_adapters(model)
        model.save(save_to, encoder.tokenizer)
    seconds = epochs.seconds
    peak_memory = _peak_memory(encoder.device)
    runs = []
    for at, kept in enumerate(model.layers):
        test = tested[at]
        failed = tuner.failures.get(kept)
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
    limit = limit or TokenLimit(EVALUATION_BATCH_TOKENS)
    lengths = items.texts.lengths
    readouts = [criterion.read for criterion in criteria]

    def work() -> list[TextValues]:
        by_layer: list[TextValues] = [[] for _ in model.layers]
        assert limit.tokens is not None
        batches = token_batches(lengths, budget=limit.tokens, same_length=not encoder.padding_invariant)
        for rows in limit.watched(batches, lengths):
            read = read_layers(encoder, model, items.texts, rows, readouts, protocol.pooling)
            for i, layer in enumerate(read):
                by_layer[i] = _keep(by_layer[i], layer.float().cpu().numpy(), rows, lengths)
        for again, first in zip(*copies(items.texts), strict=True):
            for of_layer in by_layer:
                of_layer[again] = of_layer[first]
        return by_layer

    embedded = limit.run(work, "while embeddings were scored")
    outputs: list[NDArray[np.float64] | None] = []
    scores: list[Evaluation | None] = []
    for i, (layer, criterion) in enumerate(zip(model.layers, criteria, strict=True)):
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
    if len(failures) == len(model.layers):
        raise failures[min(failures)]
    shape = next(output.shape for output in outputs if output is not None)
    return np.stack([np.full(shape, np.nan) if output is None else output for output in outputs]), scores


TextValues = NDArray[np.float32] | list[NDArray[np.float32]]
"""Values of all texts from a criterion: (text, ...), or one (token, ...) for each text."""


def _keep(by_batch: TextValues, read: NDArray[np.float32], rows: Sequence[int], lengths: Sequence[int]) -> TextValues:
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


UNMOVED = 0.2
"""Range of validation scores, in points, below which the protocol's `patience` ends a run."""
SAVE_AFTER = 30.0
"""Seconds of training after which an epoch is saved: a kill loses at most these and the current epoch."""
_MODEL, _BEST, _RNG, _OUTPUTS = "model.", "best.", "rng.", "outputs"

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEpoch:
    """The state of a run at the end of an epoch, without its tensors."""

    epoch: int
    """Number of the last finished epoch, from 1."""
    best_epoch: int
    step: int
    """Steps taken."""
    seconds: float
    """Duration of the run so far."""
    train_losses: tuple[tuple[float | None, ...], ...]
    """(epoch, layer) mean training losses; None where not finite."""
    scores: tuple[tuple[Evaluation | None, ...], ...]
    """(epoch, layer) scores on the validation split; None at layers that failed."""
    failures: dict[str, str]
    """Reasons why layers are left out, by layer."""
    batch_tokens: int | None
    """Largest number of tokens of a training pass; halved when memory runs out."""
    evaluation_tokens: int | None
    versions: dict[str, str]
    """Versions of Python and the libraries; with others the run starts again."""


class Epochs:
    """The epochs of a run so far; `parts` are its model and criteria, `began` is a time of `time.perf_counter`.

    The best epoch has the highest score; with the protocol's `kept_epoch` it is the last one.
    With a folder of the run's own, the last epoch is saved there (a `SavedEpoch` and its tensors), and a run that
    finds one continues from it, to the same numbers.
    """

    def __init__(
        self,
        tuner: FineTuner,
        parts: nn.Module,
        limit: TokenLimit,
        *,
        primary: str,
        began: float,
        folder: Path | None = None,
        protocol: Protocol | None = None,
    ) -> None:
        self.protocol = protocol or Protocol()
        self.tuner, self.parts, self.limit, self.primary = tuner, parts, limit, primary
        self.train_losses: list[list[float]] = []
        self.scores: list[list[Evaluation | None]] = []
        self.best_epoch = 0
        self.outputs: Array = np.empty(0)
        """(layers, examples) or (layers, examples, classes) outputs of the best epoch for the validation split."""
        self._state: dict[str, Tensor] = {}
        """Weights of the best epoch, on the CPU, since a copy would take much of a GPU's memory."""
        self._began, self._saved = began, time.perf_counter()
        self._steps: SavedSteps[SavedEpoch] | None = None
        if folder is not None:
            self._steps = _saved_epochs(folder)
            self._go_on()

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def best(self) -> list[Evaluation | None]:
        """Validation scores of the best epoch, by layer."""
        return self.scores[self.best_epoch - 1]

    @property
    def are_enough(self) -> bool:
        """Whether the epoch to keep is there, or the last ones score the same, see `Protocol.patience`."""
        protocol, patience = self.protocol, self.protocol.patience
        warming_up = protocol.warmup * protocol.epochs * protocol.evaluations
        if protocol.kept_epoch or not patience or len(self) <= max(patience, warming_up):
            return len(self) == protocol.kept_epoch > 0
        going_on = [layer for layer, score in enumerate(self.scores[-1]) if score is not None]
        means = [self._mean(scores, going_on) for scores in self.scores[-patience - 1 :]]
        return max(means) - min(means) < UNMOVED

    @property
    def seconds(self) -> float:
        """Duration of the run so far, including the time before interruptions."""
        return time.perf_counter() - self._began

    def add(self, losses: Sequence[float], outputs: Array, scores: Sequence[Evaluation | None]) -> None:
        """Add a finished epoch, and save it if that is worth the time."""
        self.train_losses.append(list(losses))
        self.scores.append(list(scores))
        # only layers that continue: means would change if a failed layer counted in some of them
        going_on = [layer for layer, score in enumerate(scores) if score is not None]
        is_best = not self.best_epoch or self._mean(scores, going_on) > self._mean(self.best, going_on)
        if is_best or self.protocol.kept_epoch:
            self.best_epoch, self.outputs = len(self), outputs
            self._state = self._kept_weights()
        if self._steps is not None and time.perf_counter() - self._saved >= SAVE_AFTER:
            try:
                self._steps.save(len(self), self._where(), self._tensors())
            except StoreError as error:  # the run matters more than resuming it
                logger.warning("%s; fine-tuning continues, but cannot be resumed from here if it stops", error)
            self._saved = time.perf_counter()

    def restore_best(self) -> None:
        """Give the model and the criteria the weights of the best epoch."""
        self._load(self._state)

    def _mean(self, scores: Sequence[Evaluation | None], layers: Sequence[int]) -> float:
        return float(np.mean([score.metrics[self.primary] for k in layers if (score := scores[k]) is not None]))

    def _where(self) -> SavedEpoch:
        return SavedEpoch(
            epoch=len(self),
            best_epoch=self.best_epoch,
            step=self.tuner.step,
            seconds=self.seconds,
            train_losses=tuple(
                tuple(loss if math.isfinite(loss) else None for loss in losses) for losses in self.train_losses
            ),
            scores=tuple(map(tuple, self.scores)),
            failures={str(layer): str(error) for layer, error in self.tuner.failures.items()},
            batch_tokens=self.tuner.limit.tokens,
            evaluation_tokens=self.limit.tokens,
            versions=versions(),
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Return current weights, those of the best epoch (if another) with its outputs, moments and generators."""
        weights = self._weights()
        tensors = {_MODEL + name: weight for name, weight in weights.items()}
        if self.best_epoch < len(self):
            tensors |= {_BEST + name: weight for name, weight in self._state.items()}
        states = rng_states(self.tuner.encoder.device)
        tensors |= {_RNG + name: state for name, state in states.items()}
        return tensors | optimizer_tensors(self.tuner.optimizer) | {_OUTPUTS: torch.from_numpy(self.outputs)}

    def _weights(self) -> dict[str, Tensor]:
        """Return the state of model and criteria, shared tensors once."""
        once = [name for name, _ in (*self.parts.named_parameters(), *self.parts.named_buffers())]
        state = self.parts.state_dict()
        return {name: state[name] for name in once if name in state}

    def _kept_weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().to("cpu", copy=True) for name, weight in self._weights().items()}

    def _go_on(self) -> None:
        """Resume from the last epoch on disk, if there is one from the same libraries."""
        assert self._steps is not None
        last = self._steps.last()
        if last is None:
            return
        saved, tensors = last
        if saved.versions != versions():
            self._steps.clear()
            return
        tuner = self.tuner
        for losses, scores in zip(saved.train_losses, saved.scores, strict=True):
            self.train_losses.append([math.nan if loss is None else loss for loss in losses])
            self.scores.append(list(scores))
        self.best_epoch = saved.best_epoch
        self.outputs = tensors[_OUTPUTS].numpy()
        self._load(tensors, _BEST if self.best_epoch < len(self) else _MODEL)
        self._state = self._kept_weights()
        self._load(tensors, _MODEL)
        load_optimizer(tuner.optimizer, tensors)
        tuner.go_on_from(saved.step)
        tuner.failures.update({int(layer): TrainingError(message) for layer, message in saved.failures.items()})
        tuner.limit.tokens, self.limit.tokens = saved.batch_tokens, saved.evaluation_tokens
        states = {name.removeprefix(_RNG): state for name, state in tensors.items() if name.startswith(_RNG)}
        restore_rng(states, tuner.encoder.device)
        self._began -= saved.seconds
        logger.info("resuming after epoch %d of %d", saved.epoch, tuner.protocol.epochs)

    @torch.no_grad()
    def _load(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        for name, weight in self._weights().items():
            weight.copy_(tensors[prefix + name])


def forget_epochs(folder: Path) -> None:
    """Remove the saved epochs of a run from its folder."""
    _saved_epochs(folder).clear()


def _saved_epochs(folder: Path) -> SavedSteps[SavedEpoch]:
    return SavedSteps(
        folder,
        SavedEpoch,
        root=folder.parent.parent,
        advice=another_folder(),
        name=f"{folder.parent.name}/{folder.name}",
    )
