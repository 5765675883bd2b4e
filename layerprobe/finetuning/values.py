"""What fine-tuning truncated models showed."""

import operator
import statistics
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from layerprobe.checks import as_declared
from layerprobe.encoders.model import Model, Pooling
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.metrics.names import check_primary, metric_title, points, split_title
from layerprobe.names import listed
from layerprobe.results.blocks import Blocks
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import Shown, brief
from layerprobe.results.table import Column, Table, interval_title, layer_columns
from layerprobe.scoring.values import behind_columns, floor_columns
from layerprobe.stats.sentences import best_sentence, drawn_anew_in_all, floor_sentence, none_above_floor, with_interval
from layerprobe.stats.values import AgainstBest, ClaimVerdict, CrossedInterval, Floor, read_error
from layerprobe.training.values import check_protocol

Weighting = Literal["falling", "equal", "random", "sandwich"]
"""How much each layer's loss counts in a joint run, see `layer_weights`."""

MARGIN = 0.5
"""Points of the primary metric x 100: less than this does not justify another layer."""


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

    def __post_init__(self) -> None:
        as_declared(self)  # 0 and 0.0 are one protocol, and must be one text in the names of folders
        checks = {
            "at least one epoch": self.epochs >= 1,
            "dropout with gradient checkpointing": self.dropout or not self.gradient_checkpointing,
            "at least one evaluation an epoch": self.evaluations >= 1,
            "an epoch to keep that is trained": 0 <= self.kept_epoch <= self.epochs * self.evaluations,
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
class RunsOrigin:
    """What all runs of a folder are of: one model and one task."""

    model: Model
    """The pretrained model as it was requested."""
    model_digest: str
    """Of what its numbers depend on."""
    task: str
    """Name of the data."""
    task_digest: str
    """Of all its texts and targets, without the prompt."""
    prompt: str
    """Put before every text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """What one epoch of fine-tuning left."""

    epoch: int
    """From 1; of a protocol with several evaluations an epoch, which of them."""
    train_loss: float
    """Mean over the epoch of the loss of the task's kind."""
    validation: dict[str, float]
    """x 100."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FineTuningRun(Shown):
    """One truncated model, fine-tuned with one seed; scores are those of the best epoch by validation."""

    layer: int
    seed: int
    protocol: Protocol
    parameters: int
    """Of the truncated model, without the pooler."""
    primary: str
    """The metric that chose the epoch."""
    best_epoch: int
    """The epoch with the highest primary metric on the validation split, the first of equals; or the protocol's."""
    validation: dict[str, float]
    """x 100. Where the protocol says which epoch is kept, these examples can be among those trained on."""
    test: dict[str, float]
    """x 100."""
    epochs: tuple[EpochMetrics, ...]
    seconds: float
    """Wall time of the run."""
    peak_memory: int | None
    """Bytes: the peak allocation on CUDA, else the peak resident size of the process; None where it is not known."""
    threshold: float | None = None
    """paraphrase: the cosine that maximises F1 on the validation split, from which on a pair counts as one."""

    def __post_init__(self) -> None:
        for metrics in (self.validation, self.test, *(epoch.validation for epoch in self.epochs)):
            check_primary(self.primary, metrics, what="the metrics of a run")

    @property
    def summary(self) -> str:
        """The result in one line."""
        scores = f"validation {self.validation[self.primary]:.2f}, test {self.test[self.primary]:.2f}"
        return f"layer {self.layer}, seed {self.seed}: {self.primary} x 100 {scores} at epoch {self.best_epoch}"

    @property
    def heading(self) -> str:
        """Which run it is, and what it scores."""
        return f"Layer {self.layer}, seed {self.seed}: test {metric_title(self.primary)} {self.test[self.primary]:.2f}"

    @property
    def rest(self) -> str:
        """Which epoch was chosen."""
        best = f"the best validation {metric_title(self.primary)}, {self.validation[self.primary]:.2f}"
        return f"Epoch {self.best_epoch} has {best}; it scores {self.test[self.primary]:.2f} on test."

    @property
    def table(self) -> Table:
        """A row an epoch: its loss, and its scores on the validation split."""
        flags = ["best" if epoch.epoch == self.best_epoch else None for epoch in self.epochs]
        scores = (
            Column(
                f"validation_{metric}",
                [epoch.validation.get(metric) for epoch in self.epochs],
                title=f"validation {metric_title(metric)}",
                form=".2f",
                quantity=points(metric, "validation"),
            )
            for metric in self.validation
        )
        return Table(
            columns=(
                Column("epoch", [epoch.epoch for epoch in self.epochs]),
                Column("train_loss", [epoch.train_loss for epoch in self.epochs], "loss", ".4g"),
                *scores,
                Column("flag", flags),
            ),
            title="By epoch",
            charts=(
                Chart(lines=(Line(f"validation_{self.primary}"),), name="epochs", x="epoch", chosen="the best epoch"),
            ),
            marks=tuple(flag and "chosen" for flag in flags),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JointEpoch:
    """What one epoch of a joint run left at every layer."""

    epoch: int
    """From 1."""
    train_loss: tuple[float | None, ...]
    """By layer, before weighting; None where it was not finite."""
    validation: tuple[float | None, ...]
    """The primary metric by layer, x 100; None where the layer failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLayer:
    """A layer that a joint run went on without."""

    layer: int
    message: str
    """Why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JointRun(Shown):
    """One model, fine-tuned at every layer at once with one seed; scores are those of its best epoch."""

    seed: int
    weighting: Weighting
    protocol: Protocol
    parameters: tuple[int, ...]
    """Of the model truncated at each layer, without the pooler."""
    primary: str
    """The metric that chose the epoch."""
    best_epoch: int
    """The epoch with the highest primary metric on the validation split in the mean over layers, the first of
    equals."""
    validation: tuple[dict[str, float] | None, ...]
    """By layer, x 100; None where the layer failed."""
    test: tuple[dict[str, float] | None, ...]
    """By layer, x 100; None where the layer failed."""
    epochs: tuple[JointEpoch, ...]
    seconds: float
    """Wall time of the run."""
    peak_memory: int | None
    """As of a `FineTuningRun`."""
    thresholds: tuple[float | None, ...]
    """By layer, as of a `FineTuningRun`."""
    failures: tuple[FailedLayer, ...] = ()
    """Layers whose loss or embeddings were not finite, ascending."""

    def __post_init__(self) -> None:
        by_layer = (
            self.parameters,
            self.validation,
            self.test,
            self.thresholds,
            *(epoch.validation for epoch in self.epochs),
        )
        if len({len(values) for values in by_layer}) != 1:
            raise DataError(
                f"expected values of as many layers, got {', '.join(str(len(layers)) for layers in by_layer)}"
            )
        for metrics in (*self.validation, *self.test):
            if metrics is not None:
                check_primary(self.primary, metrics, what="the metrics of a run")

    @property
    def n_layers(self) -> int:
        """Layers, the embedding output among them."""
        return len(self.test)

    def truncated(self, layer: int) -> FineTuningRun:
        """Return what the run says of its model truncated at a layer; DataError if it has no such layer, or it failed.

        The seconds are those of the whole run.
        """
        if not 0 <= layer < self.n_layers:
            raise DataError(f"expected a layer from 0 to {self.n_layers - 1}, got {layer}")
        validation, test = self.validation[layer], self.test[layer]
        if validation is None or test is None:
            message = next((failed.message for failed in self.failures if failed.layer == layer), "it failed")
            raise DataError(f"expected a layer that the joint run has scores of, got {layer}: {message}")
        return FineTuningRun(
            layer=layer,
            seed=self.seed,
            protocol=self.protocol,
            parameters=self.parameters[layer],
            primary=self.primary,
            best_epoch=self.best_epoch,
            validation=validation,
            test=test,
            epochs=tuple(
                EpochMetrics(epoch=epoch.epoch, train_loss=loss, validation={self.primary: score})
                for epoch in self.epochs
                if (loss := epoch.train_loss[layer]) is not None and (score := epoch.validation[layer]) is not None
            ),
            seconds=self.seconds,
            peak_memory=self.peak_memory,
            threshold=self.thresholds[layer],
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        scores = [None if metrics is None else metrics[self.primary] for metrics in self.validation]
        return f"all layers, seed {self.seed}: validation {self.primary} x 100 {brief(scores)}"

    @property
    def heading(self) -> str:
        """Which layer is best."""
        return f"Layer {self.best_layer} scores best on validation"

    @property
    def rest(self) -> str:
        """What that layer scores."""
        splits = {"validation": self.validation[self.best_layer], "test": self.test[self.best_layer]}
        scores = listed([f"{values[self.primary]:.2f} on {split}" for split, values in splits.items() if values])
        best = f"layer {self.best_layer} has {metric_title(self.primary)} {scores}"
        return f"One run with a loss at every layer: {best}."

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which layers failed, and why."""
        return tuple(f"layer {failure.layer} is left out: {failure.message}" for failure in self.failures)

    @property
    def blocks(self) -> Blocks:
        """Those below the best layer."""
        return Blocks.upto(self.n_layers - 1, self.best_layer)

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric on the validation split, the earlier one of equals."""
        scores = {layer: metrics[self.primary] for layer, metrics in enumerate(self.validation) if metrics is not None}
        return max(scores, key=scores.__getitem__)

    @property
    def table(self) -> Table:
        """A row a layer: its scores on both splits."""
        flags = ["best" if layer == self.best_layer else None for layer in range(self.n_layers)]
        title, splits = metric_title(self.primary), {"validation": self.validation, "test": self.test}
        scores = (
            Column(
                split,
                [metrics and metrics[self.primary] for metrics in by_layer],
                f"{split} {title}",
                ".2f",
                quantity=points(self.primary, split),
            )
            for split, by_layer in splits.items()
        )
        return Table(
            columns=(
                *layer_columns(range(self.n_layers), self.parameters),
                *scores,
                Column("flag", flags),
            ),
            charts=tuple(
                Chart(lines=(Line(split),), name=split, heading=f"On {split_title(split)}", chosen="best by validation")
                for split in splits
            ),
            marks=tuple(flag and "chosen" for flag in flags),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """The fine-tuning runs of one layer, put together."""

    json_tags: ClassVar = ("mean", "std", "interval")

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    primary: str
    """The metric that mean, deviation and errors are of."""
    test: dict[str, tuple[float, ...]]
    """By seed, x 100."""
    validation: dict[str, tuple[float, ...]]
    """By seed, x 100."""
    error: CrossedInterval | None = None
    """Of the mean on the test split, over items and seeds; None for one seed whose outputs are not known."""
    validation_error: CrossedInterval | None = None
    """The same on the validation split."""

    def __post_init__(self) -> None:
        for metrics in (self.test, self.validation):
            check_primary(self.primary, metrics, what="the metrics of an outcome")
        lengths = [len(scores) for metrics in (self.test, self.validation) for scores in metrics.values()]
        if not self.seeds or {len(self.seeds)} != set(lengths):
            raise DataError(
                f"expected seeds with a test and a validation score each, got {len(self.seeds)} with "
                f"{', '.join(map(str, lengths))}"
            )

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return what JSON of any version says: before outputs by item were kept, there was an interval alone."""
        return cls, read_error(values, cls.json_tags, lambda: values["test"][values["primary"]])

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


def outcome_columns(outcomes: Sequence[LayerOutcome | None], primary: str) -> tuple[Column, ...]:
    """Return what fine-tuning showed of layers as columns of a table; empty of those that were not run."""
    title = metric_title(primary)

    def column(name: str, read: Callable[[LayerOutcome], object], empty: object = None, **about: Any) -> Column:
        return Column(name, [empty if outcome is None else read(outcome) for outcome in outcomes], **about)

    def validation(outcome: LayerOutcome) -> tuple[float, ...]:
        return outcome.validation[primary]

    return (
        column(
            "mean",
            lambda outcome: outcome.mean,
            title=f"test {title}",
            form=".2f",
            meaning="Mean over seeds, x 100.",
            quantity=points(primary, "test"),
        ),
        column("std", lambda outcome: outcome.std, form=".2f", meaning="Deviation over seeds."),
        column(
            "interval",
            lambda outcome: outcome.interval,
            title=interval_of(outcomes),
            form=".2f",
            interval=True,
            meaning="Of the mean.",
            over=drawn_anew_in_all(outcome.error for outcome in outcomes if outcome and outcome.error)
            or "over new seeds",
        ),
        column("seeds", lambda outcome: len(outcome.seeds), 0, form=lambda count: str(count or ""), meaning="Runs."),
        column("seed_numbers", lambda outcome: outcome.seeds, (), shown=False),
        column("by_seed", lambda outcome: outcome.scores, (), form=".2f", meaning="On the test split."),
        column(
            "validation",
            lambda outcome: outcome.validated,
            form=".2f",
            meaning="Mean over seeds.",
            quantity=points(primary, "validation"),
        ),
        column("validation_by_seed", validation, (), form=".2f", shown=False),
        column("best_seed", lambda outcome: outcome.best_seed, meaning="By validation; its score is not the layer's."),
    )


def best_by_validation(outcomes: Iterable[LayerOutcome]) -> LayerOutcome:
    """Return that of the layer with the highest mean on the validation split, the earlier one of equals.

    Never by test: that is what its score is of.
    """
    return max(outcomes, key=lambda outcome: outcome.validated)


def tuned_sentence(
    outcomes: Sequence[LayerOutcome], compared: AgainstBest | None, floor: Floor | None, *, level: float
) -> str:
    """Return which layer is best by validation, and how its test score compares with those of the others."""
    best, last = best_by_validation(outcomes), outcomes[-1]
    score, which = with_interval(best.mean, best.interval, level), f"layer {best.layer}, the best by validation,"
    if floor is not None and on_floor(outcomes, floor):
        return none_above_floor(floor, best.primary, which, f"{score} on test")
    ahead = best.mean - last.mean
    beside = "" if best is last else f", {abs(ahead):.2f} {'above' if ahead >= 0 else 'below'} layer {last.layer}"
    headline = f"Layer {best.layer} is best by validation: test {metric_title(best.primary)} {score}{beside}"
    if compared is None:
        return f"{headline}. {floor_sentence(floor)}".rstrip()
    names = [str(outcome.layer) for outcome in outcomes]
    return best_sentence(compared, names, headline, metric=best.primary, which=which)


def on_floor(outcomes: Sequence[LayerOutcome], floor: Floor | None) -> bool:
    """Return whether the layer that is best by validation is not above the floor: then none is recommended."""
    return floor is not None and floor.unbeaten(best_by_validation(outcomes).interval)


def outcomes_table(
    outcomes: Sequence[LayerOutcome], floor: Floor | None = None, compared: AgainstBest | None = None
) -> Table:
    """Return what fine-tuning at some layers showed, at least one, a row a layer, with the floor of the test split."""
    title, notes, best = metric_title(outcomes[0].primary), [], best_by_validation(outcomes)
    if any(len(outcome.seeds) > 1 for outcome in outcomes):
        seeds = ", ".join(map(str, dict.fromkeys(seed for outcome in outcomes for seed in outcome.seeds)))
        notes = [f"The {title} is the mean over seeds {seeds}; the best seed by validation is listed, too."]
    if over := drawn_anew_in_all(outcome.error for outcome in outcomes if outcome.error):
        notes.append(f"Intervals are {over}.")
    return Table(
        columns=(
            *layer_columns((outcome.layer for outcome in outcomes), [outcome.parameters for outcome in outcomes]),
            *outcome_columns(outcomes, outcomes[0].primary),
            *behind_columns(compared.behind if compared else ()),
            *floor_columns([floor] * len(outcomes)),
            *((Column("flag", list(map(compared.flag, range(len(outcomes))))),) if compared else ()),
        ),
        title="After fine-tuning",
        notes=tuple(notes),
        charts=outcome_charts(floor="floor" if floor else ""),
        marks=() if on_floor(outcomes, floor) else tuple("chosen" if outcome is best else None for outcome in outcomes),
    )


def outcome_charts(*, floor: str = "", by: str = "") -> tuple[Chart, ...]:
    """Return test scores by layer with their seeds, and against size."""
    test = Line("mean", interval="interval", seeds="by_seed")
    chart = Chart(lines=(test,), name="outcomes", by=by, floor=floor, chosen="best by validation")
    size = replace(
        chart, name="size", heading="Score versus size", kind="cost", x="parameters", label="layer", floor=""
    )
    return chart, replace(size, lines=(replace(test, seeds=""),))


def interval_of(outcomes: Iterable[LayerOutcome | None]) -> str:
    """Return the title of the column of their intervals, with the level where errors say it."""
    levels = {outcome.error.level for outcome in outcomes if outcome and outcome.error}
    return interval_title(*levels) if len(levels) == 1 else "interval"


R = TypeVar("R", FineTuningRun, JointRun)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuningResult(Shown, Sequence[R]):
    """Runs of one model on one task, in the order in which they were requested, and what they come to by layer."""

    model: str
    """What the model is called."""
    task: str
    """Name of the data."""
    level: float
    """Confidence level of the intervals, such as 0.95."""
    runs: tuple[R, ...]
    """Of truncated models, or of scans; also `result[0]`, `len(result)`, and what iterating over it gives."""
    outcomes: tuple[LayerOutcome, ...]
    """By layer, ascending; layers that failed in a scan are left out there."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """What a trivial answer scores on the test split by the primary metric; None where there is none."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The test scores of the layers in `outcomes`, compared with the best of them; None where that cannot be said."""

    def __len__(self) -> int:
        return len(self.runs)

    @typing.overload
    def __getitem__(self, at: int) -> R: ...

    @typing.overload
    def __getitem__(self, at: slice) -> tuple[R, ...]: ...

    def __getitem__(self, at: int | slice) -> R | tuple[R, ...]:
        return self.runs[at]

    @property
    def what(self) -> Literal["scan", "TMFT"]:
        """How the layers were fine-tuned."""
        return "scan" if isinstance(self.runs[0], JointRun) else "TMFT"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which layers of a scan failed, and why."""
        return tuple(warning for run in self.runs for warning in getattr(run, "warnings", ()))

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric on the validation split, the earlier one of equals."""
        return best_by_validation(self.outcomes).layer

    @property
    def sentence(self) -> str:
        """Which layer is best by validation, how sure that is on test, and which smaller one will do."""
        return tuned_sentence(self.outcomes, self.compared, self.floor, level=self.level)

    @property
    def summary(self) -> str:
        """The result in one line."""
        by_layer = ", ".join(f"layer {outcome.layer} {outcome.mean:.2f}" for outcome in self.outcomes)
        about = f"{self.what} of {self.model} on {self.task}: test {metric_title(self.outcomes[0].primary)} x 100"
        return f"{about} {by_layer}. {self.sentence}"

    @property
    def table(self) -> Table:
        """A row a layer: what fine-tuning it showed."""
        return outcomes_table(self.outcomes, self.floor, self.compared)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Confirmation(Shown):
    """What fine-tuning says about a prediction."""

    json_tags: ClassVar = ("effect", "interval", "saved")

    verdict: ClaimVerdict
    """confirmed, refuted or undecided."""
    compared_layers: tuple[int, int]
    """The recommended layer and the layer it is compared with."""
    primary: str
    """What the effect is measured in."""
    level: float
    """Confidence level of the intervals, such as 0.95."""
    outcomes: tuple[LayerOutcome, ...]
    """By layer, ascending."""
    sentence: str
    """The verdict in plain words."""
    planned_seeds: int | None = None
    """Seeds at most, where there was a look after each; None where all were run before the only one."""
    saved_seconds: float | None = field(default=None, metadata=RARE)
    """What the planned seeds that an early verdict did not need would have taken; None where all seeds were run."""
    error: CrossedInterval | None = None
    """The effect with its errors over items and seeds; None where there was no look. Where seeds were planned, its
    interval is wider, so that those of all looks together cover the effect at the level."""

    def __post_init__(self) -> None:
        if missing := set(self.compared_layers) - {outcome.layer for outcome in self.outcomes}:
            raise DataError(f"expected outcomes of the compared layers, got none of layer {min(missing)}")

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return what JSON of any version says: before outputs by item were kept, the interval was over seeds alone."""

        def effects() -> list[float]:
            scores = {outcome["layer"]: outcome["test"][values["primary"]] for outcome in values["outcomes"]}
            first, second = values["compared_layers"]
            return list(map(operator.sub, scores[first], scores[second]))

        if isinstance(saved := values.get("saved"), dict):
            values = {"saved_seconds": saved.get("seconds"), **values}
        return cls, read_error(values, cls.json_tags, effects)

    @property
    def effect(self) -> float:
        """Mean of the primary metric on the test split at the first layer less the second, x 100."""
        means = {outcome.layer: outcome.mean for outcome in self.outcomes}
        first, second = self.compared_layers
        return means[first] - means[second]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the effect, Student's t of paired seeds and items."""
        return None if self.error is None else self.error.interval

    @property
    def saved(self) -> dict[str, Any] | None:
        """The seeds that were planned and not needed, their runs at all layers, and the seconds of these."""
        if self.saved_seconds is None or self.planned_seeds is None:
            return None
        seeds = self.planned_seeds - len(self.outcomes[0].seeds)
        return {"seeds": seeds, "runs": seeds * len(self.outcomes), "seconds": self.saved_seconds}

    @property
    def heading(self) -> str:
        """Which layers were compared, and the verdict."""
        first, second = self.compared_layers
        return f"Layer {first} compared with layer {second}: {self.verdict}"

    @property
    def rest(self) -> str:
        """The verdict in plain words."""
        return self.sentence

    @property
    def blocks(self) -> Blocks:
        """Those below the layer that scores higher; between two that are not told apart, undecided."""
        earlier, last = self.compared_layers
        higher = last if self.verdict == "refuted" else earlier
        return Blocks.upto(last, higher, (earlier, last) if self.verdict == "undecided" else ())

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.verdict}: {self.sentence}"

    @property
    def table(self) -> Table:
        """A row a layer: what fine-tuning it showed."""
        return outcomes_table(self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A fine-tuning run that cannot be finished; the same versions would fail again."""

    layer: int
    """The last one for a joint run."""
    seed: int
    message: str
    """Why, in one line."""
    step: int | None
    """The step at which it failed, from 1; None where it is not known."""
    versions: dict[str, str]
    """Of Python and the libraries that it failed with."""
