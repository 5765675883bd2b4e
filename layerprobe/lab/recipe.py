"""Recipes: models, training steps and tasks, as values and TOML files. Knows no models."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import GenericAlias
from typing import Any, Literal, TypeVar

from layerprobe.checks import check_seeds
from layerprobe.embedded import TASK_SIZES, embedded_task
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import LAYERS, SEEDS, Keys, Reader, from_dict, read_toml, texts
from layerprobe.finetuning.tuning import PAPER_SEEDS
from layerprobe.finetuning.values import Protocol, Weighting, with_rate
from layerprobe.lab.dropbench.zoo import OTHER_SEED, SAME_SEED, TWIN
from layerprobe.lab.pretraining.run import corpus_texts
from layerprobe.lab.pretraining.values import (
    LANGUAGE,
    OBJECTIVES,
    SIZES,
    AdaptationProtocol,
    EncoderSize,
    PretrainingProtocol,
)
from layerprobe.names import distinct_names
from layerprobe.tasks.loading import load_corpus, load_settings
from layerprobe.tasks.splitting import drawn_from, resplit
from layerprobe.tasks.values import Task, TaskSettings, TextFile, model_reader, source_from, taken_task

_NAME = re.compile(r"[\w.+-]+", re.ASCII)
Averaged = Literal["layers", "scans", "models", "seeds"]
"""Members of an average: the layers of a model, those of its scans, the layers of all models, or the seeds of a
layer."""
OPTIONS = (
    *("pooling", "prompt", "max_length", "norm", "dtype", "device", "attn", "batch_tokens", "trust_remote_code"),
    "store_dtype",
)
"""Fields of `Model` that a recipe can set for all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeModel:
    """A model at the start of a recipe: an existing one, or one that its first step pretrains."""

    name: str
    """Name in rows, folders and the zoo."""
    model: Model | None = None
    """The existing model; None: the recipe pretrains it."""
    layers: tuple[int, ...] | None = None
    """Numbers of blocks to keep; by default those of the recipe."""
    reference: str | None = None
    """Reference for CKA."""
    family: str | None = None
    """Pretraining objective; with one the model becomes an entry of a zoo."""
    size: str = ""
    """Name of the encoder's size in the recipe."""
    seed: int = 0
    """Seed of its pretraining."""
    protocol: PretrainingProtocol | None = None
    """Protocol of its pretraining; None: it exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTask:
    """A task that models are fine-tuned on."""

    settings: TaskSettings = field(default_factory=lambda: TaskSettings(source=LANGUAGE))
    """Settings of the task; the source "language" is sentence pairs of the embedded language."""
    name: str | None = None
    """Name of the task; by default that of its source."""
    examples: tuple[int, int, int | None] | None = None
    """Most training, validation and test examples; None for test examples: all the rest, from any split. By
    default all, and for the embedded language the demo's."""

    def __post_init__(self) -> None:
        if self.examples is None:
            return
        if min(size for size in self.examples if size is not None) < 2:
            raise DataError(f"expected at least two examples of each split, got {self.examples}")
        if self.examples[2] is None and self.settings.source == LANGUAGE:
            raise DataError(
                "expected a number of test examples of the embedded language, which is endless, got the rest"
            )

    @property
    def label(self) -> str:
        """Name without folders."""
        return self.name or PurePath(self.settings.source).name or self.settings.source

    @property
    def step(self) -> str:
        """Description of fine-tuning on this task."""
        return f"fine-tuning on {self.label}"


# ---- steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainStep:
    """Pretraining of small encoders that differ only in the objective."""

    objectives: tuple[str, ...]
    """Objectives, including masked language modelling: its models are the twins of the others."""
    sizes: dict[str, EncoderSize]
    """Sizes by name."""
    corpus: tuple[str, ...] = (LANGUAGE,)
    """The embedded language, or files for `load_corpus`."""
    column: str | None = None
    """Column of the texts in a table; detected by default."""
    generator_sizes: tuple[float, ...] = (0.25,)
    """Generator sizes; each gives a separate model for the objectives with a generator."""
    seeds: tuple[int, ...] = (0, 1)
    protocol: PretrainingProtocol = field(default_factory=PretrainingProtocol)
    """Protocol; objective, size and generator size are those of each model."""

    def __post_init__(self) -> None:
        for objective in self.objectives:
            OBJECTIVES.check(objective)
        if TWIN not in self.objectives:
            raise DataError(f"expected {TWIN} among the objectives, for the twins, got {', '.join(self.objectives)}")
        if len(self.seeds) < 2:
            raise DataError(f"expected at least two seeds of the pretraining, for a noise floor, got {len(self.seeds)}")
        _check_once(check_seeds(self.seeds), "seeds")
        _check_names(self.sizes, "sizes")
        if not self.generator_sizes or not self.corpus:
            raise DataError("expected a corpus and at least one generator size, got none")
        _check_once(self.objectives, "objectives")
        _check_once(self.generator_sizes, "generator sizes")
        for generator_size in self.generator_sizes:
            replace(self.protocol, generator_size=generator_size)

    @property
    def models(self) -> tuple[RecipeModel, ...]:
        """All encoders in order of training: one size is complete before the next begins."""
        models = []
        for size, objective in itertools.product(self.sizes, self.objectives):
            for number, generator_size in enumerate(self.generator_sizes):
                protocol = replace(
                    self.protocol, objective=objective, size=self.sizes[size], generator_size=generator_size
                )
                if number and not protocol.has_generator:
                    break
                several = protocol.has_generator and len(self.generator_sizes) > 1
                family = f"{objective}-{generator_size:g}" if several else objective
                models += [
                    RecipeModel(
                        name=f"{size}-{family}-seed{seed}", family=family, size=size, seed=seed, protocol=protocol
                    )
                    for seed in self.seeds
                ]
        return tuple(models)

    def references(self, model: RecipeModel) -> dict[str, RecipeModel]:
        """Return the MLM models of the same size, with its seed and with the next one, by reference; never itself."""

        def twin(step: int) -> RecipeModel:
            seed = self.seeds[(self.seeds.index(model.seed) + step) % len(self.seeds)]
            return next(
                other for other in self.models if (other.family, other.size, other.seed) == (TWIN, model.size, seed)
            )

        return {what: other for what, other in ((SAME_SEED, twin(0)), (OTHER_SEED, twin(1))) if other != model}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptStep:
    """Continued masked-language-model pretraining; all later layers and seeds share the result."""

    texts: tuple[str, ...]
    """Files for `load_corpus`."""
    protocol: AdaptationProtocol = field(default_factory=AdaptationProtocol)
    seed: int = 0
    """Seed of the split, order, masking, dropout and new weights of the head."""

    def __post_init__(self) -> None:
        if not self.texts or not all(self.texts):
            raise DataError("expected at least one file with texts to adapt to, none of them an empty name")
        check_seeds((self.seed,))

    @property
    def label(self) -> str:
        """Short description."""
        return f"adaptation to {', '.join(PurePath(text).name for text in self.texts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneStep:
    """Fine-tuning at each layer: the first step truncates the model, later ones continue at the same layer and seed."""

    task: RecipeTask
    protocol: Protocol = field(default_factory=Protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageStep:
    """A weighted average of the outputs fine-tuned on the tasks; validation chooses the weights."""

    of: Averaged
    layers: tuple[int, ...] | None = None
    """Layers to average."""


Step = PretrainStep | AdaptStep | TuneStep | AverageStep
S = TypeVar("S", PretrainStep, AdaptStep, TuneStep, AverageStep)


# ---- the recipe ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Models, the steps that train them before the tasks, and the tasks for fine-tuning at each layer."""

    name: str
    """Name of the recipe."""
    models: tuple[RecipeModel, ...] = ()
    """Existing models."""
    steps: tuple[Step, ...] = ()
    """At most one pretraining step, first; then adaptations, then fine-tunings, each continuing from the last one; last
    averages of the tasks' results."""
    tasks: tuple[RecipeTask, ...]
    """Tasks; every model is fine-tuned on each, from the result of the steps."""
    budgets: dict[str, Protocol] = field(default_factory=lambda: {"paper": Protocol()})
    """Protocols of that fine-tuning, by name."""
    layers: tuple[int, ...] | None = None
    """Numbers of blocks to keep; None for all of each model."""
    seeds: tuple[int, ...] = PAPER_SEEDS
    """Seeds of every fine-tuning at every layer, one run each."""
    scans: dict[Weighting, tuple[int, ...]] = field(default_factory=dict)
    """Seeds of scans, runs with a loss at every layer, by weighting; on every task under every budget."""
    baseline: bool = True
    """Whether the tasks are also learnt without the earlier steps, to measure what these add."""
    cka: bool = False
    """Whether to measure CKA with the start, and with the references, before and after."""
    options: Model = DEFAULTS
    """How to load models, and where to keep runs."""

    def __post_init__(self) -> None:
        order = [(PretrainStep, AdaptStep, TuneStep, AverageStep).index(type(step)) for step in self.steps]
        if order != sorted(order) or order.count(0) > 1:
            raise DataError(
                "expected at most one step that pretrains, then adaptations, fine-tunings and averages: masked "
                "language modelling would undo what a fine-tuned output has learnt"
            )
        _check_once([model.name for model in self.everything], "models")
        _check_names(self.budgets, "budgets")
        if not self.tasks:
            raise DataError("expected at least one task, got none")
        _check_once([task.label for task in self.tasks], "tasks; give each a name")
        for seeds in (self.seeds, *self.scans.values()):
            _check_once(check_seeds(seeds), "seeds")
        for model in self.everything:
            layers = self.model_layers(model)
            if layers is not None and (not layers or min(layers) < 0 or len(set(layers)) < len(layers)):
                raise DataError(f"expected layers from 0, each once and at least one, got {list(layers)}")
        protocols = [*(step.protocol for step in self.of(TuneStep)), *self.budgets.values()]
        if (self.before or self.cka) and len(poolings := {protocol.pooling for protocol in protocols}) > 1:
            raise DataError(f"expected one way of pooling in all steps, got {' and '.join(sorted(poolings))}")
        if self.makes_zoo and any(budget.kept_epoch or budget.patience for budget in self.budgets.values()):
            raise DataError("expected budgets without kept_epoch and patience: a zoo has the scores of every epoch")
        if any(step.of == "scans" for step in self.of(AverageStep)) and not self.scans:
            raise DataError("expected seeds of scans under [scans] to average their layers, got none")

    def of(self, kind: type[S]) -> tuple[S, ...]:
        """Return the steps of a kind."""
        return tuple(step for step in self.steps if isinstance(step, kind))

    @property
    def pretraining(self) -> PretrainStep | None:
        """The pretraining step; None without one."""
        return next(iter(self.of(PretrainStep)), None)

    @property
    def everything(self) -> tuple[RecipeModel, ...]:
        """All models, pretrained ones first; at least one."""
        made = () if self.pretraining is None else self.pretraining.models
        if not made and not self.models:
            raise DataError("expected at least one model, or a step that pretrains some, got none")
        return (*made, *self.models)

    @property
    def before(self) -> tuple[AdaptStep | TuneStep, ...]:
        """Steps between the start and the tasks."""
        return tuple(step for step in self.steps if isinstance(step, AdaptStep | TuneStep))

    @property
    def makes_zoo(self) -> bool:
        """Whether models become entries of a zoo: their objective is known, and no other step trained them."""
        return not self.before and any(model.family for model in self.everything)

    def entry_name(self, model: RecipeModel, task: RecipeTask) -> str:
        """Return the name of the zoo entry of a model and a task."""
        return f"{model.name}-{task.label}" if len(self.tasks) > 1 or task.name else model.name

    def model_layers(self, model: RecipeModel) -> tuple[int, ...] | None:
        """Return the numbers of blocks to keep of a model; None for all."""
        return self.layers if model.layers is None else model.layers


def _check_once(values: Sequence[object], what: str) -> None:
    if not values or len(set(values)) < len(values):
        raise DataError(f"expected {what}, each once and at least one, got {', '.join(map(str, values)) or 'none'}")


def _check_names(named: dict[str, Any], what: str) -> None:
    if (wrong := [name for name in named if not _NAME.fullmatch(name)]) or not named:
        raise DataError(
            f"expected {what} with names of letters, digits and .+-_ alone, at least one, "
            f"got {', '.join(map(repr, wrong)) or 'none'}"
        )


# ---- a recipe as a TOML file ---------------------------------------------------------------------------------------


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file, whose keys research/lab.md describes; paths are relative to the file."""
    keys = read_toml(path, "the recipe")
    if isinstance(budgets := keys.data.get("budget"), dict):
        rated = {name: with_rate(budget) if isinstance(budget, dict) else budget for name, budget in budgets.items()}
        keys.data = {**keys.data, "budget": rated}
    models = keys.tables("models") if "models" in keys.data else []
    specs = [_spec(table) for table in models]
    names = distinct_names([spec.label for spec in specs])
    values = {
        "name": keys.take("name", str, default=Path(path).stem),
        "models": tuple(_model(table, spec, name) for table, spec, name in zip(models, specs, names, strict=True)),
        "steps": tuple(map(_step, keys.tables("step"))) if "step" in keys.data else (),
        "tasks": tuple(map(_task, keys.tables("tasks"))),
        "budgets": keys.take("budget", dict[str, Protocol], default={"paper": Protocol()}),
        "scans": keys.take("scans", GenericAlias(dict, (Weighting, SEEDS)), default={}),
        "options": keys.table("options", default={}).whole(Model, only=OPTIONS),
    }
    return keys.whole(Recipe, values, readers={"layers": LAYERS, "seeds": SEEDS})


def _spec(keys: Keys) -> Model:
    fields = {"name": keys.take("id", model_reader(keys)), "display_name": keys.take("name", str, default=None)}
    return keys.fields(Model, fields, only=("random_init", "end_token", "blocks"))


def _model(keys: Keys, spec: Model, name: str) -> RecipeModel:
    readers = {"layers": LAYERS, "reference": model_reader(keys)}
    fixed = {"name": name, "model": spec}
    model = keys.fields(RecipeModel, fixed, only=("layers", "reference", "family"), readers=readers)
    keys.done()
    return model


_KINDS = ("pretrain", "adapt", "tune", "average")
_SIZE = Reader(SIZES.__getitem__, f"one of {', '.join(SIZES)} or a table")
_OF_EACH_MODEL = {name: getattr(PretrainingProtocol(), name) for name in ("objective", "size", "generator_size")}
"""Settings that differ between models; they are not keys of the pretraining."""


def _step(keys: Keys) -> Step:
    kinds = [kind for kind in _KINDS if kind in keys.data]
    if len(kinds) != 1:
        raise DataError(f"{keys.where}: expected one of {', '.join(_KINDS)}, got {' and '.join(kinds) or 'none'}")
    if kinds == ["adapt"]:
        files = keys.take("adapt", texts(keys.path, "a file or a list of files"))
        return keys.whole(AdaptStep, {"texts": files, "protocol": keys.fields(AdaptationProtocol)})
    if kinds == ["average"]:
        return keys.whole(AverageStep, {"of": keys.take("average", Averaged)}, readers={"layers": LAYERS})
    if kinds == ["tune"]:
        keys.data = with_rate(keys.data)
        return keys.whole(TuneStep, {"task": _task(keys, key="tune"), "protocol": keys.fields(Protocol)})
    sizes = keys.table("sizes")
    corpus = texts(
        lambda name: name if name == LANGUAGE else source_from(keys.folder, name),
        f'"{LANGUAGE}", a file or a list of files',
    )
    values = {
        "objectives": keys.take("pretrain", tuple[str, ...]),
        "sizes": {
            name: sizes.take(name, EncoderSize if type(size) is dict else _SIZE) for name, size in sizes.data.items()
        },
        "protocol": keys.fields(PretrainingProtocol, _OF_EACH_MODEL),
    }
    return keys.whole(PretrainStep, values, readers={"corpus": corpus, "seeds": SEEDS})


def _task(keys: Keys, *, key: str = "source") -> RecipeTask:
    """Return the task of a table; other keys of a fine-tuning step are left."""
    settings = taken_task(keys, key, named=LANGUAGE)
    name, examples = keys.take("name", str, default=None), keys.take("examples", _EXAMPLES, default=None)
    task = keys.made(RecipeTask, settings=settings, name=name, examples=examples)
    if key == "source":
        keys.done()
    return task


def _examples(value: Any) -> tuple[int, int, int | None]:
    first, second, test = from_dict(tuple[int, int, int] if value[-1:] != [REST] else tuple[int, int, Any], value)
    return first, second, None if test == REST else test


REST = "rest"
"""Value for the test examples: all that are not used for training or validation."""
_EXAMPLES = Reader(_examples, f'three whole numbers in a list, the last of which can be "{REST}"')


def loaded_task(task: RecipeTask) -> Task:
    """Load a task and draw its examples; it is named as in the zoo, without the folders of a file."""
    settings, examples = task.settings, task.examples
    if settings.source == LANGUAGE:
        train, validation, test = examples or TASK_SIZES
        assert test is not None  # the language has no rest
        whole = embedded_task(train=train, validation=validation, test=test)
    else:
        whole = load_settings(settings)
        if examples is not None:
            train, validation, test = examples
            if test is None:
                whole = resplit(whole, train=train, validation=validation, seed=settings.split_seed)
            else:
                whole = drawn_from(whole, (train, validation, test))
    return replace(whole, name=task.name or file_name(whole.name))


def file_name(source: str) -> str:
    """Return the name of a source, without the folders of a file."""
    return Path(source).name if Path(source).exists() else source


def loaded_corpus(step: PretrainStep) -> TextFile:
    """Load the texts of a pretraining; DataError if they are fewer than a batch."""
    corpus = (
        corpus_texts(LANGUAGE, step.protocol)
        if step.corpus == (LANGUAGE,)
        else load_corpus(step.corpus, columns=step.column)
    )
    fewest = step.protocol.batch_size
    if len(set(corpus.texts)) < fewest and not step.protocol.packed:
        raise DataError(
            f"expected at least {fewest} distinct texts, a batch, got {len(set(corpus.texts))}: "
            "use more texts or a smaller batch_size"
        )
    # zoos are shared: they name files, not the user's folders
    return replace(corpus, name=", ".join(map(file_name, step.corpus)))
