"""Scores of untrained embeddings: every layer of one or several models on one or several tasks. Computes nothing."""

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Literal

from layerprobe.encoders.model import ModelDescription, described
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, UNSAVED
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, distinct_names, short_name
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, columns_of, interval_title, layer_columns
from layerprobe.scoring.values import LayerScores, Place, Ways, scores_chart, table_of_layers
from layerprobe.stats.values import AgainstBest, ItemInfluences, ScoredLayers, front_beyond_noise, pareto_front


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The scores of every layer of a model on a task."""

    task: str
    """Name of the task, as given by the user."""
    task_digest: str
    kind: str
    scores: LayerScores
    model: int = field(default=0, metadata=RARE)
    """Number of the model, from 0."""
    n_items: int
    """Number of scored items."""
    unit: str
    """Name of an item."""
    facts: dict[str, int] | None = field(default=None, metadata=RARE)
    """Further counts by name, such as documents."""
    ids: tuple[str, ...] | None = field(default=None, metadata=RARE)
    """Ids of the items, in the order of `scores.by_item`; None without scores by item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOfModel:
    """One layer of one of several models, without fine-tuning."""

    layer: int
    score: float
    """Primary metric x 100; with several tasks, the mean."""
    interval: tuple[float, float] | None
    """Interval of this score over new items, Student's t; for the best layer corrected for its selection. With several
    tasks, interval of the distance from the best layer on other tasks like these, jointly for all layers. None if its
    error is unknown, and for the best of several tasks."""
    parameters: int
    """Parameters of the truncated model, without pooler."""
    model: int = 0
    """Number of the model, from 0."""
    behind: float | None = field(default=None, metadata=RARE)
    """With several tasks: points below the best layer, averaged over tasks."""
    milliseconds: float | None = field(default=None, metadata=RARE)
    """Milliseconds for one text or image, the median over rounds; None if not measured."""
    milliseconds_range: tuple[float, float] | None = field(default=None, metadata=RARE)
    """Range of the milliseconds over rounds."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scores(Shown):
    """Scores of untrained embeddings: every layer of one or several models on one or several tasks.

    In JSON, a single model is `model` instead of `models`, and a single `TaskScores` has its fields instead of
    `tasks`.
    """

    models: tuple[ModelDescription, ...]
    tasks: tuple[TaskScores, ...]
    """Scores by task, and for each task by model."""
    layers: tuple[LayerOfModel, ...]
    """Layers by model, without those left out."""
    level: float
    """Confidence level of each interval, and of the joint statement about the best."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """Comparison of the layers on one task, in order; None if errors are unknown, and with several tasks."""
    ways: Ways | None = field(default=None, metadata=RARE)
    """Further ways to make outputs from the embeddings, if the kind of the single task has them."""
    settings: dict[str, str] = field(default_factory=dict)
    """Embedding settings that differ from the model's: pooling, prompts, norm, max_length."""
    warnings: tuple[str, ...] = ()
    """Warnings, with the task or model if there are several."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Influences of the items on the scores of the layers of one model on one task; None if not saved."""
    item_source: Any = field(default=None, compare=False, metadata=UNSAVED)
    """Source of single items for the page, an `ItemSource`; None with several tasks, and for scores from a file."""

    def as_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values in their JSON form."""
        (model, *others), (task, *more) = values.pop("models"), values.pop("tasks")
        of_models = {"models": [model, *others]} if others else {"model": model}
        return {**of_models, **({"tasks": [task, *more]} if more else task), **values}

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["Scores"], dict[str, Any]]:
        """Return this class and its fields from JSON."""
        data = dict(data)
        if "model" in data:
            data["models"] = [data.pop("model")]
        if "tasks" not in data:
            names = [f.name for f in fields(TaskScores)]
            data["tasks"] = [{name: data.pop(name) for name in names if name in data}]
        return cls, data

    # ---- parts

    @property
    def scored_layers(self) -> ScoredLayers:
        """The scores by which it is compared with another result; DataError for several models or tasks."""
        if len(self.tasks) > 1:
            raise DataError(f"expected scores of one model on one task, to compare, got {len(self.tasks)} pairs")
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
        """The scores of the first model on the first task."""
        return self.tasks[0].scores

    @property
    def scores(self) -> tuple[float, ...]:
        """Primary metric x 100 (with several tasks, the mean) by layer of the first model."""
        curves = [task.scores.scores for task in self.by_task]
        return tuple(sum(scores) / len(curves) for scores in zip(*curves, strict=True))

    @property
    def metrics(self) -> dict[str, tuple[float, ...]]:
        """Scores x 100 of the first model on the first task, by metric and layer."""
        return self.first.metrics

    @property
    def primary(self) -> str:
        """Name of the primary metric of the first task."""
        return self.first.primary

    # ---- the best

    @property
    def best_of_each(self) -> tuple[LayerOfModel, ...]:
        """The highest-scoring layer of each model, the best one first."""
        best = (max(self.of_model(i), key=lambda layer: layer.score) for i in range(len(self.models)))
        return tuple(sorted(best, key=lambda layer: (-layer.score, layer.parameters)))

    @property
    def best(self) -> LayerOfModel:
        """The layer with the highest score of all."""
        return self.best_of_each[0]

    @property
    def best_layer(self) -> int:
        """Number of the layer with the highest score, the earlier of equals."""
        return self.best.layer

    @property
    def candidates(self) -> tuple[LayerOfModel, ...]:
        """The layers that include the best one at the level: over new items or, with several tasks, new tasks."""
        if self.several_tasks:
            return tuple(layer for layer in self.layers if layer.interval is None or layer.interval[0] <= 0)
        return () if self.compared is None else tuple(self.layers[i] for i in self.compared.candidates)

    @property
    def several_tasks(self) -> bool:
        """Whether layers are compared over tasks."""
        return any(layer.behind is not None for layer in self.layers)

    @property
    def on_floor(self) -> bool:
        """Whether no layer is significantly above the floor (on any task), so that none is recommended."""
        if self.several_tasks:
            return all(task.scores.on_floor for task in self.tasks)
        return self.compared is not None and self.compared.on_floor

    @property
    def _costs(self) -> tuple[int, ...]:
        return tuple(layer.parameters for layer in self.layers)

    def front(self, cost: Literal["parameters", "milliseconds"]) -> tuple[LayerOfModel, ...]:
        """Return the Pareto front of score and cost, by ascending cost; empty if the cost is unknown.

        Times differ only if their ranges do.
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
        """One row per model and layer: scores and comparison with the best; or the table of further ways."""
        if self.ways is not None:
            return self.ways.table
        return self._across if self.several_tasks else self._task_table

    @property
    def details(self) -> tuple[Table, ...]:
        """Baselines of further ways."""
        return () if self.ways is None else (self.ways.beside,)

    @property
    def sources(self) -> dict[str, str]:
        """The models, the tasks, and the settings."""
        tasks = {
            f"Task {name}": f"{task.task} ({task.kind}, {counted(task.n_items, task.unit)}, sha256 {task.task_digest})"
            for name, task in zip(self.names, self.by_task, strict=True)
        }
        methods = ", ".join(dict.fromkeys(task.scores.method for task in self.tasks))
        settings = {"Settings": ", ".join(f"{name} {value}" for name, value in self.settings.items())}
        return described(*self.models) | tasks | {"Scored by": methods} | (settings if self.settings else {})

    @property
    def _places(self) -> list[Place]:
        """Model and layer of each table row, including layers left out."""
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
    def _task_table(self) -> Table:
        """Table of the scores by every metric on a single task."""
        several, column = len(self.models) > 1, columns_of(self._rows)
        fronts = {"size": self.front("parameters"), "time": self.front("milliseconds")} if several else {}
        time = {
            "title": "ms",
            "over": "over rounds",
            "quantity": Quantity("milliseconds for one item"),
            "form": ".3g",
            "meaning": "Time of one item by itself.",
            "shown": bool(fronts.get("time")),
            "more": True,
        }
        further: list[Column] = []
        if several:
            further += [
                column("milliseconds", **time),
                column(
                    "milliseconds_range", **time | {"title": "range", "meaning": "Range over rounds.", "interval": True}
                ),
                column(
                    "front",
                    lambda row: ", ".join(name for name, front in fronts.items() if row in front),
                    meaning="No other is both cheaper and better.",
                    more=True,
                ),
            ]
        return table_of_layers(
            self.of_task(),
            self.compared,
            first=self._first_columns,
            further=further,
            costs=self._costs,
            charts=self._charts,
        )

    @property
    def _charts(self) -> tuple[Chart, ...]:
        """Charts of the score by layer and, with several models, by size and, if measured, by time."""
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
        """Table of the primary metric on every task, the mean, and its distance from the best layer."""
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
                    meaning="Mean over tasks, x 100.",
                    quantity=Quantity("score × 100", splits[0] if one_split else "all", "higher"),
                ),
                column("behind", form=".2f", meaning="Points below the best layer, averaged over tasks."),
                column(
                    "interval",
                    title=interval_title(self.level),
                    form=".2f",
                    meaning="Interval of that difference over other tasks like these, jointly for all layers.",
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

    # ---- the conclusion

    @property
    def conclusion(self) -> Conclusion:
        """The best layer, of which model, without fine-tuning, and layers that may be as good."""
        subject = (" and ".join(self.labels), ", ".join(map(short_name, self.names)))
        if self.ways is not None:
            return replace(self.ways.conclusion, subject=subject)
        if self.several_tasks:
            return replace(self._across_tasks, subject=subject)
        compared, facts = self.compared, self.tasks[0].facts or {}
        scored = self.first.conclusion_of(compared) if len(self.models) == 1 else self._models_conclusion(compared)
        further = counts(**facts, n_items=self.tasks[0].n_items)
        choice = None if self.models[0].read else scored.choice
        return replace(scored, subject=subject, choice=choice, facts={**scored.facts, **further})

    def _models_conclusion(self, compared: AgainstBest | None) -> Conclusion:
        """Return the best layer and model on a single task, and how far the best of the other models are behind."""
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
        """Return the best layer over several tasks, those that may be as good, and tasks on the floor."""
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
            choice=None if several or self.on_floor or self.models[0].read else Choice.upto(last.layer, best.layer),
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
