"""Lab studies: small encoders that differ in their pretraining alone, what the objective changes, and TOML files."""

import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import GenericAlias
from typing import Any, ClassVar, Literal, Self

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError
from layerprobe.files.serialisation import Reader, from_dict
from layerprobe.files.toml import SEEDS, Keys, read_toml, texts
from layerprobe.finetuning.values import Protocol, Weighting, with_rate
from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.zoo import OTHER_SEED, SAME_SEED, TWIN, Zoo, ZooEntry
from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
from layerprobe.lab.pretraining.values import LANGUAGE, SIZES, EncoderSize, Pretraining, PretrainingProtocol
from layerprobe.metrics.names import points
from layerprobe.names import counted, in_percent
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, clauses
from layerprobe.results.table import Column, Table, columns_of
from layerprobe.stats.crossed import crossed
from layerprobe.stats.sentences import drop_sentence
from layerprobe.stats.values import CrossedInterval, read_error
from layerprobe.tasks.values import TaskSettings, source_from, taken_task

_NAME = re.compile(r"[\w.+-]+", re.ASCII)
Pair = tuple[ZooEntry, ZooEntry]
"""A model and the MLM model of the same size, corpus, task and seed."""
Measured = Literal["drop", "score", "CKA"]
_PLACE = ("task", "size", "budget", "objective")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabModel:
    """One encoder of a study."""

    name: str
    """Of its folder and its entry in the zoo."""
    family: str
    """The objective, with the generator's size where a study has several."""
    size: str
    """What the study calls it."""
    seed: int
    """Of the pretraining."""
    protocol: PretrainingProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LabTask:
    """A task that the encoders of a study are fine-tuned on."""

    settings: TaskSettings = field(default_factory=lambda: TaskSettings(source=LANGUAGE))
    """The source "language" is sentence pairs of the embedded language."""
    name: str | None = None
    """Where a study has several; None: as its source is called."""
    examples: tuple[int, int, int | None] | None = None
    """Training, validation and test examples at most; None of the test examples: all the rest, of whatever split. By
    default all, and of the embedded language the demo's."""

    def __post_init__(self) -> None:
        if self.examples is None:
            return
        if min(size for size in self.examples if size is not None) < 2:
            raise DataError(f"expected at least two examples of each split, got {self.examples}")
        if self.examples[2] is None and self.settings.source == LANGUAGE:
            raise DataError(
                "expected a number of test examples of the embedded language, which has no end, got the rest"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStudy:
    """Which encoders are pretrained, and what they are fine-tuned on."""

    name: str
    """What people call it."""
    sizes: dict[str, EncoderSize]
    """By name."""
    budgets: dict[str, Protocol]
    """Protocols of fine-tuning, by name."""
    tasks: tuple[LabTask, ...] = (LabTask(),)
    """What to fine-tune on; an entry in the zoo a model and task."""
    corpus: tuple[str, ...] = (LANGUAGE,)
    """The embedded language, or files as `load_corpus` takes them."""
    column: str | None = None
    """With the texts, of a table; detected by default."""
    objectives: tuple[str, ...] = (TWIN, "rtd")
    """Masked language modelling is among them: its models are the twins of the others."""
    generator_sizes: tuple[float, ...] = (0.25,)
    """Each is a model of its own for the objectives that have a generator."""
    seeds: tuple[int, ...] = (0, 1)
    """Of the pretraining."""
    pretraining: PretrainingProtocol = field(default_factory=PretrainingProtocol)
    """How; objective, size and generator size are those of each model."""
    finetuning_seeds: tuple[int, ...] = (0, 1, 2)
    """One run each at every layer under every budget."""
    scans: dict[Weighting, tuple[int, ...]] = field(default_factory=dict)
    """Seeds of scans, runs with a loss at every layer, by weighting; under every budget."""

    def __post_init__(self) -> None:
        for objective in self.objectives:
            OBJECTIVES.check(objective)
        if TWIN not in self.objectives:
            raise DataError(f"expected {TWIN} among the objectives, for the twins, got {', '.join(self.objectives)}")
        if len(self.seeds) < 2:
            raise DataError(f"expected at least two seeds of the pretraining, for a noise floor, got {len(self.seeds)}")
        names = [task.name for task in self.tasks]
        if not names or (len(names) > 1 and None in names) or len(set(names)) < len(names):
            raise DataError(f"expected tasks with names of their own, got {', '.join(map(str, names)) or 'none'}")
        named = (*self.sizes, *self.budgets, *(name for name in names if name is not None))
        wrong = [name for name in named if not _NAME.fullmatch(name)]
        if wrong or not self.sizes or not self.budgets:
            raise DataError(
                "expected at least one size and one budget, with names of letters, digits and .+-_ alone, "
                f"got {', '.join(map(repr, wrong)) or 'none'}"
            )
        if not self.generator_sizes or not self.finetuning_seeds or not self.corpus:
            raise DataError("expected a corpus, at least one generator size and at least one seed of fine-tuning")
        for what in (self.objectives, self.generator_sizes, self.seeds, self.finetuning_seeds, *self.scans.values()):
            if len(set(what)) < len(what):
                raise DataError(f"expected each only once, got {', '.join(map(str, what))}")
        scanned = [seed for seeds in self.scans.values() for seed in seeds]
        if wrong_seeds := [seed for seed in (*self.seeds, *self.finetuning_seeds, *scanned) if not 0 <= seed < 2**63]:
            raise DataError(f"expected seeds from 0 to 2^63 - 1, got {', '.join(map(str, wrong_seeds))}")
        if empty := [weighting for weighting, seeds in self.scans.items() if not seeds]:
            raise DataError(f"expected at least one seed of {empty[0]} scans, got none")
        for generator_size in self.generator_sizes:
            replace(self.pretraining, generator_size=generator_size)

    @property
    def models(self) -> tuple[LabModel, ...]:
        """All encoders, in the order in which they are made: a size is complete before the next one begins."""
        models = []
        for size, objective in itertools.product(self.sizes, self.objectives):
            for number, generator_size in enumerate(self.generator_sizes):
                protocol = replace(
                    self.pretraining, objective=objective, size=self.sizes[size], generator_size=generator_size
                )
                if number and not protocol.has_generator:
                    break
                several = protocol.has_generator and len(self.generator_sizes) > 1
                family = f"{objective}-{generator_size:g}" if several else objective
                models += [
                    LabModel(name=f"{size}-{family}-seed{seed}", family=family, size=size, seed=seed, protocol=protocol)
                    for seed in self.seeds
                ]
        return tuple(models)

    def entry_name(self, model: LabModel, task: LabTask) -> str:
        """Return what the entry of a model and a task is called in the zoo: the model's name, and that of the task."""
        return model.name if task.name is None else f"{model.name}-{task.name}"

    def twin(self, model: LabModel, *, step: int) -> LabModel:
        """Return the MLM model of the same size and a seed: the same one, or one `step` further in the list."""
        seed = self.seeds[(self.seeds.index(model.seed) + step) % len(self.seeds)]
        return next(
            other for other in self.models if (other.family, other.size, other.seed) == (TWIN, model.size, seed)
        )

    def references(self, model: LabModel) -> dict[str, LabModel]:
        """Return what a model is compared with, by the name of the reference; never itself."""
        twins = {SAME_SEED: self.twin(model, step=0), OTHER_SEED: self.twin(model, step=1)}
        return {what: twin for what, twin in twins.items() if twin != model}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """How an objective differs from masked language modelling with the same seed, paired."""

    json_tags: ClassVar = ("mean", "interval")

    family: str
    measure: Measured
    """drop: test score of the best layer less that of the last one, x 100; score: that of one layer, x 100; CKA: of one
    layer, with the MLM model of another seed, which for the twin is the noise floor."""
    task: str
    """What was fine-tuned on; CKA is of its test texts."""
    size: str | None
    """None for all sizes together."""
    budget: str | None
    """Of the fine-tuning; None for CKA."""
    layer: int | None
    """None for the drop."""
    models: tuple[str, ...]
    """By name, each with its twin."""
    values: tuple[float, ...]
    """Of these models."""
    twins: tuple[float, ...]
    """Of the MLM models of the same size and seed."""
    difference: CrossedInterval | None
    """Of the means value - twin, over pairs as over seeds; None for one pair."""

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return what JSON of any version says: until 0.3 there was an interval alone."""

        def by_pair() -> list[float]:
            return list(map(operator.sub, values["values"], values["twins"]))

        return cls, {"difference": None} | read_error(values, cls.json_tags, by_pair, "difference")

    @property
    def mean(self) -> float:
        """Of the differences value - twin."""
        return fmean(map(operator.sub, self.values, self.twins))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of that mean, Student's t."""
        return None if self.difference is None else self.difference.interval

    @property
    def certain(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.difference is not None and bool(self.difference.sign)


def objective_effects(entries: Sequence[ZooEntry], *, level: float = LEVEL) -> tuple[ObjectiveEffect, ...]:
    """Compare each model with its MLM twin, which began with the same weights and saw the same batches.

    difference = value of the model - value of its twin; the mean over seeds has Student's t interval of the paired
    differences. Values are the drop (see `truth`), the mean test score at each layer, and CKA of each layer with the
    MLM model of another seed, which for the twin says what another seed alone does. Drops are also put together over
    all sizes; layers of other sizes are other layers. Intervals are not corrected for how many there are.

    Entries without a twin are left out. The effects are by task and family in the order of the entries, then by
    measure, budget, size and layer.
    """
    tasks = dict.fromkeys(entry.task for entry in entries)
    return tuple(
        effect
        for task in tasks
        for effect in _effects_of_task([entry for entry in entries if entry.task == task], level)
    )


def _effects_of_task(entries: Sequence[ZooEntry], level: float) -> Iterator[ObjectiveEffect]:
    twins = {_place(entry): entry for entry in entries if entry.family == TWIN}
    pairs = [(entry, twins[_place(entry)]) for entry in entries if entry.family != TWIN and _place(entry) in twins]
    for family in dict.fromkeys(entry.family for entry, _ in pairs):
        of_family = [pair for pair in pairs if pair[0].family == family]
        sizes = list(dict.fromkeys(entry.size for entry, _ in of_family))
        for budget in dict.fromkeys(name for entry, _ in of_family for name in entry.budgets):
            for size in (None, *sizes):
                yield from _effects(of_family, "drop", level, size=size, budget=budget)
            for size in sizes:
                yield from _effects(of_family, "score", level, size=size, budget=budget)
        for size in sizes:
            yield from _effects(of_family, "CKA", level, size=size)


def _place(entry: ZooEntry) -> tuple[object, ...]:
    return entry.size, entry.corpus, entry.task, entry.seed, entry.n_blocks


def _effects(
    of_family: Sequence[Pair], measure: Measured, level: float, *, size: str | None, budget: str | None = None
) -> Iterator[ObjectiveEffect]:
    """Yield the effects of a family by layer, one for the drop; none where no pair has such values."""
    pairs = [pair for pair in of_family if size in (None, pair[0].size)]
    measured = [(entry.name, _values(entry, measure, budget), _values(twin, measure, budget)) for entry, twin in pairs]
    paired = [(name, values, twin) for name, values, twin in measured if values and twin]
    for layer in range(len(paired[0][1]) if paired else 0):
        values = tuple(values[layer] for _, values, _ in paired)
        twins = tuple(twin[layer] for _, _, twin in paired)
        differences = [value - twin for value, twin in zip(values, twins, strict=True)]
        yield ObjectiveEffect(
            family=of_family[0][0].family,
            measure=measure,
            task=of_family[0][0].task,
            size=size,
            budget=budget,
            layer=None if measure == "drop" else layer,
            models=tuple(name for name, _, _ in paired),
            values=values,
            twins=twins,
            difference=crossed(differences, None, level=level),
        )


def _values(entry: ZooEntry, measure: Measured, budget: str | None) -> Sequence[float]:
    """Return what an entry shows by layer, a single value for the drop; nothing where it was not measured."""
    if measure == "CKA":
        return entry.cka[OTHER_SEED].values if OTHER_SEED in entry.cka else ()
    if budget not in entry.budgets:
        return ()
    tuned = entry.budgets[budget]
    return (truth(tuned).effect,) if measure == "drop" else [fmean(row) for row in tuned.test]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabResult(Shown):
    """The results of a lab study."""

    study: LabStudy
    level: float
    """Confidence level of all intervals."""
    zoo: Zoo
    """Every model that is done, with its curves and scores."""
    pretrainings: dict[str, Pretraining]
    """By model: its metrics meanwhile."""
    effects: tuple[ObjectiveEffect, ...]
    """What each objective changes."""
    computed_on: str
    """Kind of device and precision."""
    failures: tuple[dict[str, str], ...] = ()
    """Models that are left out, each as its `model` and the `reason` in one line."""

    @property
    def table(self) -> Table:
        """A row a model, task and budget: whether the last layer scores below the best one."""
        rows = [(entry, entry.task, budget) for entry in self.zoo.entries for budget in entry.budgets]
        truths = [truth(entry.budgets[budget]) for entry, _, budget in rows]
        means = [tuple(map(fmean, entry.budgets[budget].test)) for entry, _, budget in rows]
        entry, true = columns_of(entry for entry, _, _ in rows), columns_of(truths)
        tested = columns_of(zip(means, (truth.best_layer for truth in truths), strict=True))
        return Table(
            columns=(
                entry("model", lambda entry: entry.name),
                entry("objective", lambda entry: entry.family),
                entry("size"),
                entry("seed"),
                entry("task"),
                Column("budget", tuple(budget for _, _, budget in rows)),
                true("best_layer"),
                tested("score", lambda row: row[0][row[1]], title="its score", form=".2f"),
                tested("last", lambda row: row[0][-1], title="last layer", form=".2f"),
                true(
                    "difference",
                    lambda truth: truth.effect,
                    form="+.2f",
                    quantity=Quantity("points, best layer less last layer", "test", "lower"),
                ),
                true("drop"),
                tested("test", lambda row: row[0], shown=False, meaning="By layer, the mean over seeds."),
            ),
            title="Models",
            marks=tuple("drop" if entry.drop else None for entry in truths),
            charts=tuple(
                Chart(
                    lines=(Line("difference"),),
                    name=f"lab-drops-{number}",
                    heading="Drops",
                    x="objective",
                    by="size",
                    where=(("task", task), ("budget", budget)),
                    drops="models that drop",
                    finding=f"Budget {budget}{self.tasks[task]}: {sum(drops)} of {len(drops)} models drop.",
                )
                for number, (task, budget) in enumerate(itertools.product(self.tasks, self.study.budgets))
                if (drops := [true.drop for row, true in zip(rows, truths, strict=True) if row[1:] == (task, budget)])
            ),
        )

    @property
    def tasks(self) -> dict[str, str]:
        """What captions call each task, nothing where there is one."""
        tasks = list(dict.fromkeys(entry.task for entry in self.zoo.entries))
        return {task: f", {task}" if len(tasks) > 1 else "" for task in tasks}

    def effects_table(self, measure: Measured, title: str) -> Table:
        """Return a table of the effects on a measure, a row each."""
        effects = [effect for effect in self.effects if effect.measure == measure]
        column, form = columns_of(effects), "+.3f" if measure == "CKA" else "+.2f"
        return Table(
            columns=(
                column("objective", lambda effect: effect.family),
                column("task"),
                column("budget"),
                column("size", lambda effect: effect.size or "all"),
                column("layer"),
                column("value", lambda effect: fmean(effect.values), form=form),
                column("twin", lambda effect: fmean(effect.twins), title="of the twin", form=form),
                column("difference", lambda effect: effect.mean, form=form),
                column("interval", title=f"{in_percent(self.level)} interval", form=form, interval=True),
                column("pairs", lambda effect: len(effect.values)),
            ),
            title=title,
            marks=tuple("chosen" if effect.certain else None for effect in effects),
        )

    def layers_table(self, measure: Measured, title: str) -> Table:
        """Return scores after fine-tuning, or CKA, by layer, a row an objective: its mean over seeds, and each seed.

        There is a chart for each task, size and budget.
        """
        curves: dict[tuple[str, str, str | None, str], list[Sequence[float]]] = {}
        for entry in self.zoo.entries:
            for budget in entry.budgets if measure == "score" else (None,):
                if values := _values(entry, measure, budget):
                    curves.setdefault((entry.task, entry.size, budget, entry.family), []).append(values)
        rows = [
            (*of, layer, seeds)
            for of, all_seeds in curves.items()
            for layer, seeds in enumerate(zip(*all_seeds, strict=True))
        ]
        metrics = {entry.metric for entry in self.zoo.entries}
        quantity = Quantity("CKA with an MLM model of another seed", best="higher")
        if measure == "score":
            one = points(min(metrics), "test")
            quantity = one if len(metrics) == 1 else replace(one, unit="score × 100")
        column = columns_of(rows)
        return Table(
            columns=(
                *(column(name, lambda row, place=place: row[place]) for place, name in enumerate(_PLACE)),
                column("layer", lambda row: row[4]),
                column("mean", lambda row: fmean(row[5]), form=".3f", quantity=quantity),
                column("seeds", lambda row: row[5], form=".3f"),
            ),
            title=title,
            charts=tuple(
                Chart(
                    lines=(Line("mean", seeds="seeds"),),
                    name=f"lab-{measure.lower()}-{number}",
                    by="objective",
                    where=(("task", task), ("size", size), ("budget", budget)),
                    finding=f"{quantity.title} after fine-tuning, size {size}, budget {budget}{self.tasks[task]}."
                    if budget
                    else f"{quantity.title}, size {size}{self.tasks[task]}; that of MLM models is the noise floor.",
                )
                for number, (task, size, budget) in enumerate(dict.fromkeys(of[:3] for of in curves))
            ),
        )

    @property
    def pretrainings_table(self) -> Table:
        """A row a model: what its pretraining took, and the losses of its last evaluation."""
        column = columns_of(self.pretrainings.values())
        last = [done.metrics[-1].held_out if done.metrics else {} for done in self.pretrainings.values()]
        names = dict.fromkeys(name for losses in last for name in losses)
        return Table(
            columns=(
                Column("model", tuple(self.pretrainings)),
                column("steps", lambda done: done.protocol.steps if done.metrics else 0, form=","),
                column("tokens", lambda done: done.n_tokens, form=","),
                column("seconds", form=".0f"),
                *(Column(name, tuple(losses.get(name) for losses in last), form=".3f") for name in names),
            ),
            title="What was measured",
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The effect of each objective on the drop, over all sizes, as sentences."""
        several = len(self.study.tasks) > 1
        drops = (effect for effect in self.effects if effect.measure == "drop" and not effect.size)
        return tuple(_sentence(effect, self.level, name_task=several) for effect in drops)

    @property
    def heading(self) -> str:
        """The effect of the first objective in a few words."""
        return clauses(self.sentences[0])[0] if self.sentences else f"{self.study.name}: no effect is known yet"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `layerprobe.results.declared`."""
        study, entries, provenance = self.study, self.zoo.entries, self.zoo.provenance
        n_models = len({(entry.size, entry.family, entry.seed) for entry in entries})
        left = len(study.models) * len(study.tasks) - len(entries) - len(self.failures)
        return {
            "kind": "the pretraining lab",
            "about": study.name,
            "lead": self.sentences,
            "facts": (
                counted(n_models, "model"),
                counted(len({entry.family for entry in entries}), "objective"),
                f"sizes {', '.join(study.sizes)}",
            ),
            "fatal": (
                *(f"{failure['model']} is left out: {failure['reason']}" for failure in self.failures),
                *(
                    [f"Not done yet: {left} of {left + len(entries) + len(self.failures)}; the same command goes on."]
                    if left > 0
                    else []
                ),
            ),
            "account": (
                f"{len(study.seeds)} seeds of the pretraining; each model fine-tuned at every layer with"
                f" {len(study.finetuning_seeds)} seeds, budgets {', '.join(study.budgets)}.",
                "A drop: the last layer lies below the best one by more than the noise of seeds and items.",
            ),
            "sections": {
                "Does the objective move the drop?": (self.effects_table("drop", "Differences in the drop"),),
                "At which layers?": (
                    self.layers_table("score", "Test scores by layer"),
                    self.effects_table("score", "Differences from the MLM twin"),
                ),
                "How unlike a masked language model does each layer become?": (
                    self.layers_table("CKA", "CKA by layer"),
                    self.effects_table("CKA", "Differences from the noise floor"),
                ),
                "Pretraining": (self.pretrainings_table,),
            },
            "sources": {
                "Made by": provenance.command,
                "Corpus": ", ".join(study.corpus),
                "Task": ", ".join(self.tasks),
                "Budgets": "; ".join(
                    f"{name}: {counted(how.epochs, 'epoch')}, peak learning rate {how.learning_rate:g},"
                    f" batches of {how.batch_size}"
                    for name, how in study.budgets.items()
                ),
                "Computed on": self.computed_on,
                "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
                "Created": provenance.created,
            },
            "terms": ("Drop",),
        }

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.study.name}, {len(self.zoo.entries)} models: {' '.join(self.sentences)}"


def _sentence(effect: ObjectiveEffect, level: float, *, name_task: bool) -> str:
    where = f"{effect.family}, {effect.budget}{f', {effect.task}' if name_task else ''}"
    return drop_sentence(where, effect.mean, effect.interval, level, pairs=len(effect.values))


# ---- a study as a TOML file ----------------------------------------------------------------------------------------


def load_lab(path: str | Path) -> LabStudy:
    """Read a lab study from a TOML file.

        corpus = "language"                   # or a file or a list of files; column = "text" in a table
        objectives = ["mlm", "rtd"]           # mlm is among them
        seeds = 2                             # of the pretraining; or a list of them
        generator_sizes = [0.25]
        finetuning_seeds = 3
        [sizes]
        tiny = "tiny"                         # a preset, or
        short = { n_blocks = 6, hidden_size = 64, heads = 4, intermediate_size = 256 }
        [pretraining]                         # fields of PretrainingProtocol
        steps = 2500
        [task]                                # fields of TaskSettings; or several, as [task.NAME]
        source = "language"                   # sentence pairs of the embedded language, or a file or data set
        examples = [1500, 500, 1000]          # training, validation and test, at most; "rest": all others are test
        [scans]                               # runs with a loss at every layer, by weighting
        falling = 2                           # a number of seeds, or a list of them
        [budget.gentle]                       # fields of Protocol; any number of budgets
        epochs = 3                            # with lora, learning_rate is 2e-4 by default

    Paths in it are relative to the file.
    """
    keys = read_toml(path, "the study", absolute=True)
    tasks = keys.table("task", default={"source": LANGUAGE})
    named = not tasks.data.keys() & {"source", "examples"} and all(isinstance(it, dict) for it in tasks.data.values())
    sizes = keys.table("sizes")
    values = {
        "tasks": tuple(taken_lab_task(tasks.table(name), name) for name in tasks.data)
        if named
        else (taken_lab_task(tasks),),
        "sizes": {
            name: sizes.take(name, EncoderSize if type(size) is dict else _SIZE) for name, size in sizes.data.items()
        },
        **taken_training(keys, name=Path(path).stem),
        "pretraining": keys.table("pretraining", default={}).whole(PretrainingProtocol, _OF_EACH_MODEL),
    }
    corpus = texts(
        lambda name: name if name == LANGUAGE else source_from(keys.folder, name),
        f'"{LANGUAGE}", a file or a list of files',
    )
    return keys.whole(LabStudy, values, readers={"corpus": corpus, "seeds": SEEDS, "finetuning_seeds": SEEDS})


def taken_training(keys: Keys, *, name: str) -> dict[str, Any]:
    """Return the budgets and scans of a file and what it is called; with adapters, a budget has a rate of their own."""
    if isinstance(budgets := keys.data.get("budget"), dict):
        rated = {name: with_rate(budget) if isinstance(budget, dict) else budget for name, budget in budgets.items()}
        keys.data = {**keys.data, "budget": rated}
    return {
        "budgets": keys.take("budget", dict[str, Protocol]),
        "scans": keys.take("scans", GenericAlias(dict, (Weighting, SEEDS)), default={}),
        "name": keys.take("name", str, default=name),
    }


_SIZE = Reader(SIZES.__getitem__, f"one of {', '.join(SIZES)} or a table")
_OF_EACH_MODEL = {name: getattr(PretrainingProtocol(), name) for name in ("objective", "size", "generator_size")}
"""What differs from model to model is no key of the pretraining."""


def taken_lab_task(keys: Keys, name: str | None = None) -> LabTask:
    """Return the task of a study that a table describes."""
    settings = taken_task(keys, named=LANGUAGE)
    examples = keys.take("examples", _EXAMPLES, default=None)
    keys.done()
    return keys.made(LabTask, settings=settings, name=name, examples=examples)


def _examples(value: Any) -> tuple[int, int, int | None]:
    *others, test = from_dict(tuple[int, int, int] if value[-1:] != [REST] else tuple[int, int, Any], value)
    first, second = others
    return first, second, None if test == REST else test


REST = "rest"
"""Of the test examples: all that are not used to train or choose."""
_EXAMPLES = Reader(_examples, f'three whole numbers in a list, of which the last can be "{REST}"')
