"""What a search knows, what it may spend, which run comes next, and what it answers."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import NormalDist
from typing import Any, Literal, Self

from layerprobe.checks import LEVEL, as_declared, check_level, check_tolerance, read_share
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.interval import Interval
from layerprobe.results.blocks import Blocks
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, of_layers
from layerprobe.results.table import Column, Table, chance, columns_of, interval_title, layer_columns
from layerprobe.similarity.values import Matrix
from layerprobe.stats import sentences
from layerprobe.stats.values import TOLERANCE, Verdict

StopReason = Literal["settled", "gain", "seeds", "budget"]
"""settled: the best layer is within the tolerance, with the requested confidence; gain: further seeds would not
noticeably improve the choice; seeds: all layers that may be the best have all their seeds; budget: the next run would
exceed it."""

KEEP = "the layer to keep"
FLAGGED = {"keep": "chosen", "will do": "enough", "may be best": "candidate", "drop": "drop"}
"""How rows with a flag are marked."""
EXPECTED_CHART = Chart(lines=(Line("expected", interval="expected_interval"),), name="models", band=True, chosen=KEEP)
"""Expected scores by layer."""
SHARE = 0.15
"""Of the full sweep, which is spent at most."""
SEEDS = 5
"""Of the full sweep, at every layer."""
FAILURES = 2
"""Runs of a layer without any score after which it is no longer chosen from, where other layers have scores."""
SWEPT_BLOCKS = 4
"""Up to so many blocks every layer is fine-tuned: a whole sweep costs no more than the search of a deeper model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one run scored at one layer, on validation items that it shares with the other runs of its fold."""

    layer: int
    seed: int
    value: float | None
    """Primary metric x 100; None where it is not finite, or the run failed."""
    scan: bool = False
    """Whether the run is a scan, which trains all layers at once and scores each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a decision depends on."""

    n_blocks: int
    """Layers count from 0 to this."""
    scores: tuple[Score, ...] = ()
    """One for each fine-tuned layer and seed, and for each layer of a scan and seed."""
    item_covariance: Matrix = ()
    """Of the errors of the scores over items, in squared points, in their order; what a score of None has there is not
    read. Empty where it is not known: then the items count as all there are."""
    steps: tuple[float, ...] | None = None
    """-log CKA of layers 1 .. n_blocks with the one before; None: all steps are alike."""
    infonce: tuple[float, ...] | None = None
    """InfoNCE between two views of a text at layers 0 .. n_blocks, in nats; None: not known."""
    start: int | None = None
    """The layer where the search begins if no scan tells; None: where InfoNCE is highest, or the middle."""
    n_items: int | None = None
    """Items that all seeds together validate on (groups, where items are grouped)."""
    n_folds: int = 1
    """Parts of the items: seed k validates on part k modulo this. 1: all seeds validate on the same items."""
    first_layer: int = 0
    """The first layer that can be chosen; those before it are left out."""
    model: int = 0
    """Which of several models that share a budget."""
    block_cost: float = 1.0
    """Of a block-step of this model, compared with one of the others."""

    def __post_init__(self) -> None:
        if self.n_folds < 1:
            raise DataError(f"expected at least one fold, got {self.n_folds}")
        if self.n_blocks < 1:
            raise DataError(f"expected a model with at least one block, got {self.n_blocks}")
        if not 0 <= self.first_layer <= self.n_blocks:
            raise DataError(f"expected the first of layers 0 to {self.n_blocks} to choose from, got {self.first_layer}")
        if not all(map(math.isfinite, (*(self.steps or ()), *(self.infonce or ())))):
            raise DataError("expected finite readings of every layer, got NaN or infinity: leave such a reading out")

    @property
    def choices(self) -> range:
        """The layers to choose from."""
        return range(self.first_layer, self.n_blocks + 1)

    @property
    def contenders(self) -> tuple[int, ...]:
        """Those that can still be chosen: not where two runs or more gave no score, unless nothing has one."""
        with_score = {score.layer for score in self.scores if score.value is not None}
        going_on = [i for i in self.choices if i in with_score or len(self.runs_at(i)) < FAILURES]
        return tuple(going_on if with_score else self.choices)

    @property
    def spent(self) -> int:
        """Cost of the runs in block-steps; one at layer l counts l + 1, a scan n_blocks + 1."""
        scans = {score.seed for score in self.scores if score.scan}
        return len(scans) * (self.n_blocks + 1) + sum(score.layer + 1 for score in self.scores if not score.scan)

    def fold(self, seed: int) -> int:
        """Return the part of the items on which a seed validates."""
        return seed % self.n_folds

    def next_seed(self, layer: int | None, pending: "Sequence[PlannedRun]" = (), folds: Collection[int] = ()) -> int:
        """Return the first seed, of some folds if any, that a layer has and will have no run of; None: no scan of."""
        places = {(score.seed, score.layer, score.scan) for score in self.scores}
        places |= {(run.seed, run.layer, run.scan) for run in pending if run.model == self.model}
        used = {seed for seed, of, scan in places if (scan if layer is None else not scan and of == layer)}
        among = folds or range(self.n_folds)
        return next(seed for seed in itertools.count() if seed not in used and self.fold(seed) in among)

    @property
    def scored(self) -> bool:
        """Whether a score is finite."""
        return any(score.value is not None for score in self.scores)

    def runs_at(self, layer: int) -> tuple[Score, ...]:
        """Return the scores of the fine-tuning runs at a layer."""
        return tuple(score for score in self.scores if score.layer == layer and not score.scan)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What is requested, and what it may cost."""

    tolerance: float = TOLERANCE
    """Score loss that you accept for a smaller model, in points of the metric x 100."""
    level: float = LEVEL
    """Confidence that the best layer is within the tolerance, and that the set contains it."""
    budget: float | None = None
    """Share of the cost of a full sweep (every layer, every seed) to spend at most, such as 0.15 or "15%". By default
    15 %, and all of it for models of up to 4 blocks."""
    seeds: int = SEEDS
    """Seeds per layer at most, and of the full sweep."""
    scan: bool = False
    """Begin with a scan, one run with a loss at every layer, which draws a curve. Models of up to 4 blocks have
    none."""

    def __post_init__(self) -> None:
        check_level(self.level)
        if isinstance(self.budget, str):
            object.__setattr__(self, "budget", read_share(self.budget))
        as_declared(self)
        check_tolerance(self.tolerance)
        if self.budget is not None and not 0 < self.budget <= 1:
            raise DataError(f"expected a budget above 0 and up to 1, a share of the full sweep, got {self.budget}")
        if self.seeds < 1:
            raise DataError(f"expected at least one seed, got {self.seeds}")

    def full_sweep(self, n_blocks: int) -> int:
        """Return the cost of every layer with every seed, in block-steps."""
        return self.seeds * (n_blocks + 1) * (n_blocks + 2) // 2

    def block_steps(self, n_blocks: int) -> float:
        """Return the budget in block-steps."""
        default = SHARE if n_blocks > SWEPT_BLOCKS else 1.0
        return (default if self.budget is None else self.budget) * self.full_sweep(n_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The run that comes next: `layer, seed = search.ask()`."""

    layer: int
    """How many blocks the model keeps, 0 for the embeddings alone; n_blocks for a scan."""
    seed: int
    scan: bool
    """Whether it trains all layers at once."""
    cost: int
    """In block-steps."""
    model: int = field(default=0, metadata=RARE)
    """Which of several."""

    def __iter__(self) -> Iterator[int]:
        return iter((self.layer, self.seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next, and why."""

    run: PlannedRun | None
    """None: the search is over."""
    stop: StopReason | None
    """Why it is over; None while there is a run to do."""
    why: str
    """In plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBelief:
    """What is known of one layer."""

    layer: int
    mean: float
    """Expected score over new items and seeds, x 100."""
    interval: tuple[float, float]
    """Of that score, at the requested level."""
    chance_best: float
    """To be the best layer."""
    chance_within: float
    """To be no worse than the best layer by more than the tolerance."""
    runs: int
    """Fine-tuning runs that scored at it; the scan is not among them."""
    failed: int = field(default=0, metadata=RARE)
    """Fine-tuning runs at it without a score."""
    behind: float | None = field(default=None, metadata=RARE)
    """Points that the best layer is ahead at most, at the requested level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Confidence that the best layer differs from the likeliest other one."""

    rival: int
    """The layer with a run with the largest chance after the best one."""
    difference: float
    """Expected score of the best layer less that of the rival, x 100."""
    item_error: float
    """Standard error of the difference of their scores over items, in points; further seeds do not reduce it. 0 where
    it is not known: one run, or one of each of two layers, cannot tell what runs share, nor can runs on other folds."""
    seed_error: float | None
    """Over seeds, in points; None, in files of before, where one of them had no run, so that nothing is said."""
    items_needed: int | None
    """From about so many items on, they would show a difference as large as the tolerance; None where that is not
    known, or the tolerance is 0."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SearchAnswer(Shown):
    """Which layer to keep, how certain that is, and at what cost."""

    best_layer: int
    """With the highest expected score, the smaller one of equals."""
    chance: float
    """That it is the best."""
    candidates: tuple[int, ...]
    """The smallest set of layers that holds the best one with at least the level, ascending."""
    smallest_sufficient: int | None
    """The smallest layer with a run that is within the tolerance of the best, at the level; None where none is."""
    layers: tuple[LayerBelief, ...]
    """By layer."""
    settings: SearchSettings
    spent: int
    """Cost of the runs in block-steps."""
    full_sweep: int
    """What every layer with every seed costs, in block-steps."""
    decision: Decision
    """Why the search is over, or what comes next."""
    doubt: Doubt | None
    """What is uncertain and what it would take; None where the best layer has no run, or no other one has."""
    sentence: str
    """All of it in plain words."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that could be chosen; those before it are left out."""
    worse: tuple[int, ...] = field(default=(), metadata=RARE)
    """Layers with a run that are worse than the best by more than the tolerance, ascending; at the level all of them
    are, and the last one by itself, where `whole` shows it."""
    whole: Interval | None = field(default=None, metadata=RARE)
    """The score of the layer to keep less that of the whole model, x 100, over new items and seeds: `shown` where it is
    above the tolerance with the level. None where the last layer is the one to keep, or has no score of a run."""
    spoilt: int = field(default=0, metadata=RARE)
    """Examples that stand in two splits, by which scores are spoilt: nothing is claimed then."""
    unit: float = field(default=0.01, metadata=RARE)
    """What counts as a point, in the unit of the scores; 0.01 of scores up to 1."""
    higher_is_better: bool = field(default=True, metadata=RARE)
    """Else the best layer has the lowest expected score, and `whole` and `doubt` are below 0 where it is better."""

    @property
    def verdict(self) -> Verdict:
        """How much is known of the layer to keep: what headlines say."""
        if self.spoilt:
            return "undecided"
        near = self.layers[self.best_layer].chance_within >= self.settings.level
        if near and self.best_layer == self.n_blocks and self.smallest_sufficient in (None, self.n_blocks):
            return "nothing to cut"
        if len(self.candidates) == 1:
            return "decided"
        return "within the tolerance" if near else "undecided"

    @property
    def n_blocks(self) -> int:
        """Of the whole model."""
        return len(self.layers) - 1

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The layers with a run, from the last one back, that are worse than the best by more than the tolerance."""
        tested = [layer.layer for layer in self.layers if layer.runs]
        falling = itertools.takewhile(lambda layer: layer in self.worse and not self.spoilt, reversed(tested))
        return tuple(sorted(falling))

    @property
    def share(self) -> float:
        """Cost as a share of the full sweep."""
        return self.spent / self.full_sweep

    # ---- as a table -------------------------------------------------------------------------------------

    def flag(self, layer: int) -> str:
        """Return what follows for a layer: keep, will do, may be best or drop; empty for the others."""
        if self.spoilt:
            return ""
        if layer == self.best_layer:
            return "keep"
        if layer == self.smallest_sufficient:
            return "will do"
        if layer in self.candidates:
            return "may be best"
        return "drop" if layer in self.drop_layers else ""

    def columns(self, quantity: Quantity | None = None) -> tuple[Column, ...]:
        """Return what is known by layer, empty for those that are left out, and of spoilt scores without claims."""
        column = columns_of(of_layers(range(self.first_layer, len(self.layers)), self.layers))
        title, within = interval_title(self.settings.level), f"within {self.settings.tolerance:g}"
        behind = "Points that the best layer is ahead at most; where a layer had no run, if scores change as in other "
        behind += "encoders."
        over = "for new items and new seeds"
        meaning = f"Score over new items and seeds, {'x 100' if self.unit == 0.01 else 'in points'}."
        columns = (
            column("runs", form=lambda count: str(count or ""), meaning="Of truncated models."),
            column("expected", attrgetter("mean"), form=".1f", meaning=meaning, quantity=quantity),
        )
        claims = (
            column("expected_interval", attrgetter("interval"), title=title, form=".1f", interval=True, over=over),
            column("chance_best", form=chance),
            column("chance_within", title=within, form=chance, meaning="Of the best layer."),
            column("behind", title="at most behind", form=".2f", shown=False, meaning=behind),
            column("candidate", lambda belief: belief.layer in self.candidates, shown=False),
            column("found_drop", lambda belief: belief.layer in self.drop_layers, shown=False),
        )
        empty = [None] * len(self.layers)
        return (*columns, *(replace(claim, values=empty) if self.spoilt else claim for claim in claims))

    @property
    def table(self) -> Table:
        """A row a layer."""
        layers = range(len(self.layers))
        flags = [self.flag(layer) for layer in layers]
        best: Literal["higher", "lower"] = "higher" if self.higher_is_better else "lower"
        unit = "score" if self.unit == 1 else f"score × {1 / self.unit:g}"
        return Table(
            columns=(
                *layer_columns(layers),
                *self.columns(Quantity(unit, best=best)),
                Column("kept", [layer == self.best_layer for layer in layers], shown=False),
                Column("flag", [flag or None for flag in flags]),
            ),
            notes=(sentences.expected_note(unit, self.settings.tolerance),),
            marks=tuple(map(FLAGGED.get, flags)),
            charts=(EXPECTED_CHART,),
        )

    @property
    def blocks(self) -> Blocks | None:
        """Those below the layer to keep, undecided between layers that may be the best."""
        return None if self.spoilt else Blocks.upto(self.n_blocks, self.best_layer, self.candidates)

    @property
    def page(self) -> dict[str, Any]:
        """What its page has beside its sentences and its table."""
        return {"kind": "the layer to keep"}

    # ---- in words ---------------------------------------------------------------------------------------

    @property
    def worded(self) -> Self:
        """The same with its sentence."""
        parts = (self.summary, self.cost(), self.doubts())
        return replace(self, sentence=" ".join(filter(None, parts)))

    @property
    def summary(self) -> str:
        """Which layer to keep, what it is expected to score, and how certain that is, in sentences."""
        expected = f"{self.kept}: {', '.join(filter(None, (self.expected(), self.against_whole)))}."
        claims = [sentences.spoilt_sentence(self.spoilt)] if self.spoilt else [self.sureness, self.sufficient()]
        unit = sentences.unit_sentence(self.unit, higher_is_better=self.higher_is_better)
        return " ".join(filter(None, (expected, *claims, unit)))

    @property
    def kept(self) -> str:
        """Which layer to keep, worded by what is known of it: the start of a sentence."""
        if self.spoilt:
            return f"Layer {self.best_layer} of {self.n_blocks} scores highest"
        near = self.settings.tolerance
        return sentences.kept_phrase(
            self.best_layer, self.n_blocks, self.verdict, chance_best=self.chance, tolerance=near
        )

    def expected(self, unit: str = "") -> str:
        """Return what the layer to keep is expected to score, in a unit."""
        best = self.layers[self.best_layer]
        interval = None if self.spoilt else best.interval
        return sentences.expected_phrase(best.mean, interval, self.settings.level, unit=unit)

    @property
    def against_whole(self) -> str:
        """How the layer to keep compares with the whole model; empty where that is not known, or one had no run."""
        if self.whole is None or self.spoilt or not self.layers[self.best_layer].runs:
            return ""
        return sentences.from_full_model(self.whole)

    @property
    def sureness(self) -> str:
        """Which layers may be the best, or with what chance the one to keep is."""
        unrun = [belief for belief in self.layers[self.first_layer :] if not belief.runs]
        return sentences.sureness_sentence(
            self.candidates,
            range(self.first_layer, len(self.layers)),
            chance_best=self.chance,
            level=self.settings.level,
            bare=[belief.layer for belief in unrun if not belief.failed],
            failed=[belief.layer for belief in unrun if belief.failed],
        )

    def sufficient(self, gains: str = "") -> str:
        """Return the smallest layer that will do, and what it saves; nothing of layer 0, which none is below."""
        best = self.layers[self.best_layer]
        return sentences.sufficient_sentence(
            self.best_layer,
            self.smallest_sufficient,
            chance_within=best.chance_within,
            behind=best.behind,
            inferred=not all(belief.runs for belief in self.layers[self.first_layer :]),
            tolerance=self.settings.tolerance,
            level=self.settings.level,
            gains=gains,
        )

    def cost(self, *, proof: int = 0, seconds: float = 0.0) -> str:
        """Return what was spent, how much of it on a comparison with the last layer, and why no more was."""
        return sentences.spent_sentence(
            self.share,
            seeds=self.settings.seeds,
            why="" if self.spoilt else self.decision.why,
            over=bool(self.spoilt) or self.decision.stop is not None,
            proof=proof / self.spent if proof else 0.0,
            seconds=seconds,
        )

    def doubts(self, unit: str = "item") -> str:
        """Return what is uncertain and what it would take; nothing where the best layer is settled."""
        doubt, reach = self.doubt, NormalDist().inv_cdf((1 + self.settings.level) / 2)
        if self.decision.stop == "settled" or self.spoilt or doubt is None or doubt.seed_error is None:
            return ""
        return sentences.doubt_sentence(
            sorted((self.best_layer, doubt.rival)),
            doubt.difference,
            items=reach * doubt.item_error,
            seeds=reach * doubt.seed_error,
            tolerance=self.settings.tolerance,
            unit=unit,
            items_needed=doubt.items_needed,
            more_seeds=self.decision.stop != "gain",
        )
