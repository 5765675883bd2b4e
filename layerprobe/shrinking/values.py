"""Results of shrinking a model. Values only."""

import contextlib
import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal

from layerprobe.encoders.model import ModelDescription, described
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, UNSAVED, to_dict
from layerprobe.finetuning.values import Protocol
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name
from layerprobe.results import words
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, columns_of, interval_title, millions
from layerprobe.stats.values import (
    TOLERANCE,
    MarginVerdict,
    front_beyond_noise,
    items_needed,
    joint_error_sources,
    margin_verdict,
    pareto_front,
    upper_end,
)

TRAINING = Protocol(learning_rate=2e-4, epochs=1, batch_size=64, dropout=False, evaluations=5)
"""Default training of a smaller model to agree with the whole one."""
Size = int | str | Sequence[int]
"""Number of kept blocks, the blocks themselves, or a text: `3`, `1,5,6`, at most `50%` of the parameters, `2x` as
fast, or `all` if only the vocabulary shrinks."""


def read_size(size: Size | None) -> int | tuple[int, ...] | tuple[float, Literal["%", "x"]] | Literal["all"] | None:
    """Return the number of blocks, the blocks themselves, a share of the parameters, 0 .. 1, or a speed-up.

    Examples:
        >>> read_size("3"), read_size("1,5,6"), read_size("50%"), read_size("2x")
        (3, (1, 5, 6), (0.5, '%'), (2.0, 'x'))
    """
    if size is None:
        return None
    if not isinstance(size, str | bool):
        with contextlib.suppress(TypeError):
            return operator.index(size)  # type: ignore[arg-type]
        with contextlib.suppress(TypeError):
            return tuple(map(operator.index, size))  # type: ignore[arg-type]
    text = str(size).strip()
    if text == "all":
        return "all"
    if re.fullmatch(r"\d{1,9}(,\s*\d{1,9})*", text):
        blocks = tuple(map(int, text.split(",")))
        return blocks if len(blocks) > 1 else blocks[0]
    number = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([%x])", text)
    if number and number[2] == "%" and 0 < float(number[1]) < 100:
        return float(number[1]) / 100, "%"
    if number and number[2] == "x" and float(number[1]) > 1:
        return float(number[1]), "x"
    raise DataError(
        f"expected a number of blocks such as 3, blocks such as 1,5,6, a share of the parameters such as 50%, a "
        f"speed-up such as 2x, or all, got {size!r}"
    )


Vocabulary = int | str
"""Number of tokens to keep: `16000`, a share of all such as `50%`, or `corpus` for all tokens in the texts."""
CORPUS: Literal["corpus"] = "corpus"


def read_vocabulary(vocabulary: Vocabulary | None) -> int | float | Literal["corpus"] | None:
    """Return the number of tokens to keep, a share of them, 0 .. 1, or `corpus`.

    Examples:
        >>> read_vocabulary("16000"), read_vocabulary("50%"), read_vocabulary("corpus")
        (16000, 0.5, 'corpus')
    """
    if vocabulary is None:
        return None
    text = str(vocabulary).strip()
    if text == CORPUS:
        return CORPUS
    if re.fullmatch(r"\d{1,9}", text) and int(text) > 0:
        return int(text)
    share = re.fullmatch(r"(\d{1,2}(?:\.\d{1,6})?)%", text)
    if share and float(share[1]) > 0:
        return float(share[1]) / 100
    raise DataError(
        f"expected a number of tokens such as 16000, a share of them such as 50%, or {CORPUS} for all that the texts "
        f"need, got {vocabulary!r}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkSettings:
    """Required quality of a smaller model, and what to measure.

    Raises:
        DataError: If the points are not a finite number above 0.
    """

    within: float = TOLERANCE
    """Score loss that you accept, in points of the task's metric x 100."""
    dimensions: int | None = None
    """Number of features that embeddings keep, by a linear map that is fitted on embeddings of the texts after the
    training. Results are then of these features. By default all."""
    vocabulary: Vocabulary | None = field(default=None, metadata=RARE)
    """Tokens to keep: a number such as 16000, a share such as 50%, or corpus for all that the texts have. The most
    frequent ones of the texts and of the task's training texts stay, with all special and one-letter tokens. By default
    all."""
    front: bool = False
    """Also measure size, time and loss of both models with every backend and in 8 bits, and on a task of models with
    fewer blocks, tokens, dimensions and bits, most of them untrained."""

    def __post_init__(self) -> None:
        if not isinstance(self.within, int | float) or not 0 < self.within < math.inf:
            raise DataError(f"expected a number of points above 0 that the smaller model may lose, got {self.within!r}")
        if self.dimensions is not None and not isinstance(self.dimensions, Integral):
            raise DataError(f"expected a number of dimensions to keep, got {self.dimensions!r}")
        read_vocabulary(self.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A removed block, and the remaining ones."""

    block: int
    """Number of the block, from 1."""
    kept: tuple[int, ...]
    """Numbers of the remaining blocks."""
    agreement: float
    """Agreement of the remaining model with the whole one, without training, -100 to 100."""
    evenly: float | None
    """Agreement of as many evenly spaced blocks, including the last; None if there is no such model."""
    first: float | None
    """Agreement of as many first blocks, that is, of the truncated model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsLost:
    """Points that the smaller model loses on a split of the task."""

    metric: str
    """The task's primary metric."""
    whole: tuple[float, ...]
    """Scores of the whole model, x 100, by seed of fine-tuning; one without fine-tuning."""
    small: tuple[float, ...]
    """Scores of the smaller model, x 100, by seed of its training."""
    error: Interval | None
    """Whole less small, x 100, with a 95 % interval; None if items have no error."""
    margin: float
    """Largest acceptable loss, in points."""
    failure: float = field(default=0.0, metadata=RARE)
    """Points that one more failing item would cost if few or none fail here, see `failing`."""

    @property
    def value(self) -> float:
        """Mean of whole less small, in points."""
        return fmean(self.whole) - fmean(self.small)

    @property
    def most(self) -> float:
        """Upper 95 % bound of the loss, see `layerprobe.stats.values`; infinity if unknown."""
        return upper_end(self.value, self.error, failure=self.failure, metric=self.metric)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper bound of the loss; None if items have no error."""
        return None if self.error is None else (self.error.interval[0], self.most)

    @property
    def verdict(self) -> MarginVerdict:
        """Whether the loss is significantly within the margin, significantly above it, or neither."""
        return margin_verdict(self.error, self.most, self.margin)

    @property
    def fact(self) -> Fact:
        """The loss with its interval and split."""
        if self.error is None:
            return Fact(value=self.value, better="lower", least=self.margin)
        of_error = Fact.of(self.error, better="lower", least=self.margin)
        return replace(of_error, value=self.value, interval=self.interval)

    @property
    def needed(self) -> dict[str, Fact]:
        """Number of further items that would settle it, and of seeds if needed; empty if it is settled."""
        if self.verdict != "not shown" or self.error is None:
            return {}
        items, seeds = items_needed(self.value, self.error, self.most, self.margin, self.failure)
        rounded = Fact(value=float(f"{items:.2g}"), unit="count")
        more = Fact(value=self.error.n_seeds + 1, unit="count")
        of_seeds = {"seeds" if items else "only_seeds": more} if seeds else {}
        return {**({"items": rounded} if items else {}), **of_seeds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A model of some blocks, trained to agree with the whole one."""

    blocks: tuple[int, ...]
    """Kept blocks, from 1."""
    parameters: int
    """Number of parameters without the pooler."""
    speed: float | None
    """Speed-up over the whole model on 32 texts of 32 tokens, or of its limit; None if not measured."""
    speed_range: tuple[float, float] | None = field(default=None, metadata=RARE)
    """Range of the speed-up over rounds; `speed` is their median."""
    folders: tuple[str, ...]
    """Directories of the runs, by seed, for `export_model`."""
    agreement: tuple[float, ...]
    """Agreement with the whole model on held-out texts, by seed, -100 to 100."""
    neighbours: tuple[float, ...]
    """Share of the ten nearest held-out texts that the whole model has as well, 0 to 100, by seed."""
    on_task: float | None
    """Agreement on the texts of the task; None without a task."""
    chosen_by: PointsLost | None
    """Loss on the validation split that chose the size; None if the size was given."""
    as_it_is: PointsLost | None = None
    """Loss on the test split without fine-tuning; None if not measured, or if the kind needs fine-tuning."""
    asymmetric: PointsLost | None = field(default=None, metadata=RARE)
    """Loss on the test split of retrieval without fine-tuning if it embeds queries and the whole model documents; None
    for other kinds and for fewer dimensions."""
    tuned: PointsLost | None = None
    """Loss on the test split, both models fine-tuned."""

    @property
    def loss(self) -> PointsLost | None:
        """The decisive loss: after fine-tuning, if that was done."""
        return self.tuned or self.as_it_is


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerVocabulary:
    """Tokens that a smaller model knows, and how often texts need others, which are spelt with shorter ones."""

    kept: int
    """Number of kept tokens."""
    whole: int
    """Number of tokens of the whole model."""
    missing: float
    """Share of missing tokens in the training texts, including the task's, 0 to 1."""
    missing_on_task: float | None
    """Share of missing tokens in the task's test split; None without a task."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Numbers of kept tokens and of all tokens."""
        return self.kept, self.whole


VECTORS = 10_000
"""Number of float32 embeddings included in the size of a served model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model with some blocks, tokens and dimensions on one backend: its size, time and loss."""

    blocks: tuple[int, ...]
    """Its blocks, from 1."""
    tokens: int | None = field(default=None, metadata=RARE)
    """Number of its tokens; None: as many as the whole model."""
    dimensions: int
    """Number of features per embedding."""
    run_by: str
    """Backend, with the precision if it is not float32: `onnx int8`. Token embeddings stay in 32 bits."""
    seeds: int
    """Seeds of its training; 0: untrained, with blocks and tokens of the whole model."""
    weights: int
    """Bytes of the weights that `export` writes for all backends; for 8 bits, of the graph."""
    milliseconds: float | None
    """Milliseconds per held-out text, in batches as in extraction; None if not timed."""
    interval: tuple[float, float] | None
    """95 % interval of the milliseconds, for the median over rounds."""
    agreement: float
    """Agreement with the whole model on held-out texts, -100 to 100."""
    chosen_by: float | None
    """Mean score over seeds on the validation split, x 100; None if there is none without fine-tuning."""
    loss: PointsLost | None
    """Loss on the test split without fine-tuning, against the whole model in torch; None likewise."""
    score_interval: tuple[float, float] | None
    """95 % interval of the test score: the whole model's less the ends of the loss; for the whole model itself over
    new items."""

    @property
    def bytes(self) -> int:
        """Size of the model and of `VECTORS` embeddings."""
        return self.weights + 4 * self.dimensions * VECTORS

    @property
    def score(self) -> float | None:
        """Mean score over seeds on the test split."""
        return None if self.loss is None else fmean(self.loss.small)

    @property
    def quality(self) -> float:
        """Criterion for choosing among them: the validation score, else the test score, else the agreement."""
        return next(value for value in (self.chosen_by, self.score, self.agreement) if value is not None)

    @property
    def trained(self) -> str:
        """Whether and with how many seeds it was trained, in words."""
        return counted(self.seeds, "seed") if self.seeds else "untrained"

    @property
    def name(self) -> str:
        """Number of its blocks, and whether it was trained."""
        return f"{counted(len(self.blocks), 'block')}{', trained' if self.seeds else ''}"


UNLIKE = 5.0
"""Points by which agreement on the task's texts may fall below that on held-out texts without a warning."""
MISSING = 0.02
"""Share of the task's tokens that may be missing without a warning."""
AGREE = 90.0
"""Agreement without training above which a size is worth a try."""
FIRST = ("lost", "asymmetric", "parameters", "speed", "agreement")
"""Facts, in the order of tiles."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Shrunk(Shown):
    """A model made smaller: kept blocks, agreement with the whole model, and loss on a task."""

    model: ModelDescription
    """Description of the whole model."""
    texts: str
    """Name of the training texts."""
    n_texts: int
    """Number of training texts, without held-out ones."""
    n_held_out: int
    """Number of texts for measuring agreement."""
    task: str | None
    """Name of the task."""
    within: float
    """Largest acceptable loss, in points."""
    seeds: tuple[int, ...]
    protocol: Protocol
    """Protocol of its training."""
    removals: tuple[Removal, ...]
    """In order of removal; empty if the blocks were given."""
    tried: tuple[Smaller, ...]
    """Trained sizes, by number of blocks."""
    chosen: int
    """Index of the chosen size in `tried`."""
    dimensions: int | None = None
    """Number of features of its embeddings, if fewer than the whole model's."""
    vocabulary: SmallerVocabulary | None = field(default=None, metadata=RARE)
    """Its vocabulary, if smaller than the whole model's."""
    front: tuple[Served, ...] = ()
    """The whole model and the smaller one on every backend and, on a task, models of other sizes, if these were
    measured."""
    prompts: tuple[str, str] | None = field(default=None, metadata=RARE)
    """Prompts before queries and before documents, for `export_model`, if `Smaller.asymmetric` was measured."""
    warnings: tuple[str, ...] = ()
    item_source: Any = field(default=None, compare=False, metadata=UNSAVED)
    """Source of single test items for pages, an `ItemSource`; None without a task, and in results read from a file."""

    @property
    def smaller(self) -> Smaller:
        """The chosen model."""
        return self.tried[self.chosen]

    @property
    def folder(self) -> str:
        """Directory of its run with the first seed, for `export_model`."""
        return self.smaller.folders[0]

    @property
    def dense(self) -> str | None:
        """Folder of the module that reduces its embeddings, for `export_model`."""
        return None if self.dimensions is None else f"{self.folder}/{dense_name(self.dimensions)}"

    @property
    def fastest_int8(self) -> str | None:
        """The smaller model's fastest backend, if that has weights and activations in 8 bits."""
        tokens = self.vocabulary and self.vocabulary.kept
        timed = [
            (way.milliseconds, way.run_by)
            for way in self.front
            if way.milliseconds and way.blocks == self.smaller.blocks and tokens in (None, way.tokens)
        ]
        backend, _, how = min(timed)[1].partition(" ") if timed else ("", "", "")
        return backend if how == "int8" else None

    @property
    def untrained(self) -> bool:
        """Whether it needs no training: it has all blocks, and all tokens of the texts."""
        lacks_none = self.vocabulary is not None and not self.vocabulary.missing
        return lacks_none and len(self.smaller.blocks) == self.model.n_blocks

    @property
    def conclusion(self) -> Conclusion:
        """Which blocks and tokens suffice, what they lose, and what that saves."""
        small, loss, whole = self.smaller, self.smaller.loss, self.model
        verdicts = {"within": Verdict.DECIDED, "not shown": Verdict.UNDECIDED, "worse": Verdict.FAILED}
        losses = {"lost": loss, "asymmetric": None if small.tuned else small.asymmetric}
        facts = {name: replace(lost.fact, split="test") for name, lost in losses.items() if lost is not None}
        facts |= {
            "parameters": Fact(value=small.parameters / whole.parameters[-1] - 1, unit="share"),
            "size": Fact(value=small.parameters, unit="parameters"),
            "whole_size": Fact(value=whole.parameters[-1], unit="parameters"),
            "agreement": Fact(value=fmean(small.agreement), unit="score"),
            "neighbours": Fact(value=fmean(small.neighbours) / 100, unit="share"),
            "within": Fact(value=self.within, unit="tolerance"),
            "texts": Fact(value=self.n_texts, unit="count"),
            "passes": Fact(value=self.protocol.epochs, unit="count"),
            "n_seeds": Fact(value=len(self.seeds), unit="count"),
        }
        if small.speed is not None:
            facts["speed"] = Fact(value=small.speed, unit="times", interval=small.speed_range)
        if loss is not None:
            facts["score"] = Fact(value=fmean(loss.small), unit="score", split="test")
            facts["whole"] = Fact(value=fmean(loss.whole), unit="score", split="test")
            if loss.error is not None:
                facts["most"] = Fact(value=loss.most, level=loss.error.level, least=self.within)
        if self.vocabulary is not None:
            facts["tokens"] = Fact(value=self.vocabulary.kept, unit="count")
            facts["all_tokens"] = Fact(value=self.vocabulary.whole, unit="count")
        if self.dimensions is not None:
            facts["dimensions"] = Fact(value=self.dimensions, unit="count")
            facts["all_dimensions"] = Fact(value=whole.hidden_size, unit="count")
        case = "tokens" if len(small.blocks) == whole.n_blocks else "blocks"
        return Conclusion(
            kind="shrink",
            case=case if loss else f"{case} without a task",
            verdict=verdicts[loss.verdict] if loss else Verdict.UNDECIDED,
            subject=(short_name(whole.name), short_name(self.task or self.texts)),
            choice=Choice(n_blocks=whole.n_blocks, blocks=small.blocks),
            facts={name: facts[name] for name in (*FIRST, *facts) if name in facts},
            names={
                "corpus": short_name(self.texts),
                "task": short_name(self.task or ""),
                "metric": metric_title(loss.metric) if loss else "",
            },
            checks=tuple(self._checks()),
        )

    def _checks(self) -> Iterator[Check]:
        """Yield whether an index can stay, what would settle the loss, whether the texts are like the task's."""
        small, loss, asymmetric = self.smaller, self.smaller.loss, self.smaller.asymmetric
        if small.tuned is None and asymmetric is not None and asymmetric.error is not None:
            index = {"within": "index stays", "not shown": "index undecided", "worse": "index rebuilt"}
            yield Check(name=index[asymmetric.verdict], passed=None, facts=asymmetric.needed)
        if loss is not None and loss.error is not None:
            passed = {"within": True, "worse": False, "not shown": None}[loss.verdict]
            yield Check(name="loss", passed=passed, facts=loss.needed)
        if small.on_task is not None:
            agreed = {"texts": Fact(value=fmean(small.agreement), unit="score")}
            agreed["on_task"] = Fact(value=small.on_task, unit="score")
            alike = small.on_task >= fmean(small.agreement) - UNLIKE
            yield Check(name="training texts", passed=alike, facts=agreed)
        if self.vocabulary is not None and self.vocabulary.missing_on_task is not None:
            missing = self.vocabulary.missing_on_task
            share = {"missing": Fact(value=missing, unit="share")}
            yield Check(name="missing tokens", passed=missing <= MISSING, facts=share)
        if small.tuned is not None and small.as_it_is is not None:
            yield Check(name="before fine-tuning", passed=None, facts={"before": small.as_it_is.fact})

    @property
    def next_size(self) -> int | None:
        """Number of blocks to try next if these are too few: the fewest with agreement `AGREE` before training."""
        more = [removal for removal in self.removals if len(removal.kept) > len(self.smaller.blocks)]
        return min((len(removal.kept) for removal in more if removal.agreement >= AGREE), default=None)

    @property
    def details(self) -> tuple[Table, ...]:
        """The trained sizes; and both ways to embed documents, and backends, if measured."""
        by_whole = (self.sides,) if self.smaller.asymmetric else ()
        return (*by_whole, self.sizes, *((self.ways,) if self.front else ()))

    @property
    def sources(self) -> dict[str, str]:
        """The whole model, the texts, and the training."""
        protocol = to_dict(self.protocol)
        return {
            **described(self.model),
            "Texts": f"{self.n_texts:,} of {self.texts}, and {self.n_held_out:,} held out",
            "Task": self.task or "none",
            "Training": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in protocol.items()),
        }

    @property
    def table(self) -> Table:
        """One row per number of blocks, the whole model first: kept blocks, agreement, and loss of trained sizes."""
        order = {removal.kept: removal for removal in self.removals}
        tried = {size.blocks: size for size in self.tried}
        every = tuple(range(1, self.model.n_blocks + 1))
        rows = sorted({every, *order, *tried}, key=len, reverse=True)
        losses = [tried[row].loss if row in tried else None for row in rows]
        error = next((loss.error for loss in losses if loss and loss.error), None)
        lost = Quantity("points below the whole model", "test", "lower")
        lines = (Line("agreement"), *((Line("loss", interval="loss_interval"),) if any(losses) else ()))
        chart = Chart(
            lines=lines,
            name="sizes",
            kind="staircase",
            x="blocks",
            limit=self.within,
            chosen="the size that was chosen",
        )
        agreement = Quantity("agreement × 100", "", "higher")
        column, of_size = columns_of(order.get(row) for row in rows), columns_of(tried.get(row) for row in rows)
        return Table(
            columns=(
                Column("left", [len(row) for row in rows], "blocks"),
                Column("blocks", rows, "kept"),
                column("goes", lambda removal: removal.block, title="removed", meaning="Block of the size above."),
                Column(
                    "agreement",
                    [100.0 if row == every else order[row].agreement if row in order else None for row in rows],
                    title="untrained",
                    form=".1f",
                    meaning="Before any training: how closely text similarities match the whole model's.",
                    quantity=agreement,
                ),
                column("evenly", title="evenly spaced", form=".1f", more=True, quantity=agreement),
                column("first", title="first blocks", form=".1f", more=True, quantity=agreement),
                of_size("trained", lambda size: fmean(size.agreement), form=".1f", more=True),
                Column("loss", [loss and loss.value for loss in losses], "points lost", ".1f", quantity=lost),
                Column(
                    "loss_interval",
                    [loss and loss.interval for loss in losses],
                    interval_title(error.level if error else 0.95),
                    ".1f",
                    interval=True,
                    over=joint_error_sources([error]) if error else "",
                ),
            ),
            title="Size by size",
            marks=tuple("chosen" if row == self.smaller.blocks else None for row in rows),
            charts=(chart,),
        )

    @property
    def sizes(self) -> Table:
        """One row per trained size, and one for the whole model."""
        column, whole, vocabulary = columns_of((*self.tried, None)), self.model, self.vocabulary
        tokens = [] if vocabulary is None else [*[vocabulary.kept] * len(self.tried), vocabulary.whole]
        before = {removal.kept: removal.agreement for removal in self.removals}

        def scores(name: str, title: str, split: str) -> tuple[Column, ...]:
            return _score_columns([getattr(size, name) for size in self.tried], name, title, split)

        metric = next((metric_title(size.loss.metric) for size in self.tried if size.loss), "score")
        notes = ["Agreement: how closely text similarities match the full model's. It is not a task score."]
        if any(size.loss for size in self.tried):
            notes.append(
                "Losses are points below the full model; the upper end of the interval is the largest plausible loss."
            )
        return Table(
            columns=(
                Column("blocks", [*(size.blocks for size in self.tried), tuple(range(1, whole.n_blocks + 1))]),
                *([Column("tokens", tokens, form=",")] if tokens else []),
                Column("parameters", [*(e.parameters for e in self.tried), whole.parameters[-1]], form=millions),
                column("speed", form=".1f", meaning="Speed-up over the whole model, median over rounds."),
                column("speed_range", title="range", form=".1f", interval=True),
                Column(
                    "untrained", [*(before.get(size.blocks) for size in self.tried), None], "agreement before", ".1f"
                ),
                column("agreement", lambda size: fmean(size.agreement), form=".1f"),
                column("neighbours", lambda size: fmean(size.neighbours), title="shared neighbours", form=".1f"),
                *scores("chosen_by", f"validation {metric}", "validation"),
                *scores("as_it_is", f"test {metric}", "test"),
                *scores("tuned", f"TMFT {metric}", "test"),
                Column("left", [*(len(e.blocks) for e in self.tried), whole.n_blocks], "blocks kept", shown=False),
            ),
            title="Trained sizes",
            charts=self._losses,
            notes=tuple(notes),
            marks=tuple("chosen" if i == self.chosen else None for i in range(len(self.tried) + 1)),
        )

    @property
    def sides(self) -> Table:
        """One row per choice of models for queries and for documents, the whole model for both last."""
        asymmetric, as_it_is = self.smaller.asymmetric, self.smaller.as_it_is
        title = f"test {metric_title(asymmetric.metric)}" if asymmetric else ""
        return Table(
            columns=(
                Column("queries", ("smaller model", "smaller model", "whole model"), "queries by"),
                Column("documents", ("smaller model", "whole model", "whole model"), "documents by"),
                *_score_columns([as_it_is, asymmetric], "score", title, "test"),
            ),
            title="Queries and documents",
            notes=("Before fine-tuning: a fine-tuned model needs an index of its own.",) if self.smaller.tuned else (),
        )

    @property
    def _losses(self) -> tuple[Chart, ...]:
        """Charts of the loss by size, on validation and on test, if several sizes have one."""
        splits = {
            "chosen_by": "validation, which chose the size",
            "tuned" if self.smaller.tuned else "as_it_is": "test",
        }
        return tuple(
            Chart(
                lines=(Line(f"{name}_loss", interval=f"{name}_loss_interval"),),
                name=f"losses-{name}",
                heading=f"Loss on {where}",
                x="left",
                limit=self.within,
                chosen="the size that was chosen",
            )
            for name, where in splits.items()
            if sum(getattr(size, name) is not None for size in self.tried) > 1
        )

    @property
    def ways(self) -> Table:
        """One row per model and backend, the smallest first; DataError if none was measured."""
        if not self.front:
            raise DataError("no backends were measured: shrink with ShrinkSettings(front=True)")
        rows = sorted(self.front, key=lambda way: (way.bytes, way.milliseconds or math.inf, -way.quality))
        column, losses = columns_of(rows), [way.loss for way in rows]
        on = {
            "size": pareto_front([w for w in rows if w.loss], attrgetter("bytes"), attrgetter("quality")),
            "time": front_beyond_noise([w for w in rows if w.interval], attrgetter("interval"), attrgetter("quality")),
        }
        fronts = [", ".join(name for name, front in on.items() if way in front) for way in rows]
        metric = metric_title(losses[0].metric) if losses[0] else ""
        whole = None if self.vocabulary is None else self.vocabulary.whole
        over = joint_error_sources(loss.error for loss in losses if loss and loss.error)
        level = interval_title(0.95)
        of_score = f"{level} of the difference from the whole model (its own: of its score)"
        score = Line("score", interval="score_interval") if metric else Line("agreement")
        cost = Chart(lines=(score,), kind="cost", by="run_by", label="name", chosen="on a front")
        time = replace(cost, name="front", x="milliseconds", x_interval="interval", where=(("timed", True),))
        return Table(
            columns=(
                column("blocks"),
                column("tokens", lambda way: way.tokens or whole, form=",", shown=whole is not None),
                column("dimensions"),
                column("trained"),
                column("run_by", title="backend"),
                column("milliseconds", title="per text", form=".2f", unit="ms", quantity=Quantity("ms per text")),
                column("interval", title=level, form=".2f", interval=True, over="over rounds of timing"),
                column(
                    "bytes",
                    title="size",
                    form=".1f",
                    unit="MB",
                    scale=1e-6,
                    quantity=Quantity(f"MB of the model and of {VECTORS:,} embeddings"),
                ),
                column("agreement", form=".1f", quantity=Quantity("agreement × 100", "", "higher"), shown=not metric),
                column("chosen_by", title=f"validation {metric}", form=".2f"),
                column(
                    "score", title=f"test {metric}", form=".2f", quantity=Quantity(f"{metric} × 100", "test", "higher")
                ),
                column("score_interval", title=of_score, form=".2f", interval=True, over=over, shown=False),
                Column("loss", [loss and loss.value for loss in losses], form=".2f"),
                Column("loss_interval", [loss and loss.interval for loss in losses], level, ".2f", interval=True),
                Column("front", fronts, meaning="No other is both cheaper and better."),
                column("name", shown=False),
                column("timed", lambda way: way.milliseconds is not None, shown=False),
            ),
            title=f"{'Score' if metric else 'Agreement'} against size and time",
            charts=(replace(cost, name="sizes", x="bytes"), time) if metric else (time,),
            notes=(
                f"Size: the weights that export writes and {VECTORS:,} embeddings in float32; for 8 bits (int8), the "
                "graph, with token embeddings in 32 bits. "
                "Front: no other is as small, or surely as fast, and "
                f"{'scores higher on validation' if metric else 'agrees more'}.",
                *(["Losses are points below the whole model in torch."] if metric else []),
            ),
            marks=tuple("chosen" if front else None for front in fronts),
        )

    @property
    def account(self) -> str:
        """Description of training and measurements, for a model card."""
        small, conclusion = self.smaller, self.conclusion
        facts, names = dict(conclusion.facts), dict(conclusion.names)
        if self.untrained:
            names["trained"] = "nothing"
            del facts["passes"]
        if self.vocabulary is not None:
            facts["missing"] = Fact(value=self.vocabulary.missing, unit="share")
        losses = {"lost_as_it_is": small.as_it_is, "asymmetric": small.asymmetric, "lost_tuned": small.tuned}
        facts |= {name: loss.fact for name, loss in losses.items() if loss is not None}
        if small.loss is not None:
            del facts["agreement"]
        if small.loss is None or small.loss.verdict != "within":
            del facts["within"]
        return words.account(replace(conclusion, facts=facts, names=names))


def _score_columns(losses: Sequence[PointsLost | None], name: str, title: str, split: str) -> tuple[Column, ...]:
    """Return columns of scores, losses and their intervals, and as a last row the whole model's score."""
    of_whole = next((fmean(loss.whole) for loss in losses if loss), None)
    ends = [*(loss and loss.interval for loss in losses), None]
    lost = Quantity("loss, points below the whole model", split, "lower")
    over = joint_error_sources(loss.error for loss in losses if loss and loss.error)
    return (
        Column(name, [*(loss and fmean(loss.small) for loss in losses), of_whole], title, ".2f"),
        Column(f"{name}_loss", [*(loss and loss.value for loss in losses), None], "loss", ".2f", quantity=lost),
        Column(f"{name}_loss_interval", ends, interval_title(0.95), ".2f", interval=True, over=over),
    )


def dense_name(dimensions: int) -> str:
    """Return the name of the folder with a map to `dimensions`, inside the folder of a run."""
    return f"dense-{dimensions}"
