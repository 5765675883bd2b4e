"""What fine-tuning truncated models showed."""

import itertools
import statistics
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerprobe.checks import as_declared
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError
from layerprobe.files.serialisation import IN_MEMORY, RARE, to_dict
from layerprobe.interval import Interval
from layerprobe.metrics.names import Split, metric_title, points
from layerprobe.names import distinct_names, listed
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, interval_title, layer_columns
from layerprobe.scoring.values import behind_columns, floor_columns
from layerprobe.stats.paired import ItemInfluences, ScoredLayers
from layerprobe.stats.sentences import joint_error_sources
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.training.values import check_protocol

Weighting = Literal["falling", "equal", "random", "sandwich"]
"""How much each layer's loss counts in a joint run, see `layer_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a truncated model is fine-tuned; the defaults are those of arXiv 2402.13130."""

    learning_rate: float = 2e-5
    """Peak of AdamW's linear schedule. In Python, give `LORA_LEARNING_RATE` with `lora`; the command line does."""
    weight_decay: float = 0.01
    """Weight decay of matrices. Norms, and biases that are vectors, have none."""
    epochs: int = 10
    """Passes over the training examples."""
    batch_size: int = 32
    """Examples a step."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    max_length: int = 128
    """Tokens a sentence at most."""
    pooling: Pooling = "mean"
    """How token states become one embedding."""
    lora: int = field(default=0, metadata=RARE)
    """Train low-rank adapters of this rank in the place of all weights; 0 trains those."""
    lora_alpha: int | None = field(default=None, metadata=RARE)
    """Adapters count by this over their rank. By default twice the rank."""
    lora_modules: tuple[str, ...] = field(default=(), metadata=RARE)
    """Names of the linear modules that get adapters, such as query,value. By default all of the blocks."""
    gradient_checkpointing: bool = field(default=False, metadata=RARE)
    """Compute activations again in the backward pass: less memory, more time."""
    dropout: bool = field(default=True, metadata=RARE)
    """Whether what the model's configuration says is dropped out; gradient checkpointing needs it."""
    evaluations: int = field(default=1, metadata=RARE)
    """Times an epoch that the validation split is scored: the best of them is kept, and a run goes on from the last."""
    kept_epoch: int = field(default=0, metadata=RARE)
    """Stop after this epoch (evaluation, where there are several an epoch) and keep it, whatever it scores; 0 keeps the
    best by validation. The learning rate falls as for all epochs."""
    positive_share: float | None = field(default=None, metadata=RARE)
    """paraphrase: the threshold is such that this share, 0 to 1, of the validation pairs are at or above it, and not
    the best on them, as where they are learnt from."""

    def __post_init__(self) -> None:
        as_declared(self)  # 0 and 0.0 are one protocol, and must be one text in the names of folders
        checks = {
            "at least one epoch": self.epochs >= 1,
            "dropout with gradient checkpointing": self.dropout or not self.gradient_checkpointing,
            "at least one evaluation an epoch": self.evaluations >= 1,
            "an epoch to keep that is trained": 0 <= self.kept_epoch <= self.epochs * self.evaluations,
            "a share of positives from 0 to 1": 0 <= (self.positive_share or 0) <= 1,
            "room for at least two tokens": self.max_length >= 2,
            "a rank of 0 or more": self.lora >= 0,
            "an alpha of at least 1": self.lora_alpha is None or self.lora_alpha >= 1,
            "alpha and modules with a rank only": bool(self.lora) or not (self.lora_alpha or self.lora_modules),
            f"pooling by one of {typing.get_args(Pooling)}": self.pooling in typing.get_args(Pooling),
        }
        check_protocol(self, checks, example="example")


LORA_LEARNING_RATE = 2e-4
"""The rate of adapters, where a command or a TOML file gives none: they need about ten times that of all weights."""


def with_rate(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return fields of a protocol, with the learning rate of adapters where they give a rank and no rate."""
    return {"learning_rate": LORA_LEARNING_RATE, **settings} if settings.get("lora") else settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """What one epoch of fine-tuning left."""

    epoch: int
    """From 1; of a protocol with several evaluations an epoch, which of them."""
    train_loss: float
    """Mean over the epoch of the loss of the task's kind."""
    validation: dict[str, float]
    """x 100; of a scan by the primary metric alone."""


Choice = tuple[int, tuple[int, ...]]
"""How many blocks are kept, and which where these are not the first ones; else none."""
Place = tuple[Choice, int]
"""Where a run of one model on one task stands: its blocks and its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningRun:
    """A model truncated at a layer, fine-tuned with one seed; scores are those of the best epoch by validation.

    A scan, one run with a loss at every layer, is one a layer.
    """

    layer: int
    seed: int
    protocol: Protocol
    parameters: int
    """Of the truncated model, without the pooler; 0 where it failed before that was known."""
    primary: str
    """The metric that chose the epoch."""
    best_epoch: int
    """The epoch with the highest primary metric on the validation split, the first of equals; of a scan, in the mean
    over layers; or the protocol's."""
    validation: dict[str, float]
    """x 100; empty where it failed. Where the protocol says which epoch is kept, these examples can be among those
    trained on."""
    test: dict[str, float]
    """x 100; empty where it failed."""
    epochs: tuple[EpochMetrics, ...]
    seconds: float
    """Wall time of the run; of a scan, of all its layers."""
    peak_memory: int | None
    """Bytes: the peak allocation on CUDA, else the peak resident size of the process; None where it is not known."""
    threshold: float | None = None
    """paraphrase: the cosine from which on a pair counts as one: by the protocol's `positive_share`, else the one that
    maximises F1 on the validation split."""
    weighting: Weighting | None = field(default=None, metadata=RARE)
    """Of a scan, how much each layer's loss counts; None of a model that was truncated before it was trained."""
    error: str = field(default="", metadata=RARE)
    """Why it has no scores, in one line; empty where it has."""
    model: str = field(default="", metadata=RARE)
    """What the model is called."""
    task: str = field(default="", metadata=RARE)
    """Name of the data."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Which blocks are kept, from 1; None: the first ones."""
    directory: Path = field(default=Path(), compare=False, metadata=IN_MEMORY)
    """Where it is kept, with its weights in `model/` where these were; not known of a run that was read from JSON."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["FineTuningRun"], dict[str, Any]]:
        """Return the fields of JSON, in which the command line names the directory."""
        return cls, {name: value for name, value in data.items() if name != "directory"}

    @property
    def choice(self) -> Choice:
        """Its blocks."""
        return self.layer, self.blocks or ()

    @property
    def place(self) -> Place:
        """Its blocks and its seed."""
        return self.choice, self.seed

    @property
    def label(self) -> str:
        """What it is of, in words."""
        of = f"{self.model} on {self.task}, " if self.model else ""
        return f"{of}{name_of(self.choice, 'layer ')}, seed {self.seed}"


def name_of(choice: Choice, what: str = "") -> str:
    """Return the layer, after what it is called, or which blocks are kept.

    Examples:
        >>> name_of((3, ()), "layer "), name_of((3, (1, 3, 5)), "layer ")
        ('layer 3', 'blocks 1, 3, 5')
    """
    layer, blocks = choice
    return f"blocks {', '.join(map(str, blocks))}" if blocks else f"{what}{layer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """The fine-tuning runs of one model on one task at one layer, put together; those that failed are left out."""

    json_tags: ClassVar = ("mean", "std", "interval", "best_seed", "best_seed_score")

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    primary: str
    """The metric that mean, deviation and errors are of."""
    test: dict[str, tuple[float, ...]]
    """By seed, x 100."""
    validation: dict[str, tuple[float, ...]]
    """By seed, x 100."""
    error: Interval | None = None
    """Of the mean on the test split, over items and seeds; None for one seed whose outputs are not known."""
    validation_error: Interval | None = None
    """The same on the validation split."""
    model: str = field(default="", metadata=RARE)
    task: str = field(default="", metadata=RARE)
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Which blocks are kept, from 1; None: the first ones."""

    @property
    def choice(self) -> Choice:
        """Its blocks."""
        return self.layer, self.blocks or ()

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric on the test split by seed, x 100."""
        return self.test[self.primary]

    @property
    def mean(self) -> float:
        """Of the primary metric on the test split."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the same over seeds; None for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the mean on the test split."""
        return None if self.error is None else self.error.interval

    @property
    def validated(self) -> float:
        """Mean over seeds of the primary metric on the validation split, x 100: what layers are chosen by."""
        return statistics.fmean(self.validation[self.primary])

    @property
    def best_seed(self) -> int:
        """The seed with the highest primary metric on the validation split, the first of equals.

        Never by test: that would be choosing on what the score is of. It is named, its score is not the layer's.
        """
        validation = self.validation[self.primary]
        return self.seeds[validation.index(max(validation))]

    @property
    def best_seed_score(self) -> float:
        """The primary metric on the test split of the best seed, x 100."""
        return self.scores[self.seeds.index(self.best_seed)]


Curve = tuple[Sequence[LayerOutcome], Floor | None, AgainstBest | None]
"""What one model scores on one task by layer, the floor there, and how the layers compare with the best of them."""


def outcome_columns(outcomes: Sequence[LayerOutcome | None], primary: str | None) -> tuple[Column, ...]:
    """Return what fine-tuning showed of layers as columns of a table; empty of those that were not run.

    The primary metric is None where they have different ones.
    """
    title = f"test {metric_title(primary)}" if primary else "test"

    def quantity(split: Split) -> Quantity:
        return points(primary, split) if primary else Quantity("score × 100", split, "higher")

    def column(name: str, read: Callable[[LayerOutcome], object], empty: object = None, **about: Any) -> Column:
        return Column(name, [empty if outcome is None else read(outcome) for outcome in outcomes], **about)

    return (
        column(
            "mean",
            lambda outcome: outcome.mean,
            title=title,
            form=".2f",
            meaning="Mean over seeds, x 100.",
            quantity=quantity("test"),
        ),
        column("std", lambda outcome: outcome.std, form=".2f", meaning="Deviation over seeds.", more=True),
        column(
            "interval",
            lambda outcome: outcome.interval,
            title=interval_of(outcomes),
            form=".2f",
            interval=True,
            meaning="Of the mean.",
            over=joint_error_sources(outcome.error for outcome in outcomes if outcome and outcome.error)
            or "over new seeds",
        ),
        column(
            "seeds",
            lambda outcome: len(outcome.seeds),
            0,
            form=lambda count: str(count or ""),
            meaning="Runs.",
            more=True,
        ),
        column("seed_numbers", lambda outcome: outcome.seeds, (), shown=False),
        column("by_seed", lambda outcome: outcome.scores, (), form=".2f", meaning="On the test split.", more=True),
        column(
            "validation",
            lambda outcome: outcome.validated,
            form=".2f",
            meaning="Mean over seeds.",
            quantity=quantity("validation"),
            more=True,
        ),
        column("validation_by_seed", lambda outcome: outcome.validation[outcome.primary], (), form=".2f", shown=False),
        column(
            "best_seed",
            lambda outcome: outcome.best_seed,
            meaning="By validation; its score is not the layer's.",
            more=True,
        ),
    )


def scored_layers_of(
    outcomes: Sequence[LayerOutcome], influences: ItemInfluences | None = None, **names: str
) -> ScoredLayers:
    """Return the test scores of fine-tuned layers, the first blocks each, as two results are compared by."""
    outcomes = [outcome for outcome in outcomes if not outcome.blocks]
    if not outcomes:
        raise DataError("expected layers that were fine-tuned to compare, got none of the first blocks")
    first = outcomes[0]
    return ScoredLayers(
        **{"model": first.model, "task": first.task, **names},
        split="test",
        primary=first.primary,
        unit=first.error.unit if first.error else "item",
        scores={outcome.layer: outcome.scores for outcome in outcomes},
        seeds={outcome.layer: outcome.seeds for outcome in outcomes},
        errors={outcome.layer: outcome.error for outcome in outcomes if outcome.error},
        influences=influences,
    )


def best_by_validation(outcomes: Iterable[LayerOutcome]) -> LayerOutcome:
    """Return that of the layer with the highest mean on the validation split, the earlier one of equals.

    Never by test: that is what its score is of.
    """
    return max(outcomes, key=lambda outcome: outcome.validated)


def on_floor(outcomes: Sequence[LayerOutcome], floor: Floor | None) -> bool:
    """Return whether the layer that is best by validation is not above the floor: then none is recommended."""
    return floor is not None and floor.unbeaten(best_by_validation(outcomes).interval)


def curves_table(curves: Sequence[Curve], first: Sequence[Column] = ()) -> Table:
    """Return what fine-tuning models on tasks showed, a row a layer of each; `first` are columns that name these."""
    rows = [(outcome, *curve) for curve in curves for outcome in curve[0]]
    outcomes, primaries = [row[0] for row in rows], {row[0].primary for row in rows}
    primary = min(primaries) if len(primaries) == 1 else None
    flags = [compared.flag(i) if compared else None for of, _, compared in curves for i in range(len(of))]
    behind = [compared.behind[i] if compared else None for of, _, compared in curves for i in range(len(of))]
    kept = [name_of(outcome.choice) for outcome in outcomes] if any(outcome.blocks for outcome in outcomes) else []
    chosen = [None if on_floor(of, floor) else best_by_validation(of) for of, floor, _ in curves for _ in of]
    return Table(
        columns=(
            *first,
            *layer_columns((outcome.layer for outcome in outcomes), [outcome.parameters for outcome in outcomes]),
            *(
                (Column("kept", kept, dtype="string", meaning="Which blocks, where these are not the first."),)
                if kept
                else ()
            ),
            *((Column("metric", [outcome.primary for outcome in outcomes], form=metric_title),) if not primary else ()),
            *outcome_columns(outcomes, primary),
            *behind_columns(behind),
            *floor_columns([floor for _, _, floor, _ in rows]),
            *((Column("flag", flags),) if any(compared for _, _, compared in curves) else ()),
        ),
        title="After fine-tuning",
        charts=outcome_charts(
            floor="floor" if any(floor and floor.value for _, floor, _ in curves) else "",
            by=" ".join(column.name for column in first),
            x="kept" if kept else "layer",
        ),
        marks=tuple("chosen" if outcome is best else None for outcome, best in zip(outcomes, chosen, strict=True)),
    )


def outcome_charts(*, floor: str = "", by: str = "", x: str = "layer") -> tuple[Chart, ...]:
    """Return test scores by layer with their seeds, and against size."""
    test = Line("mean", interval="interval", seeds="by_seed")
    chart = Chart(lines=(test,), name="outcomes", x=x, by=by, floor=floor, chosen="best by validation")
    size = replace(chart, name="size", heading="Score versus size", kind="cost", x="parameters", label=x, floor="")
    return chart, replace(size, lines=(replace(test, seeds=""),))


def interval_of(outcomes: Iterable[LayerOutcome | None]) -> str:
    """Return the title of the column of their intervals, with the level where errors say it."""
    levels = {outcome.error.level for outcome in outcomes if outcome and outcome.error}
    return interval_title(*levels) if len(levels) == 1 else "interval"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuningResult(Shown):
    """Models fine-tuned on tasks: all runs, and what they come to by model, task and layer."""

    level: float
    """Confidence level of the intervals, such as 0.95."""
    runs: tuple[FineTuningRun, ...]
    """In the order of models, tasks, seeds and layers; those that failed say why."""
    outcomes: tuple[LayerOutcome, ...]
    """In the order of models and tasks, by layer, ascending."""
    floors: tuple[Floor | None, ...]
    """What a trivial answer scores on the test split by the primary metric, of each model and task; None where there
    is none."""
    compared: tuple[AgainstBest | None, ...]
    """The test scores of the layers compared with the best of them, of each model and task; None where that cannot be
    said."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Of the test items on the scores of one model on one task, by layer and seed; None where that was not saved."""

    @property
    def scored_layers(self) -> ScoredLayers:
        """What it is compared with another result by; DataError of several models or tasks."""
        if len(self.floors) != 1:
            raise DataError(
                f"expected one model fine-tuned on one task to compare, got {len(self.floors)} pairs of them"
            )
        return scored_layers_of(self.outcomes, self.influences)

    @property
    def scored(self) -> tuple[FineTuningRun, ...]:
        """The runs that are finished."""
        return tuple(run for run in self.runs if not run.error)

    @property
    def failures(self) -> tuple[str, ...]:
        """Each run that failed, or layer of a scan, and why."""
        return tuple(f"{run.label}: {run.error}" for run in self.runs if run.error)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those that failed."""
        return tuple(f"left out: {failure}" for failure in self.failures)

    @property
    def scan(self) -> bool:
        """Whether each run had a loss at every layer."""
        return self.runs[0].weighting is not None

    @property
    def curves(self) -> dict[tuple[str, str], Curve]:
        """What is known by model and task."""
        grouped = itertools.groupby(self.outcomes, key=lambda outcome: (outcome.model, outcome.task))
        parts = [(key, tuple(outcomes)) for key, outcomes in grouped]
        return {
            key: (outcomes, floor, compared)
            for (key, outcomes), floor, compared in zip(parts, self.floors, self.compared, strict=True)
        }

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric on the validation split, the earlier one of equals.

        Raises:
            DataError: If there are several models or tasks: each has a best layer.
        """
        if len(self.floors) > 1:
            raise DataError(f"expected one model and one task to have a best layer, got {len(self.floors)} pairs")
        return best_by_validation(self.outcomes).layer

    @property
    def _names(self) -> list[tuple[str, str]]:
        models = list(dict.fromkeys(model for model, _ in self.curves))
        short = dict(zip(models, distinct_names(models), strict=True))
        return [(short[model], task) for model, task in self.curves]

    @property
    def conclusion(self) -> Conclusion:
        """Which layer is best by validation, what it scores on test, and which others may be as good."""
        models, tasks = (tuple(dict.fromkeys(names)) for names in zip(*self._names, strict=True))
        counts = {"runs": len(self.runs), "failed": len(self.failures), "curves": len(self.curves)}
        facts = {name: Fact(value=value, unit="count") for name, value in counts.items() if value}
        checks = [Check(name="runs failed", passed=False)] if self.failures else []
        checks += [Check(name="scan", passed=None)] if self.scan else []
        if any(compared is None and len(outcomes) > 1 for outcomes, _, compared in self.curves.values()):
            checks.append(Check(name="not compared", passed=None))
        if len(self.curves) > 1:
            return Conclusion(
                kind="finetune",
                case="several",
                verdict=Verdict.DECIDED,
                subject=(listed(models), listed(tasks)),
                facts=facts,
                checks=tuple(checks),
            )
        ((outcomes, floor, compared),) = self.curves.values()
        best, last, names = best_by_validation(outcomes), outcomes[-1], [name_of(one.choice) for one in outcomes]
        score = Fact(value=best.mean, unit="score", split="test")
        if best.interval is not None:
            score = replace(score, interval=best.interval, level=self.level)
        numbers = {"score": score}
        if best is not last:
            numbers["over last"] = Fact(value=best.mean - last.mean, split="test")
        if best.parameters < last.parameters:
            numbers["parameters"] = Fact(value=best.parameters / last.parameters - 1, unit="share")
        if compared is not None:
            checks += compared.checks(names, "test")
            numbers |= {name: fact for name, fact in compared.facts("test").items() if name != "score"}
        elif floor is not None and floor.value:
            facts["floor"] = Fact(value=floor.value, unit="score", split="test")
        is_floor = floor is not None and on_floor(outcomes, floor)
        return Conclusion(
            kind="finetune",
            case="floor" if is_floor else "blocks" if best.blocks else "best",
            verdict=Verdict.FAILED if is_floor else Verdict.UNDECIDED if compared is None else compared.verdict,
            subject=(*models, *tasks),
            facts=({"score": score} if is_floor else numbers) | facts,
            names={
                **({} if compared is None else compared.names(names)),
                "layer": name_of(best.choice).removeprefix("blocks "),
                "last": name_of(last.choice, "layer "),
                "metric": f"{metric_title(best.primary)} x 100",
                "trivial": floor.by if floor else "",
            },
            checks=tuple(checks),
        )

    @property
    def table(self) -> Table:
        """A row a model, task and layer: what fine-tuning it showed."""
        return self._table(list(self.curves))

    def _table(self, keys: Sequence[tuple[str, str]]) -> Table:
        names = dict(zip(self.curves, self._names, strict=True))
        rows = [names[key] for key in keys for _ in self.curves[key][0]]
        models, tasks = ([name[i] for name in rows] for i in (0, 1))
        first = [
            Column(name, values, dtype="string")
            for name, values in (("model", models), ("task", tasks))
            if len(set(values)) > 1
        ]
        return curves_table([self.curves[key] for key in keys], first)

    @property
    def details(self) -> tuple[Table, ...]:
        """Of several tasks, a table each."""
        keys: dict[str, list[tuple[str, str]]] = {}
        for key in self.curves:
            keys.setdefault(key[1], []).append(key)
        tables = [replace(self._table(of_task), title=task) for task, of_task in keys.items()]
        if len(tables) < 2:
            return ()
        return tuple(
            replace(table, charts=(replace(table.charts[0], name=f"task-{number}"),))
            for number, table in enumerate(tables, start=1)
        )

    @property
    def sources(self) -> dict[str, str]:
        """Where the models and tasks are from, and how they were trained."""
        models, tasks = (dict.fromkeys(names) for names in zip(*self.curves, strict=True))
        protocol = to_dict(self.runs[0].protocol)
        return {
            "Models": ", ".join(models),
            "Tasks": ", ".join(tasks),
            "Fine-tuning": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in protocol.items()),
        }
