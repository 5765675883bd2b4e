"""Sweeps over layers, seeds, tasks and models: their settings, results and TOML files."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layerprobe.checks import check_seeds
from layerprobe.context import duration
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.files.toml import LAYERS, SEEDS, Keys, field_values, path_from, read_toml, to_toml
from layerprobe.finetuning.tuning import PAPER_SEEDS, check_pooling, check_precision
from layerprobe.finetuning.values import (
    FailedRun,
    LayerOutcome,
    Protocol,
    best_by_validation,
    on_floor,
    tuned_sentence,
    with_rate,
)
from layerprobe.metrics.names import METRICS, metric_title, points
from layerprobe.names import counted, distinct_names, listed
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, columns_of, interval_title, millions
from layerprobe.scoring.values import behind_columns, floor_columns
from layerprobe.stats.sentences import drawn_anew_in_all
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import TaskSettings, model_reader, source_from, taken_task


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepModel:
    """A model of a sweep."""

    model: Model
    layers: tuple[int, ...] | None = None
    """Blocks kept; the sweep's layers by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCurve:
    """The scores of one model on one task, by layer."""

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
    floor: Floor | None = field(default=None, metadata=RARE)
    """What a trivial answer scores on the test split by the primary metric; None where there is none."""
    compared: AgainstBest | None = field(default=None, metadata=RARE)
    """The test scores of the layers in `outcomes`, compared with the best of them; None where that cannot be said."""

    def __post_init__(self) -> None:
        KINDS.check(self.kind)
        METRICS.check(self.primary)

    @property
    def best_layer(self) -> int | None:
        """The layer that is best by validation; None without a finished run, or where none is above the floor."""
        above_floor = self.outcomes and not on_floor(self.outcomes, self.floor)
        return best_by_validation(self.outcomes).layer if above_floor else None

    def behind(self, layer: int) -> float | None:
        """Return how far the best layer is ahead of one at most on test; None where that cannot be said."""
        number = self._number(layer)
        return None if self.compared is None or number is None else self.compared.behind[number]

    def flag(self, layer: int) -> str | None:
        """Return the flag of a layer in a table, such as best by validation."""
        number = self._number(layer)
        if self.compared is None or number is None:
            return "best by validation" if layer == self.best_layer else None
        return self.compared.flag(number)

    def finding(self, level: float) -> str:
        """Return the layer that is best by validation, how sure that is on test, and which smaller one will do."""
        if not self.outcomes:
            return "no finished run."
        sentence = tuned_sentence(self.outcomes, self.compared, self.floor, level=level)
        if self.best_layer is None or self.compared is not None:
            return sentence
        if len(self.outcomes) == 1:
            return f"{sentence} No other layer was run."
        if len({outcome.seeds for outcome in self.outcomes}) > 1:
            return f"{sentence} Layers have different seeds, so they are not compared."
        return f"{sentence} With one seed, layers are not compared." if self.outcomes[0].interval is None else sentence

    def _number(self, layer: int) -> int | None:
        return next((i for i, outcome in enumerate(self.outcomes) if outcome.layer == layer), None)

    @property
    def layers(self) -> dict[int, LayerOutcome | None]:
        """The layers with a run, ascending, with their outcome; None where all runs failed."""
        outcomes = {outcome.layer: outcome for outcome in self.outcomes}
        return {layer: outcomes.get(layer) for layer in sorted({*outcomes, *(run.layer for run in self.failed)})}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult(Shown):
    """The results of a sweep, finished or not."""

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
    def failures(self) -> tuple[str, ...]:
        """Each run that failed, and why."""
        return tuple(
            f"{model} on {task}, layer {run.layer}, seed {run.seed}{'' if run.step is None else f' at step {run.step}'}"
            f": {run.message}"
            for (model, task), curve in zip(sweep_names(self.curves), self.curves, strict=True)
            for run in curve.failed
        )

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """The table, how many runs failed, and why."""
        counts = f"\n{self.n_runs} runs: {self.n_done} done, {self.n_failed} failed"
        if not self.n_failed:
            return self.table, counts
        failures = (f"failed: {failure}" for failure in self.failures)
        about = "Means and intervals are over the seeds that did not fail:"
        return self.table, counts, about, *failures, "To try these again: --retry-failed"

    @property
    def table(self) -> Table:
        """A row a model, task and layer: test scores over the seeds that are done, and how many failed."""
        rows = [
            (model, task, curve, layer)
            for (model, task), curve in zip(sweep_names(self.curves), self.curves, strict=True)
            for layer in curve.layers
        ]
        column, outcome = columns_of(rows), columns_of(curve.layers[layer] for _, _, curve, layer in rows)
        metrics = {curve.primary for curve in self.curves}
        return Table(
            columns=(
                column("model", lambda row: row[0]),
                column("task", lambda row: row[1]),
                column("kind", lambda row: row[2].kind, shown=False),
                column("layer", lambda row: row[3], meaning="Blocks kept."),
                outcome("parameters", form=millions),
                column("metric", lambda row: row[2].primary, form=metric_title),
                outcome(
                    "test",
                    lambda outcome: outcome.mean,
                    form=".2f",
                    meaning="Mean over seeds, x 100.",
                    quantity=points(min(metrics), "test")
                    if len(metrics) == 1
                    else Quantity("score × 100", "test", "higher"),
                ),
                outcome("std", form=".2f", meaning="Standard deviation over seeds."),
                outcome(
                    "interval",
                    title=interval_title(self.level),
                    form=".2f",
                    interval=True,
                    over=drawn_anew_in_all(o.error for c in self.curves for o in c.outcomes if o.error)
                    or "over new seeds",
                ),
                outcome("seeds", lambda outcome: len(outcome.seeds), meaning="Runs."),
                outcome("seed_numbers", lambda outcome: outcome.seeds, shown=False),
                outcome("scores", title="by seed", form=".2f"),
                outcome("validation", lambda outcome: outcome.validation[outcome.primary], shown=False),
                *behind_columns([curve.behind(layer) for _, _, curve, layer in rows]),
                *floor_columns([curve.floor for _, _, curve, _ in rows]),
                column("flag", lambda row: row[2].flag(row[3])),
                column(
                    "failed",
                    lambda row: sum(run.layer == row[3] for run in row[2].failed) or None,
                    meaning="Failed runs, which are in no score.",
                ),
            ),
            title="Scores by layer",
            charts=(
                Chart(
                    lines=(Line("test", interval="interval", seeds="scores"),),
                    by="model",
                    floor="floor" if any(curve.floor for curve in self.curves) else "",
                    chosen="best by validation",
                ),
            ),
            marks=tuple("chosen" if layer == curve.best_layer else None for _, _, curve, layer in rows),
        )

    @property
    def heading(self) -> str:
        """The best layer of each model on one task; of several, what was swept."""
        models = distinct_names(list(dict.fromkeys(curve.model for curve in self.curves)))
        done = [(model, curve) for (model, _), curve in zip(sweep_names(self.curves), self.curves, strict=True)]
        if len(models) < len(done) or any(curve.best_layer is None for _, curve in done):
            return f"Layers of {listed(models)}"
        best = [f"{curve.best_layer} of {model}" for model, curve in done]
        return f"Best layer{'' if len(best) == 1 else 's'} by validation: {listed(best)}"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `layerprobe.results.declared`: a curve a model for each task."""
        names = sweep_names(self.curves)
        tasks = {curve.task_number: task for curve, (_, task) in zip(self.curves, names, strict=True)}
        tables = {number: self._of_task(number) for number in tasks}
        several = len(tables) > 1
        time = "" if self.seconds_left is None else f", about {duration(self.seconds_left)}"
        left = f", {self.n_left} to come{time}" if self.n_left else ""
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        return {
            "kind": "sweep",
            "about": listed(list(dict.fromkeys(task for _, task in names))),
            "lead": tuple(
                f"{model} on {task}: {curve.finding(self.level)}"
                for (model, task), curve in zip(names, self.curves, strict=True)
            ),
            "facts": (f"{self.n_done} of {counted(self.n_runs, 'run')} done{failed}{left}.",),
            "first": None if several else next(iter(tables.values()), None),
            "fatal": tuple(f"Failed: {failure}" for failure in self.failures),
            "sections": {tasks[number]: (table,) for number, table in tables.items()} if several else {},
        }

    def _of_task(self, number: int) -> Table:
        table = replace(self, curves=tuple(curve for curve in self.curves if curve.task_number == number)).table
        scored = any(table.column("test").cells)
        return replace(table, charts=(table.charts[0].named(f"task-{number}"),) if scored else ())

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.n_done} of {self.n_runs} runs done, {self.n_failed} failed, {len(self.curves)} curves"


def sweep_names(parts: Sequence[Any]) -> list[tuple[str, str]]:
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
"""The fields of `Model` that fine-tuning takes."""


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
    options: Model = field(default_factory=Model)
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


# ---- a sweep as a TOML file ----------------------------------------------------------------------------------------


def load_sweep(path: str | Path) -> Sweep:
    """Return the sweep that a TOML file describes.

        layers = [6, 12]                 # or "all"
        seeds = 3                        # from 0 on, or a list of them

        [[models]]
        id = "google/electra-base-discriminator"
        layers = [0, 12]                 # or "all", instead of those above; random_init = 0 for random weights
        name = "ELECTRA"                 # what to call it, by default its id
        end_token = false                # whether its end token is appended, by default as for one model
        blocks = [1, 5, 6]               # which blocks are kept, by default all

        [[tasks]]
        source = "stsb"                  # also columns, kind, merge, score_range, validation, test, split_seed

        [protocol]
        epochs = 3                       # and the other fields of `Protocol`

        [options]
        dtype = "bfloat16"               # pooling, prompt, device, attn, batch_tokens, trust_remote_code

    Only models and tasks must be there. With `lora`, learning_rate is 2e-4 by default. Files and folders are relative
    to the TOML file.

    Raises:
        DataError: If the file cannot be read, or a key or a value is not what it should be.
    """
    keys = read_toml(path, "the sweep")
    tables = keys.tables("models")
    models = tuple(map(_model, tables))
    layers = keys.take("layers", LAYERS, default=None)
    if any(table.data.get("layers") == "all" for table in tables):
        # a model without layers has those of the sweep: where one is to have all, the others name theirs
        named = ("layers" in table.data for table in tables)
        models = tuple(
            m if has_layers else replace(m, layers=layers) for m, has_layers in zip(models, named, strict=True)
        )
        layers = None
    options = keys.table("options", default={}).whole(Model, only=OPTIONS)
    protocol = keys.table("protocol", default={})
    if options.pooling is None and "pooling" in protocol.data:
        # a protocol that says the mean means it, though one that says nothing has the mean
        options = replace(options, pooling=protocol.whole(Protocol).pooling)
    if options.pooling is not None:
        protocol.data = {"pooling": options.pooling, **protocol.data}
    protocol.data = with_rate(protocol.data)
    values = {
        "models": models,
        "tasks": tuple(map(_task, keys.tables("tasks"))),
        "layers": layers,
        "protocol": protocol.whole(Protocol),
        "options": options,
    }
    return keys.whole(Sweep, values, readers={"seeds": SEEDS})


def _model(keys: Keys) -> SweepModel:
    fields = {"name": keys.take("id", model_reader(keys)), "display_name": keys.take("name", str, default=None)}
    spec = keys.fields(Model, fields, only=("random_init", "end_token", "blocks"))
    return keys.whole(SweepModel, {"model": spec}, readers={"layers": LAYERS})


def _task(keys: Keys) -> TaskSettings:
    task = taken_task(keys)
    keys.done()
    return task


def sweep_toml(sweep: Sweep) -> str:
    """Return the TOML that `load_sweep` reads as `sweep`, without what is left at its default.

    The folder of the runs is not in it. Paths are absolute, so that the file may lie anywhere.

    Examples:
        >>> model = SweepModel(model=Model("bert"))
        >>> print(sweep_toml(Sweep(models=(model,), tasks=(TaskSettings(source="stsb"),), seeds=(0,))))
        seeds = [0]
        <BLANKLINE>
        [[models]]
        id = "bert"
        <BLANKLINE>
        [[tasks]]
        source = "stsb"
        <BLANKLINE>
    """
    options = field_values(sweep.options, changed=True)
    protocol = field_values(sweep.protocol, changed=True)
    if sweep.protocol.lora:  # without a rate it would have that of adapters
        protocol["learning_rate"] = sweep.protocol.learning_rate
    return to_toml(
        ("", {"layers": sweep.layers, "seeds": sweep.seeds}),
        *(("[[models]]", _model_values(model)) for model in sweep.models),
        *(("[[tasks]]", _task_values(task)) for task in sweep.tasks),
        ("[protocol]", protocol),
        ("[options]", {name: value for name, value in options.items() if name in OPTIONS}),
    )


def _model_values(model: SweepModel) -> dict[str, object]:
    name = source_from(Path.cwd(), model.model.full_name)
    spec = model.model
    fields = {key: getattr(spec, key) for key in ("random_init", "end_token", "blocks")}
    return {"id": name, "name": spec.display_name, **fields, "layers": model.layers}


def _task_values(task: TaskSettings) -> dict[str, object]:
    values = field_values(task, changed=True)
    paths: dict[str, object] = {
        name: path_from(Path.cwd(), values[name]) for name in ("validation", "test") if name in values
    }
    return {**values, **paths, "source": source_from(Path.cwd(), task.source)}
