"""How well untrained embeddings do a task, layer by layer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import DataError, unreliable
from layerprobe.files.serialisation import RARE
from layerprobe.metrics.names import check_primary, metric_title, points, split_title
from layerprobe.names import distinct_names, plural, short_name
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, brief, from_layer
from layerprobe.results.table import Column, Table, columns_of, interval_title, layer_columns
from layerprobe.stats.seeds import best_of, front_beyond_noise, pareto_front
from layerprobe.stats.sentences import across_sentence, best_sentence, gain_in_brackets, layers_of_models, score_of_best
from layerprobe.stats.values import AgainstBest, CrossedInterval, Floor

REVERSED = -20.0
"""Correlations x 100 of all layers below which labels are likely to be the wrong way round."""
MeanForm = Literal["unit", "plain"]
"""Of the embeddings of two layers: each divided by its norm, so that both count alike, or as they are."""
FORMS = {"unit": "at unit norm", "plain": "as they are"}
ScoreMethod = Literal["cosine", "probe", "centrality"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerScores(Shown):
    """How well untrained embeddings do a task, layer by layer."""

    split: str
    """validation, test, or all."""
    method: ScoreMethod
    """cosine of the two embeddings of a pair; probe: a linear model fitted on the embeddings of the train split; or
    centrality of sentences in their document."""
    primary: str
    """The metric that chooses a layer."""
    metrics: dict[str, tuple[float, ...]]
    """By layer, x 100."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; scores before it repeat its own."""
    influences: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """By layer, what each item adds to the primary metric, see `layerprobe.metrics.influence`; empty where that was not
    kept."""
    cautions: tuple[str, ...] = field(default=(), metadata=RARE)
    """What a reader should know about the embeddings, in plain words; empty where that stands beside the scores."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """What a trivial answer scores on the same items by the primary metric; None where there is none."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The layers from the first one on, by the primary metric; None where nothing is known of the errors."""

    def __post_init__(self) -> None:
        check_primary(self.primary, self.metrics, what="zero-shot metrics")
        lengths = {len(scores) for scores in self.metrics.values()}
        if lengths == {0} or len(lengths) > 1:
            raise DataError(f"expected a score of every layer by every metric, got {sorted(lengths)} scores")

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric by layer, x 100."""
        return self.metrics[self.primary]

    def own(self, layer: int) -> float | None:
        """Return the primary metric of a layer, x 100; None where it is left out."""
        return self.scores[layer] if layer >= self.first_layer else None

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric, the earlier one of equals."""
        return self.first_layer + best_of(self.scores[self.first_layer :])

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know: about the embeddings, and what speaks against the labels."""
        if max(self.scores[self.first_layer :]) >= REVERSED:
            return self.cautions
        what = f"every layer has a {metric_title(self.primary)} x 100 below {REVERSED:g}"
        advice = "the labels may be distances, not similarities; reverse them (highest score minus each)"
        return (*self.cautions, unreliable(f"{what}: {advice}"))

    @property
    def table(self) -> Table:
        """One row per layer: its scores by every metric."""
        layers = range(len(self.scores))
        return Table(
            columns=(
                *layer_columns(layers),
                *(
                    column
                    for name, by_layer in self.metrics.items()
                    for column in (
                        Column(
                            name,
                            from_layer(self.first_layer, by_layer),
                            title=metric_title(name),
                            form=".2f",
                            quantity=points(name, self.split),
                        ),
                        *(compared_columns(self.compared, self.first_layer) if name == self.primary else ()),
                    )
                ),
                Column("flag", tuple(map(self._flag, layers))),
            ),
            marks=tuple(map(self._mark, layers)),
            notes=(f"{self._what}.",),
            charts=(scores_chart(self.primary, self.compared),),
        )

    def _mark(self, layer: int) -> str | None:
        if self.on_floor:
            return None
        candidates = () if self.compared is None else self.compared.candidates
        if layer == self.best_layer:
            return "chosen"
        return "candidate" if layer - self.first_layer in candidates else None

    def _flag(self, layer: int) -> str | None:
        if self.compared is not None:
            return self.compared.flag(layer - self.first_layer)
        return "best" if layer == self.best_layer else None

    @property
    def _what(self) -> str:
        return f"{metric_title(self.primary)} x 100 by {self.method} on {split_title(self.split)}"

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{self._what}: {self.sentence} By layer: {brief(from_layer(self.first_layer, self.scores))}"

    @property
    def sentence(self) -> str:
        """Which layer is best and how sure that is, which may be, and the smallest that will do."""
        best, last, compared = self.best_layer, len(self.scores) - 1, self.compared
        score = f"{self.scores[best]:.2f}" if compared is None else score_of_best(compared)
        which = f"The last layer, {last}," if best == last else f"Layer {best}"
        ahead = "" if best == last else f"; the last layer, {last}, {self.scores[last]:.2f}"
        headline = f"{which} scores best without fine-tuning: {metric_title(self.primary)} {score}{ahead}"
        if compared is None:
            return f"{headline}."
        names = [str(layer) for layer in range(self.first_layer, last + 1)]
        return best_sentence(compared, names, headline, metric=self.primary)


def scores_chart(score: str, compared: AgainstBest | None, *, by: str = "", name: str = "scores") -> Chart:
    """Return the chart of scores by layer, with intervals and the floor where `compared_columns` has them."""
    interval, floor = "interval" if compared else "", "floor" if compared and compared.floor else ""
    return Chart(
        name=name,
        lines=(Line(score, interval=interval),),
        floor=floor,
        by=by,
        band=bool(by),
        chosen="the highest score",
    )


def compared_columns(compared: AgainstBest | None, first: int = 0) -> tuple[Column, ...]:
    """Return the columns interval, at most behind, and floor; rows before the first layer are empty."""
    if compared is None:
        return ()
    about = "On other items; the lower end of the best score allows for its having been chosen."
    behind = "Points that the best is ahead at most, true of all rows together."
    before = (None,) * first
    return (
        Column(
            "interval",
            (*before, *compared.intervals),
            interval_title(compared.level),
            ".2f",
            meaning=about,
            interval=True,
            over="over new items",
        ),
        Column("behind", (*before, *compared.behind), "at most behind", ".2f", meaning=behind),
        *floor_columns([None] * first + [compared.floor] * len(compared.scores)),
    )


def behind_columns(behind: Sequence[float | None]) -> tuple[Column, ...]:
    """Return the column of the most that each row can be behind the best; empty where no row was compared."""
    if not any(points is not None for points in behind):
        return ()
    about = "Points that the best layer is ahead at most on test, true of all layers together."
    return (Column("behind", behind, "at most behind", ".2f", meaning=about),)


def floor_columns(floors: Sequence[Floor | None]) -> tuple[Column, ...]:
    """Return the column of floors, with a note on what they are; empty where no row has one."""
    by = dict.fromkeys(floor.by for floor in floors if floor is not None)
    meaning = f"By {', or '.join(by)}."
    return (columns_of(floors)("floor", lambda floor: floor.value, form=".2f", meaning=meaning),) if by else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMean:
    """The mean of two layers as an embedding, the two that score best on the validation split."""

    form: MeanForm
    layers: tuple[int, int]
    validation: float
    """The primary metric, x 100."""
    test: float
    """The primary metric, x 100."""
    gain: CrossedInterval | None
    """Test score less that of the best single layer, over test items; None where nothing is known of its error."""
    by_pair: tuple[float, ...]
    """The primary metric on validation of every two layers, x 100, in the order of `LayerMeans.pairs`."""

    @property
    def name(self) -> str:
        """Which layers, and how they are averaged."""
        return f"layers {self.layers[0]} and {self.layers[1]} {FORMS[self.form]}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerMeans(Shown):
    """Means of every two layers as embeddings, without fine-tuning, compared with the best single layer."""

    model: ModelDescription
    task: str
    """As the user gave it."""
    kind: str
    method: ScoreMethod
    primary: str
    """The metric that chooses layers."""
    first_layer: int
    """The first layer that is not left out."""
    layer: int
    """The single layer with the highest primary metric on the validation split."""
    by_layer: tuple[float, ...]
    """The primary metric of single layers on validation, x 100, from the first layer on."""
    validation: float
    """Of the single layer, x 100."""
    test: float
    """Of the single layer, x 100."""
    means: tuple[LayerMean, ...]
    """One a form."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every two layers."""
        layers = range(self.first_layer, self.first_layer + len(self.by_layer))
        return tuple(itertools.combinations(layers, 2))

    @property
    def best(self) -> LayerMean:
        """The mean with the highest primary metric on the validation split."""
        return max(self.means, key=lambda mean: mean.validation)

    @property
    def table(self) -> Table:
        """The best single layer, and below it the best two layers by each form of their mean."""
        title, means = metric_title(self.primary), self.means
        both, only = columns_of((self, *means)), columns_of((None, *means))
        gains = tuple(None if mean.gain is None else mean.gain.interval for mean in means)
        return Table(
            columns=(
                Column("embedding", (f"layer {self.layer} alone", *(mean.name for mean in means))),
                Column("form", ("alone", *(mean.form for mean in means)), shown=False),
                Column("first", (self.layer, *(mean.layers[0] for mean in means)), shown=False),
                Column("second", (self.layer, *(mean.layers[1] for mean in means)), shown=False),
                both("validation", title=f"validation {title}", form=".2f"),
                both("test", title=f"test {title}", form=".2f"),
                only(
                    "gain", lambda mean: mean.test - self.test, form="+.2f", meaning="On test, over the single layer."
                ),
                Column("interval", (None, *gains), title="interval of the gain", form="+.2f", interval=True),
            ),
            title="The best two layers",
        )

    @property
    def sentence(self) -> str:
        """What the better mean by validation gains, and how certain that is."""
        best, title = self.best, metric_title(self.primary)
        over = "" if best.gain is None else f"over new {plural(best.gain.unit)}"
        return (
            f"The mean of {best.name} scores {best.test:.2f} on test, "
            f"{best.test - self.test:+.2f} {title} x 100 compared with layer {self.layer}, the best single one by "
            f"validation {gain_in_brackets(best.gain, over)}"
        )

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{short_name(self.model.name)} on {self.task}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The scores of every layer on one task."""

    task: str
    """As the user gave it."""
    task_digest: str
    kind: str
    scores: LayerScores


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAcross:
    """One layer on all tasks."""

    layer: int
    mean: float
    """Of the primary metrics, x 100."""
    behind: float
    """Mean over tasks of what the best layer scores more, in points; 0 for that layer."""
    interval: tuple[float, float] | None
    """Of that difference on other tasks like these: Student's t over tasks, paired, at a level that all layers share.
    It holds the error over items, as each task has its own. None for the best layer, and for one task."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AcrossTasks(Shown):
    """Every layer of a model on several tasks."""

    model: ModelDescription
    tasks: tuple[TaskScores, ...]
    layers: tuple[LayerAcross, ...]
    level: float
    """Of the intervals."""
    settings: dict[str, str] = field(default_factory=dict, metadata=RARE)
    """How texts were embedded, where that is not the model's own way: pooling, prompt, norm, max_length."""
    warnings: tuple[str, ...] = field(default=(), metadata=RARE)
    """What a reader should know, in plain words, each with the task that it is of."""

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier one of equals."""
        return self.first_layer + best_of([layer.mean for layer in self.layers[self.first_layer :]])

    @property
    def first_layer(self) -> int:
        """The first layer that no task leaves out."""
        return max(task.scores.first_layer for task in self.tasks)

    @property
    def table(self) -> Table:
        """One row per layer: its score on every task, their mean, and how far that is behind the best layer."""
        sure = interval_title(self.level)
        column = columns_of(layer if layer.layer >= self.first_layer else None for layer in self.layers)
        names = distinct_names([task.task for task in self.tasks])
        splits = list(dict.fromkeys(task.scores.split for task in self.tasks))
        lines = [Line("mean", name="mean over tasks"), *(map(Line, names) if len(splits) == 1 else ())]
        return Table(
            columns=(
                *layer_columns((layer.layer for layer in self.layers), self.model.parameters),
                *(
                    Column(
                        name,
                        tuple(task.scores.own(layer.layer) for layer in self.layers),
                        form=".2f",
                        quantity=Quantity("score × 100", task.scores.split, "higher"),
                    )
                    for name, task in zip(names, self.tasks, strict=True)
                ),
                column(
                    "mean",
                    form=".2f",
                    meaning="Of the tasks, x 100.",
                    quantity=Quantity("score × 100", "all" if len(splits) > 1 else splits[0], "higher"),
                ),
                column("behind", form=".2f", meaning="Below the best layer, mean over tasks."),
                column(
                    "interval",
                    title=sure,
                    form=".2f",
                    meaning="Of that difference, on other tasks like these; all layers share the level.",
                    interval=True,
                ),
                Column("flag", tuple(self._flag(layer.layer) for layer in self.layers)),
            ),
            marks=tuple("chosen" if self._flag(layer.layer) == "best" else None for layer in self.layers),
            charts=(Chart(lines=tuple(lines), name="across", chosen="the best layer"),),
            notes=tuple(
                f"{name}: {task.scores.floor.by} scores {task.scores.floor.value:.2f}."
                for name, task in zip(names, self.tasks, strict=True)
                if task.scores.floor is not None
            ),
        )

    def _flag(self, layer: int) -> str | None:
        if self.on_floor:
            return None
        if layer == self.best_layer:
            return "best"
        return "may be best" if len(self.tasks) > 1 and layer in self.candidates else None

    @property
    def candidates(self) -> tuple[int, ...]:
        """The layers one of which is best on other tasks like these, at the level; all where there is one task.

        Those whose intervals do not say that the best layer is better.
        """
        layers = self.layers[self.first_layer :]
        return tuple(layer.layer for layer in layers if layer.interval is None or layer.interval[0] <= 0)

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        means = [layer.mean for layer in self.layers]
        return f"{short_name(self.model.name)}: {self.sentence} By layer: {brief(from_layer(self.first_layer, means))}"

    @property
    def sentence(self) -> str:
        """Which layer is best on all tasks, which may be as good, and which tasks no layer does."""
        floors = [f"On {task.task}: {task.scores.sentence}" for task in self.tasks if task.scores.on_floor]
        return " ".join(([] if self.on_floor else [self._best_sentence]) + floors)

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor on any task: then none is recommended."""
        return all(task.scores.on_floor for task in self.tasks)

    @property
    def _best_sentence(self) -> str:
        best, last = self.layers[self.best_layer], self.layers[-1]
        return across_sentence(
            best=best.layer,
            last=last.layer,
            n_tasks=len(self.tasks),
            mean=best.mean,
            behind=last.behind,
            interval=last.interval,
            level=self.level,
            rivals=[layer for layer in self.candidates if layer != best.layer],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOfModel:
    """One layer of one of several models on a task, without fine-tuning."""

    model: int
    """Which of the models, from 0."""
    layer: int
    score: float
    """The primary metric, x 100."""
    interval: tuple[float, float]
    """Of this score on other items, Student's t; that of the best allows for its having been chosen."""
    parameters: int
    """Of the truncated model, without the pooler."""
    milliseconds: float | None = None
    """What one text or image takes, the median over rounds; None where it was not measured."""
    milliseconds_range: tuple[float, float] | None = field(default=None, metadata=RARE)
    """Of the rounds."""
    letters: str = ""
    """Two share one where they do not differ, see `compact_letters`; empty where not all pairs were compared."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScoresOfModels(Shown):
    """Every layer of several models on one task, without fine-tuning."""

    models: tuple[ModelDescription, ...]
    task: str
    """As the user gave it."""
    task_digest: str
    kind: str
    split: str
    """validation, test, or all."""
    method: ScoreMethod
    primary: str
    """The metric that is scored by."""
    n_items: int
    unit: str
    """What an item is called."""
    level: float
    """Of each interval, and of all that is said of the best, or by letters, together."""
    layers: tuple[LayerOfModel, ...]
    """By model and layer, without those that are left out of a model."""
    warnings: tuple[str, ...] = ()
    """What a reader should know, in plain words."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The layers, in their order; None in older files."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the models in tables and plots."""
        return tuple(distinct_names([model.name for model in self.models]))

    def of_model(self, model: int) -> tuple[LayerOfModel, ...]:
        """Return the layers of a model."""
        return tuple(layer for layer in self.layers if layer.model == model)

    @property
    def best_of_each(self) -> tuple[LayerOfModel, ...]:
        """The layer of each model with the highest score, the best one first."""
        best = (max(self.of_model(i), key=lambda layer: layer.score) for i in range(len(self.models)))
        return tuple(sorted(best, key=lambda layer: (-layer.score, layer.parameters)))

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def _costs(self) -> tuple[int, ...]:
        return tuple(layer.parameters for layer in self.layers)

    def front(self, cost: Literal["parameters", "milliseconds"]) -> tuple[LayerOfModel, ...]:
        """Return the Pareto front of score and cost, by ascending cost; empty where the cost is unknown.

        Of times, only by as much as their ranges show.
        """
        if cost == "parameters":
            return pareto_front(self.layers, attrgetter(cost), attrgetter("score"))
        ranges = {layer: layer.milliseconds_range for layer in self.layers if layer.milliseconds_range}
        measured = len(ranges) == len(self.layers)
        return front_beyond_noise(self.layers, ranges.__getitem__, attrgetter("score")) if measured else ()

    def name(self, layer: LayerOfModel) -> str:
        """Return the name of a layer in a sentence."""
        return f"{self.labels[layer.model]} at layer {layer.layer}"

    @property
    def table(self) -> Table:
        """One row per model and layer: score, interval, distance from the best, cost, and the Pareto front."""
        labels, column, best = self.labels, columns_of(self.layers), self.best_of_each
        fronts = {"size": self.front("parameters"), "time": self.front("milliseconds")}
        on_front = (", ".join(name for name, front in fronts.items() if layer in front) for layer in self.layers)
        layer, parameters = layer_columns(map(attrgetter("layer"), self.layers), [e.parameters for e in self.layers])
        time = {
            "title": "ms",
            "over": "over rounds",
            "quantity": Quantity("milliseconds for one item"),
            "form": ".3g",
            "meaning": "Of one item by itself.",
            "shown": bool(fronts["time"]),
        }
        return Table(
            columns=(
                column("model", lambda row: labels[row.model]),
                layer,
                column(
                    "score",
                    title=metric_title(self.primary),
                    form=".2f",
                    meaning=f"On {self.n_items:,} items, x 100.",
                    quantity=points(self.primary, self.split),
                ),
                *(
                    compared_columns(self.compared)
                    or [
                        column(
                            "interval",
                            title=interval_title(self.level),
                            form=".2f",
                            interval=True,
                            over="over new items",
                        )
                    ]
                ),
                column("letters", meaning="Who shares one does not differ significantly, all pairs at once."),
                parameters,
                column("milliseconds", **time),
                column(
                    "milliseconds_range", **time | {"title": "range", "meaning": "Of the rounds.", "interval": True}
                ),
                Column("front", tuple(on_front), meaning="No other is both cheaper and better."),
                Column("flag", tuple(map(self._flag, range(len(self.layers))))),
            ),
            title="Table of models and layers",
            charts=self._charts,
            marks=tuple("chosen" if layer == best[0] and not self.on_floor else None for layer in self.layers),
        )

    @property
    def _charts(self) -> tuple[Chart, ...]:
        """Charts of the score by layer, by size and, where it was measured, by time."""
        score = Line("score", interval="interval")
        floor = "floor" if self.compared and self.compared.floor else ""
        cost = Chart(kind="cost", lines=(score,), by="model", label="layer", chosen="the highest score")
        size = replace(cost, name="score-parameters", heading="Score versus size", x="parameters")
        time = replace(size, name="score-milliseconds", heading="Score versus time", x="milliseconds")
        time = replace(time, x_interval="milliseconds_range")
        by_layer = Chart(name="models", lines=(score,), by="model", band=True, floor=floor, chosen="the highest score")
        return (by_layer, size, time) if self.front("milliseconds") else (by_layer, size)

    def _flag(self, number: int) -> str | None:
        layer, (best, *others) = self.layers[number], self.best_of_each
        if self.compared is None:
            return "best" if layer == best else "best of its model" if layer in others else None
        flags = ["best of its model"] if layer in others and not self.on_floor else []
        return ", ".join(filter(None, [*flags, self.compared.flag(number, self._costs)])) or None

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{len(self.models)} models on {self.task}: {self.sentence}"

    @property
    def sentence(self) -> str:
        """Which layer of which model is best and how sure that is, and the smallest that will do."""
        (best, *others), compared = self.best_of_each, self.compared
        score = f"{best.score:.2f}" if compared is None else score_of_best(compared)
        title = f"{metric_title(self.primary)} {score}"
        highest = [f"{self.name(best)} scores best on {split_title(self.split)}: {title}"]
        for other in others:
            behind = "" if compared is None else f", at most {compared.behind[self.layers.index(other)]:.2f} behind"
            highest.append(f"{self.name(other)}, the highest of its model, {other.score:.2f}{behind}")
        if compared is None:
            return f"{'; '.join(highest)}."
        names = [self.name(layer) for layer in self.layers]
        places = [(self.layers[i].model, self.layers[i].layer) for i in compared.candidates]
        may_be = layers_of_models(self.labels, places)
        return best_sentence(compared, names, "; ".join(highest), metric=self.primary, costs=self._costs, may_be=may_be)
