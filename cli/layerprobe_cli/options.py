"""The options that commands share: which fields of the library's settings they are, and what a command line adds.

Nothing heavy is imported here, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import check_extra
from layerprobe.encoders.backends.backend import backend_names, check_backend, check_installed
from layerprobe.encoders.model import Model, ModelSpec
from layerprobe.errors import DataError, ModelError
from layerprobe.finetuning.values import LORA_LEARNING_RATE, Protocol
from layerprobe.search.values import SearchSettings
from layerprobe.tasks.formats import DELIMITERS, Format
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import TaskSettings
from layerprobe_cli.completion import names_of, tasks
from layerprobe_cli.derive import Group, group, option, usage

if TYPE_CHECKING:
    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.files.images import Readable
    from layerprobe.tasks.values import Items, Task, TextSplit

MAX_SEEDS, MAX_LAYER, MAX_RANK = 1000, 10_000, 1024
LEAST_BUDGET = 0.01
"""Less is no run of most models."""


def checked(*checks: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return an option callback that applies a check of the library before torch is loaded."""

    def check(value: Any) -> Any:
        for check in checks if value else ():
            usage(check, value)
        return value

    return check


# ---- models ----------------------------------------------------------------------------------------------


def _no_file(model: str) -> str:
    """Return the name of a model; a file there is data, in the wrong place."""
    if os.path.isfile(model):  # noqa: PTH113 - of any name, too long ones as well
        raise typer.BadParameter(f"expected the model first, got the file {model}: give data with --task or --texts")
    return model


def _device(name: str) -> str:
    """Return the name of a device; a GPU that torch's build cannot use is refused before torch is loaded."""
    if name.startswith("cuda") and (sys.platform == "darwin" or metadata.version("torch").endswith("+cpu")):
        raise ModelError(f"expected a device that is there, got {name!r}: this torch has no CUDA; take cpu or auto")
    return name


CACHE: dict[str, Any] = {
    "envvar": "LAYERPROBE_CACHE",
    "panel": "Machine",
    "show_default": False,
}
_MODEL: dict[str, dict[str, Any]] = {
    "name": {
        "argument": True,
        "type": str,
        "panel": None,
        "metavar": "MODEL",
        "callback": _no_file,
        "is_eager": True,  # options are checked with it
        "help": "Hub id, id@revision, or a local folder. For CLIP-like models, images go to the image tower and texts "
        "to the text tower; append :image or :text to choose.",
    },
    "display_name": {"flags": ("--name",)},
    "random_init": {"metavar": "SEED"},
    "blocks": {"flags": ("--keep-blocks",), "metavar": "BLOCKS", "read": lambda text: integers(text, "--keep-blocks")},
    "dtype": {"type": Literal["auto", "float32", "bfloat16", "float16"]},
    "device": {"callback": _device},
}
_MODEL |= {
    "cache_dir": CACHE,
    "norm": {"type": Literal["final", "raw"]},
    "backend": {
        "metavar": f"[{'|'.join(backend_names())}]",
        "help": "What computes embeddings on a CPU. openvino and onnx are extras, compared with torch; auto takes "
        "the fastest, as `layerprobe doctor` does. Fine-tuning is always by torch.",
        "callback": checked(check_backend, check_installed),
        "autocompletion": names_of("layerprobe.encoders.backends.backend:backend_names"),
    },
}
LOADING = "display_name random_init dtype device attn trust_remote_code end_token blocks"
EMBEDDING = f"{LOADING} pooling max_length prompt batch_tokens cache_dir"
EXTRACTION = f"{EMBEDDING} norm backend store_dtype"


def model_group(fields: str, *, make: Callable[..., Any] | None = None, **about: Any) -> Group:
    """Return a model and some of its fields as options; `about` is said of the argument that names it."""
    return group(Model, "Model", f"name {fields}", make=make, **_MODEL | {"name": _MODEL["name"] | about})


Loading = Annotated[Model, model_group(LOADING)]
"""A model that is loaded."""
Embedding = Annotated[Model, model_group(EMBEDDING)]
"""One whose texts become embeddings."""
Extraction = Annotated[Model, model_group(EXTRACTION)]
"""One whose layers are all embedded."""
Others = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL2]...",
        callback=lambda models: models and [*map(_no_file, models)],
        help="Further models on the same task, compared layer by layer.",
    ),
]
Device = Annotated[str, option("Model", callback=_device, help="auto, cpu, cuda, cuda:1 or mps.")]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    option("Model", help="Precision of the forward pass; auto takes bfloat16 where it is faster."),
]
CacheDir = Annotated[
    Path | None,
    option(
        "Machine",
        help="Where embeddings and runs are kept.",
        envvar="LAYERPROBE_CACHE",
        show_default="the user's cache folder",
    ),
]


def alike(model: Model, name: str) -> Model:
    """Return a further model that is loaded as one is; --name and --keep-blocks are about that one alone."""
    return dataclasses.replace(model, name=name, display_name=None, blocks=None)


def resolved(model: Model, others: Sequence[str] | None = None, items: Readable | None = None) -> list[Checkpoint]:
    """Return the checkpoints of models that are compared with each other; of two towers, those that read the items."""
    from layerprobe.encoders.loading import resolve_checkpoint, resolve_device

    if model.device != "auto":
        resolve_device(model.device)  # before data are looked at
    return [resolve_checkpoint(name, items=items) for name in (model, *(alike(model, name) for name in others or ()))]


def references_of(
    model: Model,
    names: Sequence[str],
    called: Sequence[str] = (),
    random_init: int | None = None,
    items: Readable | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints of references, loaded as the model is; the first has the seed of random weights."""
    from layerprobe.encoders.loading import resolve_checkpoint

    specs = [
        ModelSpec(name, random_init=None if number else random_init, display_name=label, end_token=model.end_token)
        for number, (name, label) in enumerate(itertools.zip_longest(names, called))
    ]
    return [resolve_checkpoint(spec, items=items, like=model.options) for spec in specs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reference:
    """The models to compare with."""

    reference: list[str] | None = None
    """A model pretrained by masked language modelling, of the same depth where there is one. Given again: further
    references; the prediction is from the first. Without one, rules read the model alone."""
    reference_name: list[str] | None = None
    """What to call the reference. Given again: further ones."""
    reference_random_init: int | None = None
    """Fresh random weights for the reference."""

    def resolve(self, model: Model, items: Readable | None = None) -> list[Checkpoint]:
        """Return the checkpoints of all references; none where none was given."""
        references, names = self.reference or [], self.reference_name or []
        if len(names) > len(references):
            raise typer.BadParameter(f"expected a --reference for each --reference-name, got {len(references)}")
        if not references and self.reference_random_init is not None:
            raise typer.BadParameter("expected --reference with --reference-random-init, got none")
        return references_of(model, references, names, self.reference_random_init, items)


Reference = Annotated[
    _Reference,
    group(
        _Reference,
        "Comparison",
        "reference reference_name reference_random_init",
        reference={"flags": ("--reference", "-r")},
        reference_random_init={"metavar": "SEED", "min": 0},
    ),
]


# ---- data ------------------------------------------------------------------------------------------------


FORMAT_KEYS = tuple(field.name for field in dataclasses.fields(Format))


def parse_format(texts: Sequence[str]) -> dict[str, Any]:
    """Return what `delimiter=;,decimal=,` says of files; raise BadParameter if it is no such text.

    Examples:
        >>> parse_format(["delimiter=;,decimal=,", "header=no"])
        {'delimiter': ';', 'decimal': ',', 'header': False}
    """
    named, switches = {}, {"yes": True, "no": False}
    for part in itertools.chain(*(re.split(rf",(?=(?:{'|'.join(FORMAT_KEYS)})=)", text) for text in texts)):
        key, equals, value = part.partition("=")
        of_switch = key in ("quotes", "header")
        if key not in FORMAT_KEYS or not (equals and value) or (of_switch and value not in switches):
            raise typer.BadParameter(
                f"expected KEY=VALUE with the key {', '.join(FORMAT_KEYS)}, the last two yes or no, got {part!r}"
            )
        named[key] = switches[value] if of_switch else value
    return named


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list such as `query, value`."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


_TASK: dict[str, dict[str, Any]] = {
    "source": {
        "flags": ("--task", "-t"),
        "type": str | None,
        "default": None,
        "autocompletion": tasks,
        "help": "Data with scores or labels: a file, a folder, stsb, or the hub id of a data set. Sentence pairs, "
        "texts with labels or values, words with tags, queries with documents, or triplets, as a CSV, TSV, JSONL, "
        "Parquet or CoNLL file, or a folder with train, dev and test files or in the layout of BEIR. Images: a folder "
        "for each class, in train, val and test or not, or a Parquet file of them.",
    },
    "columns": {
        "read": names_in,
        "help": "Columns by name or number, such as s1,s2,score. The others are text,label of single texts, "
        "word,tag of words, query,positive,negative of retrieval, or anchor,positive,negative.",
        "show_default": "detected",
    },
    "kind": {
        "metavar": "KIND",
        "callback": checked(KINDS.check),
        "autocompletion": names_of("layerprobe.tasks.kind:KINDS"),
        "help": f"Kind of task. One of {', '.join(KINDS)}; sts is how similar texts are.",
        "show_default": "detected",
    },
    "score_range": {"metavar": "LOW,HIGH", "read": lambda text: two_numbers(text)},
    "validation": {"metavar": "FILE"},
    "test": {"metavar": "FILE"},
    "file_format": {
        "flags": ("--format",),
        "type": list[str] | None,
        "metavar": "KEY=VALUE,...",
        "callback": checked(lambda texts: Format(**parse_format(texts))),
        "help": f"How a text file is written: delimiter={'|'.join(DELIMITERS)} or one character, encoding=cp1252, "
        "decimal=. or a comma, quotes=yes|no, header=yes|no, such as delimiter=;,decimal=,",
        "show_default": "detected",
    },
    **{name: {"hidden": True} for name in FORMAT_KEYS},
}
TASK = " ".join(
    (
        "source columns kind merge score_range validation test split_seed file_format",
        *FORMAT_KEYS,
        "skip_broken keep_overlaps skip_empty query_prompt document_prompt",
    )
)


def _task(source: str | None, file_format: Sequence[str] | None, **values: Any) -> TaskSettings | None:
    """Return the settings of a task; None where none is given."""
    return TaskSettings(source=source, **values | parse_format(file_format or ())) if source else None


Source = Annotated[TaskSettings | None, group(TaskSettings, "Data", TASK, make=_task, **_TASK)]
"""A task."""


def load(source: TaskSettings | None) -> Task:
    """Return the task that is given."""
    from layerprobe.tasks.loading import load_settings

    if source is None:
        raise typer.BadParameter("expected sentence pairs: give --task FILE, or --task stsb")
    return load_settings(source)


def _tasks(source: Sequence[str] | None, **values: Any) -> tuple[TaskSettings, ...]:
    if not source or not all(source):
        return ()
    return tuple(settings for item in source if (settings := _task(item, **values)))


Sources = Annotated[
    tuple[TaskSettings, ...],
    group(
        TaskSettings,
        "Data",
        TASK,
        make=_tasks,
        **_TASK
        | {
            "source": _TASK["source"]
            | {
                "type": list[str] | None,
                "help": "A task as `layerprobe finetune` takes it. Given again: further tasks, read alike.",
            }
        },
    ),
]
"""Several tasks that are read alike."""

TextsOf = Annotated[
    Literal["all", "train", "validation", "test"],
    option("Data", "--split", help="Whose texts of the task are embedded and compared."),
]
OF_LABELS = "kind merge score_range validation test split_seed keep_overlaps query_prompt document_prompt split"
"""Options of a task that say nothing of texts without scores."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts to embed: those of a task, or a file without scores."""

    task: TaskSettings | None
    values: dict[str, Any]
    """As they were given."""
    split: TextSplit

    def __bool__(self) -> bool:
        return bool(self.task or self.values["texts"])

    def load(self) -> LoadedTexts:
        """Return the texts, with the task that they come from where there is one."""
        from layerprobe.tasks.loading import load_texts

        file, by_document = self.values["texts"], self.values["documents"]
        if by_document is not None and file is None:
            raise typer.BadParameter("expected --texts TABLE with --documents")
        if (self.values["source"] is None) == (file is None):
            raise typer.BadParameter("expected either --task or --texts")
        if file is None:
            task = load(self.task)
            items = task.split(self.split)
            return LoadedTexts(texts=items.texts, items=items, notes=task.notes, warnings=task.warnings, task=task)
        defaults = {field.name: field.default for field in dataclasses.fields(TaskSettings)} | {"split": "all"}
        for name in OF_LABELS.split():
            if self.values[name] != defaults[name]:
                raise typer.BadParameter(f"expected no --{name.replace('_', '-')} with --texts: it is of a --task")
        read = load_texts(
            file,
            documents=by_document,
            format=usage(Format, **self.format),
            **{name: self.values[name] for name in ("columns", "skip_empty", "skip_broken")},
        )
        # a text that is in several documents counts for the first
        named = None
        if read.documents is not None:
            named = dict(zip(read.texts[::-1], read.documents[::-1], strict=True))
        return LoadedTexts(texts=read.texts, notes=read.notes, warnings=read.warnings, documents=named)

    @property
    def format(self) -> dict[str, Any]:
        """How files are written."""
        return {name: self.values[name] for name in FORMAT_KEYS} | parse_format(self.values["file_format"] or ())


def _texts(**values: Any) -> Texts:
    others = {name: value for name, value in values.items() if name not in ("texts", "documents", "split")}
    task = None if values["texts"] else _task(**others)
    # columns of a file are one text, as they were given
    columns = None if values["columns"] is None else ",".join(values["columns"])
    return Texts(task=task, values=values | {"columns": columns}, split=values["split"])


_TEXTS: dict[str, dict[str, Any]] = {
    "split": {
        "type": Literal["all", "train", "validation", "test"],
        "default": "all",
        "help": "Whose texts of the task are embedded and compared.",
    },
    "texts": {
        "type": Path | None,
        "help": "Texts without scores: one per line of a text file, or a table; or images: a folder, a Parquet file, "
        "or a table of their paths, with captions or without.",
    },
    "documents": {
        "type": str | None,
        "metavar": "COLUMN",
        "help": "Column of the --texts table that names the document of a text: intervals then treat documents, not "
        "texts, as independent.",
    },
}
TEXTS = f"{TASK} split texts documents"
TextSource = Annotated[Texts, group(TaskSettings, "Data", TASK, make=_texts, **_TASK | _TEXTS)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTexts:
    """The texts to embed, with the task they come from."""

    texts: Sequence[str]
    warnings: tuple[str, ...]
    """What was changed in them or left out."""
    notes: tuple[str, ...] = ()
    """How they were understood."""
    task: Task | None = None
    """Where they come with scores."""
    items: Items | None = None
    """Likewise, those that they are of."""
    documents: dict[str, str] | None = None
    """Which document a text is from, where that is known."""


TextColumn = Annotated[
    str | None,
    option("Data", "--columns", "--column", help="The text column of a table or data set.", show_default="detected"),
]


# ---- similarity ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Similarity:
    """How two models are compared by CKA."""

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

    def settings(self) -> dict[str, Any]:
        """Return measure and alignment as the library takes them."""
        return self.all_settings(["cka"])[0]

    def all_settings(self, measures: Sequence[str], **options: int | None) -> list[dict[str, Any]]:
        """Return measure and alignment for each measure; an option that none of them has is refused."""
        from layerprobe.similarity.values import Measure

        fields = {"kernel": self.kernel, "estimator": self.estimator, "bandwidth_multiplier": self.bandwidth, **options}
        chosen_fields = {name: value for name, value in fields.items() if value is not None}
        chosen, names, unknown = [], [], set(chosen_fields)
        for measure in measures:
            kind, values = Measure.class_of({"name": measure, "normalize": self.normalize, **chosen_fields})
            field_names = {field.name for field in dataclasses.fields(kind)}
            chosen.append(kind(**{name: value for name, value in values.items() if name in field_names}))
            names.append(" ".join(getattr(kind, tag) for tag in reversed(kind.json_tags)))
            unknown &= values.keys() - field_names
        if unknown:
            refused = ", ".join(sorted(f"--{name.removesuffix('_multiplier')}" for name in unknown))
            raise typer.BadParameter(f"expected no {refused} with {' and '.join(names)}: it has no such setting")
        alignment = None if self.alignment == "auto" else self.alignment
        return [{"measure": measure, "alignment": alignment} for measure in chosen]


SIMILARITY = "kernel estimator normalize bandwidth alignment"
Similarity = Annotated[_Similarity, group(_Similarity, "Comparison", SIMILARITY, bandwidth={"min": 1e-6, "max": 1e6})]


# ---- fine-tuning and search ------------------------------------------------------------------------------


def _protocol(*, learning_rate: float | None, **values: Any) -> Protocol:
    rate = LORA_LEARNING_RATE if values["lora"] else Protocol().learning_rate
    return Protocol(learning_rate=rate if learning_rate is None else learning_rate, **values)


TUNING = (
    "epochs learning_rate batch_size weight_decay warmup max_grad_norm lora lora_alpha lora_modules "
    "gradient_checkpointing"
)
Tuning = Annotated[
    Protocol,
    group(
        Protocol,
        "Fine-tuning",
        TUNING,
        make=_protocol,
        learning_rate={
            "type": float | None,
            "default": None,
            "show_default": f"{Protocol().learning_rate:g}, or {LORA_LEARNING_RATE:g} with --lora",
        },
        lora={
            "metavar": "RANK",
            "max": MAX_RANK,
            "callback": checked(lambda _: check_extra("lora", needed_by="training adapters")),
        },
        lora_modules={
            "metavar": "NAMES",
            "default": "",
            "show_default": False,
            "read": names_in,
        },
    ),
]
"""How truncated models are fine-tuned; pooling and length are the model's."""


def protocol_of(model: Model, tuning: Protocol) -> Protocol:
    """Return how a model is fine-tuned."""
    return dataclasses.replace(
        tuning, pooling=model.pooling or tuning.pooling, max_length=model.max_length or tuning.max_length
    )


Seeds = Annotated[str, option("Fine-tuning", help="How many seeds, counted from 0, or a list of them such as 3,5,8.")]


def seed_list(text: str) -> tuple[int, ...]:
    """Return the seeds that `5` or `3,5,8` names."""
    seeds = integers(text, "--seeds")
    if "," not in text and seeds[0] > MAX_SEEDS:
        raise typer.BadParameter(f"expected at most {MAX_SEEDS} seeds, or a list such as 3,5,8, got {text!r}")
    listed = seeds if "," in text else tuple(range(seeds[0]))
    if not listed or max(listed) >= 2**63:
        raise typer.BadParameter(f"expected at least one seed, none above 2^63, for --seeds, got {text!r}")
    return listed


def _number_of_seeds(text: str) -> int:
    if "," in text:
        raise typer.BadParameter(f"expected a number of seeds such as 5 for --seeds, got {text!r}")
    return len(seed_list(text))


def _share(text: str) -> float:
    """Return the share that `15%` or `0.15` names; raise BadParameter if it is none."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not LEAST_BUDGET <= share <= 1:
        raise typer.BadParameter(f"expected a share from 1% to 100% for --budget, such as 15% or 0.15, got {text!r}")
    return share


_RAY: dict[str, Any] = {
    "metavar": "ADDRESS",
    "callback": checked(lambda _: check_extra("ray", needed_by="a Ray cluster")),
    "help": "Do it on a Ray cluster, whose nodes all see the same folder: host:port, auto for one that runs on this "
    "machine, or local for one of its own.",
}
Ray = Annotated[str | None, option("Machine", "--ray", **_RAY)]
Workers = Annotated[
    int | None,
    option("Machine", "--workers", min=1, help="Processes with --ray at most.", show_default="one per GPU or node"),
]


def check_workers(workers: int | None, ray: str | None) -> None:
    """Refuse --workers without a cluster, which has them."""
    if workers is not None and ray is None:
        raise typer.BadParameter("expected --ray ADDRESS with --workers")


def _searching(*, jobs: int | None, ray: str | None, cross_validation: bool | None, **settings: Any) -> dict[str, Any]:
    SearchSettings(**settings)  # refuses what is out of range
    return {**settings, "jobs": jobs, "ray": ray, "cross_validation": cross_validation}


SEARCH = "tolerance budget scan cross_validation jobs ray"
Search = Annotated[
    dict[str, Any],
    group(
        SearchSettings,
        "Search",
        "tolerance budget seeds scan",
        make=_searching,
        tolerance={"metavar": "POINTS"},
        budget={"metavar": "SHARE", "read": _share},
        seeds={"panel": "Fine-tuning", "metavar": "N", "default": "5", "read": _number_of_seeds},
        cross_validation={
            "type": bool | None,
            "help": "Give each seed another part of the training and validation examples to choose by.",
            "show_default": "below 1,000 validation examples",
        },
        jobs={
            "type": int | None,
            "panel": "Machine",
            "min": 1,
            "help": "Runs at a time.",
            "show_default": "one a GPU, else one a core, 4 at most",
        },
        ray={"type": str | None, "panel": "Machine", **_RAY},
    ),
]
"""Arguments of `find`: how the best layer is searched for."""
AgainstLast = Annotated[
    int,
    option(
        "Search",
        "--against-last",
        metavar="SEEDS",
        min=0,
        help="Seeds of the layer to keep and of the last one, to tell on the test split how they differ; beyond the "
        "budget.",
    ),
]
Level = Annotated[
    float, option("Comparison", min=0.5, max=0.9999, help="Confidence level of intervals, bands and verdict.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be run and how long that takes, by a few steps, and stop.")
]
SaveModels = Annotated[
    bool,
    option("Fine-tuning", "--save-models", help="Keep the weights of every run, for `layerprobe export`."),
]
StudyFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and study.json.")]


# ---- prediction and checks -------------------------------------------------------------------------------


def _number_of_texts(number: str) -> int | str:
    if number != "all" and not number.isdecimal():
        raise typer.BadParameter(f"expected a number of texts, or all, got {number!r}")
    return number if number == "all" else int(number)


def _known_rule(name: str) -> None:
    from layerprobe.prediction.tuned import rule_curves

    rule_curves(name)


NumberOfTexts = Annotated[
    Any,
    option(
        "Prediction",
        "--n-texts",
        parser=_number_of_texts,
        metavar="N|all",
        help="Texts to read, drawn at random.",
        show_default="128, doubled until 99% of bootstrap samples agree",
    ),
]
RuleName = Annotated[
    str | None,
    option(
        "Prediction",
        "--rule",
        callback=checked(_known_rule),
        autocompletion=names_of("layerprobe.prediction.tuned:rule_names"),
        metavar="NAME",
        help="How a drop is predicted: a rule tuned on DropBench; `layerprobe lab bench --tuned` lists them.",
        show_default="fall of InfoNCE; of the effective rank where texts are single words",
    ),
]


def finite(value: float | None) -> float | None:
    """Return a threshold; refuse NaN, below which nothing is, and infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value:g}")
    return value


# ---- layers and lists ------------------------------------------------------------------------------------


def given_layers(text: str) -> str:
    """Return a list of layers as it was given; what is none is refused before a model is loaded."""
    if text:
        listed_layers(text)
    return text


def layers_of_model(context: typer.Context, text: str) -> str:
    """Return a list of layers as it was given; one that a local model lacks is reported before torch is loaded."""
    if text and not context.resilient_parsing:
        check_depth(context.params.get("name"), max(listed_layers(text) or (0,)))
    return text


def check_depth(model: str | None, layer: int) -> None:
    """Raise DataError if the config.json of a local model says that there is no such layer."""
    if not model:  # several: each has layers of its own
        return
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
        n_blocks = next(config[name] for name in ("num_hidden_layers", "n_layer", "n_layers") if name in config)
    except (OSError, ValueError, TypeError, StopIteration):
        return  # it is reported once the model is known
    if isinstance(n_blocks, int) and layer > n_blocks:
        raise DataError(f"expected layers from 0 to {n_blocks} of {model}, got {layer}")


Layers = Annotated[
    str, option("Fine-tuning", callback=layers_of_model, help="Layers to fine-tune, such as 3,6,9-12 or all.")
]


def parse_layers(text: str, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the layers of a model that `3,6,9-12` or `all` names; none for an empty text."""
    from layerprobe.encoders.architecture import count_blocks

    if not text:
        return ()
    n_blocks = count_blocks(checkpoint.config)
    listed = listed_layers(text)
    if listed is None:
        return tuple(range(n_blocks + 1))
    if listed[-1] > n_blocks:
        raise DataError(f"expected layers from 0 to {n_blocks} of {checkpoint.label}, got {listed[-1]}")
    return listed


def listed_layers(text: str) -> tuple[int, ...] | None:
    """Return the layers that `3,6,9-12` names, ascending, None for `all`; raise BadParameter if it is no such list."""
    if text == "all":
        return None
    layers: set[int] = set()
    for part in text.split(","):
        if ".." in part:
            raise typer.BadParameter(
                f"expected a range such as 6-8 for --layers, got {part!r}: give {re.sub(r'[.]+', '-', part)}"
            )
        first, dash, last = part.strip().partition("-")
        ends = integers(f"{first},{last}" if dash else first, "--layers")
        if ends[0] > ends[-1]:
            raise typer.BadParameter(f"expected a range such as 2-5 for --layers, got {part.strip()!r}")
        if ends[-1] > MAX_LAYER:
            raise typer.BadParameter(f"expected layers up to {MAX_LAYER} for --layers, got {part.strip()!r}")
        layers.update(range(ends[0], ends[-1] + 1))
    return tuple(sorted(layers))


def integers(text: str, flag: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0,1,2`; raise BadParameter if it is none, or a number is negative."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers such as 3 or 0,1,2 for {flag}, got {text!r}") from None
    if any(number < 0 for number in numbers):
        raise typer.BadParameter(f"expected no negative number for {flag}, got {text!r}")
    return numbers


def two_numbers(text: str) -> tuple[float, float]:
    """Return the two numbers of `0,5`; raise BadParameter if it is no such text."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected two numbers such as 0,5 for --score-range, got {text!r}") from None
    return low, high
