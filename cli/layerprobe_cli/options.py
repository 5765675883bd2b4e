"""Options shared by commands: fields of the library's settings, with additions for the command line.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import MOST_NUMBERS, check_extra, check_seeds, read_numbers
from layerprobe.encoders.backends import backend_names, check_installed
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.inputs import DATA, FASTA, similar_file
from layerprobe.finetuning.values import LORA_LEARNING_RATE, Protocol, with_rate
from layerprobe.search.values import SearchSettings
from layerprobe.tasks.formats import DELIMITERS, Format
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import TaskSettings, TextSplit
from layerprobe_cli.derive import Group, complete, field_text, option, usage

if TYPE_CHECKING:
    from layerprobe.encoders.identity import Resolved
    from layerprobe.files.images import Readable
    from layerprobe.similarity.values import Alignment, Measure
    from layerprobe.study.values import Finding
    from layerprobe.tasks.values import Task, TextFile


def checked(*checks: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return an option callback that applies a check of the library before torch is loaded."""

    def check(value: Any) -> Any:
        for check in checks if value else ():
            usage(check, value)
        return value

    return check


# ---- models ----------------------------------------------------------------------------------------------


def _no_file(model: str) -> str:
    """Return the name of a model; raise BadParameter for a data file in its place."""
    if os.path.isfile(model):  # noqa: PTH113 - of any name, too long ones as well
        raise typer.BadParameter(f"expected the model first, got the file {model}: put the data after the model")
    if model.lower().endswith(DATA) and not os.path.exists(model):  # noqa: PTH110 - likewise
        raise typer.BadParameter(f"{model} does not exist: expected a model, with data after it{similar_file(model)}")
    return model


_CACHE: dict[str, Any] = {"envvar": "LAYERPROBE_CACHE", "show_default": False}


EXPORTED = ("pooling", "max_length", "prompt", "random_init", "end_token", "blocks")
LOADING = ("display_name", "random_init", "dtype", "device", "attn", "trust_remote_code", "end_token", "blocks")
EMBEDDING = (*LOADING, "pooling", "max_length", "prompt", "batch_tokens", "cache_dir")
EXTRACTION = (*EMBEDDING, "norm", "backend", "store_dtype")


def model_group(fields: Sequence[str], argument: Any = None) -> Group:
    """Return a model, declared by an argument, and some of its fields as options."""
    argument = argument or typer.Argument(metavar="MODEL", callback=_no_file)
    backend = typer.Option(
        metavar=f"[{'|'.join(backend_names())}]",
        callback=checked(check_installed),
        autocompletion=complete(backend_names),
    )
    return Group(
        "Model",
        Model,
        {
            "name": Annotated[str, argument],
            "display_name": typer.Option("--name"),
            "random_init": typer.Option(metavar="SEED"),
            "blocks": typer.Option("--keep-blocks", metavar="BLOCKS"),
            "dtype": Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option()],
            "cache_dir": option("Machine", **_CACHE),
            "norm": Annotated[Literal["final", "raw"], typer.Option()],
            "backend": backend,
        },
        defaults={"name": inspect.Parameter.empty},
        only=["name", *fields],
    )


Loading = Annotated[Model, model_group(LOADING)]
"""A model to load."""
Embedding = Annotated[Model, model_group(EMBEDDING)]
"""A model to embed texts with."""
Extraction = Annotated[Model, model_group(EXTRACTION)]
"""A model to embed texts with at every layer."""
Device = Annotated[str, option("Model", help="auto, cpu, cuda, cuda:1 or mps.")]
CacheDir = Annotated[Path | None, option("Machine", help=field_text(Model, "cache_dir"), **_CACHE)]


def resolved(model: Model, others: Sequence[str] | None = None, items: Readable | None = None) -> list[Resolved]:
    """Return the checkpoints of models loaded with the same options; of two towers, the one for the items.

    Further models keep their own names and blocks.
    """
    from layerprobe.encoders.device import resolve_device
    from layerprobe.encoders.identity import resolve_all

    if model.device != "auto":
        resolve_device(model.device)  # before reading data
    alike = (dataclasses.replace(model, name=name, display_name=None, blocks=None) for name in others or ())
    return resolve_all([model, *alike], items=items)


References = Annotated[
    list[str] | None,
    option(
        "Comparison",
        "--reference",
        "-r",
        help="A model pretrained by masked language modelling, if possible of the same depth. Repeat for further "
        "references; the prediction uses the first. Without one, rules read the model alone.",
    ),
]
ReferenceNames = Annotated[
    list[str] | None,
    option("Comparison", "--reference-name", help="Display name of the reference. Repeat for further ones."),
]
ReferenceSeed = Annotated[
    int | None,
    option(
        "Comparison",
        "--reference-random-init",
        metavar="SEED",
        min=0,
        help="Fresh random weights for the reference.",
    ),
]


def references(
    model: Model, names: Sequence[str] | None, labels: Sequence[str] | None, seed: int | None
) -> list[Model]:
    """Return the references, whose end token is as the model's; the first has the seed of random weights."""
    names, labels = names or (), labels or ()
    if len(labels) > len(names):
        raise typer.BadParameter(f"expected a --reference for each --reference-name, got {len(names)}")
    if not names and seed is not None:
        raise typer.BadParameter("expected --reference with --reference-random-init, got none")
    return [
        Model(name, random_init=None if number else seed, display_name=label, end_token=model.end_token).like(model)
        for number, (name, label) in enumerate(itertools.zip_longest(names, labels))
    ]


# ---- data ------------------------------------------------------------------------------------------------


_FORMAT = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="KEY=VALUE,...",
        help=f"How a text file is written: delimiter={'|'.join(DELIMITERS)} or one character, encoding=cp1252, "
        "decimal=. or a comma, quotes=yes|no, header=yes|no, such as delimiter=;,decimal=, By default by its ending.",
    ),
]
_IN_FORMAT = ("delimiter", "encoding", "decimal", "quotes", "header")
TASK = [field.name for field in dataclasses.fields(TaskSettings) if field.name not in _IN_FORMAT] + ["file_format"]
READ = TASK[1:]
"""Options for reading data, without the source."""


def task_settings(
    *, source: Any = None, data: str | None = None, file_format: Sequence[str] | None = None, **fields: Any
) -> TaskSettings | None:
    """Return the settings of a task; None without a task."""
    if source and data:
        raise typer.BadParameter(f"expected data as the last argument or with --task, got {data} and {source}")
    source = source or data
    for text in file_format or ():
        fields |= Format.fields_in(text)
    return TaskSettings(source=str(source), **fields) if source else None


def _tasks(*, source: Sequence[str] = (), data: str | None = None, **values: Any) -> tuple[TaskSettings, ...]:
    tasks = (task_settings(source=item, **values) for item in source or (data,))
    return tuple(filter(None, tasks))


def _split_models(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that splits the words after a model: without --task and --texts the last one is data."""

    @functools.wraps(make)
    def made(*, others: Sequence[str] | None = None, **values: Any) -> tuple[list[str], Any]:
        models = list(others or ())
        data = models.pop() if models and not values.get("source") and not values.get("texts") else None
        return [*map(_no_file, models)], make(data=data, **values)

    return made


_OTHERS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL2|DATA",
        help="Further models, compared layer by layer; the last is the data, if --task is not given.",
    ),
]
_SEVERAL = (
    "Data with scores or labels: a file, a folder, stsb, or the hub id of a data set. Repeat for further tasks, which "
    "are read with the same options."
)


def _data_group(make: Callable[..., Any], *, several: bool = False, **further: Any) -> Group:
    source = typer.Option("--task", "-t", help=_SEVERAL if several else None)
    kind = typer.Option(
        metavar="KIND",
        autocompletion=complete(lambda: KINDS),
        help="Kind of task. One of {names}; sts is how similar texts are. By default detected.",
    )
    return Group(
        "Data",
        TaskSettings,
        {
            "source": Annotated[list[str] | None if several else str | None, source],
            "kind": kind,
            "score_range": typer.Option(metavar="LOW,HIGH"),
            "validation": typer.Option(metavar="FILE"),
            "test": typer.Option(metavar="FILE"),
        },
        defaults={"source": None},
        without=_IN_FORMAT,
        make=make,
        file_format=_FORMAT,
        **further,
    )


def _data(what: str) -> Any:
    return Annotated[str | None, typer.Argument(metavar="DATA", help=f"Data, unless {what}")]


Given = Annotated[TaskSettings | None, _data_group(task_settings)]
"""A task from --task only."""
Source = Annotated[TaskSettings | None, _data_group(task_settings, data=_data("--task names them."))]
"""A task, which may be the last argument."""
SourceOfModels = Annotated[
    tuple[list[str], TaskSettings | None], _data_group(_split_models(task_settings), others=_OTHERS)
]
"""Further models, and a task, which may be the last argument."""
SourcesOfModels = Annotated[
    tuple[list[str], tuple[TaskSettings, ...]], _data_group(_split_models(_tasks), several=True, others=_OTHERS)
]
"""Further models, and several tasks with the same format; one may be the last argument."""


def load(source: TaskSettings | None) -> Task:
    """Return the requested task."""
    from layerprobe.tasks.loading import load_settings

    if source is None:
        raise typer.BadParameter("expected sentence pairs: give --task FILE, or --task stsb")
    return load_settings(source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts to embed: those of a task, or a file without scores."""

    task: TaskSettings | None = None
    file: TaskSettings | None = None
    """File with texts without scores, and its format."""
    groups: str | None = None
    """Column that names the group of a text."""
    split: TextSplit = "all"

    def __bool__(self) -> bool:
        return bool(self.task or self.file)

    def load(self) -> Task | TextFile:
        """Return the task, or the texts."""
        from layerprobe.tasks.loading import load_texts

        if bool(self.task) == bool(self.file):
            raise typer.BadParameter("expected either --task or --texts")
        if self.file is None:
            return load(self.task)
        read = {name: getattr(self.file, name) for name in ("columns", "format", "skip_empty", "skip_broken")}
        return load_texts(self.file.source, groups=self.groups, **read)

    def items(self, data: Any) -> Any:
        """Return the items of the split of a task, or the texts."""
        return data.split(self.split) if self.task else data

    def text_groups(self, data: Any) -> dict[str, str] | None:
        """Return the group of each text, if known."""
        return getattr(data, "group_of", None)


_OF_TEXTS = {"source", "columns", "skip_empty", "skip_broken", "file_format"}
"""Options of a task that apply to texts without scores, too."""


def _texts(
    *,
    texts: Path | None = None,
    groups: str | None = None,
    split: TextSplit = "all",
    data: str | None = None,
    **values: Any,
) -> Texts:
    if texts is None and data is not None and data.lower().endswith((".txt", ".txt.gz", *FASTA)):
        texts, data = Path(data), None
    if texts is None and groups is not None:
        raise typer.BadParameter("expected --texts TABLE with --groups")
    if texts is None:
        return Texts(task=task_settings(data=data, **values), split=split)
    defaults = {field.name: field.default for field in dataclasses.fields(TaskSettings)} | {"split": "all"}
    for name in ["split", *(name for name in TASK if name not in _OF_TEXTS)]:
        if (values | {"split": split})[name] != defaults[name]:
            raise typer.BadParameter(f"expected no --{name.replace('_', '-')} with --texts: it belongs to --task")
    return Texts(
        task=task_settings(data=data, **values), file=task_settings(**values | {"source": texts}), groups=groups
    )


_TEXTS: dict[str, Any] = {
    "split": Annotated[TextSplit, typer.Option(help="Split of the task whose texts are embedded and compared.")],
    "texts": Annotated[
        Path | None,
        typer.Option(
            help="Texts without scores: one per line of a text file, a FASTA file, or a table; or images: a folder, a "
            "Parquet file, or a table of their paths, with captions or without."
        ),
    ],
    "groups": Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the --texts table with the group of each text, such as its document: intervals then "
            "treat groups, not texts, as independent.",
        ),
    ],
}
TextSource = Annotated[
    Texts,
    _data_group(
        _texts, **_TEXTS, data=_data("--task or --texts names them; .txt and .fasta have texts without labels.")
    ),
]
"""Texts or a task, which may be the last argument."""
TextSourceOfModels = Annotated[tuple[list[str], Texts], _data_group(_split_models(_texts), **_TEXTS, others=_OTHERS)]
"""Further models, and texts or a task, which may be the last argument."""
TextColumn = Annotated[
    str | None, option("Data", "--columns", "--column", help="The text column of a table. By default a usual name.")
]


# ---- similarity ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Similarity:
    """Settings of a comparison by CKA."""

    kernel: Literal["linear", "rbf"] | None = None
    """Kernel of CKA, linear by default; rbf is exp(-d² / 2σ²) with σ² the median of d² over all pairs."""
    estimator: Literal["debiased", "biased"] | None = None
    """Estimator of HSIC, debiased by default; biased values rise with the width and have no intervals."""
    normalize: Literal["raw", "zscore"] = "raw"
    """Features as they are, or each divided by its standard deviation."""
    bandwidth: float | None = None
    """rbf: sigma in units of the root of the median squared distance. By default 1."""
    alignment: Literal["auto", "same-index", "relative-depth", "best-match"] = "auto"
    """Which layer of the reference a layer is compared with; auto is same-index where the depths agree."""

    @property
    def aligned(self) -> Alignment | None:
        """The alignment; None if the depths decide."""
        return None if self.alignment == "auto" else self.alignment

    def measures(self, names: Sequence[str] = ("cka",), **options: int | None) -> list[Measure]:
        """Return the measures of these names; raise BadParameter for an option that none of them has."""
        from layerprobe.similarity.values import measure_class

        fields = {"kernel": self.kernel, "estimator": self.estimator, "bandwidth_multiplier": self.bandwidth, **options}
        chosen = {name: value for name, value in fields.items() if value is not None}
        measures: list[Measure] = []
        unknown = set(chosen)
        for name in names:
            kind = measure_class(name)
            has = {field.name for field in dataclasses.fields(kind)}
            measures.append(
                kind(normalize=self.normalize, **{name: value for name, value in chosen.items() if name in has})
            )
            unknown -= has
        if unknown:
            refused = ", ".join(sorted(f"--{name.removesuffix('_multiplier')}" for name in unknown))
            raise typer.BadParameter(f"expected no {refused} with {' and '.join(names)}: it has no such setting")
        return measures


Similarity = Annotated[
    _Similarity,
    Group("Comparison", _Similarity, {"bandwidth": typer.Option(min=1e-6, max=1e6)}),
]


# ---- fine-tuning and search ------------------------------------------------------------------------------


_RATE = typer.Option(
    help="Peak learning rate of AdamW, with a linear schedule.",
    show_default=f"{Protocol().learning_rate:g}, or {LORA_LEARNING_RATE:g} with --lora",
)
_LORA = typer.Option(
    metavar="RANK", max=1024, callback=checked(lambda _: check_extra("lora", needed_by="training adapters"))
)
Tuning = Annotated[
    Protocol,
    Group(
        "Fine-tuning",
        Protocol,
        {
            "learning_rate": Annotated[float | None, _RATE],
            "lora": _LORA,
            "lora_modules": typer.Option(metavar="NAMES"),
        },
        defaults={"learning_rate": None},
        without=("max_length", "pooling", "dropout", "evaluations", "kept_epoch", "positive_share"),
        make=lambda **values: Protocol(**with_rate(values)),
    ),
]
"""Protocol for fine-tuning truncated models; pooling and length are the model's."""


def make_protocol(model: Model, tuning: Protocol) -> Protocol:
    """Return the protocol for fine-tuning a model."""
    return dataclasses.replace(
        tuning, pooling=model.pooling or tuning.pooling, max_length=model.max_length or tuning.max_length
    )


Seeds = Annotated[
    str,
    option(
        "Fine-tuning",
        callback=checked(check_seeds),
        help="Number of seeds, from 0 on, or a list such as 3,5,8.",
    ),
]
Ray = Annotated[
    str | None,
    option(
        "Machine",
        "--ray",
        metavar="ADDRESS",
        is_eager=True,  # the check of --workers needs it
        callback=checked(lambda _: check_extra("ray", needed_by="a Ray cluster")),
        help="Run on a Ray cluster whose nodes share the cache folder: host:port, auto for a cluster that runs on this "
        "machine, or local to start one.",
    ),
]


def _with_ray(context: typer.Context, workers: int | None) -> int | None:
    if workers is not None and context.params.get("ray") is None and not context.resilient_parsing:
        raise typer.BadParameter("expected --ray ADDRESS with --workers")
    return workers


Workers = Annotated[
    int | None,
    option(
        "Machine",
        "--workers",
        min=1,
        callback=_with_ray,
        help="Maximum number of processes with --ray.",
        show_default="one per GPU or node",
    ),
]


Search = Annotated[
    SearchSettings,
    Group(
        "Search",
        SearchSettings,
        {
            "tolerance": typer.Option(metavar="POINTS"),
            "budget": Annotated[str | None, typer.Option(metavar="SHARE")],
            "seeds": option("Fine-tuning", metavar="N"),
        },
        without=("level",),
    ),
]
AgainstLast = Annotated[
    int,
    option(
        "Search",
        "--against-last",
        metavar="SEEDS",
        min=0,
        help="Number of seeds that compare the layer to keep with the last layer on the test split, in addition to the "
        "budget.",
    ),
]
Level = Annotated[
    float, option("Comparison", min=0.5, max=0.9999, help="Confidence level of intervals, bands and verdict.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would run and how long it takes, by timing a few steps.")
]
SaveModels = Annotated[
    bool, option("Fine-tuning", "--save-models", help="Keep the weights of every run, for `layerprobe export`.")
]


def read_finding(path: Path) -> Finding:
    """Read a finding from `layerprobe find --json` or `lp.save`."""
    from layerprobe.results.shown import load
    from layerprobe.study.values import Finding

    result = load(path)
    if not isinstance(result, Finding):
        raise DataError(f"expected a finding from `layerprobe find --json`, got a {type(result).__name__} in {path}")
    return result


# ---- prediction and checks -------------------------------------------------------------------------------


def _number_of_texts(number: str) -> int | str:
    if number != "all" and not number.isdecimal():
        raise typer.BadParameter(f"expected a number of texts, or all, got {number!r}")
    return number if number == "all" else int(number)


def _check_rule(name: str) -> None:
    from layerprobe.prediction.rules import rule_curves

    rule_curves(name)


def _rule_names() -> tuple[str, ...]:
    from layerprobe.prediction.rules import rule_names

    return tuple(rule_names())


NumberOfTexts = Annotated[
    Any,
    option(
        "Prediction",
        "--n-texts",
        parser=_number_of_texts,
        metavar="N|all",
        help="Number of texts to read, drawn at random.",
        show_default="128, doubled until 99 % of bootstrap samples agree",
    ),
]
RuleName = Annotated[
    str | None,
    option(
        "Prediction",
        "--rule",
        callback=checked(_check_rule),
        autocompletion=complete(_rule_names),
        metavar="NAME",
        help="Rule that predicts a drop; `layerprobe lab bench --tuned` lists all.",
        show_default="fall of InfoNCE; of the effective rank where texts are single words",
    ),
]


def finite(value: float | None) -> float | None:
    """Return a threshold; raise BadParameter for NaN and infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value:g}")
    return value


def check_layer_text(layers: str) -> None:
    """Raise DataError unless these are numbers, or all; the model's layers are checked later."""
    if layers != "all":
        read_numbers(layers, last=MOST_NUMBERS)


Layers = Annotated[
    str,
    option(
        "Fine-tuning",
        callback=checked(check_layer_text),
        help="Layers to fine-tune, such as 3,6,9-12, -1 for the last one, or all.",
    ),
]
