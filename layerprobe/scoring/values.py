"""Scores of untrained embeddings by layer, of one model on one task, as values. Computes nothing."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from layerprobe.errors import unreliable
from layerprobe.files.serialisation import RARE, UNSAVED
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import plural
from layerprobe.results.conclusion import Choice, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import LeavesOut, Shown
from layerprobe.results.table import Chart, Column, Line, Table, columns_of, interval_title, layer_columns
from layerprobe.stats.values import AgainstBest, Floor, best_of

REVERSED = -20.0
"""Correlation x 100 of all layers below which labels are probably reversed."""
ScoreMethod = Literal["cosine", "dot", "probe", "centrality"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerScores(LeavesOut, Shown):
    """Scores of the untrained embeddings of one model on a task, layer by layer."""

    by_layer = "metrics", "influences", "by_item"

    split: str
    """The scored split: validation, test, or all."""
    method: ScoreMethod
    """cosine: of the two embeddings of a pair, or of a query and a document; dot: their inner product; probe: a linear
    model fitted on the embeddings of the train split; centrality: of sentences in their document."""
    primary: str
    """Name of the metric that chooses a layer."""
    metrics: dict[str, tuple[float, ...]]
    """Scores x 100 by metric and layer."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; earlier scores repeat its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """Number of last layers left out because they give all texts the same embedding; they repeat the score before."""
    influences: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """Influences of the items on the primary metric, by layer, see `layerprobe.metrics.scores`; empty if not kept."""
    by_item: dict[str, tuple[tuple[float, ...], ...]] | None = field(default=None, metadata=RARE)
    """Scores of the items x 100, by metric and layer, if scores are means over items; None if not kept."""
    cautions: tuple[str, ...] = field(default=(), metadata=RARE)
    """Warnings about the embeddings; empty if they are elsewhere in the result."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """Score of a trivial baseline on the same items by the primary metric; None if there is none."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """Comparison of the layers from `first_layer`, by the primary metric; None if errors are unknown."""
    outputs: tuple[tuple[Any, float | None], ...] = field(default=(), compare=False, metadata=UNSAVED)
    """Scored outputs and the threshold, if the kind has one, by layer; empty unless `outputs` of the context."""
    n_items: tuple[int, int] | None = field(default=None, metadata=RARE)
    """Number of scored items, drawn at random, and of all items; None if all were scored."""

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric by layer, x 100."""
        return self.metrics[self.primary]

    @property
    def layers(self) -> range:
        """The layers that are not left out."""
        return range(self.first_layer, len(self.scores) - self.collapsed)

    def own(self, layer: int) -> float | None:
        """Return the primary metric of a layer, x 100; None if it is left out."""
        return self.scores[layer] if layer in self.layers else None

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric, the earlier of equals."""
        return self.layers[best_of([self.scores[layer] for layer in self.layers])]

    @property
    def on_floor(self) -> bool:
        """Whether no layer is significantly above the floor, so that none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the embeddings and about reversed labels."""
        if self.scores[self.best_layer] >= REVERSED:
            return self.cautions
        what = f"every layer has a {metric_title(self.primary)} x 100 below {REVERSED:g}"
        advice = "the labels may be distances, not similarities; reverse them (highest score minus each)"
        return (*self.cautions, unreliable(f"{what}: {advice}"))

    @property
    def table(self) -> Table:
        """One row per layer: its scores by every metric."""
        return table_of_layers([self], self.compared)

    @property
    def conclusion(self) -> Conclusion:
        """The best layer without fine-tuning, and layers that may be as good."""
        return self.conclusion_of(self.compared)

    def conclusion_of(self, compared: AgainstBest | None) -> Conclusion:
        """Return the conclusion from a comparison of its layers."""
        best, last = self.best_layer, len(self.scores) - 1
        facts = {"score": Fact(value=self.scores[best], unit="score", split=self.split)}
        facts |= {} if compared is None else compared.facts(self.split)
        if best != last and not (self.collapsed or self.on_floor):
            facts["over last"] = Fact(value=self.scores[best] - self.scores[last], split=self.split)
        items, available = self.n_items or (None, None)
        facts |= counts(items=items, available=available)
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
    """Return the chart of scores by layer, with intervals and the floor if `compared_columns` has them."""
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
    """Return the columns interval, at most behind, and floor; `rows` are numbers in the comparison, None if absent."""
    if compared is None:
        return ()
    column = columns_of(rows or range(len(compared.scores)))
    about = "Over new items; the lower end of the best score is corrected for its selection."
    behind = "Upper bound on points behind the best, jointly for all rows."
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
    """Return the column of upper bounds on how far each row is behind the best; empty without a comparison."""
    if not any(points is not None for points in behind):
        return ()
    about = "Upper bound on points behind the best layer on test, jointly for all layers."
    return (Column("behind", behind, "at most behind", ".2f", meaning=about, more=True),)


def floor_columns(floors: Sequence[Floor | None]) -> tuple[Column, ...]:
    """Return the column of floors with their explanation; empty if no row has one other than 0."""
    by = dict.fromkeys(floor.by for floor in floors if floor is not None)
    if not any(floor.value for floor in floors if floor is not None):
        return ()
    meaning = f"By {', or '.join(by)}."
    return (columns_of(floors)("floor", lambda floor: floor.value, form=".2f", meaning=meaning, more=True),)


Place = tuple[int, int]
"""The number of a model, and a layer of it."""


def table_of_layers(
    models: Sequence[LayerScores],
    compared: AgainstBest | None,
    *,
    first: Sequence[Column] = (),
    further: Sequence[Column] = (),
    costs: Sequence[float] = (),
    charts: Sequence[Chart] = (),
) -> Table:
    """Return one row per model and layer of one task: scores by every metric, and the comparison with the best.

    Args:
        models: Scores by model.
        compared: Comparison of their layers, in order, without those left out.
        first: Columns before the scores; by default the layers.
        further: Columns before the flag.
        costs: Costs of the compared layers, to find the smallest; by default the first one.
        charts: Figures; by default the primary metric by layer.
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
    """Return the flag of a model's layer in a table."""
    if compared is not None and compared.on_floor:
        return None
    is_best = place == _best_place(models)
    flags = ["best of its model"] if place[1] == models[place[0]].best_layer and not is_best else []
    if compared is None:
        flags = ["best"] if is_best else flags
    else:
        flags.append(compared.flag(row, costs) or "")
    return ", ".join(filter(None, flags)) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to make outputs from embeddings, at every layer, compared with a baseline."""

    name: str
    validation: tuple[float, ...]
    """Primary metric x 100 on validation, by layer."""
    test: dict[str, tuple[float, ...]]
    """Test scores x 100 by metric and layer."""
    gains: tuple[Interval | None, ...]
    """Primary metric on test minus that of the first baseline, over items, by layer; None if its error is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways(LeavesOut):
    """Several ways to make outputs from embeddings, with baselines; validation chooses the way and its layer."""

    by_layer = "validation", "test"

    primary: str
    """Name of the metric that chooses way and layer."""
    n_items: int
    """Number of test items."""
    unit: str
    """Name of an item."""
    first_layer: int
    """The first layer that is not left out."""
    collapsed: int = field(default=0, metadata=RARE)
    """As in `LayerScores`."""
    baselines: dict[str, dict[str, float]]
    """Test scores x 100 by baseline and metric; ways are compared with the first baseline."""
    ways: tuple[Way, ...]

    @property
    def best(self) -> tuple[Way, int]:
        """The way and layer with the highest primary metric on the validation split, the earlier of equals."""
        pairs = ((way, layer) for way in self.ways for layer in self.layers)
        return max(pairs, key=lambda row: row[0].validation[row[1]])

    @property
    def layers(self) -> range:
        """The layers that are not left out."""
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
