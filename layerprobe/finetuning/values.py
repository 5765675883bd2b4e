"""Protocol and results of fine-tuning truncated models."""

import itertools
import math
import statistics
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerprobe.checks import check_fields, convert_fields
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, UNSAVED, to_dict
from layerprobe.interval import Interval
from layerprobe.metrics.names import Split, metric_title, points
from layerprobe.names import distinct_names, listed
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, interval_title, layer_columns
from layerprobe.scoring.values import behind_columns, floor_columns
from layerprobe.stats.values import AgainstBest, Floor, ItemInfluences, ScoredLayers, joint_error_sources

Weighting = Literal["falling", "equal", "random", "sandwich"]
"""Weights of the layers' losses in a joint run, see `layer_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Settings of fine-tuning a truncated model; the defaults are those of arXiv 2402.13130."""

    learning_rate: float = 2e-5
    """Peak of AdamW's linear schedule. In Python, give `LORA_LEARNING_RATE` with `lora`; the command line does so."""
    weight_decay: float = 0.01
    """Weight decay of matrices; norms and bias vectors have none."""
    epochs: int = 10
    """Training epochs."""
    batch_size: int = 32
    """Examples per step."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    max_length: int = 128
    """Largest number of tokens per text; longer texts are truncated."""
    pooling: Pooling = "mean"
    """Pooling of token states into one embedding."""
    lora: int = field(default=0, metadata=RARE)
    """Rank of low-rank adapters to train instead of all weights; 0 trains all weights."""
    lora_alpha: int | None = field(default=None, metadata=RARE)
    """Adapters are scaled by alpha over their rank. By default twice the rank."""
    lora_modules: tuple[str, ...] = field(default=(), metadata=RARE)
    """Names of the linear modules that get adapters, such as query,value. By default all in the blocks."""
    gradient_checkpointing: bool = field(default=False, metadata=RARE)
    """Recompute activations in the backward pass: less memory, more time."""
    dropout: bool = field(default=True, metadata=RARE)
    """Whether to use the dropout of the model's configuration; gradient checkpointing needs it."""
    evaluations: int = field(default=1, metadata=RARE)
    """Number of evaluations on the validation split per epoch: the best is kept, and training continues."""
    kept_epoch: int = field(default=0, metadata=RARE)
    """Stop after this epoch (or evaluation, if there are several per epoch) and keep it, whatever its score; 0 keeps
    the best by validation. The learning rate falls as for all epochs."""
    patience: int | None = field(default=None, metadata=RARE)
    """Stop a run when so many evaluations, and the one before them, score within 0.2 points on validation, after the
    warm-up; 0 never stops. By default 2 in `find`, else 0. The learning rate falls as for all epochs."""
    positive_share: float | None = field(default=None, metadata=RARE)
    """paraphrase: set the threshold so that this share, 0 to 1, of the validation pairs is at or above it, instead of
    the best threshold on them, for example because they are trained on."""

    def __post_init__(self) -> None:
        convert_fields(self)  # 0 and 0.0 are the same protocol, and must give the same folder names
        checks = {
            "at least one epoch": self.epochs >= 1,
            "dropout with gradient checkpointing": self.dropout or not self.gradient_checkpointing,
            "at least one evaluation per epoch": self.evaluations >= 1,
            "an epoch to keep that is trained": 0 <= self.kept_epoch <= self.epochs * self.evaluations,
            "a patience of 0 or more evaluations": (self.patience or 0) >= 0,
            "a share of positives from 0 to 1": 0 <= (self.positive_share or 0) <= 1,
            "room for at least two tokens": self.max_length >= 2,
            "a rank of 0 or more": self.lora >= 0,
            "an alpha of at least 1": self.lora_alpha is None or self.lora_alpha >= 1,
            "alpha and modules with a rank only": bool(self.lora) or not (self.lora_alpha or self.lora_modules),
            f"pooling by one of {typing.get_args(Pooling)}": self.pooling in typing.get_args(Pooling),
        }
        check_protocol(self, checks, example="example")


def check_protocol(protocol: Any, further: Mapping[str, bool], *, example: str) -> None:
    """Raise DataError, listing all errors, unless the numbers of a training protocol are in range.

    Common fields have the same names in all protocols; `further` has conditions on other fields with their truth.
    """
    expected = {
        "a finite learning rate above 0": 0 < protocol.learning_rate < math.inf,
        "a finite weight decay of 0 or more": 0 <= protocol.weight_decay < math.inf,
        f"at least one {example} a batch": protocol.batch_size >= 1,
        "a warm-up from 0 to 1": 0 <= protocol.warmup <= 1,
        "a finite gradient norm above 0": 0 < protocol.max_grad_norm < math.inf,
        **further,
    }
    check_fields(protocol, expected)


LORA_LEARNING_RATE = 2e-4
"""Default learning rate of adapters in commands and TOML files: about ten times that of all weights."""


def with_rate(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return fields of a protocol, with the learning rate of adapters if they have a rank and no rate."""
    return {"learning_rate": LORA_LEARNING_RATE, **settings} if settings.get("lora") else settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """Loss and scores of one epoch of fine-tuning."""

    epoch: int
    """Number from 1; with several evaluations per epoch, the number of the evaluation."""
    train_loss: float
    """Mean training loss over the epoch."""
    validation: dict[str, float]
    """Validation scores x 100 by metric; for a scan, the primary metric alone."""


KeptBlocks = tuple[int, tuple[int, ...]]
"""Number of blocks kept, and their numbers if these are not the first ones; else an empty tuple."""
RunKey = tuple[KeptBlocks, int]
"""Blocks and seed of a run of one model on one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningRun:
    """A model truncated at a layer, fine-tuned with one seed; scores are those of the best epoch by validation.

    A scan, one run with a loss at every layer, gives one per layer.
    """

    layer: int
    seed: int
    protocol: Protocol
    parameters: int
    """Parameters of the truncated model, without pooler; 0 if it failed before that was known."""
    primary: str
    """Name of the metric that chose the epoch."""
    best_epoch: int
    """The epoch with the highest primary metric on the validation split (for a scan, averaged over layers), the first
    of equals; or the protocol's `kept_epoch`."""
    validation: dict[str, float]
    """Validation scores x 100; empty if the run failed. With `kept_epoch` in the protocol, these examples may have been
    trained on."""
    test: dict[str, float]
    """Test scores x 100; empty if the run failed."""
    epochs: tuple[EpochMetrics, ...]
    seconds: float
    """Wall time of the run; for a scan, of all its layers."""
    peak_memory: int | None
    """Bytes: the peak allocation on CUDA, else the peak resident size of the process; None if unknown."""
    threshold: float | None = None
    """paraphrase: the cosine from which a pair counts as a paraphrase: by the protocol's `positive_share`, or else the
    one with the highest F1 on the validation split."""
    weighting: Weighting | None = field(default=None, metadata=RARE)
    """Weights of the layers' losses in a scan; None for a model that was truncated before training."""
    error: str = field(default="", metadata=RARE)
    """Reason for missing scores, in one line; empty if it has scores."""
    model: str = field(default="", metadata=RARE)
    """Name of the model."""
    task: str = field(default="", metadata=RARE)
    """Name of the data."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Numbers of the blocks kept, from 1; None: the first ones."""
    directory: Path = field(default=Path(), compare=False, metadata=UNSAVED)
    """Directory of the run, with saved weights in `model/`; unknown for a run read from JSON."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["FineTuningRun"], dict[str, Any]]:
        """Return this class and its fields from JSON, to which the command line adds the directory."""
        return cls, {name: value for name, value in data.items() if name != "directory"}

    @property
    def choice(self) -> KeptBlocks:
        """Its blocks."""
        return self.layer, self.blocks or ()

    @property
    def key(self) -> RunKey:
        """Its blocks and its seed."""
        return self.choice, self.seed

    @property
    def label(self) -> str:
        """Model, task, layer and seed, in words."""
        of = f"{self.model} on {self.task}, " if self.model else ""
        return f"{of}{name_of(self.choice, 'layer ')}, seed {self.seed}"


Runs = tuple[FineTuningRun, ...]
"""What one training gives: one run, or for a scan one per layer."""


def name_of(choice: KeptBlocks, what: str = "") -> str:
    """Return the layer after a word for it, or the blocks that are kept.

    Examples:
        >>> name_of((3, ()), "layer "), name_of((3, (1, 3, 5)), "layer ")
        ('layer 3', 'blocks 1, 3, 5')
    """
    layer, blocks = choice
    return f"blocks {', '.join(map(str, blocks))}" if blocks else f"{what}{layer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """Summary of the fine-tuning runs of one model on one task at one layer; failed runs are left out."""

    json_tags: ClassVar = ("mean", "std", "interval", "best_seed", "best_seed_score")

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    primary: str
    """Name of the metric of mean, deviation and errors."""
    test: dict[str, tuple[float, ...]]
    """Test scores x 100 by metric and seed."""
    validation: dict[str, tuple[float, ...]]
    """Validation scores x 100 by metric and seed."""
    error: Interval | None = None
    """Error of the test mean over items and seeds; None for one seed without outputs."""
    validation_error: Interval | None = None
    """The same on the validation split."""
    model: str = field(default="", metadata=RARE)
    task: str = field(default="", metadata=RARE)
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Numbers of the blocks kept, from 1; None: the first ones."""

    @property
    def choice(self) -> KeptBlocks:
        """Its blocks."""
        return self.layer, self.blocks or ()

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric on the test split by seed, x 100."""
        return self.test[self.primary]

    @property
    def mean(self) -> float:
        """Mean of the primary metric on the test split, x 100."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the same over seeds; None for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean on the test split."""
        return None if self.error is None else self.error.interval

    @property
    def validated(self) -> float:
        """Mean over seeds of the primary metric on the validation split, x 100; layers are chosen by it."""
        return statistics.fmean(self.validation[self.primary])

    @property
    def best_seed(self) -> int:
        """The seed with the highest primary metric on the validation split, the first of equals.

        Never by test, which would bias the score. It is listed for reference; the layer's score is the mean.
        """
        validation = self.validation[self.primary]
        return self.seeds[validation.index(max(validation))]

    @property
    def best_seed_score(self) -> float:
        """The primary metric on the test split of the best seed, x 100."""
        return self.scores[self.seeds.index(self.best_seed)]


TunedLayers = tuple[Sequence[LayerOutcome], Floor | None, AgainstBest | None]
"""Scores of one model on one task by layer, the floor, and the comparison of layers with the best of them."""


def outcome_columns(outcomes: Sequence[LayerOutcome | None], primary: str | None) -> tuple[Column, ...]:
    """Return the columns of fine-tuned layers; empty for layers that were not run.

    The primary metric is None if layers have different ones.
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
        column("std", lambda outcome: outcome.std, form=".2f", meaning="Standard deviation over seeds.", more=True),
        column(
            "interval",
            lambda outcome: outcome.interval,
            title=interval_of(outcomes),
            form=".2f",
            interval=True,
            meaning="Interval of the mean.",
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
        column("by_seed", lambda outcome: outcome.scores, (), form=".2f", meaning="Test scores by seed.", more=True),
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
            meaning="By validation, for reference: the layer's score is the mean.",
            more=True,
        ),
    )


def scored_layers_of(
    outcomes: Sequence[LayerOutcome], influences: ItemInfluences | None = None, **names: str
) -> ScoredLayers:
    """Return the test scores of layers fine-tuned with their first blocks, to compare two results."""
    outcomes = [outcome for outcome in outcomes if not outcome.blocks]
    if not outcomes:
        raise DataError("cannot compare: no layer was fine-tuned with the first blocks")
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
    """Return the outcome of the layer with the highest mean on the validation split, the earlier of equals.

    Never by test, which would bias its score.
    """
    return max(outcomes, key=lambda outcome: outcome.validated)


def on_floor(outcomes: Sequence[LayerOutcome], floor: Floor | None) -> bool:
    """Return whether the best layer by validation is not above the floor, so that none is recommended."""
    return floor is not None and floor.unbeaten(best_by_validation(outcomes).interval)


def curves_table(curves: Sequence[TunedLayers], first: Sequence[Column] = ()) -> Table:
    """Return the table of fine-tuned layers, one row per layer of each model and task; `first` are columns of names."""
    rows = [(outcome, *curve) for curve in curves for outcome in curve[0]]
    outcomes = [row[0] for row in rows]
    primaries = {row[0].primary for row in rows}
    primary = min(primaries) if len(primaries) == 1 else None
    flags = [compared.flag(i) if compared else None for of, _, compared in curves for i in range(len(of))]
    behind = [compared.behind[i] if compared else None for of, _, compared in curves for i in range(len(of))]
    kept = [name_of(outcome.choice) for outcome in outcomes] if any(outcome.blocks for outcome in outcomes) else []
    chosen = [None if on_floor(of, floor) else best_by_validation(of) for of, floor, _ in curves for _ in of]
    return Table(
        columns=(
            *first,
            *layer_columns((outcome.layer for outcome in outcomes), [outcome.parameters for outcome in outcomes]),
            *((Column("kept", kept, dtype="string", meaning="Blocks, if these are not the first."),) if kept else ()),
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
    """Return charts of test scores by layer, with seeds, and of scores versus size."""
    test = Line("mean", interval="interval", seeds="by_seed")
    chart = Chart(lines=(test,), name="outcomes", x=x, by=by, floor=floor, chosen="best by validation")
    size = replace(chart, name="size", heading="Score versus size", kind="cost", x="parameters", label=x, floor="")
    return chart, replace(size, lines=(replace(test, seeds=""),))


def interval_of(outcomes: Iterable[LayerOutcome | None]) -> str:
    """Return the title of the column of intervals, with the level if known."""
    levels = {outcome.error.level for outcome in outcomes if outcome and outcome.error}
    return interval_title(*levels) if len(levels) == 1 else "interval"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuningResult(Shown):
    """Models fine-tuned on tasks: all runs, and their summaries by model, task and layer."""

    level: float
    """Confidence level of the intervals, such as 0.95."""
    runs: tuple[FineTuningRun, ...]
    """Runs in the order of models, tasks, seeds and layers; failed runs have an error."""
    outcomes: tuple[LayerOutcome, ...]
    """Summaries in the order of models and tasks, by ascending layer."""
    floors: tuple[Floor | None, ...]
    """Score of a trivial baseline on the test split by the primary metric, for each model and task; None where there
    is none."""
    compared: tuple[AgainstBest | None, ...]
    """Test scores of the layers compared with the best of them, for each model and task; None where errors are
    unknown."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Influences of the test items on the scores of one model on one task, by layer and seed; None if not saved."""

    @property
    def scored_layers(self) -> ScoredLayers:
        """The scores by which it is compared with another result; DataError for several models or tasks."""
        if len(self.floors) != 1:
            raise DataError(
                f"expected one model fine-tuned on one task to compare, got {len(self.floors)} pairs of them"
            )
        return scored_layers_of(self.outcomes, self.influences)

    @property
    def scored(self) -> tuple[FineTuningRun, ...]:
        """The finished runs."""
        return tuple(run for run in self.runs if not run.error)

    @property
    def failures(self) -> tuple[str, ...]:
        """Each failed run, or layer of a scan, with the reason."""
        return tuple(f"{run.label}: {run.error}" for run in self.runs if run.error)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The failed runs."""
        return tuple(f"left out: {failure}" for failure in self.failures)

    @property
    def scan(self) -> bool:
        """Whether each run had a loss at every layer."""
        return self.runs[0].weighting is not None

    @property
    def curves(self) -> dict[tuple[str, str], TunedLayers]:
        """Scores by layer, floor and comparison, by model and task."""
        grouped = itertools.groupby(self.outcomes, key=lambda outcome: (outcome.model, outcome.task))
        parts = [(key, tuple(outcomes)) for key, outcomes in grouped]
        return {
            key: (outcomes, floor, compared)
            for (key, outcomes), floor, compared in zip(parts, self.floors, self.compared, strict=True)
        }

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric on the validation split, the earlier of equals.

        Raises:
            DataError: If there are several models or tasks, each with its own best layer.
        """
        if len(self.floors) > 1:
            raise DataError(f"expected one model and one task, to name the best layer, got {len(self.floors)} pairs")
        return best_by_validation(self.outcomes).layer

    @property
    def _names(self) -> list[tuple[str, str]]:
        models = list(dict.fromkeys(model for model, _ in self.curves))
        short = dict(zip(models, distinct_names(models), strict=True))
        return [(short[model], task) for model, task in self.curves]

    @property
    def conclusion(self) -> Conclusion:
        """The best layer by validation, its test score, and the layers that may be as good."""
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
        best = best_by_validation(outcomes)
        last = outcomes[-1]
        names = [name_of(one.choice) for one in outcomes]
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
        """One row per model, task and layer."""
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
        """With several tasks, one table per task."""
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
        """Models, tasks and settings of training."""
        models, tasks = (dict.fromkeys(names) for names in zip(*self.curves, strict=True))
        protocol = to_dict(self.runs[0].protocol)
        return {
            "Models": ", ".join(models),
            "Tasks": ", ".join(tasks),
            "Fine-tuning": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in protocol.items()),
        }
