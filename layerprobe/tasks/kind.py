"""What a kind of task says of itself, and which kinds there are. Knows neither files nor models.

Nothing heavy is imported before a kind is used, so that `--help` can name all of them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from layerprobe.errors import DataError
from layerprobe.metrics.names import Split
from layerprobe.registry import Registry
from layerprobe.tasks.cells import detect_range, label_cell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layerprobe.stats.floors import Floor

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
class Kind:
    """What is learnt: how files of it look, how outputs are scored, and what is trained.

    What is written `module:attribute` is loaded when it is used, so that data are read without torch and scikit-learn.
    """

    name: str
    """As it is registered."""
    pairs: bool
    """Whether an example is two texts; one otherwise."""
    labelled: bool
    """Whether targets are classes; otherwise they are scores, which are scaled to 0 .. 1."""
    metrics: tuple[str, ...]
    """Names in `METRICS`: epochs and layers are chosen by the first, and verdicts are about it."""
    score: Callable[..., dict[str, float]]
    """Outputs and gold of the items, and the threshold where there is one -> the metrics, 0 .. 1."""
    loss: str
    """The `Criterion`, with its head; a `Loss` where it is of embeddings."""
    zero_shot: Literal["cosine", "probe", "own"]
    """How untrained embeddings are scored: the cosines of pairs as outputs, those of the probe, or by `untrained`."""
    influences: Callable[..., dict[str, Array]] | None = None
    """As `score` -> (n,) influences of the items on the metrics, see `layerprobe.metrics.scores`; of a metric that
    is not among them they are computed by leaving items out, which is too little an error of over 1,000 linked ones."""
    probe: str | None = None
    """The `Probe` of frozen embeddings; with cosines it is a reading of its own."""
    threshold: Callable[[Array, Any], float] | None = None
    """Outputs and gold -> the output from which on an example is of class 1, or what a question may be unanswered by;
    chosen on the validation split."""
    one_target: bool = False
    """Whether outputs can be scored where all targets are equal: a correlation or a precision cannot."""
    classes: tuple[str, ...] = ()
    """Names of the classes, where they are always the same."""
    score_range: Callable[[Sequence[float]], tuple[float, float]] = detect_range
    """Scores -> what 0 and 1 are in the source, where targets are scores and nobody says."""
    target_columns: tuple[str, ...] = LABEL_COLUMNS
    """Usual names of the target's column, written as `LABEL_COLUMNS`; the first in a file is taken."""
    read_label: Callable[[str, str], str] = lambda cell, place: label_cell(cell)
    """Cell and place -> the label; empty where it is missing."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the columns of a table are called and the usual names of each, written as `LABEL_COLUMNS`, where a row is an
    item of the kind's own, see `layerprobe.tasks.loading.load_rows`; empty of texts or pairs with a target."""
    items: str = "layerprobe.tasks.values:Examples"
    """The class of a split's `Items`."""
    item: str = ""
    """What an item is called; by default pair or text."""
    loader: str | None = None
    """What loads a task from a source that is not tables of texts and targets, see `layerprobe.tasks.loading`."""
    unlabelled: str | None = None
    """What loads items without targets from a source that `recognises` knows, see `load_texts` of `tasks.loading`;
    None where items are texts."""
    merged: str | None = None
    """What loads several data sets as one task; None where that is not done."""
    prompts: bool = False
    """Whether items are queries with documents, which can have a prompt each."""
    recognises: Callable[[Path], bool] = _never
    """Whether a file or folder can only be of this kind, where the user names none; asked where there is a loader."""
    untrained: str | None = None
    """What scores frozen embeddings, where that is neither cosines nor a probe: as `layerprobe.scoring.zero_shot`."""
    outputs: str | None = None
    """What `untrained` does with the embeddings of one layer: (text, width), which rows texts have, and the items ->
    outputs as `score` takes them. None where it reads states of tokens."""
    view: str | None = None
    """What a page shows of single items and of outputs for them: a task and items of it -> `ItemView`; None where pages
    show no items."""
    ways: str | None = None
    """Further ways to make outputs of frozen embeddings, beside baselines: a checkpoint and a task -> `Ways`."""
    floors: Callable[[Any], dict[str, Floor]] = lambda items: {}
    """The items of a split -> what a trivial answer scores, by metric; metrics without one are left out."""
    primary_if_rare: str | None = None
    """The metric in place of the first where a class is rare, see `has_rare_class`; None where it stays the first."""
    averages: Literal["values", "probabilities"] | None = None
    """How outputs of several models become one: their mean, or that of the softmax of logits, whose last axis is the
    classes. None where a mean says nothing, as of places in a text: such runs make no ensemble."""
    detects: Callable[[AbstractSet[str]], bool] = _never
    """Whether a file with these distinct targets is of this kind, where the user names none."""

    @property
    def unit(self) -> str:
        """What an item is called."""
        return self.item or ("pair" if self.pairs else "text")

    @property
    def layout(self) -> str:
        """The columns of a file."""
        return f"{'first,second' if self.pairs else 'text'},{'label' if self.labelled else 'score'}"

    @property
    def fitted_on(self) -> Split | None:
        """The split that zero-shot scores need beside the one that is scored."""
        if self.zero_shot == "probe":
            return "train"
        return "validation" if self.threshold is not None else None

    @property
    def fits(self) -> bool:
        """Whether zero-shot scores need another split, for a probe or a threshold."""
        return self.fitted_on is not None or (self.zero_shot == "own" and self.probe is not None)

    def load(self, field: str) -> Any:
        """Return what a field such as loss, items or untrained names; None where it names nothing.

        Raises:
            DataError: If it cannot be loaded.
        """
        if (reference := getattr(self, field)) is None:
            return None
        try:
            return pkgutil.resolve_name(reference)
        except (ImportError, AttributeError, ValueError) as error:
            raise DataError(f"{reference} cannot be loaded: {error}") from error


KINDS: Registry[Kind] = Registry("layerprobe.kinds", Kind, what="kind of task", shipped="layerprobe.kinds:KINDS")


def detect_kind(targets: Iterable[str], *, pairs: bool) -> str:
    """Return the kind of task that target cells belong to; kinds from outside are asked before those of layerprobe.

    Examples:
        >>> detect_kind(["0", "1"], pairs=True), detect_kind(["0", "0.5"], pairs=True), detect_kind(["yes"], pairs=True)
        ('paraphrase', 'sts', 'entailment')
    """
    distinct = {label_cell(cell).lower() for cell in targets} - {""}
    kinds = sorted(KINDS.usable().values(), key=lambda kind: kind.name in KINDS.shipped)
    return next(kind.name for kind in kinds if kind.pairs == pairs and kind.detects(distinct))
