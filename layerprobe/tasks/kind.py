"""Kinds of tasks: their declaration and registry. Knows neither files nor models.

Nothing heavy is imported before a kind is used, so that `--help` can name all of them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from layerprobe.metrics.names import Split
from layerprobe.registry import Registry
from layerprobe.tasks.cells import detect_range, label_cell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layerprobe.stats.floors import Floor
    from layerprobe.tasks.explored import ItemView
    from layerprobe.tasks.rows import TaskSource
    from layerprobe.tasks.values import Items, Task, TextFile

    Array = NDArray[np.float64]

LABEL_COLUMNS = (
    "label",
    "labels",
    "goldlabel",
    "entailmentlabel",
    "entailmentjudgment",
    "class",
    "category",
    "quality",
    "isduplicate",
    "target",
    "sentiment",
)
"""Usual names of a column of labels: lower case, without spaces, underscores and hyphens."""


def _never(source: object) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learning:
    """How embeddings become outputs: by training, by a probe, or as they are. Its parts need torch and scikit-learn."""

    loss: type[Any]
    """The `Criterion`, with its head; a `Loss` if it uses embeddings."""
    probe: Any = None
    """The `Probe` of frozen embeddings; with cosines it is a separate reading."""
    untrained: Callable[..., Any] | None = None
    """Scorer of frozen embeddings, if neither cosines nor a probe: in the form of `layerprobe.scoring.score`."""
    outputs: Callable[..., Array] | None = None
    """The part of `untrained` for one layer: a function from (text, width), the rows of texts, and the items to outputs
    for `Kind.score`. None if it reads states of tokens."""
    ways: Callable[..., Any] | None = None
    """Function from a checkpoint and a task to `Ways`: further ways to make outputs of frozen embeddings, and
    baselines."""


def learning_of(kind: str) -> Callable[[], Learning]:
    """Return a function that imports the parts of the `Learning` of a kind, rows of `layerprobe.kinds`."""

    def learning() -> Learning:
        rows = pkgutil.resolve_name("layerprobe.kinds:LEARNING")[kind]
        return Learning(**{part: pkgutil.resolve_name(row) for part, row in rows.items()})

    return learning


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A kind of task: its files, the scoring of outputs, and the training. Data are read without torch."""

    name: str
    """Registered name."""
    pairs: bool
    """Whether an example has two texts; otherwise one."""
    labelled: bool
    """Whether targets are classes; otherwise they are scores, scaled to 0 .. 1."""
    metrics: tuple[str, ...]
    """Names in `METRICS`: epochs, layers and verdicts use the first."""
    score: Callable[..., dict[str, float]]
    """Function from outputs, gold values and the threshold, if any, to the metrics, 0 .. 1."""
    learning: Callable[[], Learning]
    """Function that imports and returns the loss and the scorers of embeddings."""
    zero_shot: Literal["cosine", "probe", "own"]
    """Scoring of untrained embeddings: by the cosines of pairs, by the probe, or by `Learning.untrained`."""
    own_probe: bool = False
    """Whether `Learning.untrained` fits a probe on the train split."""
    influences: Callable[..., dict[str, Array]] | None = None
    """Like `score`, but returns (n,) influences of the items on the metrics, see `layerprobe.metrics.scores`; for other
    metrics they are computed by leaving items out, which underestimates the error of over 1,000 linked items."""
    threshold: Callable[[Array, Any], float] | None = None
    """Function from outputs and gold values to the output from which an example is of class 1, or a question may be
    unanswered; chosen on the validation split."""
    one_target: bool = False
    """Whether outputs can be scored if all targets are equal, unlike by a correlation or a precision."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if they are always the same."""
    score_range: Callable[[Sequence[float]], tuple[float, float]] = detect_range
    """Function from scores to the values of 0 and 1 in the source, if targets are scores; the default range."""
    target_columns: tuple[str, ...] = LABEL_COLUMNS
    """Usual names of the target's column, in the form of `LABEL_COLUMNS`; the first one in a file is used."""
    read_label: Callable[[str, str], str] = lambda cell, place: label_cell(cell)
    """Function from a cell and its place to the label; empty if it is missing."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns of a table with their usual names, in the form of `LABEL_COLUMNS`, if a row is an item of the kind's own,
    see `layerprobe.tasks.loading.load_rows`; empty for texts or pairs with a target."""
    items: type[Items] | None = None
    """The class of a split's `Items`; None for `Examples`, texts or pairs with a target."""
    item: str = ""
    """Name of an item; by default pair or text."""
    loader: Callable[[TaskSource], Task] | None = None
    """Loader of a task from a source other than tables of texts and targets, see `layerprobe.tasks.loading`."""
    unlabelled: Callable[..., TextFile] | None = None
    """Loader of items without targets from a source that `recognises` accepts, see `load_texts` of `tasks.loading`;
    None if items are texts."""
    merged: Callable[..., Task] | None = None
    """Loader of several data sets as one task; None if unsupported."""
    prompts: bool = False
    """Whether items are queries and documents, with a prompt for each."""
    recognises: Callable[[Path], bool] = _never
    """Whether a file or folder can only be of this kind, if the user names none; used only with a loader."""
    view: Callable[[Task, Any], ItemView] | None = None
    """Function from a task and its items to the `ItemView` of a page; None if pages show no items."""
    floors: Callable[[Any], dict[str, Floor]] = lambda items: {}
    """Function from the items of a split to scores of trivial baselines by metric; metrics without one are absent."""
    primary_if_rare: str | None = None
    """Primary metric if a class is rare, see `has_rare_class`; None: always the first."""
    averages: Literal["values", "probabilities"] | None = None
    """Averaging of several models' outputs: the mean of values, or of the softmax of logits, whose last axis is the
    classes. None if a mean is meaningless, as for places in a text: such runs make no ensemble."""
    detects: Callable[[AbstractSet[str]], bool] = _never
    """Whether a file with these distinct targets is of this kind, if the user names none."""

    @property
    def unit(self) -> str:
        """Name of an item."""
        return self.item or ("pair" if self.pairs else "text")

    @property
    def fitted_on(self) -> Split | None:
        """The split that zero-shot scores need besides the scored one."""
        if self.zero_shot == "probe":
            return "train"
        return "validation" if self.threshold is not None else None

    @property
    def fits(self) -> bool:
        """Whether zero-shot scores need another split, for a probe or a threshold."""
        return self.fitted_on is not None or self.own_probe


KINDS: Registry[Kind] = Registry("layerprobe.kinds", Kind, what="kind of task", shipped="layerprobe.kinds:KINDS")


def detect_kind(targets: Iterable[str], *, pairs: bool) -> str:
    """Return the kind of task of target cells; kinds of other packages take precedence over those of layerprobe.

    Examples:
        >>> detect_kind(["0", "1"], pairs=True), detect_kind(["0", "0.5"], pairs=True), detect_kind(["yes"], pairs=True)
        ('paraphrase', 'sts', 'entailment')
    """
    distinct = {label_cell(cell).lower() for cell in targets} - {""}
    kinds = sorted(KINDS.usable().values(), key=lambda kind: kind.name in KINDS.shipped)
    return next(kind.name for kind in kinds if kind.pairs == pairs and kind.detects(distinct))
