"""Points that a smaller model loses to the whole one on a task, before and after fine-tuning both.

Knows resolved models and a task; knows nothing about how the smaller one was made.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import cast

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import LEVEL
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.backends import BACKENDS, TORCH
from layerprobe.encoders.engines import int8_graphs
from layerprobe.encoders.graphs import Graph, open_graph, timed_rounds
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import SharedModel, load
from layerprobe.encoders.timing import median_range
from layerprobe.errors import MissingPackageError, ModelError
from layerprobe.export.folder import written_bytes
from layerprobe.finetuning.losses import Criterion, criterion_of, prepared_sides
from layerprobe.finetuning.outcomes import ScoredSplit, outputs_in, run_items
from layerprobe.finetuning.runs import with_prompts
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.interval import Interval
from layerprobe.scoring.probes import Probe
from layerprobe.shrinking.teacher import Embed, Taught, agreement, embedder, fewer, mapped, once, tokenized
from layerprobe.shrinking.values import PointsLost, Served
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, item_influences, links_of
from layerprobe.tasks.explored import ItemSource, LayerOutputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task

Array = NDArray[np.float64]
ScoredOutputs = tuple[Evaluation, Array]
"""Scores of outputs, and each item's contribution to the primary metric."""


def has_untrained_outputs(kind: str) -> bool:
    """Return whether a kind has outputs without fine-tuning: from a loss without a head, or from a probe."""
    return not _has_head(kind) or KINDS[kind].zero_shot == "probe"


def _has_head(kind: str) -> bool:
    criterion: Criterion = KINDS[kind].learning().loss(width=1, n_labels=2)
    return any(True for _ in criterion.parameters())


def tuned(
    model: Resolved, task: Task, layer: int, seed: int, protocol: Protocol | None, split: ScoredSplit
) -> ScoredOutputs:
    """Fine-tune a model truncated at a layer and score it on a split; a finished run is loaded.

    Texts are truncated at the protocol's length.
    """
    model = model.with_options(max_length=None)
    (run,) = finetune(model, task, [layer], seeds=[seed], protocol=protocol).runs
    influences = run_items(checked_task(task), [run]).influences[split][run.key]
    outputs = outputs_in(run.directory).of(layer, split)
    return Evaluation(metrics=getattr(run, split), threshold=run.threshold, outputs=outputs), influences


def difference(
    a: Sequence[ScoredOutputs], b: Sequence[ScoredOutputs], task: Task, split: ScoredSplit, *, level: float
) -> Interval | None:
    """Return the difference a - b of scores over the same seeds and items; None if items have no error."""
    items, primary = task.split(split), task.primary
    influences = np.stack([one - other for (_, one), (_, other) in zip(a, b, strict=True)])
    values = [one.metrics[primary] - other.metrics[primary] for (one, _), (other, _) in zip(a, b, strict=True)]
    links = links_of(items)
    if not errors_known(len(items), links):
        return None
    return crossed(values, influences, links=links, level=level, unit=KINDS[task.kind].unit, metric=primary)


def failing(whole: Sequence[ScoredOutputs], small: Sequence[ScoredOutputs], task: Task, split: ScoredSplit) -> float:
    """Return the points lost if one more item failed that the whole model gets right.

    (2 |score| + max(sum x^3 / sum x^2, 0)) / G, with influences x of the items on the loss and G independent items: the
    first term assumes that the smaller model is as wrong on that item as the whole one is right, the second adds the
    size of the largest losses among the items. A sample of G misses failures rarer than about 3 / G.

    Source: second term: Johnson 1978 (Journal of the American Statistical Association 73), skewed means.
    """
    items = task.split(split)
    links = links_of(items)
    losses = np.mean([one - other for (_, one), (_, other) in zip(whole, small, strict=True)], axis=0)
    squares = float(np.square(losses).sum())
    skew = float((losses**3).sum()) / squares if squares else 0.0
    score = float(np.mean([scores.metrics[task.primary] for scores, _ in whole]))
    return (2 * abs(score) + max(skew, 0.0)) / (len(items) if links is None else links.units)


@dataclass(slots=True, kw_only=True, eq=False)
class Compared:
    """A whole model on a task, for comparison with smaller ones."""

    whole: SharedModel
    task: Task
    tuning: Protocol | None
    """Protocol for fine-tuning both; None: no fine-tuning."""
    margin: float
    whole_scored: dict[str, ScoredOutputs] = field(default_factory=dict)
    """Scores of the whole model without fine-tuning, by split."""
    first: tuple[Evaluation, Evaluation] | None = None
    """Latest scores of the whole model and the first smaller one, after fine-tuning both if that was done."""

    def some_texts(self, n: int) -> tuple[str, ...]:
        """Return some texts of the test split."""
        texts = self.task.texts("test")
        return texts[:: max(1, len(texts) // n)][:n]

    def untrained_cosines(self) -> float | None:
        """Return the whole model's correlation on the validation split, x 100; None for other metrics."""
        if KINDS[self.task.kind].zero_shot != "cosine" or self.task.primary != "spearman":
            return None
        return self._score_whole("validation")[0].metrics[self.task.primary]

    def losses(
        self, models: Sequence[tuple[SharedModel, Embed]], seeds: Sequence[int], split: str
    ) -> tuple[PointsLost | None, PointsLost | None]:
        """Return the loss of smaller models, one per seed, from their embeddings, and after fine-tuning both."""
        as_it_is = self.as_they_are(models, split) if has_untrained_outputs(self.task.kind) else None
        if self.tuning is None:
            return as_it_is, None
        return as_it_is, self._after_tuning([model for model, _ in models], seeds, cast(ScoredSplit, split))

    def as_they_are(self, models: Sequence[tuple[SharedModel, Embed]], split: str) -> PointsLost:
        """Return the loss of smaller models, one per seed, from their embeddings."""
        split = cast(ScoredSplit, split)
        small, whole = [self._untrained(model, split, embed) for model, embed in models], [self._score_whole(split)]
        self.first = whole[0][0], small[0][0]
        return self._loss(whole, small, split)

    def whole_interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the whole model's score on the test split over new items."""
        scored, influences = self._score_whole("test")
        primary, links = self.task.primary, links_of(self.task.test)
        score, unit = scored.metrics[primary], KINDS[self.task.kind].unit
        if not errors_known(len(self.task.test), links):
            return None
        error = crossed(
            [score], influences[None], links=links, level=LEVEL, unit=unit, metric=primary, difference=False
        )
        return None if error is None else error.interval

    def item_source(self) -> ItemSource | None:
        """Return the source of a page's test items, outputs of the whole and a smaller model, after `losses`."""
        if self.first is None:
            return None
        groups = (
            LayerOutputs(
                name=name,
                layers=(0,),
                names=(name,),
                outputs=partial(list, [(evaluation.outputs, evaluation.threshold)]),
                scores=[evaluation.metrics[self.task.primary]],
            )
            for name, evaluation in zip(("whole model", "smaller model"), self.first, strict=True)
        )
        return ItemSource(task=self.task, split="test", groups=tuple(groups), start=((1, 0), (0, 0)))

    def _score_whole(self, split: ScoredSplit) -> ScoredOutputs:
        if split not in self.whole_scored:
            self.whole_scored[split] = self._untrained(self.whole, split, embedder(self.whole))
        return self.whole_scored[split]

    def _loss(self, whole: Sequence[ScoredOutputs], small: Sequence[ScoredOutputs], split: ScoredSplit) -> PointsLost:
        primary = self.task.primary
        scores, smaller = ([evaluation.metrics[primary] for evaluation, _ in scored] for scored in (whole, small))
        whole = [*whole] * (len(small) if len(whole) == 1 else 1)
        return PointsLost(
            metric=primary,
            whole=tuple(scores),
            small=tuple(smaller),
            error=difference(whole, small, self.task, split, level=LEVEL),
            margin=self.margin,
            failure=failing(whole, small, self.task, split),
        )

    def _after_tuning(self, models: Sequence[SharedModel], seeds: Sequence[int], split: ScoredSplit) -> PointsLost:
        for model in (self.whole, *models):
            model.forget()  # fine-tuning loads its own model
        whole, small = (
            [
                tuned(
                    model.checkpoint,
                    self._task(model),
                    count_blocks(model.checkpoint.config),
                    seed,
                    self.tuning,
                    split,
                )
                for model, seed in zip(group, seeds, strict=True)
            ]
            for group in ([self.whole] * len(seeds), models)
        )
        self.first = whole[0][0], small[0][0]
        return self._loss(whole, small, split)

    def _task(self, model: SharedModel) -> Task:
        """Return the task with the whole model's prompts, which a smaller one's folder does not contain."""
        if model is self.whole or self.task.train.prompts is None:
            return self.task
        prompts = self.whole.checkpoint.retrieval_prompts
        train, validation, test = (
            items.with_prompts(*prompts) for items in (self.task.train, self.task.validation, self.task.test)
        )
        return replace(self.task, train=train, validation=validation, test=test)

    def _untrained(self, model: SharedModel, split: ScoredSplit, embed: Embed) -> ScoredOutputs:
        task, kind, threshold = self._task(model), KINDS[self.task.kind], None
        outputs = self._probed if _has_head(self.task.kind) else self._outputs
        if kind.fitted_on == "validation" and split != "validation":
            threshold = self._untrained(model, "validation", embed)[0].threshold
        values, gold = outputs(model, task, split, embed), task.split(split).gold
        scored = replace(evaluate_outputs(self.task.kind, values, gold, threshold=threshold), outputs=values)
        primary, threshold = self.task.primary, scored.threshold
        return scored, item_influences(self.task.kind, values, gold, metric=primary, threshold=threshold)

    def _outputs(self, model: SharedModel, task: Task, split: ScoredSplit, embed: Embed) -> Array:
        """Return outputs of the embeddings by the kind's loss: cosines, distances or rankings."""
        encoder, how = model.encoder, model.checkpoint
        criterion = criterion_of(task, width=encoder.description.hidden_size).to(encoder.device)
        items, length = with_prompts(task, how).split(split), encoder.limit(how.max_length)
        prepared = criterion.prepare(encoder, items, max_length=length)
        return criterion.item_outputs(embed(prepared.texts), prepared)

    def _probed(self, model: SharedModel, task: Task, split: ScoredSplit, embed: Embed) -> Array:
        """Return outputs of the kind's probe, fitted on the embeddings of the train split."""
        probe: Probe = KINDS[task.kind].learning().probe
        encoder, how, features = model.encoder, model.checkpoint, []
        for items in (with_prompts(task, how).split(part) for part in ("train", split)):
            prepared = prepared_sides(encoder, items, max_length=encoder.limit(how.max_length))
            values = embed(prepared.texts)
            u, *v = (values[side] for side in prepared.sides)
            features.append(probe.features(u, v[0] if v else None))
        return probe.fit(features[0], np.asarray(task.train.gold), features[1])


# ---- sizes and speeds -----------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


def served(
    models: Sequence[SharedModel],
    blocks: tuple[int, ...],
    compared: Compared | None,
    held_out: Taught,
    texts: Sequence[str],
    dimensions: Sequence[int],
    declared: str,
    *,
    trained: bool,
    timed: bool,
) -> Iterator[Served]:
    """Yield size and loss of models with the same blocks and tokens, one per seed, in torch and in 8 bits.

    If `timed`, also their time, and the first model with every backend. Maps to fewer dimensions are fitted on
    embeddings of some texts; time and agreement are measured on held-out texts, the loss on the task. An export
    keeps the `declared` dtype if the weights have it.
    """
    first, graphs = models[0], [_graphs(model, every=timed and model is models[0]) for model in models]
    encoder, dtype, times = first.encoder, first.checkpoint.dtype, dict[str, tuple[float, float, float]]()
    if timed:
        opened = {name: graph for name, (graph, _) in graphs[0].items()}
        lengths, seconds = timed_rounds(encoder, opened, first.checkpoint, held_out.texts)
        times = {name: median_range([1e3 * one / len(lengths) for one in seconds[name]]) for name in seconds}
    width, of_float = encoder.description.hidden_size, written_bytes(encoder, declared)
    fitted = [embedder(model)(tokenized(model, texts)) for model in models if min(dimensions) < width]
    scored = compared if compared is not None and has_untrained_outputs(compared.task.kind) else None
    for name in (TORCH, *graphs[0]):
        run = [
            (model, of.get(name, (None, None)))
            for model, of in zip(models, graphs, strict=True)
            if name in (TORCH, *of)
        ]
        ways = [(model, once(embedder(model, graph=graph))) for model, (graph, _) in run]
        alike = [tokenized(model, held_out.texts) for model, _ in ways]
        for size in dimensions:
            maps = [None if size == width else fewer(fitted[seed], size) for seed in range(len(ways))]
            embeds = [(model, mapped(embed, dense)) for (model, embed), dense in zip(ways, maps, strict=True)]
            agreed = [agreement(embed(texts), held_out.gold) for (_, embed), texts in zip(embeds, alike, strict=True)]
            validation, loss, interval = None, None, None
            if scored is not None:
                validation, loss = (scored.as_they_are(embeds, split) for split in ("validation", "test"))
                ends, score = loss.interval, loss.whole[0]
                interval = ends and (score - ends[1], score - ends[0])
                if first is scored.whole and (name, size) == (TORCH, width):
                    interval = scored.whole_interval()
            yield Served(
                blocks=blocks,
                tokens=len(first.checkpoint.tokenizer.get_vocab()),
                dimensions=size,
                run_by=name if dtype == "float32" or "int8" in name else f"{name} {dtype}",
                seeds=len(run) if trained else 0,
                weights=(run[0][1][1] or of_float) + (0 if size == width else 4 * size * width),
                milliseconds=times[name][0] if timed else None,
                interval=times[name][1:] if timed else None,
                agreement=100 * fmean(agreed),
                chosen_by=None if validation is None else fmean(validation.small),
                loss=loss,
                score_interval=interval,
            )


def _graphs(model: SharedModel, *, every: bool) -> dict[str, tuple[Graph, int | None]]:
    """Return the model in 8 bits with its size in bytes, and as a graph for every backend; failures are logged."""
    # a separate copy: an export may change a model
    encoder, graphs = load(model.checkpoint), dict[str, tuple[Graph, int | None]]()
    for name, engine in BACKENDS.usable().items() if every else ():
        with _logged():
            engine.check(encoder.device.type, model.checkpoint.dtype)
            graphs[name] = open_graph(engine, encoder, model.checkpoint)[0], None
    with _logged():
        graphs |= int8_graphs(encoder, model.checkpoint.pooling, every=every)
    return graphs


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        logger.log(logging.INFO if isinstance(error, MissingPackageError) else logging.WARNING, "%s", error)
