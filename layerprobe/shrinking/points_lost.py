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
from layerprobe.encoders.batching import ModelInputs
from layerprobe.encoders.engines import int8_graphs
from layerprobe.encoders.graphs import Graph, open_graph, timed_rounds
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
from layerprobe.kinds.retrieval import RetrievalItems, closest_documents
from layerprobe.scoring.probes import Probe
from layerprobe.shrinking.teacher import Embed, Taught, Vectors, agreement, embedder, fewer, mapped, once, tokenized
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
Embedding = tuple[SharedModel, Embed]
"""A model, and how it embeds texts."""


def has_untrained_outputs(kind: str) -> bool:
    """Return whether a kind has outputs without fine-tuning: from a loss without a head, or from a probe."""
    return not _has_head(kind) or KINDS[kind].zero_shot == "probe"


def _has_head(kind: str) -> bool:
    criterion: Criterion = KINDS[kind].learning().loss(width=1, n_labels=2)
    return any(True for _ in criterion.parameters())


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
    whole_embedded: dict[str, Vectors] = field(default_factory=dict)
    """Embeddings of the texts of these splits by the whole model."""
    first: tuple[Evaluation, ...] = ()
    """Latest scores of the whole model, the first smaller one, and that one for queries alone; after fine-tuning both
    if that was done."""

    @property
    def prompted(self) -> Task:
        """The task with the whole model's prompts of queries, which a smaller one's folder does not contain."""
        return self.task if self.task.train.prompts is None else with_prompts(self.task, self.whole.checkpoint)

    def some_texts(self, n: int) -> tuple[str, ...]:
        """Return some texts of the test split."""
        texts = self.task.texts("test")
        return texts[:: max(1, len(texts) // n)][:n]

    def untrained_cosines(self) -> float | None:
        """Return the whole model's correlation on the validation split, x 100; None for other metrics."""
        if KINDS[self.task.kind].zero_shot != "cosine" or self.task.primary != "spearman":
            return None
        return self._score_whole("validation")[0].metrics[self.task.primary]

    def losses(self, models: Sequence[Embedding], seeds: Sequence[int], split: str) -> dict[str, PointsLost | None]:
        """Return the losses of smaller models, one per seed, by the names of the fields of `Smaller`."""
        losses = dict[str, PointsLost | None]()
        if has_untrained_outputs(self.task.kind):
            losses["as_it_is"] = self.as_they_are(models, split)
        if split == "test":
            losses["asymmetric"] = self.asymmetric(models)
        if self.tuning is not None:
            losses["tuned"] = self._after_tuning([model for model, _ in models], seeds, cast(ScoredSplit, split))
        return losses

    def as_they_are(self, models: Sequence[Embedding], split: str) -> PointsLost:
        """Return the loss of smaller models, one per seed, from their embeddings."""
        split = cast(ScoredSplit, split)
        small, whole = [self._untrained(model, split, embed) for model, embed in models], [self._score_whole(split)]
        self.first = whole[0][0], small[0][0]
        return self._loss(whole, small, split)

    def asymmetric(self, models: Sequence[Embedding]) -> PointsLost | None:
        """Return the test loss if smaller models, one per seed, embed queries and the whole model documents.

        None for tasks without queries, and if the models' embeddings differ in width.

        Source: Vujanic and Rueckstiess 2025 (arXiv 2509.12539), asymmetric retrieval.
        """
        items = self.prompted.test
        if not isinstance(items, RetrievalItems):
            return None
        whole, small = self._score_whole("test"), list[ScoredOutputs]()
        row = {text: i for i, text in enumerate(items.texts)}
        documents = self.whole_embedded["test"][[row[text] for text in items.document_texts]]
        for model, embed in models:
            length = model.encoder.limit(model.checkpoint.max_length)
            queries = embed(model.encoder.tokenize(items.query_texts, max_length=length))
            if queries.shape[1] != documents.shape[1]:
                return None
            n, rows = len(queries), np.arange(len(queries) + len(documents))
            both, itself = np.concatenate([queries, documents]), np.array(items.own)
            values = closest_documents(both, rows[:n], rows[n:], itself, name="the embeddings")
            small.append(self._scored(values, "test"))
        self.first = *self.first, small[0][0]
        return self._loss([whole], small, "test")

    def whole_interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the whole model's score on the test split over new items."""
        scored, influences = self._score_whole("test")
        error = self._error([scored.metrics[self.task.primary]], influences[None], "test", difference=False)
        return None if error is None else error.interval

    def item_source(self) -> ItemSource | None:
        """Return the source of a page's test items, outputs of the whole and a smaller model, after `losses`."""
        if not self.first:
            return None
        names = "whole model", "smaller model", "smaller model for queries, whole for documents"
        groups = (
            LayerOutputs(
                name=name,
                layers=(0,),
                names=(name,),
                outputs=partial(list, [(evaluation.outputs, evaluation.threshold)]),
                scores=[evaluation.metrics[self.task.primary]],
            )
            for name, evaluation in zip(names, self.first, strict=False)
        )
        return ItemSource(task=self.task, split="test", groups=tuple(groups), start=((1, 0), (0, 0)))

    def _score_whole(self, split: ScoredSplit) -> ScoredOutputs:
        def embed(texts: ModelInputs) -> Vectors:
            self.whole_embedded[split] = embedder(self.whole)(texts)
            return self.whole_embedded[split]

        if split not in self.whole_scored:
            self.whole_scored[split] = self._untrained(self.whole, split, embed)
        return self.whole_scored[split]

    def _loss(self, whole: Sequence[ScoredOutputs], small: Sequence[ScoredOutputs], split: ScoredSplit) -> PointsLost:
        primary = self.task.primary
        scores, smaller = ([evaluation.metrics[primary] for evaluation, _ in scored] for scored in (whole, small))
        whole = [*whole] * (len(small) if len(whole) == 1 else 1)
        values = np.subtract(scores, smaller).tolist()  # of one whole model, or of one per seed
        influences = np.stack([one - other for (_, one), (_, other) in zip(whole, small, strict=True)])
        return PointsLost(
            metric=primary,
            whole=tuple(scores),
            small=tuple(smaller),
            error=self._error(values, influences, split, difference=True),
            margin=self.margin,
            failure=self._failure(float(np.mean(scores)), influences.mean(axis=0), split),
        )

    def _error(
        self, values: Sequence[float], influences: Array, split: ScoredSplit, *, difference: bool
    ) -> Interval | None:
        """Return the mean over seeds of scores, or of their differences, over items; None if these have no error."""
        items, unit, metric = self.task.split(split), KINDS[self.task.kind].unit, self.task.primary
        links = links_of(items)
        if not errors_known(len(items), links):
            return None
        return crossed(values, influences, links=links, level=LEVEL, unit=unit, metric=metric, difference=difference)

    def _failure(self, score: float, losses: Array, split: ScoredSplit) -> float:
        """Return the points lost if one more item failed that the whole model, with this mean score, gets right.

        (2 |score| + max(sum x^3 / sum x^2, 0)) / G, with influences x of the items on the loss and G independent items:
        the first term assumes that the smaller model is as wrong on that item as the whole one is right, the second
        adds the size of the largest losses among the items. A sample of G misses failures rarer than about 3 / G.

        Source: second term: Johnson 1978 (Journal of the American Statistical Association 73), skewed means.
        """
        items = self.task.split(split)
        links, squares = links_of(items), float(np.square(losses).sum())
        skew = float((losses**3).sum()) / squares if squares else 0.0
        return (2 * abs(score) + max(skew, 0.0)) / (len(items) if links is None else links.units)

    def _after_tuning(self, models: Sequence[SharedModel], seeds: Sequence[int], split: ScoredSplit) -> PointsLost:
        for model in (self.whole, *models):
            model.forget()  # fine-tuning loads its own model
        groups = [self.whole] * len(seeds), models
        whole, small = ([*map(self._tuned, group, seeds, [split] * len(seeds))] for group in groups)
        self.first = whole[0][0], small[0][0]
        return self._loss(whole, small, split)

    def _tuned(self, model: SharedModel, seed: int, split: ScoredSplit) -> ScoredOutputs:
        """Fine-tune a model and score it; a finished run is loaded. Texts are truncated at the protocol's length."""
        checkpoint, task = model.checkpoint.with_options(max_length=None), self.prompted
        layer = count_blocks(checkpoint.config)
        (run,) = finetune(checkpoint, task, [layer], seeds=[seed], protocol=self.tuning).runs
        influences = run_items(checked_task(task), [run]).influences[split][run.key]
        outputs = outputs_in(run.directory).of(layer, split)
        return Evaluation(metrics=getattr(run, split), threshold=run.threshold, outputs=outputs), influences

    def _untrained(self, model: SharedModel, split: ScoredSplit, embed: Embed) -> ScoredOutputs:
        task, kind, threshold = self.prompted, KINDS[self.task.kind], None
        outputs = self._probed if _has_head(self.task.kind) else self._outputs
        if kind.fitted_on == "validation" and split != "validation":
            threshold = self._untrained(model, "validation", embed)[0].threshold
        return self._scored(outputs(model, task, split, embed), split, threshold)

    def _scored(self, values: Array, split: ScoredSplit, threshold: float | None = None) -> ScoredOutputs:
        gold, kind, primary = self.task.split(split).gold, self.task.kind, self.task.primary
        scored = replace(evaluate_outputs(kind, values, gold, threshold=threshold), outputs=values)
        return scored, item_influences(kind, values, gold, metric=primary, threshold=scored.threshold)

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
