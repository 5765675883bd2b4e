"""At equal size: the first blocks of an encoder, or others, after fine-tuning. Knows a model and a task."""

import contextlib
import math
from dataclasses import dataclass, field
from statistics import fmean

from layerprobe.checks import Seeds, check_seeds
from layerprobe.context import current
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve
from layerprobe.encoders.stack import check_blocks
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import distinct_texts
from layerprobe.files.serialisation import RARE
from layerprobe.finetuning.tuning import PAPER_SEEDS, agreed
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import counted
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, clauses
from layerprobe.results.table import Column, Table, interval_title
from layerprobe.shrinking.order import evenly_spaced, kept_order
from layerprobe.shrinking.points_lost import Scored, difference, tuned
from layerprobe.shrinking.values import Size, read_size
from layerprobe.stats.sentences import blocks_compared_sentence, spoilt_sentence
from layerprobe.stats.values import CrossedInterval
from layerprobe.tasks.splitting import checked_task, spoilt_items
from layerprobe.tasks.values import Task

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Blocks of a model, fine-tuned on a task."""

    blocks: Blocks
    """From 1."""
    chosen_by: tuple[str, ...]
    """What chose them."""
    scores: tuple[float, ...]
    """On the test split, x 100, by seed."""
    difference: CrossedInterval | None
    """From the first blocks, over items and seeds; None of these themselves, and where items have no error."""

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference; where there is none, of a tie."""
        return (-math.inf, math.inf) if self.difference is None else self.difference.interval


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EqualSize(Shown):
    """The first blocks of a model, and others of the same number, each fine-tuned on a task."""

    metric: str
    """The task's primary one."""
    level: float
    """At which all intervals hold at once (Bonferroni)."""
    candidates: tuple[Candidate, ...]
    """The first blocks first."""
    spoilt: int = field(default=0, metadata=RARE)
    """Examples that stand in two splits, by which scores are spoilt: nothing is claimed then."""

    @property
    def keep(self) -> Candidate:
        """The best candidate that scores significantly higher than the first blocks; else the first blocks."""
        better = [candidate for candidate in self.candidates if candidate.interval[0] > 0]
        return max(better, key=lambda candidate: fmean(candidate.scores), default=self.candidates[0])

    @property
    def heading(self) -> str:
        """Which blocks to keep; of spoilt scores that nothing is claimed."""
        if self.spoilt:
            return clauses(spoilt_sentence(self.spoilt))[0]
        return f"Of {counted(len(self.keep.blocks), 'block')}, keep {', '.join(map(str, self.keep.blocks))}"

    @property
    def rest(self) -> str:
        """How each choice compares with the first blocks."""
        if self.spoilt:
            return clauses(spoilt_sentence(self.spoilt))[1]
        first, *others = self.candidates
        score, size = fmean(first.scores), len(first.blocks)
        return " ".join(
            blocks_compared_sentence(other.blocks, size, fmean(other.scores) - score, other.interval, self.metric)
            for other in others
        )

    @property
    def summary(self) -> str:
        """The conclusion, in a few sentences."""
        return spoilt_sentence(self.spoilt) if self.spoilt else f"{self.rest} {self.heading}."

    @property
    def table(self) -> Table:
        """One row per choice of blocks."""
        rows, errors = self.candidates, [candidate.difference for candidate in self.candidates]
        return Table(
            columns=(
                Column("blocks", [row.blocks for row in rows]),
                Column("chosen_by", [", ".join(row.chosen_by) for row in rows], "chosen by"),
                Column(
                    "score",
                    [fmean(row.scores) for row in rows],
                    f"test {metric_title(self.metric)}",
                    ".2f",
                    quantity=points(self.metric, "test"),
                ),
                Column(
                    "difference",
                    [error and error.value for error in errors],
                    form=".2f",
                    quantity=Quantity("points above the first blocks", "test", "higher"),
                ),
                Column(
                    "interval",
                    [e and e.interval for e in errors],
                    interval_title(self.level),
                    ".2f",
                    interval=True,
                    over="over new items and new seeds, all at once",
                ),
                Column("by_seed", [row.scores for row in rows], form=".2f", shown=False),
            ),
            title="Blocks of equal size",
            charts=(
                Chart(lines=(Line("score", seeds="by_seed"),), name="equal-size", x="blocks", chosen="to keep"),
                Chart(
                    lines=(Line("difference", interval="interval"),),
                    name="difference",
                    heading="Compared with the first blocks",
                    x="blocks",
                    chosen="to keep",
                ),
            )[: 1 + any(errors)],
            notes=("Differences are from the first blocks, over items and seeds; all intervals hold at once.",),
            marks=tuple("chosen" if row is self.keep else None for row in rows),
        )


def equal_size(
    model: ModelLike, task: Task, size: Size, *, seeds: Seeds = PAPER_SEEDS, protocol: Protocol | None = None
) -> EqualSize:
    """Fine-tune the first blocks of a model, those that agreement keeps, evenly spaced ones and given ones alike.

    Agreement is that of untrained embeddings with the whole model's, as in `shrink`. Finished runs are read.

    Args:
        model: A whole model.
        task: What they are fine-tuned on, and tested.
        size: How many blocks, or which: these are compared with as many first ones, too.
        seeds: How many, or which.
        protocol: Of the fine-tuning; the paper's by default.

    Raises:
        DataError: If there are no other blocks of this number.
        ModelError: If the model has no such blocks.
        UnsupportedArchitectureError: If its blocks cannot be taken out.
        TrainingError: If a run fails.
    """
    task, seeds, level = checked_task(task), check_seeds(seeds), current().level
    spoilt = spoilt_items(task)
    protocol, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    choices, made = candidates(checkpoint, task, size), list[Candidate]()
    base: list[Scored] = []
    for blocks, how in choices.items():
        cut = checkpoint.of_blocks(blocks) if base else checkpoint  # a search has runs of the first blocks
        runs = [tuned(cut, task, len(blocks), seed, protocol, "test") for seed in seeds]
        base = base or runs
        at = 1 - (1 - level) / max(1, len(choices) - 1)
        error = None if runs is base or spoilt else difference(runs, base, task, "test", level=at)
        scores = tuple(evaluation.metrics[task.primary] for evaluation, _ in runs)
        made.append(Candidate(blocks=blocks, chosen_by=tuple(how), scores=scores, difference=error))
    return EqualSize(metric=task.primary, level=level, candidates=tuple(made), spoilt=spoilt)


def candidates(model: ModelLike, task: Task, size: Size) -> dict[Blocks, list[str]]:
    """Return blocks of one number, the first ones first, and what chose them; raises as `equal_size` does."""
    checkpoint = resolve(model, items=task.readable)
    n_blocks, name, parsed = count_blocks(checkpoint.config), checkpoint.label, None
    with contextlib.suppress(DataError):  # it names shares and speeds, which are no choice here
        parsed = read_size(size)
    given_blocks = tuple(block for block in parsed if isinstance(block, int)) if isinstance(parsed, tuple) else None
    count = parsed if isinstance(parsed, int) else len(given_blocks or ())
    if checkpoint.asked.blocks is not None or not 1 <= count < n_blocks:
        raise DataError(
            f"expected 1 to {n_blocks - 1} blocks of a whole model to compare, or which, got {size} of {name}"
        )
    if given_blocks is not None:
        check_blocks(checkpoint.config, given_blocks, name=name)
    order = kept_order(SharedModel(checkpoint), distinct_texts(task.texts("train")))
    agree = next((removal.kept for removal in order if len(removal.kept) == count), None)
    first, evenly = tuple(range(1, count + 1)), evenly_spaced(n_blocks, count)
    chosen_by: dict[Blocks, list[str]] = {}
    for how, blocks in (("first", first), ("agreement", agree), ("evenly spaced", evenly), ("given", given_blocks)):
        if blocks is not None:
            chosen_by.setdefault(blocks, []).append(how)
    return chosen_by
