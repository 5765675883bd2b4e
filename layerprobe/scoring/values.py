"""How well untrained embeddings do tasks: models x tasks x layers, as values. Computes nothing."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.encoders.model import ModelDescription, described
from layerprobe.errors import DataError, unreliable
from layerprobe.files.serialisation import IN_MEMORY, RARE
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import counted, distinct_names, plural, short_name
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import LeavesOut, Shown
from layerprobe.results.table import Column, Table, columns_of, interval_title, layer_columns
from layerprobe.stats.paired import ItemInfluences, ScoredLayers
from layerprobe.stats.values import AgainstBest, Floor, best_of, front_beyond_noise, pareto_front

REVERSED = -20.0
"""Correlations x 100 of all layers below which labels are likely to be the wrong way round."""
ScoreMethod = Literal["cosine", "dot", "probe", "centrality"]


# ---- one model on one task ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerScores(LeavesOut, Shown):
    """How well untrained embeddings of one model do a task, layer by layer."""

    by_layer = "metrics", "influences", "by_item"

    split: str
    """validation, test, or all."""
    method: ScoreMethod
    """cosine of the two embeddings of a pair, or of a query and a document; dot, their inner product; probe: a linear
    model fitted on the embeddings of the train split; or centrality of sentences in their document."""
    primary: str
    """The metric that chooses a layer."""
    metrics: dict[str, tuple[float, ...]]
    """By layer, x 100."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; scores before it repeat its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """How many of the last layers give all texts one embedding and are left out; they repeat the score before them."""
    influences: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """By layer, what each item adds to the primary metric, see `layerprobe.metrics.scores`; empty where that was not
    kept."""
    by_item: dict[str, tuple[tuple[float, ...], ...]] | None = field(default=None, metadata=RARE)
    """By metric and layer, the score of each item, x 100, where scores are means over items; None where that was not
    kept."""
    cautions: tuple[str, ...] = field(default=(), metadata=RARE)
    """What a reader should know about the embeddings, in plain words; empty where that stands beside the scores."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """What a trivial answer scores on the same items by the primary metric; None where there is none."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The layers from the first one on, by the primary metric; None where nothing is known of the errors."""
    outputs: tuple[tuple[Any, float | None], ...] = field(default=(), compare=False, metadata=IN_MEMORY)
    """By layer, what was scored, and the threshold of kinds that have one; empty unless `outputs` of the context."""
    n_items: tuple[int, int] | None = field(default=None, metadata=RARE)
    """How many items were scored, drawn at random, and of how many; None where all were."""

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric by layer, x 100."""
        return self.metrics[self.primary]

    @property
    def layers(self) -> range:
        """Those that are not left out."""
        return range(self.first_layer, len(self.scores) - self.collapsed)

    def own(self, layer: int) -> float | None:
        """Return the primary metric of a layer, x 100; None where it is left out."""
        return self.scores[layer] if layer in self.layers else None

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric, the earlier one of equals."""
        return self.layers[best_of([self.scores[layer] for layer in self.layers])]

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know: about the embeddings, and what speaks against the labels."""
        if self.scores[self.best_layer] >= REVERSED:
            return self.cautions
        what = f"every layer has a {metric_title(self.primary)} x 100 below {REVERSED:g}"
        advice = "the labels may be distances, not similarities; reverse them (highest score minus each)"
        return (*self.cautions, unreliable(f"{what}: {advice}"))

    @property
    def table(self) -> Table:
        """One row per layer: its scores by every metric."""
        return _table_of_layers([self], self.compared)

    @property
    def conclusion(self) -> Conclusion:
        """Which layer is best without fine-tuning, and which may be."""
        return self.conclusion_of(self.compared)

    def conclusion_of(self, compared: AgainstBest | None) -> Conclusion:
        """Return what it says by a comparison of its layers."""
        best, last = self.best_layer, len(self.scores) - 1
        facts = {"score": Fact(value=self.scores[best], unit="score", split=self.split)}
        facts |= {} if compared is None else compared.facts(self.split)
        if best != last and not (self.collapsed or self.on_floor):
            facts["over last"] = Fact(value=self.scores[best] - self.scores[last], split=self.split)
        if self.n_items is not None:
            facts["items"] = Fact(value=self.n_items[0], unit="count")
            facts["available"] = Fact(value=self.n_items[1], unit="count")
        layers = tuple(self.layers)
        names = {"layer": best, "last": last} if compared is None else compared.names(layers) | {"last": last}
        is_floor = compared is not None and compared.on_floor
        return Conclusion(
            kind="score",
            case="floor" if is_floor else "last" if best == last else "best",
            verdict=Verdict.UNDECIDED if compared is None else compared.verdict,
            choice=None if is_floor else Choice.upto(last, best),
            facts={name: facts[name] for name in (*FIRST, *facts) if name in facts},
            names=names | {"metric": f"{metric_title(self.primary)} x 100", "method": self.method},
            checks=() if compared is None else tuple(compared.checks(layers, self.split)),
        )


FIRST = ("score", "gain", "over last", "behind")
"""Facts in the order of tiles."""


def scores_chart(score: str, compared: AgainstBest | None, *, by: str = "", name: str = "scores") -> Chart:
    """Return the chart of scores by layer, with intervals and the floor where `compared_columns` has them."""
    interval = "interval" if compared else ""
    floor = "floor" if compared is not None and floor_columns([compared.floor]) else ""
    return Chart(
        name=name,
        lines=(Line(score, interval=interval),),
        floor=floor,
        by=by,
        band=bool(by),
        chosen="the highest score",
    )


def compared_columns(compared: AgainstBest | None, rows: Sequence[int | None] = ()) -> tuple[Column, ...]:
    """Return the columns interval, at most behind, and floor; `rows` are numbers of what was compared, None for no."""
    if compared is None:
        return ()
    column = columns_of(rows or range(len(compared.scores)))
    about = "On other items; the lower end of the best score allows for its having been chosen."
    behind = "Points that the best is ahead at most, true of all rows together."
    return (
        column(
            "interval",
            compared.intervals.__getitem__,
            title=interval_title(compared.level),
            form=".2f",
            meaning=about,
            interval=True,
            over="over new items",
        ),
        column("behind", compared.behind.__getitem__, title="at most behind", form=".2f", meaning=behind, more=True),
        *floor_columns([None if row is None else compared.floor for row in rows or compared.scores]),
    )


def behind_columns(behind: Sequence[float | None]) -> tuple[Column, ...]:
    """Return the column of the most that each row can be behind the best; empty where no row was compared."""
    if not any(points is not None for points in behind):
        return ()
    about = "Points that the best layer is ahead at most on test, true of all layers together."
    return (Column("behind", behind, "at most behind", ".2f", meaning=about, more=True),)


def floor_columns(floors: Sequence[Floor | None]) -> tuple[Column, ...]:
    """Return the column of floors, with a note on what they are; empty where no row has one above or below 0."""
    by = dict.fromkeys(floor.by for floor in floors if floor is not None)
    if not any(floor.value for floor in floors if floor is not None):
        return ()
    meaning = f"By {', or '.join(by)}."
    return (columns_of(floors)("floor", lambda floor: floor.value, form=".2f", meaning=meaning, more=True),)


Place = tuple[int, int]
"""The number of a model, and a layer of it."""


def _table_of_layers(
    models: Sequence[LayerScores],
    compared: AgainstBest | None,
    *,
    first: Sequence[Column] = (),
    further: Sequence[Column] = (),
    costs: Sequence[float] = (),
    charts: Sequence[Chart] = (),
) -> Table:
    """Return a row a model and layer of one task: its scores by every metric, and how it compares with the best.

    Args:
        models: The scores of each.
        compared: Their layers, without those that are left out, in their order.
        first: Columns before the scores; by default that of layers.
        further: Columns before the flag.
        costs: Of what is compared, by which one is the smallest; by default the first is.
        charts: Its figures; by default the primary metric by layer.
    """
    one = models[0]
    places = [(model, layer) for model, scores in enumerate(models) for layer in range(len(scores.scores))]
    included = {place: row for row, place in enumerate(p for p in places if p[1] in models[p[0]].layers)}
    rows = [included.get(place) for place in places]
    of_place = columns_of(place if place in included else None for place in places)
    scored = [
        (
            of_place(
                name,
                lambda place, name=name: models[place[0]].metrics[name][place[1]],
                title=metric_title(name),
                form=".2f",
                quantity=points(name, one.split),
                more=name != one.primary,
            ),
            *(compared_columns(compared, rows) if name == one.primary else ()),
        )
        for name in one.metrics
    ]
    on_floor = compared is not None and compared.on_floor
    flags = columns_of([None if row is None else place for row, place in zip(rows, places, strict=True)])(
        "flag", lambda place: _flag(place, included[place], models, compared, costs)
    )
    chosen = _best_place(models)
    candidates = [] if compared is None else [place for place, row in included.items() if row in compared.candidates]
    return Table(
        columns=(
            *(first or layer_columns(layer for _, layer in places)),
            *itertools.chain.from_iterable(scored),
            *further,
            flags,
        ),
        title="Table of layers" if len(models) == 1 else "Table of models and layers",
        marks=tuple(
            None if on_floor else "chosen" if place == chosen else "candidate" if place in candidates else None
            for place in places
        ),
        charts=tuple(charts) or (scores_chart(one.primary, compared),),
    )


def _best_place(models: Sequence[LayerScores]) -> Place:
    """Return the model and layer with the highest score, the earlier of equals."""
    best = best_of([scores.scores[scores.best_layer] for scores in models])
    return best, models[best].best_layer


def _flag(
    place: Place, row: int, models: Sequence[LayerScores], compared: AgainstBest | None, costs: Sequence[float]
) -> str | None:
    """Return what is to be said of a model's layer in a table."""
    if compared is not None and compared.on_floor:
        return None
    is_best = place == _best_place(models)
    flags = ["best of its model"] if place[1] == models[place[0]].best_layer and not is_best else []
    if compared is None:
        flags = ["best"] if is_best else flags
    else:
        flags.append(compared.flag(row, costs) or "")
    return ", ".join(filter(None, flags)) or None


# ---- what a kind gives besides --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to make outputs of embeddings, at every layer, compared with a baseline."""

    name: str
    validation: tuple[float, ...]
    """The primary metric by layer, x 100."""
    test: dict[str, tuple[float, ...]]
    """By metric and layer, x 100."""
    gains: tuple[Interval | None, ...]
    """By layer: the primary metric on test less that of the first baseline, over items; None where nothing is known of
    its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways(LeavesOut):
    """Several ways to make outputs of embeddings, of which validation chooses one and its layer, beside baselines."""

    by_layer = "validation", "test"

    primary: str
    """The metric that chooses way and layer."""
    n_items: int
    """Of the test split."""
    unit: str
    """What an item is called."""
    first_layer: int
    """The first layer that is not left out."""
    collapsed: int = field(default=0, metadata=RARE)
    """As of `LayerScores`."""
    baselines: dict[str, dict[str, float]]
    """By name and metric, on test, x 100: first what the ways are compared with."""
    ways: tuple[Way, ...]

    @property
    def best(self) -> tuple[Way, int]:
        """The way and layer with the highest primary metric on the validation split, the earlier of equals."""
        pairs = ((way, layer) for way in self.ways for layer in self.layers)
        return max(pairs, key=lambda row: row[0].validation[row[1]])

    @property
    def layers(self) -> range:
        """Those that are not left out."""
        return range(self.first_layer, len(self.ways[0].validation) - self.collapsed)

    @property
    def lead(self) -> tuple[str, float]:
        """The name of the first baseline and its score by the primary metric."""
        name, scores = next(iter(self.baselines.items()))
        return name, scores[self.primary]

    @property
    def table(self) -> Table:
        """One row per layer: test scores of each way and their gain over the first baseline."""
        layers = self.layers
        (best, best_layer), (name, lead) = self.best, self.lead
        drawn = sorted(self.ways, key=lambda way: way is not best)
        return Table(
            columns=(
                *layer_columns(layers),
                *(column for way in self.ways for column in self._columns(way, layers)),
                Column("lead", (lead,) * len(layers), shown=False, meaning=f"By the {name}."),
                Column("flag", tuple(f"best: {best.name}" if layer == best_layer else None for layer in layers)),
            ),
            charts=(
                Chart(
                    lines=tuple(Line(f"{way.name}_{self.primary}", name=way.name) for way in drawn),
                    name="ways",
                    floor="lead",
                ),
            ),
            marks=tuple("chosen" if layer == best_layer else None for layer in layers),
        )

    def _columns(self, way: Way, layers: range) -> Iterator[Column]:
        """Yield the scores of a way by every metric, on screens by the primary one, and its gain."""
        (name, lead), gains = self.lead, [way.gains[layer] for layer in layers]
        for metric, scores in way.test.items():
            yield Column(
                f"{way.name}_{metric}",
                tuple(scores[layer] for layer in layers),
                title=f"{way.name}: {metric_title(metric)}",
                form=".2f",
                meaning=f"On {self.n_items:,} test {plural(self.unit)}, x 100.",
                quantity=points(metric, "test"),
                more=metric != self.primary or way is not self.best[0],
            )
        more = tuple(way.test[self.primary][layer] - lead for layer in layers)
        yield Column(
            f"{way.name}_gain",
            more,
            title="gain",
            form="+.2f",
            meaning=f"Over the {name}.",
            more=way is not self.best[0],
        )
        bounds = tuple(None if gain is None else gain.interval for gain in gains)
        yield Column(f"{way.name}_interval", bounds, title="interval", form="+.2f", interval=True, more=True)

    @property
    def beside(self) -> Table:
        """Test scores of the best way beside the baselines, by every metric."""
        way, layer = self.best
        (first, lead), *others = self.baselines.items()
        chosen = {metric: scores[layer] for metric, scores in way.test.items()}
        rows = {first: lead, f"{way.name}, layer {layer}": chosen, **dict(others)}
        return Table(
            columns=(
                Column("what", tuple(rows)),
                *(
                    Column(metric, tuple(row[metric] for row in rows.values()), title=metric_title(metric), form=".2f")
                    for metric in lead
                ),
            ),
            title="Compared with baselines",
        )

    @property
    def conclusion(self) -> Conclusion:
        """The best way and layer by validation, compared with the first baseline on test."""
        (way, layer), (name, lead) = self.best, self.lead
        value, gain = way.test[self.primary][layer], way.gains[layer]
        over = Fact(value=value - lead, split="test") if gain is None else Fact.of(gain, split="test")
        verdicts = {1: Verdict.DECIDED, 0: Verdict.UNDECIDED, -1: Verdict.FAILED}
        facts = {"score": Fact(value=value, unit="score", split="test"), "baseline": over}
        facts["lead"] = Fact(value=lead, unit="score", split="test")
        return Conclusion(
            kind="score",
            case="ways",
            verdict=Verdict.UNDECIDED if gain is None else verdicts[gain.sign],
            facts=facts,
            names={
                "way": way.name,
                "layer": layer,
                "baseline_name": name,
                "metric": f"{metric_title(self.primary)} x 100",
            },
        )


# ---- models x tasks x layers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The scores of every layer of a model on a task."""

    task: str
    """As the user gave it."""
    task_digest: str
    kind: str
    scores: LayerScores
    model: int = field(default=0, metadata=RARE)
    """Which of the models, from 0."""
    n_items: int
    """That were scored."""
    unit: str
    """What an item is called."""
    facts: dict[str, int] | None = field(default=None, metadata=RARE)
    """What else there is of the items, by what it is called, such as documents."""
    ids: tuple[str, ...] | None = field(default=None, metadata=RARE)
    """Of the items, in the order of `scores.by_item`; None where there is no score of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOfModel:
    """One layer of one of several models, without fine-tuning."""

    layer: int
    score: float
    """The primary metric, x 100; of several tasks their mean."""
    interval: tuple[float, float] | None
    """Of this score on other items, Student's t; that of the best allows for its having been chosen. Of several tasks,
    of the distance from the best layer on other tasks like these; all layers share the level. None where nothing is
    known of its error, as of the best of several tasks."""
    parameters: int
    """Of the truncated model, without the pooler."""
    model: int = 0
    """Which of the models, from 0."""
    behind: float | None = field(default=None, metadata=RARE)
    """Of several tasks: how far it is below the best layer, mean over tasks."""
    milliseconds: float | None = field(default=None, metadata=RARE)
    """What one text or image takes, the median over rounds; None where it was not measured."""
    milliseconds_range: tuple[float, float] | None = field(default=None, metadata=RARE)
    """Of the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scores(Shown):
    """How well untrained embeddings do tasks: every layer of one model or several, on one task or several.

    In JSON, what there is one of stands by itself: `model` in the place of `models`, and the fields of the one
    `TaskScores` in the place of `tasks`.
    """

    models: tuple[ModelDescription, ...]
    tasks: tuple[TaskScores, ...]
    """By task, and of each by model."""
    layers: tuple[LayerOfModel, ...]
    """By model and layer, without those that are left out."""
    level: float
    """Of each interval, and of all that is said of the best together."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The layers on one task, in their order; None where nothing is known of the errors, and of several tasks."""
    ways: Ways | None = field(default=None, metadata=RARE)
    """Further ways to make outputs of the embeddings, where the kind of the one task has them."""
    settings: dict[str, str] = field(default_factory=dict)
    """How texts were embedded, where that is not the model's own way: pooling, prompts, norm, max_length."""
    warnings: tuple[str, ...] = ()
    """What a reader should know, in plain words, with the task or the model that it is of where there are several."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Of the items on the scores of the layers of one model on one task; None where that was not saved."""
    item_source: Any = field(default=None, compare=False, metadata=IN_MEMORY)
    """Whence its page has single items, an `ItemSource`; None of several tasks, and of scores read from a file."""

    def as_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values as JSON has them."""
        (model, *others), (task, *more) = values.pop("models"), values.pop("tasks")
        of_models = {"models": [model, *others]} if others else {"model": model}
        return {**of_models, **({"tasks": [task, *more]} if more else task), **values}

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["Scores"], dict[str, Any]]:
        """Return the fields of JSON."""
        data = dict(data)
        if "model" in data:
            data["models"] = [data.pop("model")]
        if "tasks" not in data:
            names = [f.name for f in fields(TaskScores)]
            data["tasks"] = [{name: data.pop(name) for name in names if name in data}]
        return cls, data

    # ---- what there is of each

    @property
    def scored_layers(self) -> ScoredLayers:
        """What it is compared with another result by; DataError of several models or tasks."""
        if len(self.tasks) > 1:
            raise DataError(f"expected scores of one model on one task to compare, got {len(self.tasks)} pairs of them")
        scores = self.first
        return ScoredLayers(
            model=self.models[0].name,
            task=self.tasks[0].task,
            split=scores.split,
            primary=scores.primary,
            unit=self.tasks[0].unit,
            scores={layer: (scores.scores[layer],) for layer in scores.layers},
            influences=self.influences,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the models in tables and plots."""
        return tuple(distinct_names([model.name for model in self.models]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks in tables."""
        return tuple(distinct_names([task.task for task in self.by_task]))

    @property
    def by_task(self) -> tuple[TaskScores, ...]:
        """The scores of the first model, by task."""
        return self.tasks[:: len(self.models)]

    def of_model(self, model: int) -> tuple[LayerOfModel, ...]:
        """Return the layers of a model."""
        return tuple(layer for layer in self.layers if layer.model == model)

    def of_task(self, task: int = 0) -> tuple[LayerScores, ...]:
        """Return the scores on a task, by model."""
        n = len(self.models)
        return tuple(one.scores for one in self.tasks[task * n : (task + 1) * n])

    @property
    def first(self) -> LayerScores:
        """The scores of the first model on the first task: of one model on one task all there are."""
        return self.tasks[0].scores

    @property
    def scores(self) -> tuple[float, ...]:
        """By layer of the first model, the primary metric x 100, or its mean over tasks."""
        curves = [task.scores.scores for task in self.by_task]
        return tuple(sum(scores) / len(curves) for scores in zip(*curves, strict=True))

    @property
    def metrics(self) -> dict[str, tuple[float, ...]]:
        """By metric of the first task and layer of the first model, x 100."""
        return self.first.metrics

    @property
    def primary(self) -> str:
        """The metric that the first task is scored by."""
        return self.first.primary

    # ---- which is best

    @property
    def best_of_each(self) -> tuple[LayerOfModel, ...]:
        """The layer of each model with the highest score, the best one first."""
        best = (max(self.of_model(i), key=lambda layer: layer.score) for i in range(len(self.models)))
        return tuple(sorted(best, key=lambda layer: (-layer.score, layer.parameters)))

    @property
    def best(self) -> LayerOfModel:
        """The layer with the highest score of all."""
        return self.best_of_each[0]

    @property
    def best_layer(self) -> int:
        """The layer with the highest score, of its model, the earlier one of equals."""
        return self.best.layer

    @property
    def candidates(self) -> tuple[LayerOfModel, ...]:
        """The layers of which one is the best at the level: on other items, or of several tasks on other tasks."""
        if self.several_tasks:
            return tuple(layer for layer in self.layers if layer.interval is None or layer.interval[0] <= 0)
        return () if self.compared is None else tuple(self.layers[i] for i in self.compared.candidates)

    @property
    def several_tasks(self) -> bool:
        """Whether layers are compared over tasks."""
        return any(layer.behind is not None for layer in self.layers)

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error, of several tasks on any: then none is recommended."""
        if self.several_tasks:
            return all(task.scores.on_floor for task in self.tasks)
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

    # ---- as a table

    @property
    def table(self) -> Table:
        """One row per model and layer: its scores, and how it compares with the best; of further ways, these."""
        if self.ways is not None:
            return self.ways.table
        return self._across if self.several_tasks else self._on_task

    @property
    def details(self) -> tuple[Table, ...]:
        """Baselines of further ways."""
        return () if self.ways is None else (self.ways.beside,)

    @property
    def sources(self) -> dict[str, str]:
        """The models, the tasks, and how texts were read."""
        tasks = {
            f"Task {name}": f"{task.task} ({task.kind}, {counted(task.n_items, task.unit)}, sha256 {task.task_digest})"
            for name, task in zip(self.names, self.by_task, strict=True)
        }
        methods = ", ".join(dict.fromkeys(task.scores.method for task in self.tasks))
        settings = {"Settings": ", ".join(f"{name} {value}" for name, value in self.settings.items())}
        return described(*self.models) | tasks | {"Scored by": methods} | (settings if self.settings else {})

    @property
    def _places(self) -> list[Place]:
        """The rows of tables, those of layers that are left out among them."""
        return [(i, layer) for i, model in enumerate(self.models) for layer in range(model.n_layers)]

    @property
    def _rows(self) -> list[LayerOfModel | None]:
        included = {(layer.model, layer.layer): layer for layer in self.layers}
        return [included.get(place) for place in self._places]

    @property
    def _first_columns(self) -> tuple[Column, ...]:
        parameters = [self.models[i].parameters[layer] for i, layer in self._places]
        model = Column("model", tuple(self.labels[i] for i, _ in self._places), shown=len(self.models) > 1)
        return (model, *layer_columns((layer for _, layer in self._places), parameters))

    @property
    def _on_task(self) -> Table:
        """The scores by every metric on the one task."""
        several, column = len(self.models) > 1, columns_of(self._rows)
        fronts = {"size": self.front("parameters"), "time": self.front("milliseconds")} if several else {}
        time = {
            "title": "ms",
            "over": "over rounds",
            "quantity": Quantity("milliseconds for one item"),
            "form": ".3g",
            "meaning": "Of one item by itself.",
            "shown": bool(fronts.get("time")),
            "more": True,
        }
        further: list[Column] = []
        if several:
            further += [
                column("milliseconds", **time),
                column(
                    "milliseconds_range", **time | {"title": "range", "meaning": "Of the rounds.", "interval": True}
                ),
                column(
                    "front",
                    lambda row: ", ".join(name for name, front in fronts.items() if row in front),
                    meaning="No other is both cheaper and better.",
                    more=True,
                ),
            ]
        return _table_of_layers(
            self.of_task(),
            self.compared,
            first=self._first_columns,
            further=further,
            costs=self._costs,
            charts=self._charts,
        )

    @property
    def _charts(self) -> tuple[Chart, ...]:
        """Charts of the score by layer and, of several models, by size and, where it was measured, by time."""
        if len(self.models) == 1:
            return (scores_chart(self.primary, self.compared),)
        by_layer = replace(scores_chart(self.primary, self.compared, by="model"), name="models")
        cost = Chart(kind="cost", lines=by_layer.lines, by="model", label="layer", chosen="the highest score")
        size = replace(cost, name="score-parameters", heading="Score versus size", x="parameters")
        time = replace(size, name="score-milliseconds", heading="Score versus time", x="milliseconds")
        time = replace(time, x_interval="milliseconds_range")
        return (by_layer, size, time) if self.front("milliseconds") else (by_layer, size)

    @property
    def _across(self) -> Table:
        """The primary metric on every task, the mean, and how far that is behind the best layer."""
        column = columns_of(self._rows)
        splits = list(dict.fromkeys(task.scores.split for task in self.tasks))
        one_split, several = len(splits) == 1, len(self.models) > 1
        lines = [Line("mean", name="mean over tasks"), *(map(Line, self.names) if one_split and not several else ())]
        chart = Chart(lines=tuple(lines), name="across", by="model" if several else "", chosen="the best layer")
        return Table(
            columns=(
                *self._first_columns,
                *(
                    Column(
                        name,
                        tuple(self.of_task(number)[i].own(layer) for i, layer in self._places),
                        form=".2f",
                        quantity=Quantity("score × 100", task.scores.split, "higher"),
                        more=len(self.names) > 2,
                    )
                    for number, (name, task) in enumerate(zip(self.names, self.by_task, strict=True))
                ),
                column(
                    "mean",
                    attrgetter("score"),
                    form=".2f",
                    meaning="Of the tasks, x 100.",
                    quantity=Quantity("score × 100", splits[0] if one_split else "all", "higher"),
                ),
                column("behind", form=".2f", meaning="Below the best layer, mean over tasks."),
                column(
                    "interval",
                    title=interval_title(self.level),
                    form=".2f",
                    meaning="Of that difference, on other tasks like these; all layers share the level.",
                    interval=True,
                ),
                column("flag", self._flag_across),
            ),
            marks=tuple("chosen" if row == self.best and not self.on_floor else None for row in self._rows),
            charts=(chart,),
            notes=tuple(
                f"{name}: {task.scores.floor.by} scores {task.scores.floor.value:.2f}."
                for name, task in zip(self.names, self.by_task, strict=True)
                if task.scores.floor is not None
            ),
        )

    def _flag_across(self, layer: LayerOfModel) -> str | None:
        if self.on_floor:
            return None
        if layer == self.best:
            return "best"
        return "may be best" if len(self.names) > 1 and layer in self.candidates else None

    # ---- what it says

    @property
    def conclusion(self) -> Conclusion:
        """Which layer of which model is best without fine-tuning, and which may be."""
        subject = (" and ".join(self.labels), ", ".join(map(short_name, self.names)))
        if self.ways is not None:
            return replace(self.ways.conclusion, subject=subject)
        if self.several_tasks:
            return replace(self._across_tasks, subject=subject)
        compared, facts = self.compared, self.tasks[0].facts or {}
        scored = self.first.conclusion_of(compared) if len(self.models) == 1 else self._of_models(compared)
        counts = {name: Fact(value=n, unit="count") for name, n in facts.items()}
        counts["n_items"] = Fact(value=self.tasks[0].n_items, unit="count")
        return replace(scored, subject=subject, facts={**scored.facts, **counts})

    def _of_models(self, compared: AgainstBest | None) -> Conclusion:
        """Return which layer of which model is best on the one task, and how far the best of the others are behind."""
        (best, *others), names = self.best_of_each, [self.name(layer) for layer in self.layers]
        split, last = self.first.split, self.models[self.best.model].n_blocks
        facts = {"score": Fact(value=best.score, unit="score", split=split)}
        facts |= {} if compared is None else compared.facts(split)
        facts["next"] = Fact(value=best.score - others[0].score, split=split, better="lower")
        about: dict[str, object] = {}
        if compared is not None:
            facts["candidates"] = Fact(value=len(compared.candidates), unit="count")
            about = {"trivial": compared.names(names)["trivial"]}
        is_floor = compared is not None and compared.on_floor
        return Conclusion(
            kind="score",
            case="floor" if is_floor else "models",
            verdict=Verdict.UNDECIDED if compared is None else compared.verdict,
            facts=facts,
            names={
                **about,
                "layer": best.layer,
                "last": last,
                "label": self.labels[best.model],
                "other": self.name(others[0]),
                "metric": f"{metric_title(self.primary)} x 100",
            },
            checks=() if compared is None else tuple(compared.checks(names, split, self._costs)),
        )

    @property
    def _across_tasks(self) -> Conclusion:
        """Which layer is best over several tasks, which may be as good, and which tasks no layer does."""
        best, rivals = self.best, tuple(layer for layer in self.candidates if layer != self.best)
        several, last = len(self.models) > 1, self.of_model(self.best.model)[-1]
        other = self.best_of_each[1] if several else last
        facts = {"score": Fact(value=best.score, unit="score"), "tasks": Fact(value=len(self.names), unit="count")}
        if other != best and other.behind is not None and not self.on_floor:
            level = None if other.interval is None else self.level
            facts["next"] = Fact(value=other.behind, interval=other.interval, level=level)
        label = self.labels[best.model] if several else ""
        on_floor = tuple(name for name, task in zip(self.names, self.by_task, strict=True) if task.scores.on_floor)
        verdict = Verdict.FAILED if self.on_floor else Verdict.UNDECIDED if rivals or len(self.names) == 1 else None
        return Conclusion(
            kind="score",
            case="no task" if self.on_floor else "tasks",
            verdict=verdict or Verdict.DECIDED,
            choice=None if several or self.on_floor else Choice.upto(last.layer, best.layer),
            facts=facts,
            names={
                "layer": best.layer,
                "label": label,
                "metric": "mean x 100",
                "other": self.name(other) if several else f"the last layer, {last.layer}",
                "rivals": tuple(self.name(layer) if several else layer.layer for layer in rivals),
            },
            checks=(Check(name="tasks on the floor", passed=False, names={"on_floor": on_floor}),) if on_floor else (),
        )
