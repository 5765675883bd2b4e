"""By how much a smaller model is worse than the whole one on a task, as it is and after fine-tuning both.

Knows resolved models and a task; knows nothing of how the smaller one was made.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import LEVEL
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.backends.backend import TORCH, engines
from layerprobe.encoders.backends.choice import timed_rounds
from layerprobe.encoders.backends.graph import Graph, open_graph
from layerprobe.encoders.backends.int8 import int8_graph, int8_graphs
from layerprobe.encoders.batching import Prepared
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.timing import median_range
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import MissingPackageError, ModelError
from layerprobe.finetuning.losses import Criterion, criterion_of, prepared_sides
from layerprobe.finetuning.outputs import ScoredSplit, outputs_in
from layerprobe.finetuning.tuning import finetune, items_of, saved_models, with_prompts
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.scoring.probes import Probe
from layerprobe.shrinking.embedding import Embed, Vectors, embedder, fewer, tokenized
from layerprobe.shrinking.teacher import Taught, agreement
from layerprobe.shrinking.values import PointsLost, Served, Sized
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.stats.values import CrossedInterval
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, item_influences, links_of
from layerprobe.tasks.explored import ItemSource, LayerOutputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task

Array = NDArray[np.float64]
Scored = tuple[Evaluation, Array]
"""What outputs score, and what each item adds to the primary metric."""


def has_untrained_outputs(kind: str) -> bool:
    """Return whether items of a kind have outputs without fine-tuning: of a loss without a head, or of a probe."""
    return not _has_head(kind) or (KINDS[kind].zero_shot == "probe" and KINDS[kind].probe is not None)


def _has_head(kind: str) -> bool:
    criterion: Criterion = KINDS[kind].load("loss")(width=1, n_labels=2)
    return any(True for _ in criterion.parameters())


def tuned(model: Resolved, task: Task, layer: int, seed: int, protocol: Protocol | None, split: ScoredSplit) -> Scored:
    """Fine-tune a model truncated at a layer and score it on a split; a finished run is loaded.

    Texts are cut as the protocol says.
    """
    model = model.with_options(max_length=None)
    run: FineTuningRun = finetune(model, task, [layer], seeds=[seed], protocol=protocol)[0]
    influences = items_of(model, [run], task).influences[split][layer, seed]
    outputs = outputs_in(saved_models(model, [run], task)[0]).of(layer, split)
    return Evaluation(metrics=getattr(run, split), threshold=run.threshold, outputs=outputs), influences


def difference(
    a: Sequence[Scored], b: Sequence[Scored], task: Task, split: ScoredSplit, *, level: float
) -> CrossedInterval | None:
    """Return the difference a - b of scores over the same seeds and items; None where items have no error."""
    items, primary = task.split(split), task.primary
    influences = np.stack([one - other for (_, one), (_, other) in zip(a, b, strict=True)])
    values = [one.metrics[primary] - other.metrics[primary] for (one, _), (other, _) in zip(a, b, strict=True)]
    links = links_of(items)
    if not errors_known(len(items), links):
        return None
    return crossed(values, influences, links=links, level=level, unit=KINDS[task.kind].unit, metric=primary)


def failing(whole: Sequence[Scored], small: Sequence[Scored], task: Task, split: ScoredSplit) -> float:
    """Return the points lost if one more item failed that the whole model gets right.

    (2 |score| + max(sum x^3 / sum x^2, 0)) / G, of influences x of the items on the loss, and G independent items: a
    failure is taken to cost as much as if the smaller model were as wrong there as the whole one is right, and what the
    largest losses among the items are besides. What fails more seldom than in some 3 / G is in no sample of G.

    Source: of the second part Johnson 1978 (Journal of the American Statistical Association 73), of skewed means.
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
    """A whole model on a task, with which smaller ones are compared."""

    whole: SharedModel
    task: Task
    tuning: Protocol | None
    """How both are fine-tuned; None: they are not."""
    margin: float
    whole_scored: dict[str, Scored] = field(default_factory=dict)
    """The whole model without fine-tuning, by split."""
    first: tuple[Evaluation, Evaluation] | None = None
    """Of the whole model and of the first smaller one, what was last compared: of both fine-tuned where they were."""

    def some_texts(self, n: int) -> tuple[str, ...]:
        """Return some texts of the test split."""
        texts = self.task.texts("test")
        return texts[:: max(1, len(texts) // n)][:n]

    def untrained_cosines(self) -> float | None:
        """Return the whole model's correlation on the validation split, x 100; None for other metrics."""
        if KINDS[self.task.kind].zero_shot != "cosine" or self.task.primary != "spearman":
            return None
        return self._of_whole("validation")[0].metrics[self.task.primary]

    def losses(
        self, models: Sequence[tuple[SharedModel, Embed]], seeds: Sequence[int], split: str
    ) -> tuple[PointsLost | None, PointsLost | None]:
        """Return the loss of smaller models, one a seed, by their embeddings, and after fine-tuning both."""
        as_it_is = self.as_they_are(models, split) if has_untrained_outputs(self.task.kind) else None
        if self.tuning is None:
            return as_it_is, None
        return as_it_is, self._after_tuning([model for model, _ in models], seeds, cast(ScoredSplit, split))

    def as_they_are(self, models: Sequence[tuple[SharedModel, Embed]], split: str) -> PointsLost:
        """Return the loss of smaller models, one a seed, by their embeddings."""
        split = cast(ScoredSplit, split)
        small, whole = [self._untrained(model, split, embed) for model, embed in models], [self._of_whole(split)]
        self.first = whole[0][0], small[0][0]
        return self._loss(whole, small, split)

    def interval_of_whole(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the whole model's score on the test split over new items."""
        scored, influences = self._of_whole("test")
        primary, links = self.task.primary, links_of(self.task.test)
        score, unit = scored.metrics[primary], KINDS[self.task.kind].unit
        if not errors_known(len(self.task.test), links):
            return None
        error = crossed(
            [score], influences[None], links=links, level=LEVEL, unit=unit, metric=primary, difference=False
        )
        return None if error is None else error.interval

    def item_source(self) -> ItemSource | None:
        """Return whence a page has the test items, after `losses` of that split: outputs of the whole and a smaller."""
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

    def _of_whole(self, split: ScoredSplit) -> Scored:
        if split not in self.whole_scored:
            self.whole_scored[split] = self._untrained(self.whole, split, embedder(self.whole))
        return self.whole_scored[split]

    def _loss(self, whole: Sequence[Scored], small: Sequence[Scored], split: ScoredSplit) -> PointsLost:
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
            model.forget()  # fine-tuning loads its own
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
        """Return the task with the whole model's prompts, which the folder of a smaller one does not say."""
        if model is self.whole or self.task.train.prompts is None:
            return self.task
        prompts = self.whole.checkpoint.retrieval_prompts
        train, validation, test = (
            items.with_prompts(*prompts) for items in (self.task.train, self.task.validation, self.task.test)
        )
        return replace(self.task, train=train, validation=validation, test=test)

    def _untrained(self, model: SharedModel, split: ScoredSplit, embed: Embed) -> Scored:
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
        probe: Probe = KINDS[task.kind].load("probe")
        encoder, how, features = model.encoder, model.checkpoint, []
        for items in (with_prompts(task, how).split(part) for part in ("train", split)):
            prepared = prepared_sides(encoder, items, max_length=encoder.limit(how.max_length))
            values = embed(prepared.texts)
            u, *v = (values[side] for side in prepared.sides)
            features.append(probe.features(u, v[0] if v else None))
        return probe.fit(features[0], np.asarray(task.train.gold), features[1])


# ---- ways to run them -----------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


def served(
    model: SharedModel,
    blocks: tuple[int, ...],
    compared: Compared | None,
    held_out: Taught,
    dense: Vectors | None,
    tokens: int | None = None,
) -> Iterator[Served]:
    """Yield speed and loss of every way to run a model of some blocks and tokens; with `dense` in fewer dimensions too.

    Speed and agreement are measured on the texts held out, the loss on the test split of a task.
    """
    graphs, encoder, dtype = _graphs(model), model.encoder, model.checkpoint.dtype
    lengths, seconds = timed_rounds(encoder, graphs, model.checkpoint, held_out.texts)
    texts = tokenized(model, held_out.texts)
    for name in (TORCH, *graphs):
        milliseconds, low, high = median_range([1e3 * elapsed / len(lengths) for elapsed in seconds[name]])
        for weight in (None, dense)[: 1 + (dense is not None)]:
            embed = embedder(model, graph=graphs.get(name), dense=weight)
            yield Served(
                blocks=blocks,
                run_by=name if dtype == "float32" or "int8" in name else f"{name} {dtype}",
                dimensions=encoder.description.hidden_size if weight is None else len(weight),
                milliseconds=milliseconds,
                interval=(low, high),
                agreement=100 * agreement(embed(texts), held_out.gold),
                loss=None if compared is None else compared.losses([(model, embed)], (0,), "test")[0],
                tokens=tokens,
            )


def sized(
    models: Sequence[SharedModel],
    blocks: tuple[int, ...],
    compared: Compared,
    texts: Sequence[str],
    dimensions: Sequence[int],
    *,
    trained: bool,
) -> Iterator[Sized]:
    """Yield size and score of models of the same blocks and tokens, one a seed, with dimensions in 32 and in 8 bits.

    Maps to fewer dimensions are fitted on the embeddings of some texts.
    """
    for bits in (32, 8):
        try:
            rounded = [None if bits == 32 else int8_graph(load(m.checkpoint), m.checkpoint.pooling) for m in models]
        except ModelError as error:
            logger.log(logging.INFO if isinstance(error, MissingPackageError) else logging.WARNING, "%s", error)
            return
        embeds = [
            _by_split(embedder(model, graph=way and way[0]), model, texts)
            for model, way in zip(models, rounded, strict=True)
        ]
        first, way = models[0].encoder.description, rounded[0]
        for size in dimensions:
            whole = size == first.hidden_size
            losses = {
                split: compared.as_they_are(
                    [(m, one(split, size)) for m, one in zip(models, embeds, strict=True)], split
                )
                for split in ("validation", "test")
            }
            loss = losses["test"]
            known = models[0].checkpoint.tokenizer
            yield Sized(
                blocks=blocks,
                tokens=len(known.get_vocab()),
                dimensions=size,
                bits=bits,
                seeds=len(models) if trained else 0,
                weights=(4 * first.parameters[-1] if way is None else way[1])
                + (0 if whole else 4 * size * first.hidden_size),
                chosen_by=float(np.mean(losses["validation"].small)),
                loss=loss,
                interval=loss.interval and (loss.whole[0] - loss.interval[1], loss.whole[0] - loss.interval[0]),
            )


def _by_split(embed: Embed, model: SharedModel, texts: Sequence[str]) -> Callable[[str, int], Embed]:
    """Return what gives, by split and dimensions, an `Embed` that embeds the texts of a split once."""
    fitted, done = embed(tokenized(model, texts)), dict[str, Vectors]()

    def of(split: str, dimensions: int) -> Embed:
        def embedded(prepared: Prepared) -> Vectors:
            if split not in done:
                done[split] = embed(prepared)
            vectors = done[split]
            return vectors if dimensions == vectors.shape[1] else vectors @ fewer(fitted, dimensions).T

        return embedded

    return of


def _graphs(model: SharedModel) -> dict[str, Graph]:
    """Return the model as a graph of every installed backend, also in 8 bits; failures are logged."""
    # of its own: an export may change a model
    encoder, graphs = load(model.checkpoint), dict[str, Graph]()
    for name, engine in engines().items():
        try:
            engine.check(encoder.device.type, model.checkpoint.dtype)
            graphs[name] = open_graph(engine, encoder, model.checkpoint)[0]
        except ModelError as error:
            logger.log(logging.INFO if isinstance(error, MissingPackageError) else logging.WARNING, "%s", error)
    try:
        return graphs | int8_graphs(encoder, model.checkpoint.pooling)
    except ModelError as error:
        logger.warning("%s", error)
        return graphs
