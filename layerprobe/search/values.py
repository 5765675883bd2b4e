"""Evidence, settings, decisions and answers of a search."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import NormalDist
from typing import Any, Literal, Self

from layerprobe.checks import LEVEL, check_level, check_tolerance, convert_fields, read_share
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.interval import Interval
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown, mask_left_out
from layerprobe.results.table import (
    Chart,
    Column,
    Line,
    Quantity,
    Table,
    columns_of,
    interval_title,
    layer_columns,
    probability,
)
from layerprobe.similarity.values import Matrix
from layerprobe.stats.values import TOLERANCE

StopReason = Literal["settled", "gain", "seeds", "budget"]
"""settled: the best layer is within the tolerance, with the requested confidence; gain: further seeds would not
noticeably improve the choice; seeds: all layers that may be the best have all their seeds; budget: the next run would
exceed it."""

KEEP = "the layer to keep"
FLAGGED = {"keep": "chosen", "best guess": "chosen", "will do": "enough", "may be best": "candidate", "drop": "drop"}
"""Marks of table rows by their flag."""
EXPECTED_CHART = Chart(
    lines=(Line("expected", interval="expected_interval", run="runs", joined=False),),
    name="expected",
    heading="Expected scores",
    chosen=KEEP,
)
"""Chart of expected scores by layer."""
GAIN_CHART = Chart(
    lines=(Line("gain", interval="gain_interval", run="runs", joined=False),),
    name="gain",
    zero="whole model",
    chosen=KEEP,
)
"""Chart of gains over the whole model by layer."""
SHARE = 0.15
"""Default budget, as a share of the full sweep."""
SEEDS = 5
"""Default number of seeds per layer in the full sweep."""
FAILURES = 2
"""Number of runs without any score after which a layer is left out, if other layers have scores."""
SWEPT_BLOCKS = 4
"""Largest number of blocks at which every layer is fine-tuned: a sweep costs no more than a deeper model's search."""


def without_scans(data: Any) -> Any:
    """Return JSON of layerprobe 0.4.0 without its flags for scans.

    Raises:
        DataError: If a run is a scan: searches no longer have runs of all layers at once.
    """
    if isinstance(data, list):
        return [without_scans(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get("scan"):
        raise DataError("a search with --scan, runs of all layers at once, is no longer supported: search again")
    return {key: without_scans(item) for key, item in data.items() if key != "scan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of one run at one layer, on the validation items of its fold."""

    layer: int
    seed: int
    value: float | None
    """Primary metric x 100; None if it is not finite, or the run failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All inputs of a decision."""

    n_blocks: int
    """Number of blocks; layers are 0 to this."""
    scores: tuple[Score, ...] = ()
    """One score per fine-tuned layer and seed."""
    item_covariance: Matrix = ()
    """Covariance of the scores' errors over items, in squared points, in their order; entries of a score of None are
    ignored. Empty if unknown: the items then count as all there are."""
    steps: tuple[float, ...] | None = None
    """-log CKA of layers 1 .. n_blocks with the one before; None: all steps are equal."""
    infonce: tuple[float, ...] | None = None
    """InfoNCE between two views of a text at layers 0 .. n_blocks, in nats; None: unknown."""
    start: int | None = None
    """The first layer to run; None: the one with the highest InfoNCE, or the middle one."""
    n_items: int | None = None
    """Number of validation items of all seeds together (groups, if items are grouped)."""
    n_folds: int = 1
    """Number of folds: seed k validates on fold k modulo this. 1: all seeds validate on the same items."""
    first_layer: int = 0
    """The first layer that can be chosen; earlier ones are left out."""
    model: int = 0
    """Number of the model among several that share a budget."""
    block_cost: float = 1.0
    """Cost of a block-step of this model relative to the others."""

    def __post_init__(self) -> None:
        if self.n_folds < 1:
            raise DataError(f"expected at least one fold, got {self.n_folds}")
        if self.n_blocks < 1:
            raise DataError(f"expected a model with at least one block, got {self.n_blocks}")
        if not 0 <= self.first_layer <= self.n_blocks:
            raise DataError(f"expected a first layer from 0 to {self.n_blocks}, got {self.first_layer}")
        if not all(map(math.isfinite, (*(self.steps or ()), *(self.infonce or ())))):
            raise DataError("expected finite readings of every layer, got NaN or infinity: leave that reading out")

    @property
    def choices(self) -> range:
        """The layers that can be chosen."""
        return range(self.first_layer, self.n_blocks + 1)

    @property
    def contenders(self) -> tuple[int, ...]:
        """Layers that can still be chosen: those with two or more runs without a score are excluded, unless all are."""
        with_score = {score.layer for score in self.scores if score.value is not None}
        going_on = [i for i in self.choices if i in with_score or len(self.runs_at(i)) < FAILURES]
        return tuple(going_on if with_score else self.choices)

    @property
    def spent(self) -> int:
        """Cost of the runs in block-steps; a run at layer l costs l + 1."""
        return sum(score.layer + 1 for score in self.scores)

    def fold(self, seed: int) -> int:
        """Return the fold on which a seed validates."""
        return seed % self.n_folds

    def next_seed(self, layer: int, pending: "Sequence[PlannedRun]" = (), folds: Collection[int] = ()) -> int:
        """Return the first seed, on one of the given folds if any, without a run or pending run of a layer."""
        used = {score.seed for score in self.runs_at(layer)}
        used |= {run.seed for run in pending if (run.model, run.layer) == (self.model, layer)}
        among = folds or range(self.n_folds)
        return next(seed for seed in itertools.count() if seed not in used and self.fold(seed) in among)

    @property
    def scored(self) -> bool:
        """Whether there is a finite score."""
        return any(score.value is not None for score in self.scores)

    def runs_at(self, layer: int) -> tuple[Score, ...]:
        """Return the scores of the fine-tuning runs at a layer."""
        return tuple(score for score in self.scores if score.layer == layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of a search: tolerance, confidence and budget."""

    tolerance: float = TOLERANCE
    """Score loss that you accept for a smaller model, in points of the metric x 100."""
    level: float = LEVEL
    """Confidence that the best layer is within the tolerance, and that the set contains it."""
    budget: float | None = None
    """Largest share of a full sweep (every layer, every seed) to spend, such as 0.15 or "15%". By default 15 %, and all
    of it for models of up to 4 blocks."""
    seeds: int = SEEDS
    """Largest number of seeds per layer, also in the full sweep."""

    def __post_init__(self) -> None:
        check_level(self.level)
        if isinstance(self.budget, str):
            object.__setattr__(self, "budget", read_share(self.budget))
        convert_fields(self)
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
    """The next run: `layer, seed = search.ask()`."""

    layer: int
    """Number of blocks to keep, 0 for the embeddings alone."""
    seed: int
    cost: int
    """Cost in block-steps."""
    model: int = field(default=0, metadata=RARE)
    """Number of the model among several."""

    def __iter__(self) -> Iterator[int]:
        return iter((self.layer, self.seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next step, with its reason."""

    run: PlannedRun | None
    """The next run; None: the search is over."""
    stop: StopReason | None
    """Why the search is over; None if there is a next run."""
    why: str
    """The reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBelief:
    """Estimates for one layer."""

    layer: int
    mean: float
    """Expected score over new items and seeds, x 100."""
    interval: tuple[float, float]
    """Interval of that score, at the requested level."""
    chance_best: float
    """Chance of being the best layer."""
    chance_within: float
    """Chance of being within the tolerance of the best layer."""
    runs: int
    """Number of fine-tuning runs with a score."""
    failed: int = field(default=0, metadata=RARE)
    """Number of fine-tuning runs without a score."""
    behind: float | None = field(default=None, metadata=RARE)
    """Upper bound on the points that the best layer is ahead, at the requested level."""
    gain: tuple[float, float, float] | None = field(default=None, metadata=RARE)
    """Expected score minus that of the whole model, and the ends of its interval; None if that had no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Confidence that the best layer differs from the likeliest other one."""

    rival: int
    """The likeliest other layer with a run."""
    difference: float
    """Expected score of the best layer minus that of the rival, x 100."""
    item_error: float
    """Standard error over items of the difference, in points; further seeds do not reduce it. 0 if unknown: runs on
    different folds, or one run per layer, do not show their common error."""
    seed_error: float | None
    """Standard error over seeds, in points; None in older files where one of them had no run."""
    items_needed: int | None
    """Approximate number of items that would show a difference as large as the tolerance; None if unknown, or if the
    tolerance is 0."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SearchAnswer(Shown):
    """The layer to keep, its certainty and its cost."""

    best_layer: int
    """The layer with the highest expected score, the smaller of equals."""
    chance: float
    """Chance that it is the best."""
    candidates: tuple[int, ...]
    """The smallest set of layers that contains the best one at the level, ascending."""
    smallest_sufficient: int | None
    """The smallest layer with a run that is within the tolerance of the best, at the level; None if there is none."""
    layers: tuple[LayerBelief, ...]
    """Estimates by layer."""
    settings: SearchSettings
    spent: int
    """Cost of the runs in block-steps."""
    full_sweep: int
    """Cost of every layer with every seed, in block-steps."""
    decision: Decision
    """Why the search is over, or the next step."""
    doubt: Doubt | None
    """The likeliest rival, and what would settle it; None if the best layer has no run, or no other one has."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that could be chosen; earlier ones are left out."""
    worse: tuple[int, ...] = field(default=(), metadata=RARE)
    """Layers with a run that are worse than the best by more than the tolerance, ascending: jointly at the level, and
    the last one also by itself, if `whole` shows it."""
    whole: Interval | None = field(default=None, metadata=RARE)
    """Score of the layer to keep minus that of the whole model, x 100, over new items and seeds: `shown` if above the
    tolerance at the level. None if the last layer is the one to keep, or has no score."""
    spoilt: int = field(default=0, metadata=RARE)
    """Number of examples in two splits, which make scores unreliable: nothing is claimed then."""
    unit: float = field(default=0.01, metadata=RARE)
    """Size of a point, in the unit of the scores; 0.01 for scores up to 1."""
    higher_is_better: bool = field(default=True, metadata=RARE)
    """Whether higher scores are better; otherwise `whole` and `doubt` are below 0 where the best layer is better."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return this class and its fields from JSON, also of earlier versions."""
        return cls, without_scans(data)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the whole model."""
        return len(self.layers) - 1

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The last consecutive layers with a run that are worse than the best by more than the tolerance."""
        tested = [layer.layer for layer in self.layers if layer.runs]
        falling = itertools.takewhile(lambda layer: layer in self.worse and not self.spoilt, reversed(tested))
        return tuple(sorted(falling))

    @property
    def share(self) -> float:
        """Cost as a share of the full sweep."""
        return self.spent / self.full_sweep

    def flag(self, layer: int) -> str:
        """Return the flag of a layer: keep or best guess, will do, may be best, whole model, drop; or empty."""
        if self.spoilt:
            return ""
        if layer == self.best_layer:
            return "best guess" if self.verdict == Verdict.UNDECIDED else "keep"
        if layer == self.smallest_sufficient:
            return "will do"
        if layer in self.candidates:
            return "may be best"
        if layer == self.n_blocks:
            return "whole model"
        return "drop" if layer in self.drop_layers else ""

    def columns(self, quantity: Quantity) -> tuple[Column, ...]:
        """Return the columns of estimates by layer, empty for layers left out; unreliable scores get no claims."""
        column = columns_of(mask_left_out(range(self.first_layer, len(self.layers)), self.layers))
        title, within = interval_title(self.settings.level), f"within {self.settings.tolerance:g}"
        behind = "Upper bound on points that the best layer is ahead; without a run, if scores change as in other "
        behind += "encoders."
        over = "for new items and new seeds"
        meaning = "Predicted score of the truncated model over new items and seeds."
        gain = Quantity("points over the whole model", quantity.split, quantity.best)
        columns = (
            column("expected", attrgetter("mean"), form=".1f", meaning=meaning, quantity=quantity),
            column("runs", form=lambda count: str(count or ""), meaning="Number of runs.", more=True),
        )
        claims: tuple[Column, ...] = (
            column("expected_interval", attrgetter("interval"), title=title, form=".1f", interval=True, over=over),
            column("gain", lambda belief: belief.gain and belief.gain[0], form="+.1f", quantity=gain),
            column(
                "gain_interval",
                lambda belief: belief.gain and belief.gain[1:],
                title=title.removesuffix(" interval"),
                form="+.1f",
                interval=True,
                over=over,
            ),
            column("chance_best", title="best", form=probability, meaning="Chance of being the best layer."),
            column(
                "chance_within",
                title=within,
                form=probability,
                meaning="Chance of being so close to the best.",
                more=True,
            ),
            column("behind", title="at most behind", form=".2f", more=True, meaning=behind),
            column("candidate", lambda belief: belief.layer in self.candidates, shown=False),
            column("found_drop", lambda belief: belief.layer in self.drop_layers, shown=False),
        )
        rare = "expected_interval" if self.gains else "gain_interval"
        claims = tuple(replace(claim, more=claim.more or claim.name == rare) for claim in claims)
        empty = [None] * len(self.layers)
        return (*columns, *(replace(claim, values=empty) if self.spoilt else claim for claim in claims))

    @property
    def table(self) -> Table:
        """One row per layer."""
        layers = range(len(self.layers))
        best: Literal["higher", "lower"] = "higher" if self.higher_is_better else "lower"
        return Table(
            columns=(
                *layer_columns(layers),
                *self.columns(Quantity(self.metric, best=best)),
                Column("kept", [layer == self.best_layer for layer in layers], shown=False),
                Column("flag", [self.flag(layer) or None for layer in layers]),
            ),
            marks=tuple(FLAGGED.get(self.flag(layer)) for layer in layers),
            charts=self.charts,
        )

    @property
    def gains(self) -> bool:
        """Whether gains over the whole model are known, because the last layer had a run."""
        return not self.spoilt and any(belief.gain for belief in self.layers)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Charts of gains over the whole model, if known, and of expected scores."""
        return (GAIN_CHART, EXPECTED_CHART) if self.gains else (EXPECTED_CHART,)

    @property
    def verdict(self) -> Verdict:
        """Confidence in the layer to keep."""
        return self.verdict_with_candidates(len(self.candidates))

    def verdict_with_candidates(self, candidates: int) -> Verdict:
        """Return the confidence in the layer to keep, given the number of layers, of all models, that may be best."""
        if self.spoilt:
            return Verdict.FAILED
        best = self.layers[self.best_layer]
        is_near = best.chance_within >= self.settings.level
        if is_near and self.best_layer == self.n_blocks and self.smallest_sufficient in (None, self.n_blocks):
            return Verdict.NOTHING_TO_DO
        if candidates == 1:
            return Verdict.DECIDED
        return Verdict.PROBABLE if is_near or best.chance_best >= LIKELY else Verdict.UNDECIDED

    @property
    def conclusion(self) -> Conclusion:
        """The layer to keep, its expected score and gain, and its certainty."""
        best, layers = self.layers[self.best_layer], tuple(range(self.first_layer, len(self.layers)))
        case = {0: "embeddings", self.n_blocks: "whole"}.get(self.best_layer, "cut")
        better: Literal["higher", "lower"] = "higher" if self.higher_is_better else "lower"
        metric = self.metric if self.higher_is_better else f"{self.metric} (lower is better)"
        names: dict[str, object] = {"metric": metric, "layer": self.best_layer}
        if self.spoilt:
            numbers = {"score": Fact(value=best.mean, unit="score"), "spoilt": Fact(value=self.spoilt, unit="count")}
            return Conclusion(kind="find", case="spoilt", verdict=self.verdict, facts=numbers, names=names)
        measured: dict[str, Any] = {"split": "validation", "level": self.settings.level}
        facts = {
            "score": Fact(value=best.mean, unit="score", interval=best.interval, better=better, **measured),
            "chance": Fact(value=best.chance_best, unit="chance"),
            "near": Fact(value=best.chance_within, unit="chance"),
            "level": Fact(value=self.settings.level, unit="level"),
            "tolerance": Fact(value=self.settings.tolerance, unit="tolerance"),
            "share": Fact(value=self.share, unit="share"),
            "runs": Fact(value=sum(belief.runs + belief.failed for belief in self.layers), unit="count"),
        }
        if best.behind:
            least, ends = self.settings.tolerance, (0.0, best.behind)
            facts["behind"] = Fact(value=best.behind, interval=ends, least=least, better="lower", **measured)
        if best.gain is not None and best.runs and case != "whole":
            facts["gain"] = Fact(value=best.gain[0], interval=best.gain[1:], better=better, **measured)
        is_open = self.candidates == layers
        choice = Choice.upto(self.n_blocks, self.best_layer, () if is_open else self.candidates)
        return Conclusion(
            kind="find",
            case=case,
            verdict=self.verdict,
            choice=choice,
            facts={name: facts[name] for name in (*FIRST, *facts) if name in facts},
            names={**names, "layers": layers} if is_open else names,
            checks=tuple(self._checks()),
        )

    @property
    def metric(self) -> str:
        """Name of the metric with its scale."""
        return "score" if self.unit == 1 else f"score x {1 / self.unit:g}"

    def _checks(self) -> Iterator[Check]:
        """Yield checks of runs, of a smaller sufficient layer, of drops, of rivals, and of the end of the search."""
        beliefs, last = self.layers[self.first_layer :], self.layers[-1]
        inferred = tuple(belief.layer for belief in beliefs if not belief.runs and not belief.failed)
        failed = tuple(belief.layer for belief in beliefs if not belief.runs and belief.failed)
        yield Check(name="layers run", passed=None if inferred else True, names={"inferred": inferred})
        if failed:
            yield Check(name="layers failed", passed=False, names={"layers": failed})
        if self.smallest_sufficient not in (None, self.best_layer):
            yield Check(name="enough", passed=True, names={"enough": self.smallest_sufficient})
        if self.best_layer != self.n_blocks and last.runs:
            drop = Fact(value=1 - last.chance_within, unit="chance")
            is_fine = not self.drop_layers and drop.value <= 1 - self.settings.level
            passed = True if self.drop_layers or is_fine else None
            name = "no drop" if is_fine else "last layers"
            yield Check(name=name, passed=passed, facts={"drop": drop}, names={"dropped": self.drop_layers})
        stop = self.decision.stop
        if (doubt := self.doubt) is not None and doubt.seed_error is not None and stop != "settled":
            yield from self._rival(doubt, doubt.seed_error)
        yield Check(name=f"search {stop or 'goes on'}", passed=True if stop == "settled" else None)

    def _rival(self, doubt: Doubt, seed_error: float) -> Iterator[Check]:
        """Yield the check of the likeliest rival, and what would settle it."""
        reach, tolerance = NormalDist().inv_cdf((1 + self.settings.level) / 2), self.settings.tolerance
        value, half = abs(doubt.difference), reach * math.hypot(doubt.item_error, seed_error)
        if value > tolerance + half:
            return
        facts = {"difference": Fact(value=value, interval=(value - half, value + half), level=self.settings.level)}
        if doubt.items_needed is not None and reach * doubt.item_error > tolerance:
            facts["items"] = Fact(value=float(f"{doubt.items_needed:.1e}"), unit="count")
        if self.decision.stop != "gain" and reach * seed_error > tolerance:
            facts["seeds"] = Fact(value=reach * seed_error)
        rivals = tuple(sorted((self.best_layer, doubt.rival)))
        yield Check(name="rival", passed=None, facts=facts, names={"rivals": rivals})


FIRST = ("gain", "parameters", "speed", "behind", "score")
"""Facts in the order of tiles."""
LIKELY = 0.5
"""Chance from which the best guess is called probable."""
