"""The base class of results: a line, a table, a plot and a page; their files; and estimates, which dry runs show.

Knows the classes of results from a registry alone.
"""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from layerprobe.context import duration
from layerprobe.errors import DataError, LayerProbeError, one_line
from layerprobe.files.atomic import write_file
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import field_types, from_dict, parse_json, sealed, to_dict, to_json, unsealed
from layerprobe.names import some
from layerprobe.registry import Registry
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.table import FILES, Column, Form, Table, importing

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from layerprobe.results.document import Markup

T = TypeVar("T")
logger = logging.getLogger(__name__)
PlotlySource = Literal["embedded", "cdn"]
"""Source of Plotly on a page: embedded, or loaded from the network."""
IMAGES = (".png", ".svg", ".pdf")
"""Endings of image files."""


class Shown(abc.ABC):
    """A result with a summary, a table, plots and a page.

    A subclass has a conclusion, which `words` turns into texts, and a table, the source of terminal, page, notebook,
    CSV and DataFrames. It is a dataclass with `repr=False`, since a dataclass would write its own `__repr__`.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def conclusion(self) -> Conclusion:
        """The conclusion as numbers: verdict, facts, checks and next steps."""

    @property
    def summary(self) -> str:
        """The result in one line: headline and certainty."""
        headline, certainty = words.headline(self.conclusion), words.certainty(self.conclusion)
        return f"{headline} ({certainty[:1].lower()}{certainty[1:]})" if certainty else headline

    @property
    @abc.abstractmethod
    def table(self) -> Table:
        """All numbers as one long table, with charts of its columns; the first chart shows the answer."""

    @property
    def details(self) -> Sequence[Table]:
        """Further tables with titles and charts, such as the table of runs."""
        return ()

    @property
    def sources(self) -> Mapping[str, str]:
        """Sources of the numbers by name: models with revisions, digests of data, settings, versions."""
        return {}

    @property
    def verdict(self) -> Verdict:
        """Confidence in the conclusion: decided, probable, undecided, failed or nothing to do."""
        return self.conclusion.verdict

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Key numbers by name, such as `facts["gain"].value` with its `interval`."""
        return self.conclusion.facts

    def __str__(self) -> str:
        from layerprobe.results import terminal

        return terminal.shown(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        from layerprobe.results import document

        return document.in_notebook(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a DataFrame, with the columns of its CSV.

        Raises:
            LayerProbeError: If pandas is not installed.
        """
        return self.table.to_pandas()

    def to_json(self) -> str:
        """Return the result as JSON, with its conclusion; `layerprobe.load` reads it back."""
        conclusion = self.conclusion
        texts = {"headline": words.headline(conclusion), "certainty": words.certainty(conclusion)}
        return to_json({**to_dict(self), "conclusion": texts | to_dict(conclusion)})

    def plot(self, name: str | None = None) -> go.Figure:
        """Return a figure of its page: the first one, or the first of this name, such as front.

        Raises:
            DataError: If there is no such figure, for example because nothing was scored.
            LayerProbeError: If plotly is not installed.
        """
        with importing():
            from layerprobe.results import draw

        figures = draw.figures(self)
        plots: list[go.Figure] = [figure.plot for figure in figures if name is None or figure.name == str(name)]
        if not plots:
            wanted = "something" if name is None else one_line(f"{name!s:.40}") or "''"
            there = "one with " + ", ".join(figure.name for figure in figures) if figures else self.summary
            raise DataError(f"expected a {type(self).__name__} with {wanted} to plot, got {there}")
        return plots[0]

    def explore(self) -> Markup:
        """Return single items for a notebook: the outputs of two layers side by side, and a map of the texts.

        Raises:
            DataError: If the result has no items, for example because it was read from a file.
            LayerProbeError: If plotly is not installed.
        """
        from layerprobe.results import document

        return document.items_alone(self)

    def save_html(self, path: str | Path, *, plotly: PlotlySource = "embedded", texts: bool | None = None) -> Path:
        """Write the page of the result and return the path.

        Args:
            path: File to write; .png, .svg and .pdf hold the first figure alone, as `plot` returns it.
            plotly: Whether to embed Plotly in the page or load it from the network.
            texts: Whether to show single items with their texts, where these are known; by default if that adds at most
                1.5 MB.

        Raises:
            LayerProbeError: If plotly is not installed, or the file cannot be written.
        """
        from layerprobe.results import document

        if is_image(path):
            return document.write_figure(path, self.plot())
        return document.write_page(path, document.render(self, plotly=plotly, texts=texts))


OneLayer = int | str | Shown
"""A layer: its number, or a result that chooses one."""
Layers = OneLayer | Sequence[int | Shown]
"""Layers: numbers, a text such as 3,6,9-12, or results that choose one each."""


def is_image(path: str | Path) -> bool:
    """Return whether a file has an ending of `IMAGES`."""
    return Path(path).suffix.lower() in IMAGES


def mask_left_out(layers: Collection[int], values: Sequence[T]) -> list[T | None]:
    """Return values by layer, with None for layers that are left out.

    Examples:
        >>> mask_left_out(range(1, 3), (0.5, 0.5, 0.4, 0.4))
        [None, 0.5, 0.4, None]
    """
    return [value if layer in layers else None for layer, value in enumerate(values)]


class LeavesOut:
    """A value that repeats the nearest layer for layers left out; its JSON has null for them."""

    __slots__ = ()
    first_layer: Any
    collapsed: Any
    by_layer: ClassVar[tuple[str, ...]]
    """Names of fields, its own or of its parts, with one value per layer, or such lists by name."""

    def as_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values in their JSON form."""
        first, last = self.first_layer, self.collapsed
        return _changed(values, self.by_layer, lambda v: mask_left_out(range(first, len(v) - last), v))

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type, dict[str, Any]]:
        """Return this class and its fields from JSON."""

        def repeated(values: list[Any]) -> list[Any]:
            layers = [layer for layer, value in enumerate(values) if value is not None]
            return [values[min(max(i, layers[0]), layers[-1])] for i in range(len(values))] if layers else values

        return cls, _changed(data, cls.by_layer, repeated)


def _changed(value: Any, names: Collection[str], change: Callable[[list[Any]], list[Any]], here: bool = False) -> Any:
    """Return plain data with the lists in some fields changed, also where a field maps names to lists."""
    if isinstance(value, dict):
        return {name: _changed(item, names, change, here or name in names) for name, item in value.items()}
    if isinstance(value, list):
        return change(value) if here else [_changed(item, names, change) for item in value]
    return value


SHIPPED = {
    "Finding": "layerprobe.study.values:Finding",
    "Prediction": "layerprobe.study.values:Prediction",
    "Scores": "layerprobe.scoring.scores:Scores",
    "TuningResult": "layerprobe.finetuning.values:TuningResult",
    "Differences": "layerprobe.comparison.differences:Differences",
    "Comparison": "layerprobe.comparison.values:Comparison",
    "Comparisons": "layerprobe.comparison.values:Comparisons",
    "Probing": "layerprobe.probing.values:Probing",
    "Shrunk": "layerprobe.shrinking.values:Shrunk",
    "Profiles": "layerprobe.profiling.values:Profiles",
    "Profile": "layerprobe.profiling.values:Profile",
    "SimilarityMap": "layerprobe.similarity.values:SimilarityMap",
    "DropPrediction": "layerprobe.prediction.values:DropPrediction",
    "LayerCurve": "layerprobe.readings.reading:LayerCurve",
    "LayerScores": "layerprobe.scoring.values:LayerScores",
    "SearchAnswer": "layerprobe.search.values:SearchAnswer",
    "ExportResult": "layerprobe.export.run:ExportResult",
    "Diagnosis": "layerprobe.extraction.check:Diagnosis",
    "Snapshot": "layerprobe.extraction.snapshot:Snapshot",
}
"""The classes of results by name, in the order in which `read_result` tries them."""
RESULTS: Registry[type] = Registry("layerprobe.results", type, what="class of results", shipped=SHIPPED)
"""The classes of results by name; JSON is read as the first class whose fields it has."""


def save(result: Shown, path: str | Path) -> Path:
    """Save a result in the format of the file's ending, and return the path.

    Args:
        result: The result of a function of layerprobe.
        path: `.json` for the full result, which `load` reads back; `.html` for its page; `.png`, `.svg` or `.pdf` for
            its first figure, as `plot` returns it; `.csv`, `.parquet` or `.tex` for its table; `.safetensors` for the
            full result of `probe` with its fitted probes, which `load` reads back.

    Raises:
        DataError: If it is not a result, or the file has another ending.
        LayerProbeError: If the file cannot be written.
    """
    if not isinstance(result, Shown):
        raise DataError(f"expected a result and a path, as in save(finding, 'finding.json'), got {result!r:.80}")
    target = Path(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".html", ".htm", *IMAGES):
        return result.save_html(target)
    if suffix in FILES:
        return result.table.save(target)
    if suffix == ".safetensors" and hasattr(result, "as_safetensors"):
        return write_file(target, result.as_safetensors())
    if suffix != ".json":
        raise DataError(f"cannot save {target.name}: use an ending of .json, .html, {', '.join((*IMAGES, *FILES))}")
    return write_file(target, sealed(result))


def load(path: str | Path) -> Any:
    """Return the result in a file that `save` or `--json` wrote.

    Raises:
        DataError: If the file holds no result.
    """
    file = Path(path)
    try:
        data = read_document(file, None)
        if file.suffix.lower() == ".safetensors":
            return next(kind for kind in _classes() if hasattr(kind, "from_safetensors")).from_safetensors(data)
        return read_result(data.decode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def read_result(text: str) -> Any:
    """Return the result in a JSON text; its class follows from the names of the fields.

    Raises:
        DataError: If the text is not JSON, is not a result, or does not match its checksum.
    """
    data, _ = unsealed(parse_json(text))
    if isinstance(data, dict):
        data.pop("conclusion", None)  # it follows from the rest
    for result in _classes():
        if isinstance(data, dict) and _is_of(result, data):
            return from_dict(result, data)
    keys = some(list(data), 12) if isinstance(data, dict) else type(data).__name__
    raise DataError(f"expected a result as JSON, such as lp.save writes, got {keys or 'nothing'}")


def _classes() -> Iterator[Any]:
    """Yield the classes of results, loaded one by one; a class of another package that cannot be loaded is left out."""
    for name in RESULTS:
        try:
            yield RESULTS[name]
        except DataError as error:
            logger.warning("%s: this class is left out", error)


def _is_of(kind: Any, data: dict[str, Any]) -> bool:
    """Return whether JSON has the fields of a class."""
    fields = field_types(kind)
    data = {name: item for name, item in data.items() if name not in getattr(kind, "json_tags", ())}
    if hasattr(kind, "class_of"):
        with contextlib.suppress(LayerProbeError, LookupError, TypeError):
            _, data = kind.class_of(data)
    return {name for name, (_, is_needed) in fields.items() if is_needed} <= data.keys() <= fields.keys()


FORMS: dict[str, Form] = {
    "parameters": "{:.2f} M".format,
    "steps": ",",
    "gpu_hours": ".3f",
    "cost": lambda share: f"{100 * share:.1f} %",
}
TITLES = {"gpu_hours": "GPU hours"}
BUSY = 2.0
"""Load from which an estimate mentions it: how many times as long work takes as on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated cost of work, which every dry run prints."""

    title: str
    """The work, such as: Fine-tuning electra (3 blocks)."""
    seconds: float | None = None
    """Upper estimate for all of it on an idle machine; None where unknown."""
    load: float = 1.0
    """How many times as long it takes at the machine's current load."""
    computed_on: str = ""
    """Kind of device and precision that the seconds hold for."""
    details: tuple[str, ...] = ()
    """Further sentences."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """One mapping per part of the work, all with the same keys: what distinguishes it, its number of runs, how many
    of them are stored, steps and so on."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The inputs of the estimate by name, as in JSON."""
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.numbers[name]

    @property
    def sentence(self) -> str:
        """The work and its estimated time, as a sentence."""
        on = f" on {self.computed_on}" if self.computed_on else ""
        takes = "" if self.seconds is None else f" takes at most about {duration(self.seconds)}{on}"
        if self.seconds is not None and self.load >= BUSY:
            takes += f"; this machine is busy, so it may take {self.load:.0f} times as long"
        end = "" if self.jobs or self.details[:1] == ("",) else "."
        return " ".join(filter(None, (f"{self.title}{takes}{end}", *self.details)))

    @property
    def table(self) -> Table:
        """One row per part of the work, with totals below."""
        names = list(self.jobs[0]) if self.jobs else []
        columns = (
            Column(name, tuple(job[name] for job in self.jobs), title=TITLES.get(name, ""), form=FORMS.get(name, ""))
            for name in names
        )
        return Table(columns=tuple(columns), title=self.title, notes=self.details)

    @property
    def tables(self) -> tuple[Table | str, ...]:
        """The content for a terminal: the parts of the work as a table, or the sentence."""
        return (self.table,) if self.jobs else (self.sentence,)

    @property
    def record(self) -> dict[str, Any]:
        """The estimate as a mapping for JSON."""
        about = {"title": self.title, "seconds": self.seconds, "load": self.load, "computed_on": self.computed_on}
        return {**about, **self.numbers, **({"jobs": self.jobs} if self.jobs else {}), "sentence": self.sentence}


def together(estimates: Iterable[Estimate], sentence: str) -> Estimate:
    """Return several estimates as one; `{}` in the sentence is replaced by the total time."""
    estimates = tuple(estimates)
    seconds = sum(estimate.seconds or 0.0 for estimate in estimates)
    return Estimate(
        title=" ".join(estimate.sentence for estimate in estimates).removesuffix("."),
        details=(sentence.format(duration(seconds)),),
        numbers={"plans": [estimate.record for estimate in estimates], "seconds": seconds},
    )
