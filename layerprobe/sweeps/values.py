"""What a sweep is made of, and what it left: runs over layers, seeds, tasks and models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from layerprobe.checks import check_seeds
from layerprobe.encoders.options import Options
from layerprobe.encoders.spec import ModelSpec
from layerprobe.errors import DataError
from layerprobe.finetuning.tuning import PAPER_SEEDS, check_pooling, check_precision
from layerprobe.finetuning.values import FailedRun, LayerOutcome, Protocol
from layerprobe.metrics.names import METRICS
from layerprobe.names import distinct_names
from layerprobe.results.shown import Shown
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import TaskSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepModel:
    """A model of a sweep."""

    model: ModelSpec
    layers: tuple[int, ...] | None = None
    """Blocks kept; the sweep's layers by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCurve:
    """The runs of one model on one task, put together."""

    model: str
    """As it was given, with the seed where its weights are random."""
    task: str
    """As it was given."""
    kind: str
    """Of the task."""
    task_number: int
    """Of the task in the sweep, from 1: two of them can be of one source."""
    primary: str
    """The metric that mean, deviation and interval are of."""
    outcomes: tuple[LayerOutcome, ...]
    """By layer, ascending, over the seeds that are done; a layer without one is missing."""
    failed: tuple[FailedRun, ...] = ()
    """By layer and seed; they are in no outcome."""

    def __post_init__(self) -> None:
        KINDS.check(self.kind)
        METRICS.check(self.primary)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult(Shown):
    """What a sweep left, or has so far."""

    curves: tuple[SweepCurve, ...]
    """A model and task each, in the order of models, then tasks."""
    level: float
    """Confidence level of the intervals."""
    n_runs: int
    """Runs of the sweep, also those to come."""
    seconds_left: float | None = None
    """Estimated; None before a run is finished, 0 at the end."""

    @property
    def n_done(self) -> int:
        """Runs that are finished."""
        return sum(len(outcome.seeds) for curve in self.curves for outcome in curve.outcomes)

    @property
    def n_failed(self) -> int:
        """Runs that failed."""
        return sum(len(curve.failed) for curve in self.curves)

    @property
    def n_left(self) -> int:
        """Runs to come."""
        return self.n_runs - self.n_done - self.n_failed

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{self.n_done} of {self.n_runs} runs done, {self.n_failed} failed, {len(self.curves)} curves"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a sweep before it is made."""

    model: str
    """As it was given, with the seed where its weights are random."""
    task: str
    """As it was given."""
    kind: str
    """Of the task."""
    task_number: int
    """Of the task in the sweep, from 1: two of them can be of one source."""
    layer: int
    seed: int
    state: Literal["done", "failed", "left"]
    """failed: it is marked as such, and is not tried again."""
    cost: float
    """Share of the cost of all runs, 0 .. 1, estimated from blocks kept, width, length of the texts and epochs."""


def sweep_names(parts: Sequence[SweepCurve] | Sequence[PlannedRun]) -> list[tuple[str, str]]:
    """Return short names of the model and the task of every curve or run.

    Names are without organisation or folder where that confuses no two. Tasks of one source have their kind with
    them, those of one kind, too, the number that they have in the sweep.
    """
    tasks = {part.task_number: part for part in parts}
    sources = [task.task for task in tasks.values()]
    kinds = [(task.task, task.kind) for task in tasks.values()]
    named = {}
    for source, task in zip(distinct_names(sources), tasks.values(), strict=True):
        kind = [task.kind] if sources.count(task.task) > 1 else []
        number = [f"task {task.task_number}"] if kinds.count((task.task, task.kind)) > 1 else []
        named[task.task_number] = f"{source} ({', '.join([*kind, *number])})" if kind else source
    models = list(dict.fromkeys(part.model for part in parts))
    short = dict(zip(models, distinct_names(models), strict=True))
    return [(short[part.model], named[part.task_number]) for part in parts]


OPTIONS = ("pooling", "prompt", "dtype", "device", "attn", "batch_tokens", "trust_remote_code")
"""The fields of `Options` that fine-tuning takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Layers x seeds x tasks x models to fine-tune."""

    models: tuple[SweepModel, ...]
    tasks: tuple[TaskSettings, ...]
    layers: tuple[int, ...] | None = None
    """Blocks kept, of models that name none of their own; None: all of them."""
    seeds: tuple[int, ...] = PAPER_SEEDS
    """One run each."""
    protocol: Protocol = field(default_factory=Protocol)
    """How to fine-tune."""
    options: Options = field(default_factory=Options)
    """How to load; fine-tuning takes those of `OPTIONS`, and the folder of the runs."""

    def __post_init__(self) -> None:
        for what, named in (("model", self.models), ("task", self.tasks)):
            if not named or len(set(named)) < len(named):
                raise DataError(f"expected at least one {what}, and each of them once, got {len(named)}")
        for layers in (self.layers, *(model.layers for model in self.models)):
            if layers is not None and (not layers or min(layers) < 0):
                raise DataError(f"expected layers from 0, at least one, got {list(layers)}")
        object.__setattr__(self, "seeds", check_seeds(self.seeds))
        check_pooling(self.protocol, self.options)
        check_precision(self.options)
