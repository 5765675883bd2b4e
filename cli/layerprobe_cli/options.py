"""The options that commands share, declared once.

A group is a frozen dataclass whose fields are options. A command takes a group as one argument; `expanded`
shows Typer its fields instead. Nothing heavy is imported here, so that `--help` is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import math
import os
import re
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from layerprobe.checks import check_extra
from layerprobe.encoders.backends.backend import TORCH, backend_names, check_backend, check_installed
from layerprobe.encoders.model import ModelSpec
from layerprobe.errors import DataError, LayerProbeError, MissingPackageError, ModelError
from layerprobe.finetuning.values import LORA_LEARNING_RATE, Protocol
from layerprobe.tasks.formats import DELIMITERS, Format
from layerprobe.tasks.kind import KINDS
from layerprobe_cli.completion import names_of, tasks
from layerprobe_cli.output import Output, fail

if TYPE_CHECKING:
    from layerprobe.encoders.loading import Checkpoint
    from layerprobe.encoders.model import Options
    from layerprobe.files.images import Readable
    from layerprobe.tasks.values import Items, Task, TaskSettings


def _no_file(model: str) -> str:
    """Return the name of a model; a file there is data, in the wrong place."""
    if os.path.isfile(model):  # noqa: PTH113 - of any name, too long ones as well
        raise typer.BadParameter(f"expected the model first, got the file {model}: give data with --task or --texts")
    return model


Model = Annotated[
    str,
    typer.Argument(
        callback=_no_file,
        is_eager=True,  # options are checked with it
        help="Hub id, id@revision, or a local folder. For CLIP-like models, images go to the image tower and texts to "
        "the text tower; append :image or :text to choose.",
    ),
]
PAPER = Protocol()
MAX_SEEDS = 1000
MAX_LAYER = 10_000
MAX_RANK = 1024
LEAST_BUDGET = 0.01
"""Less is no run of most models."""

_KEPT: dict[str, Any] = {
    "help": "Where embeddings and runs are kept.",
    "envvar": "LAYERPROBE_CACHE",
    "show_default": "the user's cache folder",
}
CacheDir = Annotated[Path | None, typer.Option(**_KEPT)]


def _checked(*checks: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return what refuses a value that a check of the library refuses, before torch is loaded."""

    def checked(value: Any) -> Any:
        try:
            for check in checks if value else ():
                check(value)
        except MissingPackageError:
            raise
        except DataError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return checked


_can_adapt = _checked(lambda _: check_extra("lora", needed_by="training adapters"))


def option(panel: str, *names: str, **settings: Any) -> Any:
    """Return an option that the help shows in a panel."""
    return typer.Option(*names, rich_help_panel=panel, **settings)


def _device(name: str) -> str:
    """Return the name of a device; a GPU that torch's build cannot use is refused before torch is loaded."""
    if name.startswith("cuda") and (sys.platform == "darwin" or metadata.version("torch").endswith("+cpu")):
        raise ModelError(f"expected a device that is there, got {name!r}: this torch has no CUDA; take cpu or auto")
    return name


_DEVICE: dict[str, Any] = {"help": "auto, cpu, cuda, cuda:1 or mps.", "callback": _device}
Device = Annotated[str, typer.Option(**_DEVICE)]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(help="Precision of the forward pass; auto takes bfloat16 where it is faster."),
]


def finite(value: float | None) -> float | None:
    """Return a threshold; refuse NaN, below which nothing is, and infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value:g}")
    return value


FailBelow = Annotated[
    float | None, typer.Option(help="Exit with code 3 if the last layer scores less than this.", callback=finite)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be run and how long that takes, by a few steps, and stop.")
]
Ray = Annotated[
    str | None,
    option(
        "Machine",
        "--ray",
        metavar="ADDRESS",
        callback=_checked(lambda _: check_extra("ray", needed_by="a Ray cluster")),
        help="Do it on a Ray cluster, whose nodes all see the same folder: host:port, auto for one that runs on this "
        "machine, or local for one of its own.",
    ),
]
Workers = Annotated[
    int | None,
    option("Machine", "--workers", min=1, help="Processes with --ray at most.", show_default="one per GPU or node"),
]


def check_workers(workers: int | None, ray: str | None) -> None:
    """Refuse --workers without a cluster, which has them."""
    if workers is not None and ray is None:
        raise typer.BadParameter("expected --ray ADDRESS with --workers")


StudyFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and study.json.")]
PlotlyFrom = Annotated[
    Literal["embedded", "cdn"],
    option(
        "Report",
        "--plotly",
        help="embedded: the page opens offline, in about 2 MB. cdn: it is small, and loads Plotly from the network.",
    ),
]
Norm = Annotated[
    Literal["final", "raw"],
    option("Model", help="Pre-norm models: apply the final norm at every layer, as truncated models do, or not."),
]


def command(*words: str) -> str:
    """Return a call of layerprobe as a line for a shell."""
    return shlex.join(["layerprobe", *words])


def file_to_write(path: Path | None) -> Path | None:
    """Return a file that will be written; what is in its way is reported before the work and not after it."""
    return path and _below(path.absolute().parent, path)


def folder_to_write(path: Path | None) -> Path | None:
    """Return a folder that files will be written to, see `file_to_write`."""
    return path and _below(path.absolute(), path)


def _below(folder: Path, path: Path) -> Path:
    there = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    if not there.is_dir():
        raise typer.BadParameter(f"expected a place to write to, got {path}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"expected a place to write to, got {path}: {there} may not be written")
    return path


def _html(path: Path | None) -> Path | None:
    """Return the file of a page."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"expected a file that ends in .html, got {path}")
    return file_to_write(path)


Others = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL2]...",
        callback=lambda models: models and [*map(_no_file, models)],
        help="Further models on the same task, compared layer by layer.",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result as a page."""

    report: Annotated[
        Path | None,
        option(
            "Report",
            "--report",
            metavar="FILE.html",
            dir_okay=False,
            callback=_html,
            help="Also write the result as one HTML page.",
        ),
    ] = None
    plotly: PlotlyFrom = "embedded"

    def write(self, output: Output, result: object, *further: object, **about: Any) -> None:
        """Write the page of a result if a page was requested, see `save`, and say where."""
        self.save(result, *further, **about)
        self.name(output)

    def save(
        self, result: object, *further: object, warnings: Sequence[str] = (), commands: Sequence[str] = (), **about: Any
    ) -> None:
        """Write the page of a result if a page was requested, with warnings of its data and the commands that follow.

        The rest is for `layerprobe.results.shown.make_page`.
        """
        if self.report is not None:
            from layerprobe.results.shown import make_page

            made = make_page(result, *further, **about)

            # only now: it needs plotly, whose absence is an error of the page
            from layerprobe.results.page import completed, write_page

            made = completed(made, command=command(*sys.argv[1:]), warnings=warnings, commands=commands)
            write_page(made, self.report, plotly=self.plotly)

    def name(self, output: Output) -> None:
        """Say where the page is."""
        if self.report is not None and not output.json:
            typer.echo(f"\nReport: {self.report}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded."""

    name: Annotated[
        str | None,
        option("Model", help="What to call the model in tables, plots and sentences.", show_default="its own name"),
    ] = None
    random_init: Annotated[
        int | None, option("Model", metavar="SEED", min=0, help="Fresh random weights instead of the trained ones.")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        option("Model", help="Precision of the forward pass; auto takes bfloat16 where it is faster."),
    ] = "float32"
    device: Annotated[str, option("Model", **_DEVICE)] = "auto"
    attn: Annotated[str, option("Model", help="auto, or an attention implementation of transformers.")] = "auto"
    trust_remote_code: Annotated[
        bool, option("Model", "--trust-remote-code", help="Run model code that comes with a checkpoint.")
    ] = False
    end_token: Annotated[
        bool | None,
        option(
            "Model",
            "--end-token/--no-end-token",
            help="Whether the end token is appended to every text.",
            show_default="for decoders whose tokenizer appends none, without a sentence-transformers configuration",
        ),
    ] = None
    keep_blocks: Annotated[
        str | None,
        option(
            "Model",
            metavar="BLOCKS",
            help="Take out all other blocks of the model before anything else, such as 1,5,6.",
            show_default="all blocks",
        ),
    ] = None

    def resolve(self, model: str, items: Readable | None = None) -> Checkpoint:
        """Return the model's checkpoint, its weights not yet loaded; of two towers, that which reads the items."""
        names = () if self.name is None else (self.name,)
        return self.resolve_all(
            [model], random_init=self.random_init, names=names, blocks=self.kept_blocks(), items=items
        )[0]

    def kept_blocks(self) -> tuple[int, ...] | None:
        """Return which blocks are kept; None where that is not said."""
        return None if self.keep_blocks is None else integers(self.keep_blocks, "--keep-blocks")

    def resolve_all(
        self,
        models: Sequence[str],
        *,
        random_init: int | None = None,
        names: Sequence[str] = (),
        blocks: tuple[int, ...] | None = None,
        items: Readable | None = None,
    ) -> list[Checkpoint]:
        """Return the checkpoints of models, the first ones called by names, the first with a seed and some blocks."""
        from layerprobe.encoders.loading import resolve_checkpoint, resolve_device

        options = self.options()
        if options.device != "auto":
            resolve_device(options.device)  # before data are looked at
        specs = [
            ModelSpec(
                model,
                random_init=None if number else random_init,
                display_name=name,
                end_token=self.end_token,
                blocks=None if number else blocks,
            )
            for number, (model, name) in enumerate(itertools.zip_longest(models, names))
        ]
        return [resolve_checkpoint(spec, items=items, like=options) for spec in specs]

    def resolve_each(self, models: Sequence[str], items: Readable | None = None) -> list[Checkpoint]:
        """Return the checkpoints of models that are compared with each other; --name is that of the first."""
        loadings = [self, *([self.without_name()] * (len(models) - 1))]
        return [loading.resolve(name, items) for loading, name in zip(loadings, models, strict=True)]

    def without_name(self) -> Self:
        """Return the same for a further model, which --name and --keep-blocks are not about."""
        return dataclasses.replace(self, name=None, keep_blocks=None)

    def options(self) -> Options:
        """Return the options that the library takes."""
        from layerprobe.encoders.model import Options

        names = {field.name for field in dataclasses.fields(Options)}
        return Options(**{name: value for name, value in vars(self).items() if name in names})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Loading):
    """How texts become embeddings, in extraction and in fine-tuning."""

    pooling: Annotated[
        Literal["mean", "cls", "max", "last"] | None,
        option(
            "Model",
            help="How token states become one embedding.",
            show_default="the model's sentence-transformers configuration; else last for decoders, mean for others",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        option(
            "Model",
            min=2,
            help="Tokens a text at most.",
            show_default="the model's sentence-transformers configuration or limit, 512 at most; 128 in fine-tuning",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        option(
            "Model",
            help="Text put before every sentence.",
            show_default="the model's sentence-transformers configuration; else none",
        ),
    ] = None
    batch_tokens: Annotated[
        int | None,
        option(
            "Model",
            min=1,
            help="Tokens that go through the model at once; a step of fine-tuning has --batch-size examples anyway.",
            show_default="1024 on a CPU; elsewhere 32768, and all of a step in fine-tuning",
        ),
    ] = None
    cache_dir: Annotated[Path | None, option("Machine", **_KEPT)] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction(Embedding):
    """How texts become embeddings of every layer."""

    norm: Norm = "final"
    backend: Annotated[
        str,
        option(
            "Model",
            metavar=f"[{'|'.join(backend_names())}]",
            callback=_checked(check_backend, check_installed),
            autocompletion=names_of("layerprobe.encoders.backends.backend:backend_names"),
            help="What computes embeddings on a CPU: openvino and onnx are extras, and are compared with torch; auto "
            "takes the fastest, as `layerprobe doctor` does. Fine-tuning is always by torch.",
        ),
    ] = TORCH
    store_dtype: Annotated[
        Literal["float32", "float16"],
        option("Model", help="What embeddings are kept in: float16 takes half the disk and rounds to 3 digits."),
    ] = "float32"


_OLD = typer.Option(hidden=True)
OF_LABELS = (
    "kind",
    "merge",
    "score_range",
    "validation",
    "test",
    "split_seed",
    "keep_overlaps",
    "query_prompt",
    "document_prompt",
)
"""Options of a task that say nothing of texts without scores."""
FORMAT_KEYS = tuple(field.name for field in dataclasses.fields(Format))


def parse_format(given: Sequence[str]) -> dict[str, Any]:
    """Return what `delimiter=;,decimal=,` says of files; raise BadParameter if it is no such text.

    Examples:
        >>> parse_format(["delimiter=;,decimal=,", "header=no"])
        {'delimiter': ';', 'decimal': ',', 'header': False}
    """
    named, switches = {}, {"yes": True, "no": False}
    for part in itertools.chain(*(re.split(rf",(?=(?:{'|'.join(FORMAT_KEYS)})=)", text) for text in given)):
        key, equals, value = part.partition("=")
        of_switch = key in ("quotes", "header")
        if key not in FORMAT_KEYS or not (equals and value) or (of_switch and value not in switches):
            raise typer.BadParameter(
                f"expected KEY=VALUE with the key {', '.join(FORMAT_KEYS)}, the last two yes or no, got {part!r}"
            )
        named[key] = switches[value] if of_switch else value
    return named


def _format_checked(given: list[str] | None) -> list[str] | None:
    """Return what --format was given; what is wrong with it is reported before files are read."""
    try:
        Format(**parse_format(given or ()))
    except DataError as error:
        raise typer.BadParameter(str(error)) from None
    return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSource:
    """Where texts with scores or labels come from."""

    task: Annotated[
        str | None,
        option(
            "Data",
            "--task",
            "-t",
            autocompletion=tasks,
            help="Sentence pairs with scores or labels, texts with labels or values, words with tags, queries with "
            "documents, or triplets: a CSV, TSV, JSONL, Parquet or CoNLL file, a folder with train, dev and test files "
            "or in the layout of BEIR, stsb, or the hub id of a data set. Images: a folder for each class, in train, "
            "val and test or not, or a Parquet file of them.",
        ),
    ] = None
    columns: Annotated[
        str | None,
        option(
            "Data",
            help="Columns by name or number: s1,s2,score of pairs, text,label of single texts, word,tag of words, "
            "query,positive,negative of retrieval, or anchor,positive,negative.",
            show_default="detected",
        ),
    ] = None
    kind: Annotated[
        str | None,
        option(
            "Data",
            metavar="KIND",
            callback=_checked(KINDS.check),
            autocompletion=names_of("layerprobe.tasks.kind:KINDS"),
            help=f"Kind of task: {', '.join(KINDS)}. sts is how similar texts are.",
            show_default="detected",
        ),
    ] = None
    merge: Annotated[
        bool,
        option(
            "Data",
            "--merge",
            help="Take all files of the folder as scored word pairs, each on its own scale, without copies of pairs, "
            "and split them 70:15:15.",
        ),
    ] = False
    score_range: Annotated[
        str | None,
        option("Data", metavar="LOW,HIGH", help="Lowest and highest possible score.", show_default="detected"),
    ] = None
    validation: Annotated[Path | None, option("Data", help="File with the validation split.")] = None
    test: Annotated[Path | None, option("Data", help="File with the test split.")] = None
    split_seed: Annotated[int, option("Data", help="Seed of the split of data that has no predefined split.")] = 0
    file_format: Annotated[
        list[str] | None,
        option(
            "Data",
            "--format",
            metavar="KEY=VALUE,...",
            callback=_format_checked,
            help=f"How a text file is written: delimiter={'|'.join(DELIMITERS)} or one character, encoding=cp1252, "
            "decimal=. or a comma, quotes=yes|no, header=yes|no, such as delimiter=;,decimal=,",
            show_default="detected",
        ),
    ] = None
    delimiter: Annotated[str | None, _OLD] = None
    encoding: Annotated[str | None, _OLD] = None
    decimal: Annotated[Literal[".", ","] | None, _OLD] = None
    quotes: Annotated[bool | None, typer.Option("--quotes/--no-quotes", hidden=True)] = None
    header: Annotated[bool | None, typer.Option("--header/--no-header", hidden=True)] = None
    skip_broken: Annotated[bool, option("Data", "--skip-broken", help="Skip images that do not open.")] = False
    keep_overlaps: Annotated[
        bool,
        option(
            "Data",
            "--keep-overlaps",
            help="Keep examples that stand in two splits. By default they are left out of the train or validation "
            "split; kept ones spoil the scores, and nothing is claimed from these.",
        ),
    ] = False
    skip_empty: Annotated[
        bool, option("Data", "--skip-empty", help="Skip rows that have an empty cell, or what stands for one.")
    ] = False
    query_prompt: Annotated[
        str | None,
        option("Data", help='Before every query of a retrieval task, such as "query: ".', show_default="--prompt"),
    ] = None
    document_prompt: Annotated[
        str | None, option("Data", help='Before every document of one, such as "passage: ".', show_default="--prompt")
    ] = None

    @property
    def format(self) -> Format:
        """How files are written."""
        old = {name: getattr(self, name) for name in FORMAT_KEYS}
        given = parse_format(self.file_format or ())
        try:
            return Format(**{name: value for name, value in old.items() if value is not None} | given)
        except DataError as error:
            raise typer.BadParameter(str(error)) from None

    def settings(self, source: str) -> TaskSettings:
        """Return where a task is and how it is read."""
        from layerprobe.tasks.values import TaskSettings

        of_file = {name: getattr(self.format, name) for name in FORMAT_KEYS}
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(TaskSettings)[1:]} | of_file
        given |= {name: None if given[name] is None else str(given[name]) for name in ("validation", "test")}
        columns = None if self.columns is None else tuple(part.strip() for part in self.columns.split(","))
        return TaskSettings(source=source, **given | {"columns": columns, "score_range": two_numbers(self.score_range)})

    def load(self) -> Task:
        """Return the task."""
        from layerprobe.tasks.loading import load_settings

        if not self.task:
            raise typer.BadParameter("expected sentence pairs: give --task FILE, or --task stsb")
        try:
            settings = self.settings(self.task)
        except DataError as error:
            raise typer.BadParameter(str(error)) from None
        return load_settings(settings)


TextsOf = Annotated[
    Literal["all", "train", "validation", "test"],
    option("Data", "--split", help="Whose texts of the task are embedded and compared."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSource(TaskSource):
    """Texts to embed: those of a task, or a file without scores."""

    split: TextsOf = "all"

    texts: Annotated[
        Path | None,
        option(
            "Data",
            help="Texts without scores: one per line of a text file, or a table; or images: a folder, a Parquet file, "
            "or a table of their paths, with captions or without.",
        ),
    ] = None

    documents: Annotated[
        str | None,
        option(
            "Data",
            help="Column of the --texts table that names the document of a text: intervals then treat documents, not "
            "texts, as independent.",
        ),
    ] = None

    def load_texts(self) -> LoadedTexts:
        """Return the texts, with the task that they come from where there is one."""
        from layerprobe.tasks.loading import load_texts

        if self.documents is not None and self.texts is None:
            raise typer.BadParameter("expected --texts TABLE with --documents")

        if (self.task is None) == (self.texts is None):
            raise typer.BadParameter("expected either --task or --texts")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in () if self.texts is None else (*OF_LABELS, "split"):
            if getattr(self, name) != defaults[name]:
                raise typer.BadParameter(f"expected no --{name.replace('_', '-')} with --texts: it is of a --task")
        if self.texts is None:
            task = self.load()
            items = task.split(self.split)
            return LoadedTexts(texts=items.texts, items=items, notes=task.notes, warnings=task.warnings, task=task)
        file = load_texts(
            self.texts,
            columns=self.columns,
            documents=self.documents,
            format=self.format,
            skip_empty=self.skip_empty,
            skip_broken=self.skip_broken,
        )
        # a text that is in several documents counts for the first
        documents = None
        if file.documents is not None:
            documents = dict(zip(file.texts[::-1], file.documents[::-1], strict=True))
        return LoadedTexts(texts=file.texts, notes=file.notes, warnings=file.warnings, documents=documents)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSources(TaskSource):
    """Several tasks that are read alike."""

    task: Annotated[
        list[str] | None,
        option(
            "Data",
            "--task",
            "-t",
            autocompletion=tasks,
            help="A task as `layerprobe finetune` takes it. Given again: further tasks, read alike.",
        ),
    ] = None  # type: ignore[assignment]

    def all_settings(self) -> tuple[TaskSettings, ...]:
        """Return where the tasks are."""
        if not self.task or not all(self.task):
            raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
        return tuple(map(self.settings, self.task))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTexts:
    """What a `TextSource` led to."""

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


ReferenceRandomInit = Annotated[
    int | None, option("Comparison", metavar="SEED", min=0, help="Fresh random weights for the reference.")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """The models to compare with."""

    reference: Annotated[
        list[str] | None,
        option(
            "Comparison",
            "--reference",
            "-r",
            help="A model pretrained by masked language modelling, of the same depth where there is one. Given again: "
            "further references; the prediction is from the first.",
            show_default="none: rules that read the model alone",
        ),
    ] = None
    reference_name: Annotated[
        list[str] | None,
        option(
            "Comparison", help="What to call the reference. Given again: further ones.", show_default="its own name"
        ),
    ] = None
    reference_random_init: ReferenceRandomInit = None

    def resolve(self, loading: Loading, items: Readable | None = None) -> list[Checkpoint]:
        """Return the checkpoints of all references; none where none was given."""
        references, names = self.reference or [], self.reference_name or []
        if len(names) > len(references):
            raise typer.BadParameter(f"expected a --reference for each --reference-name, got {len(references)}")
        if not references and self.reference_random_init is not None:
            raise typer.BadParameter("expected --reference with --reference-random-init, got none")
        return loading.resolve_all(references, random_init=self.reference_random_init, names=names, items=items)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity:
    """How two models are compared by CKA."""

    kernel: Annotated[
        Literal["linear", "rbf"] | None,
        option(
            "Comparison",
            help="Kernel of CKA; rbf is exp(-d² / 2σ²) with σ² the median of d² over all pairs.",
            show_default="linear",
        ),
    ] = None
    estimator: Annotated[
        Literal["debiased", "biased"] | None,
        option(
            "Comparison",
            help="Estimator of HSIC; biased values rise with the width and have no intervals.",
            show_default="debiased",
        ),
    ] = None
    normalize: Annotated[
        Literal["raw", "zscore"],
        option("Comparison", help="Features as they are, or each divided by its standard deviation."),
    ] = "raw"
    bandwidth: Annotated[
        float | None,
        option(
            "Comparison",
            min=1e-6,
            max=1e6,
            help="rbf: sigma in units of the root of the median squared distance.",
            show_default="1.0",
        ),
    ] = None
    alignment: Annotated[
        Literal["auto", "same-index", "relative-depth", "best-match"],
        option(
            "Comparison",
            help="Which layer of the reference a layer is compared with; auto is same-index where the depths agree.",
        ),
    ] = "auto"

    def settings(self) -> dict[str, Any]:
        """Return measure and alignment as the library takes them."""
        return self._settings(["cka"])[0]

    def _settings(self, measures: Sequence[str], **options: int | None) -> list[dict[str, Any]]:
        """Return measure and alignment for each measure; an option that none of them has is refused."""
        from layerprobe.similarity.values import Measure

        fields = {"kernel": self.kernel, "estimator": self.estimator, "bandwidth_multiplier": self.bandwidth, **options}
        given = {name: value for name, value in fields.items() if value is not None}
        chosen, names, unknown = [], [], set(given)
        for measure in measures:
            kind, values = Measure.class_of({"name": measure, "normalize": self.normalize, **given})
            known = {field.name for field in dataclasses.fields(kind)}
            chosen.append(kind(**{name: value for name, value in values.items() if name in known}))
            names.append(" ".join(getattr(kind, tag) for tag in reversed(kind.json_tags)))
            unknown &= values.keys() - known
        if unknown:
            refused = ", ".join(sorted(f"--{name.removesuffix('_multiplier')}" for name in unknown))
            raise typer.BadParameter(f"expected no {refused} with {' and '.join(names)}: it has no such setting")
        alignment = None if self.alignment == "auto" else self.alignment
        return [{"measure": measure, "alignment": alignment} for measure in chosen]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnySimilarity(Similarity):
    """How two models are compared by any measure."""

    measure: Annotated[
        list[str] | None,
        option(
            "Comparison",
            metavar="NAME",
            autocompletion=names_of("layerprobe.similarity.registry:MEASURES"),
            help="Measure of similarity: {measures}; --kernel, --estimator and --bandwidth are those of cka. Given "
            "again: further measures.",
            show_default="cka",
        ),
    ] = None
    neighbours: Annotated[
        int | None,
        option("Comparison", min=1, help="Nearest neighbours that count, of measures by these.", show_default="10"),
    ] = None

    def all_settings(self) -> list[dict[str, Any]]:
        """Return measure and alignment as the library takes them, for each measure; an option goes to those with it."""
        return self._settings(list(dict.fromkeys(self.measure or ["cka"])), neighbours=self.neighbours)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """How truncated models are fine-tuned."""

    seeds: Annotated[
        str, option("Fine-tuning", help="How many seeds, counted from 0, or a list of them such as 3,5,8.")
    ] = "5"
    epochs: Annotated[int, option("Fine-tuning", metavar="N", min=1, help="Passes over the training examples.")] = (
        PAPER.epochs
    )
    learning_rate: Annotated[
        float | None,
        option(
            "Fine-tuning",
            min=1e-12,
            help="Peak of the linear schedule.",
            show_default=f"{PAPER.learning_rate:g}, or {LORA_LEARNING_RATE:g} with --lora",
        ),
    ] = None
    batch_size: Annotated[int, option("Fine-tuning", min=1, help="Examples a step.")] = PAPER.batch_size
    weight_decay: Annotated[float, option("Fine-tuning", min=0, help="Of matrices.")] = PAPER.weight_decay
    warmup: Annotated[float, option("Fine-tuning", min=0, max=0.99, help="Share of the steps.")] = PAPER.warmup
    max_grad_norm: Annotated[float, option("Fine-tuning", min=1e-12, help="Gradients are clipped to this norm.")] = (
        PAPER.max_grad_norm
    )
    lora: Annotated[
        int,
        option(
            "Fine-tuning",
            metavar="RANK",
            callback=_can_adapt,
            min=0,
            max=MAX_RANK,
            help="Train low-rank adapters of this rank in the place of all weights.",
            show_default="0: all weights",
        ),
    ] = PAPER.lora
    lora_alpha: Annotated[
        int | None,
        option("Fine-tuning", min=1, help="Adapters count by this over their rank.", show_default="twice the rank"),
    ] = None
    lora_modules: Annotated[
        str | None,
        option(
            "Fine-tuning",
            metavar="NAMES",
            help="Which linear modules get adapters, such as query,value.",
            show_default="all of the blocks",
        ),
    ] = None
    gradient_checkpointing: Annotated[
        bool,
        option(
            "Fine-tuning",
            "--gradient-checkpointing",
            help="Compute activations again in the backward pass: less memory, more time.",
        ),
    ] = PAPER.gradient_checkpointing

    def protocol(self, embedding: Embedding) -> Protocol:
        """Return them as the library takes them."""
        names = {field.name for field in dataclasses.fields(Protocol)}
        values = {name: value for name, value in (vars(embedding) | vars(self)).items() if name in names}
        if not self.lora and (self.lora_alpha is not None or self.lora_modules is not None):
            raise typer.BadParameter("expected --lora RANK with --lora-alpha and --lora-modules")
        modules = tuple(name.strip() for name in (self.lora_modules or "").split(",") if name.strip())
        rate = self.learning_rate or (LORA_LEARNING_RATE if self.lora else PAPER.learning_rate)
        return Protocol(
            **values
            | {
                "pooling": embedding.pooling or PAPER.pooling,
                "max_length": embedding.max_length or PAPER.max_length,
                "learning_rate": rate,
                "lora_modules": modules,
            }
        )

    def seed_list(self) -> tuple[int, ...]:
        """Return the seeds."""
        seeds = integers(self.seeds, "--seeds")
        if "," not in self.seeds and seeds[0] > MAX_SEEDS:
            raise typer.BadParameter(f"expected at most {MAX_SEEDS} seeds, or a list such as 3,5,8, got {self.seeds!r}")
        listed = seeds if "," in self.seeds else tuple(range(seeds[0]))
        if not listed or max(listed) >= 2**63:
            raise typer.BadParameter(f"expected at least one seed, none above 2^63, for --seeds, got {self.seeds!r}")
        return listed


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchTuning(Tuning):
    """How models are fine-tuned in a search."""

    seeds: Annotated[str, option("Fine-tuning", metavar="N", help="Seeds per layer at most.")] = "5"

    def n_seeds(self) -> int:
        """Return how many seeds a layer may have."""
        seeds = self.seed_list()
        if "," in self.seeds:
            raise typer.BadParameter(f"expected a number of seeds such as 5 for --seeds, got {self.seeds!r}")
        return len(seeds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How the best layer is searched for."""

    tolerance: Annotated[
        float,
        option("Search", metavar="POINTS", min=0, help="Score loss you accept for a smaller model, metric x 100."),
    ] = 0.5
    budget: Annotated[
        str | None,
        option(
            "Search",
            metavar="SHARE",
            help="Share of the cost of a full sweep (every layer, every seed) to spend at most, such as 15% or 0.15.",
            show_default="15%; all of it up to 4 blocks",
        ),
    ] = None
    cross_validation: Annotated[
        bool | None,
        option(
            "Search",
            "--cross-validation/--no-cross-validation",
            help="Give each seed another part of the training and validation examples to choose by.",
            show_default="below 1,000 validation examples",
        ),
    ] = None

    scan: Annotated[
        bool,
        option("Search", "--scan", help="Begin with a scan, one run with a loss at every layer, which draws a curve."),
    ] = False
    jobs: Annotated[
        int | None,
        option(
            "Machine", "--jobs", min=1, help="Runs at a time.", show_default="one a GPU, else one a core, 4 at most"
        ),
    ] = None
    ray: Ray = None

    def settings(self) -> dict[str, Any]:
        """Return them as the library takes them."""
        return {
            "scan": self.scan,
            "tolerance": self.tolerance,
            "budget": _share(self.budget),
            "cross_validation": self.cross_validation,
            "jobs": self.jobs,
            "ray": self.ray,
        }


def _share(text: str | None) -> float | None:
    """Return the share that `15%` or `0.15` names; raise BadParameter if it is none."""
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not LEAST_BUDGET <= share <= 1:
        raise typer.BadParameter(f"expected a share from 1% to 100% for --budget, such as 15% or 0.15, got {text!r}")
    return share


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
IntervalLevel = Annotated[
    float, option("Comparison", min=0.5, max=0.9999, help="Confidence level of intervals and bands.")
]


def _number_of_texts(number: str) -> int | str:
    if number != "all" and not number.isdecimal():
        raise typer.BadParameter(f"expected a number of texts, or all, got {number!r}")
    return number if number == "all" else int(number)


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
Level = Annotated[
    float, option("Comparison", min=0.5, max=0.9999, help="Confidence level of intervals, bands and verdict.")
]


def _known_rule(name: str | None) -> str | None:
    """Return the name of a rule; a misspelt one is refused before a model is loaded."""
    if name is not None:
        from layerprobe.prediction.tuned import rule_curves

        try:
            rule_curves(name)
        except DataError as error:
            raise typer.BadParameter(str(error)) from error
    return name


RuleName = Annotated[
    str | None,
    option(
        "Prediction",
        "--rule",
        callback=_known_rule,
        autocompletion=names_of("layerprobe.prediction.tuned:rule_names"),
        metavar="NAME",
        help="How a drop is predicted: a rule tuned on DropBench; `layerprobe lab bench --tuned` lists them.",
        show_default="fall of InfoNCE; of the effective rank where texts are single words",
    ),
]
AllSeeds = Annotated[
    bool,
    option(
        "Fine-tuning",
        "--all-seeds",
        help="Run all seeds, also where fewer settle the verdict; its interval is then the ordinary one.",
    ),
]


def given_layers(text: str) -> str:
    """Return a list of layers as it was given; what is none is refused before a model is loaded."""
    if text:
        listed_layers(text)
    return text


def layers_of_model(context: typer.Context, text: str) -> str:
    """Return a list of layers as it was given; one that a local model lacks is reported before torch is loaded."""
    if text and not context.resilient_parsing:
        check_depth(context.params.get("model"), max(listed_layers(text) or (0,)))
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


def new_folder(folder: Path) -> Path:
    """Return a folder to write; one that holds the files of others is refused before torch is loaded."""
    with contextlib.suppress(OSError):
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "README.md").is_file():
            if (folder / "config.json").is_file():
                raise DataError(f"{folder} holds a model: if that is the one to export, it comes first")
            raise DataError(f"{folder} is not empty and holds no model that layerprobe wrote: choose another folder")
    return folder


TextColumn = Annotated[
    str | None,
    option("Data", "--columns", "--column", help="The text column of a table or data set.", show_default="detected"),
]

Layers = Annotated[
    str, option("Fine-tuning", callback=layers_of_model, help="Layers to fine-tune, such as 3,6,9-12 or all.")
]


def parse_layers(text: str, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the layers of a model that `3,6,9-12` or `all` names; none for an empty text.

    Raises:
        typer.BadParameter: If it is no list of layers.
        DataError: If the model has no such layer.
    """
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


def integers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0,1,2`; raise BadParameter if it is none, or a number is negative."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers such as 3 or 0,1,2 for {option}, got {text!r}") from None
    if any(number < 0 for number in numbers):
        raise typer.BadParameter(f"expected no negative number for {option}, got {text!r}")
    return numbers


def two_numbers(text: str | None) -> tuple[float, float] | None:
    """Return the two numbers of `0,5`; raise BadParameter if it is no such text."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected two numbers such as 0,5 for --score-range, got {text!r}") from None
    return low, high


# ---- showing groups to Typer -----------------------------------------------------------------------------


RENAMED = {
    "retrieve": "score",
    "summarize": "score",
    "across": "score",
    "metrics": "readings",
    "scan": "finetune --scan",
    "bench-predictors": "lab bench",
    "lab run": "lab study",
    **{name: f"lab {name}" for name in ("adapt", "chain", "ensemble", "pretrain", "reproduce", "sweep")},
}
"""Commands by their names until 2026-11, which go on working for one release."""


class Commands(TyperGroup):
    """Commands, also by their old names."""

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """Return the command that words call, and the words after its name."""
        group = [] if context.parent is None else [str(context.info_name)]
        old = " ".join([*group, args[0]])
        if old in RENAMED:
            context.meta[OLD_NAME] = old
            if not {"-q", "--quiet"} & set(args):
                typer.echo(f"note: 'layerprobe {old}' is now 'layerprobe {RENAMED[old]}'", err=True)
            args = [*RENAMED[old].split()[len(group) :], *args[1:]]
        return super().resolve_command(context, args)


OLD_NAME = "layerprobe.old_name"
"""Where a context keeps the old name that a command was called by."""


USUAL = {
    "Data": ("task", "texts", "columns", "file_format", "kind", "corpus"),
    "Model": ("pooling", "device", "size"),
    "Comparison": ("reference", "measure"),
    "Fine-tuning": ("seeds", "epochs", "layers", "fine_tuning", "save_models", "scan"),
    "Search": ("tolerance", "budget"),
    "Training": ("steps", "epochs", "max_steps", "learning_rate", "batch_size", "seed"),
    "Prediction": (),
    "Retrieval": (),
    "Machine": (),
    "Report": ("report",),
    "Probing": ("groups", "targets_are", "target", "tolerance"),
}
"""What --help shows of each panel; of the others it shows all."""


HELP_ALL = "help_all"


class Command(TyperCommand):
    """A command whose help has the usual options, and by --help-all every one.

    Names of what is registered are looked up when it is shown: other packages may add to it.
    """

    def make_context(self, *words: Any, **settings: Any) -> Any:
        """Return the context of a call, whose options are checked; what they contradict is one line, as elsewhere."""
        try:
            return super().make_context(*words, **settings)
        except typer.BadParameter as error:
            if found := getattr(error.__cause__, "errors", None):  # of pydantic, which does not say what came
                given, said = found()[0]["input"], error.message.removeprefix("Value error, ").rstrip(".")
                said = said.replace("Input should be", "expected")
                error.message = said if repr(given) in said else f"{said}, got {given}"
            raise
        except LayerProbeError as error:
            fail(str(error))
            raise typer.Exit(1) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
        from layerprobe.readings.registry import CKA, READINGS
        from layerprobe.similarity.registry import MEASURES

        readings = [name for name in READINGS if name != CKA]  # compare has that
        registered = {"{measures}": MEASURES, "{readings}": readings, "{objectives}": OBJECTIVES}
        n_more = 0
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and not parameter.hidden:
                usual = USUAL.get(parameter.rich_help_panel or "")
                parameter.hidden = not (ctx.meta.get(HELP_ALL) or usual is None or parameter.name in usual)
                n_more += parameter.hidden
                for place, names in registered.items():
                    parameter.help = (parameter.help or "").replace(place, ", ".join(names))
        self.epilog = f"{n_more} more options: {ctx.command_path} --help-all" if n_more else None
        super().format_help(ctx, formatter)


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[bool, typer.Option("--help-all", hidden=True, is_eager=True, callback=_help_all)]
"""Not in the help, which says in its last line where it shows more."""


def given_options(context: typer.Context, *groups: type, others: tuple[str, ...] = ()) -> set[str]:
    """Return which options of groups, and which others, were given on the command line, be it at their defaults."""
    names = {field.name for group in groups for field in dataclasses.fields(group)} | set(others)
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def flag(context: typer.Context, name: str) -> str:
    """Return an option as it is given on the command line, such as --format."""
    return next(parameter.opts[0] for parameter in context.command.params if parameter.name == name)


def finetune_command(context: typer.Context, model: str) -> str:
    """Return the `layerprobe finetune` that trains as this command does, without layers and seeds."""
    given = given_options(context, TaskSource, Embedding, Tuning) - {"seeds"}
    return further_command(context, ["finetune", model], given - _of_first(context, model))


def find_command(context: typer.Context, model: str) -> str:
    """Return the `layerprobe find` of a model on the task of this command."""
    given = given_options(context, TaskSource, Embedding)
    return further_command(context, ["find", model], given - _of_first(context, model))


def export_layer(context: typer.Context, model: str, layer: int, folder: str) -> list[str]:
    """Return the `layerprobe export` of a layer of this command's model; none where it would be of another one."""
    if given_options(context, others=NOT_EXPORTED) or context.params.get("norm") == "raw":
        return []
    given = given_options(context, others=EXPORTED)
    return [further_command(context, ["export", model, folder, "--layer", str(layer)], given)]


EXPORTED = "pooling", "max_length", "prompt", "random_init", "end_token", "keep_blocks"
"""Options that say what a model is, as `layerprobe export` takes them."""
NOT_EXPORTED = "trust_remote_code", "query_prompt", "document_prompt"
"""Those that it lacks, without which it would write another model."""


def _of_first(context: typer.Context, model: str) -> set[str]:
    """Return which options are not about a model: those of the first one for a further one."""
    return set() if model == context.params["model"] else {"name", "keep_blocks"}


def further_command(context: typer.Context, words: Sequence[str], given: Collection[str]) -> str:
    """Return another command that has some of the options that this one was given."""
    words = ["layerprobe", *words]
    for parameter in context.command.params:
        if parameter.name not in given:
            continue
        value = context.params[parameter.name]
        for each in value if isinstance(value, list | tuple) else [value]:
            named = parameter.secondary_opts if each is False else parameter.opts
            words += [named[0]] if isinstance(each, bool) else [named[0], str(each)]
    return shlex.join(words)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with every argument that is a group replaced by the group's options.

    A dataclass of the library is a group with its options beside it, by field: Annotated[Protocol, {"epochs": ...}].
    """
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *options = typing.get_args(hints[name]) or (hints[name],)
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        group = _parameters(typing.cast(type, kind), *options)
        groups[name] = typing.cast(type, kind), [each.name for each in group]
        parameters += group
    parameters.sort(key=lambda parameter: parameter.name in ("json", "quiet"))  # the last ones in every help
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters.append(inspect.Parameter(HELP_ALL, keyword, default=False, annotation=_HelpAll))

    @functools.wraps(command)
    def with_groups(**values: Any) -> None:
        del values[HELP_ALL]
        for name, (kind, fields) in groups.items():
            values[name] = kind(**{field: values.pop(field) for field in fields})
        command(**values)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_groups


def _parameters(group: type, options: Mapping[str, Any] | None = None) -> list[inspect.Parameter]:
    hints, fields = typing.get_type_hints(group, include_extras=True), dataclasses.fields(group)
    if options is not None:
        hints = {name: Annotated[hints[name], option] for name, option in options.items()}
    empty, defaults = inspect.Parameter.empty, {field.name: field.default for field in fields}
    defaults = {name: empty if value is dataclasses.MISSING else value for name, value in defaults.items()}
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name])
        for name in options or defaults
    ]
