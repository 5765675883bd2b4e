"""Results of making a model smaller. Values only."""

import contextlib
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal

from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.serialisation import IN_MEMORY, RARE
from layerprobe.finetuning.values import Protocol
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name, times_as_fast
from layerprobe.results.blocks import Blocks
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, columns_of, interval_title, millions
from layerprobe.stats.sentences import (
    agreement_phrase,
    blocks_phrase,
    drawn_anew_in_all,
    loss_phrase,
    margin_heading,
    margin_sentence,
    tokens_phrase,
    would_settle,
)
from layerprobe.stats.values import (
    TOLERANCE,
    MarginVerdict,
    front_beyond_noise,
    items_needed,
    margin_verdict,
    pareto_front,
    upper_end,
)

TRAINING = Protocol(learning_rate=2e-4, epochs=1, batch_size=64, dropout=False, evaluations=5)
"""How a smaller model is trained to agree with the whole one, where nobody says."""
Size = int | str | Sequence[int]
"""How many blocks are kept, which ones, or a text: `3`, `1,5,6`, `50%` of the parameters at most, `2x` as fast, `all`
where the vocabulary is what goes."""


def read_size(size: Size | None) -> int | tuple[int, ...] | tuple[float, Literal["%", "x"]] | Literal["all"] | None:
    """Return how many blocks are kept, which ones, or a share, 0 .. 1, of the parameters, or how many times as fast.

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
        f"expected a number of blocks such as 3, blocks such as 1,5,6, a share of the parameters such as 50%, times as "
        f"fast such as 2x, or all, got {size!r}"
    )


Vocabulary = int | str
"""How many tokens are kept: `16000`, a share of all of them such as `50%`, or `corpus`, all that the texts need."""
CORPUS: Literal["corpus"] = "corpus"


def read_vocabulary(vocabulary: Vocabulary | None) -> int | float | Literal["corpus"] | None:
    """Return how many tokens are kept, which share of them, 0 .. 1, or that all stay which the texts need.

    Examples:
        >>> read_vocabulary("16000"), read_vocabulary("50%"), read_vocabulary("corpus")
        (16000, 0.5, 'corpus')
    """
    if vocabulary is None:
        return None
    text = str(vocabulary).strip()
    if text == CORPUS:
        return CORPUS
    if not isinstance(vocabulary, str | bool):
        with contextlib.suppress(TypeError):
            text = str(operator.index(vocabulary))
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
    """How good a smaller model must be, and what is measured of it.

    Raises:
        DataError: If the points are no finite number above 0.
    """

    within: float = TOLERANCE
    """Points of the task's metric x 100 that it may be worse by."""
    dimensions: int | None = None
    """How many features its embeddings keep, by a linear map. All by default. The map is fitted on the embeddings of
    the texts after the training; what is said of the model is then of these."""
    vocabulary: Vocabulary | None = field(default=None, metadata=RARE)
    """How many tokens are kept, such as 16000, or 50% of them, or corpus, all that the texts have: the most frequent of
    these and of the task's training texts; special ones and those of one letter always stay. All by default."""
    front: bool = False
    """Also measure size, time and loss of both models by every backend and in 8 bits and, on a task, of models of fewer
    blocks, tokens, dimensions and bits, most of them untrained."""

    def __post_init__(self) -> None:
        if not isinstance(self.within, int | float) or not 0 < self.within < math.inf:
            raise DataError(f"expected points above 0 that the smaller model may be worse by, got {self.within!r}")
        if self.dimensions is not None and not isinstance(self.dimensions, Integral):
            raise DataError(f"expected a number of dimensions to keep, got {self.dimensions!r}")
        read_vocabulary(self.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A block that was taken out, and what is left."""

    block: int
    """From 1."""
    kept: tuple[int, ...]
    """The blocks that are left."""
    agreement: float
    """Of the model of these with the whole one, without training, -100 to 100."""
    evenly: float | None
    """The same of as many blocks at equal distances, the last one among them; None where there is no such model."""
    first: float | None
    """The same of as many first blocks: of the model truncated there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsLost:
    """By how much the smaller model is worse on a split of the task."""

    metric: str
    """The task's primary one."""
    whole: tuple[float, ...]
    """Scores of the whole model, x 100, by seed of fine-tuning; one without."""
    small: tuple[float, ...]
    """Scores of the smaller model by seed of its training."""
    error: Interval | None
    """Of whole less small, x 100, at a level of 0.95; None where items have no error."""
    margin: float
    """What it may be at most."""
    failure: float = field(default=0.0, metadata=RARE)
    """Points that one more item takes which fails as few or none of these do, see `failing`."""

    @property
    def value(self) -> float:
        """Whole less small, the means."""
        return fmean(self.whole) - fmean(self.small)

    @property
    def most(self) -> float:
        """What it is at most, with 95 %, see `layerprobe.stats.values`; infinity where that is not known."""
        return upper_end(self.value, self.error, failure=self.failure, metric=self.metric)

    @property
    def interval(self) -> tuple[float, float] | None:
        """From what it is at least to what it is at most; None where items have no error."""
        return None if self.error is None else (self.error.interval[0], self.most)

    @property
    def verdict(self) -> MarginVerdict:
        """Whether the loss is shown to be within the margin, shown to be above it, or neither."""
        return margin_verdict(self.error, self.most, self.margin)

    @property
    def said(self) -> str:
        """How large it is, in words."""
        most = None if self.error is None else self.most
        return loss_phrase(self.value, most, self.margin, self.metric)

    @property
    def needed(self) -> str:
        """How many more items or seeds would settle it; empty where it is settled."""
        if self.verdict != "not shown" or self.error is None:
            return ""
        items, seeds = items_needed(self.value, self.error, self.most, self.margin, self.failure)
        return would_settle(items, self.error.unit, seeds=seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A model of some blocks, trained to agree with the whole one."""

    blocks: tuple[int, ...]
    """That were kept, from 1."""
    parameters: int
    """Without the pooler."""
    speed: float | None
    """Times as fast as the whole model, 32 texts of 32 tokens or as many as it reads; None where not measured."""
    speed_range: tuple[float, float] | None = field(default=None, metadata=RARE)
    """Of the rounds, of which that is the median."""
    folders: tuple[str, ...]
    """Of the runs, by seed: `export_model` takes such a directory."""
    agreement: tuple[float, ...]
    """With the whole model on held-out texts, by seed, -100 to 100."""
    neighbours: tuple[float, ...]
    """Share of the ten nearest held-out texts that are so in the whole model, 0 to 100, by seed."""
    on_task: float | None
    """Agreement on the texts of the task; None without a task."""
    chosen_by: PointsLost | None
    """On the validation split, by which a size was chosen; None where it was given."""
    as_it_is: PointsLost | None = None
    """On the test split, without fine-tuning; None where it was not measured, or the kind needs fine-tuning."""
    tuned: PointsLost | None = None
    """On the test split, both fine-tuned."""

    @property
    def faster(self) -> str:
        """How many times as fast as the whole model, in words; empty where that was not measured, or with no range."""
        return times_as_fast((self.speed, *self.speed_range)) if self.speed and self.speed_range else ""

    @property
    def loss(self) -> PointsLost | None:
        """What counts: after fine-tuning where there was any."""
        return self.tuned or self.as_it_is


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerVocabulary:
    """Which tokens a smaller model knows, and how often texts need others, which are spelt with shorter ones."""

    kept: int
    """Tokens."""
    whole: int
    """Tokens of the whole model."""
    missing: float
    """Share of the tokens of the training texts, those of the task too, that the smaller one does not know, 0 to 1."""
    missing_on_task: float | None
    """The same of texts of the task's test split; None without a task."""

    @property
    def tokens(self) -> tuple[int, int]:
        """How many are kept, of how many."""
        return self.kept, self.whole


VECTORS = 10_000
"""Embeddings, in float32, that count to the size of a model that is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model of some blocks, tokens and dimensions, and what runs it: its size, its time, and what it loses."""

    blocks: tuple[int, ...]
    """That it has."""
    tokens: int | None = field(default=None, metadata=RARE)
    """That it knows; None: as many as the whole model."""
    dimensions: int
    """Features of an embedding."""
    run_by: str
    """A backend, and where numbers are not of float32 their precision: `onnx int8`. The table of tokens has 32 bits."""
    seeds: int
    """Of its training; 0: it is as the blocks and tokens of the whole model are."""
    weights: int
    """Bytes of the weights that `export` writes, which all backends read; of 8 bits those of the graph."""
    milliseconds: float | None
    """A text, those held out in batches of an extraction; None where it was not timed."""
    interval: tuple[float, float] | None
    """95 % of that, of the median over rounds."""
    agreement: float
    """With the whole model on held-out texts, -100 to 100."""
    chosen_by: float | None
    """The score on the validation split, the mean over seeds, x 100; None where it has none without fine-tuning."""
    loss: PointsLost | None
    """On the test split, without fine-tuning, against the whole model in torch; None as before."""
    score_interval: tuple[float, float] | None
    """95 % of the score on the test split: the whole model's less the ends of the loss; of the whole model itself over
    new items."""

    @property
    def bytes(self) -> int:
        """Of the model and of `VECTORS` embeddings."""
        return self.weights + 4 * self.dimensions * VECTORS

    @property
    def score(self) -> float | None:
        """On the test split, the mean over seeds."""
        return None if self.loss is None else fmean(self.loss.small)

    @property
    def quality(self) -> float:
        """What chooses among them: the score on validation, or without one that on test, or the agreement."""
        return next(value for value in (self.chosen_by, self.score, self.agreement) if value is not None)

    @property
    def trained(self) -> str:
        """Whether and how often it was trained, in words."""
        return counted(self.seeds, "seed") if self.seeds else "untrained"

    @property
    def name(self) -> str:
        """How many blocks it has, and whether it was trained."""
        return f"{counted(len(self.blocks), 'block')}{', trained' if self.seeds else ''}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Shrunk(Shown):
    """A model made smaller: which blocks were kept, what it agrees on, and whether it is not worse on a task."""

    model: ModelDescription
    """The whole one."""
    texts: str
    """Name of the texts that the smaller one was trained on."""
    n_texts: int
    """Of training, without those held out."""
    n_held_out: int
    """On which agreement is measured."""
    task: str | None
    """Name of the task."""
    within: float
    """Points that the smaller model may be worse by."""
    seeds: tuple[int, ...]
    protocol: Protocol
    """Of its training."""
    removals: tuple[Removal, ...]
    """In the order in which blocks go; empty where the blocks were given."""
    tried: tuple[Smaller, ...]
    """By number of blocks."""
    chosen: int
    """Which of them it is about."""
    dimensions: int | None = None
    """Features of its embeddings, where these are fewer than the whole model's."""
    vocabulary: SmallerVocabulary | None = field(default=None, metadata=RARE)
    """The tokens that it knows, where these are fewer than the whole model's."""
    front: tuple[Served, ...] = ()
    """The whole model and the smaller one by every backend, and on a task models of other sizes, where these were
    measured."""
    warnings: tuple[str, ...] = ()
    item_source: Any = field(default=None, compare=False, metadata=IN_MEMORY)
    """Whence its page has single test items, an `ItemSource`; None without a task, and of one read from a file."""

    @property
    def smaller(self) -> Smaller:
        """The model that was chosen."""
        return self.tried[self.chosen]

    @property
    def folder(self) -> str:
        """The directory of its run with the first seed, for `export_model`."""
        return self.smaller.folders[0]

    @property
    def dense(self) -> str | None:
        """The folder of the module that makes fewer dimensions of its embeddings, for `export_model`."""
        return None if self.dimensions is None else f"{self.folder}/{dense_name(self.dimensions)}"

    @property
    def fastest_int8(self) -> str | None:
        """The backend by which the smaller model is fastest, where that is with weights and activations in 8 bits."""
        tokens = self._tokens and self._tokens[0]
        timed = [
            (way.milliseconds, way.run_by)
            for way in self.front
            if way.milliseconds and way.blocks == self.smaller.blocks and tokens in (None, way.tokens)
        ]
        backend, _, how = min(timed)[1].partition(" ") if timed else ("", "", "")
        return backend if how == "int8" else None

    @property
    def untrained(self) -> bool:
        """Whether it gives the whole model's embeddings as it is: all blocks, and all tokens of the texts."""
        lacks_none = self.vocabulary is not None and not self.vocabulary.missing
        return lacks_none and len(self.smaller.blocks) == self.model.n_blocks

    @property
    def kept(self) -> str:
        """Which blocks are kept and what that saves, in words."""
        small = self.smaller
        return blocks_phrase(
            small.blocks,
            self.model.n_blocks,
            fewer=1 - small.parameters / self.model.parameters[-1],
            faster=small.faster,
            tokens=self._tokens,
            dimensions=None if self.dimensions is None else (self.dimensions, self.model.hidden_size),
        )

    @property
    def _tokens(self) -> tuple[int, int] | None:
        return None if self.vocabulary is None else self.vocabulary.tokens

    @property
    def _agreed(self) -> str:
        return agreement_phrase(fmean(self.smaller.agreement), fmean(self.smaller.neighbours))

    @property
    def sentence(self) -> str:
        """The conclusion, in a sentence or two."""
        small, loss = self.smaller, self.smaller.loss
        if loss is None or self.task is None:
            return f"{self.kept}: {self._agreed}. That is no task: give one to know what it costs there."
        after = " after fine-tuning both" if small.tuned else ""
        about = f"{self.kept}: {loss.said} on {short_name(self.task)}{after}"
        left_out = ["blocks"] * (len(small.blocks) < self.model.n_blocks) + ["tokens"] * (self.vocabulary is not None)
        return margin_sentence(about, loss.verdict, self.within, loss.needed, left_out=" or ".join(left_out))

    @property
    def heading(self) -> str:
        """How many blocks stay, and what they lose at most; without a task how far they agree with the whole model."""
        blocks, loss = f"{len(self.smaller.blocks)} of {self.model.n_blocks} blocks", self.smaller.loss
        if self._tokens is not None:
            blocks = f"{blocks} and {tokens_phrase(self._tokens)}"
        if loss is None:
            return f"{blocks} agree with the whole model by {self.smaller.agreement[0]:.0f} of 100"
        return margin_heading(blocks, loss.verdict, loss.most, self.within if loss.verdict == "worse" else loss.margin)

    @property
    def rest(self) -> str:
        """The conclusion."""
        return self.sentence

    @property
    def blocks(self) -> Blocks:
        """Which blocks stay."""
        return Blocks(n=self.model.n_blocks, kept=self.smaller.blocks)

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return f"{short_name(self.model.name)} made smaller: {self.sentence}"

    @property
    def table(self) -> Table:
        """One row per size that was tried, and one for the whole model."""
        column, whole, tokens = columns_of((*self.tried, None)), self.model, self._tokens
        before = {removal.kept: removal.agreement for removal in self.removals}

        def scores(name: str, title: str, split: str) -> tuple[Column, ...]:
            rows = [getattr(size, name) for size in self.tried]
            losses = [loss for loss in rows if loss is not None]
            of_whole = fmean(losses[0].whole) if losses else None
            ends = [loss and loss.interval for loss in rows]
            lost = Quantity("loss, points below the whole model", split, "lower")
            over = drawn_anew_in_all(loss.error for loss in losses if loss.error)
            return (
                Column(name, [*(loss and fmean(loss.small) for loss in rows), of_whole], title, ".2f"),
                Column(f"{name}_loss", [*(loss and loss.value for loss in rows), None], "loss", ".2f", quantity=lost),
                Column(f"{name}_loss_interval", [*ends, None], interval_title(0.95), ".2f", interval=True, over=over),
            )

        metric = next((metric_title(size.loss.metric) for size in self.tried if size.loss), "score")
        notes = ["Agreement: how closely text similarities match the full model's. It is not a task score."]
        if any(size.loss for size in self.tried):
            notes.append(
                "Losses are points below the full model; the upper end of the interval is the largest plausible loss."
            )
        return Table(
            columns=(
                Column("blocks", [*(size.blocks for size in self.tried), tuple(range(1, whole.n_blocks + 1))]),
                *([Column("tokens", [*[tokens[0]] * len(self.tried), tokens[1]], form=",")] if tokens else []),
                Column("parameters", [*(e.parameters for e in self.tried), whole.parameters[-1]], form=millions),
                column("speed", form=".1f", meaning="Times as fast as the whole model, the median over rounds."),
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
            title="Sizes",
            charts=self._losses,
            notes=tuple(notes),
            marks=tuple("chosen" if i == self.chosen else None for i in range(len(self.tried) + 1)),
        )

    @property
    def _losses(self) -> tuple[Chart, ...]:
        """Charts of the loss by size, on validation and on test, where several sizes have one."""
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
    def order(self) -> Table:
        """One row per removed block: the blocks left, and their agreement with the whole model, untrained."""
        column = columns_of(self.removals)
        return Table(
            columns=(
                Column("left", [len(removal.kept) for removal in self.removals], "blocks left"),
                column("block", title="goes"),
                column("kept"),
                *(
                    column(name, title=title, form=".1f", quantity=Quantity("agreement × 100", "", "higher"))
                    for name, title in (("agreement", ""), ("evenly", "evenly spaced"), ("first", "first blocks"))
                ),
            ),
            title="In which order blocks go",
            charts=(
                Chart(
                    lines=(Line("agreement", name="chosen"), Line("evenly"), Line("first")),
                    name="order",
                    x="left",
                ),
            ),
            notes=("Agreement of similarities with the whole model's, without training.",),
        )

    @property
    def ways(self) -> Table:
        """One row per model and way to run it, the smallest first; DataError where none was measured."""
        if not self.front:
            raise DataError("expected ways to run it, got none: shrink with ShrinkSettings(front=True)")
        rows = sorted(self.front, key=lambda way: (way.bytes, way.milliseconds or math.inf, -way.quality))
        column, losses = columns_of(rows), [way.loss for way in rows]
        on = {
            "size": pareto_front([w for w in rows if w.loss], attrgetter("bytes"), attrgetter("quality")),
            "time": front_beyond_noise([w for w in rows if w.interval], attrgetter("interval"), attrgetter("quality")),
        }
        fronts = [", ".join(name for name, front in on.items() if way in front) for way in rows]
        metric = metric_title(losses[0].metric) if losses[0] else ""
        whole = None if self.vocabulary is None else self.vocabulary.whole
        over = drawn_anew_in_all(loss.error for loss in losses if loss and loss.error)
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
                column("run_by", title="run by"),
                column("milliseconds", title="a text", form=".2f", unit="ms", quantity=Quantity("milliseconds a text")),
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
                f"Size: the weights that export writes and {VECTORS:,} embeddings in float32; of 8 bits (int8), the "
                "graph, whose table of tokens has 32. "
                "Front: no other is as small, or surely as fast, and "
                f"{'scores higher on validation' if metric else 'agrees more'}.",
                *(["Losses are points below the whole model in torch."] if metric else []),
            ),
            marks=tuple("chosen" if front else None for front in fronts),
        )

    @property
    def account(self) -> str:
        """How it was made and measured, for a model card."""
        small, blocks = self.smaller, ", ".join(map(str, self.smaller.blocks))
        parts = [f"Of the {self.model.n_blocks} blocks of {short_name(self.model.name)}, {blocks} were kept."]
        if self.vocabulary is not None:
            parts.append(
                f"It knows {tokens_phrase(self.vocabulary.tokens)}: special ones, those of one letter, and the most "
                f"frequent of these texts, of whose tokens {self.vocabulary.missing:.1%} are spelt with shorter ones. "
                "Texts of another language or domain need more."
            )
        parts.append(
            "All tokens of these texts are kept, so that nothing was trained."
            if self.untrained
            else f"The model of these was trained, without labels, to give the whole model's normalised embeddings of "
            f"{self.n_texts:,} texts of {short_name(self.texts)} (passes: {self.protocol.epochs})."
        )
        if self.dimensions is not None:
            parts.append(
                f"Its embeddings have {self.dimensions} of {self.model.hidden_size} dimensions, those along which "
                "normalised embeddings of such texts are largest."
            )
        losses = {"as it is": small.as_it_is, "after fine-tuning both": small.tuned}
        parts += [f"On {short_name(self.task or '')}, {how}: {loss.said}." for how, loss in losses.items() if loss]
        if small.loss is None:
            parts.append(f"{self._agreed.capitalize()}.")
        elif small.loss.verdict == "within":
            parts.append(f"That is shown to be within {self.within:g}.")
        return " ".join(parts)


def dense_name(dimensions: int) -> str:
    """Return the name of the folder of a map to `dimensions`, inside that of a run."""
    return f"dense-{dimensions}"
