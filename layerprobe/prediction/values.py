"""Predictions of the layer to keep, with their evidence and track record."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean

from layerprobe.files.serialisation import RARE
from layerprobe.readings.reading import CKA, DIGITS, READINGS
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import LeavesOut, Shown, mask_left_out
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, probability
from layerprobe.similarity.values import CurveUncertainty

PLATEAU = "plateau of CKA"
"""Name of the rule that flags the last layers below the plateau before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    """The decline of CKA in the last layers, with its threshold."""

    plateau_layers: tuple[int, ...]
    """The layers just before the decline."""
    plateau: float
    """Their median CKA."""
    decline: float
    """The plateau minus CKA at the last layer; negative if the curve rises."""
    wobble: float
    """The median change between adjacent layers before the decline."""
    threshold: float
    """How far below the plateau every layer of the decline must be."""
    decline_interval: tuple[float, float] | None = None
    """Interval of the decline, from redrawn curves; None if the curve has no intervals."""
    level: float | None = None
    """Confidence level of that interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPart:
    """Track record of a rule on encoders of one sort."""

    encoders: str
    """The sort of encoders, in the plural."""
    models: int
    """Number of encoders."""
    drops: int
    """Number of encoders that drop."""
    caught: int
    """Number of those that it flags."""
    false_alarms: int
    """Number of encoders without a drop that it flags."""
    mean_regret: float
    """Mean test score of the best layer minus that of the recommended one, x 100."""
    last_regret: float
    """The same for the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """Track record of a rule on DropBench, on models of pretraining objectives that it was not fitted to."""

    budget: str
    """Budget of the fine-tuning."""
    families: int
    """Number of pretraining objectives."""
    models: int
    """Number of models."""
    drops: int
    """Number of models that drop."""
    caught: int
    """Number of those that it flags."""
    false_alarms: int
    """Number of models without a drop that it flags."""
    mean_regret: float
    """Mean test score of the best layer minus that of the recommended one, x 100."""
    median_regret: float
    """The median of the same, x 100."""
    parts: tuple[RecordPart, ...]
    """Records on the pretrained and on the random ones of these models, and on others that chose no rule."""

    @property
    def checks(self) -> Iterator[Check]:
        """Yield checks of its record on encoders that may drop, and on others."""
        some, none = ([part for part in self.parts if bool(part.drops) == drops] for drops in (True, False))
        for name, parts in (("record", some), ("record without drops", none)):
            if parts:
                summed = ("models", "drops", "caught", "false_alarms")
                n, drops, caught, false = (sum(getattr(part, name) for part in parts) for name in summed)
                facts = counts(models=n, drops=drops, caught=caught, others=n - drops, false=false)
                regrets = {"regret": [part.mean_regret for part in parts], "last": [part.last_regret for part in parts]}
                facts |= {
                    name: Fact(value=fmean(values), interval=(min(values), max(values)))
                    for name, values in regrets.items()
                }
                yield Check(name=name, passed=False if caught + false == n and parts is some else None, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DropPrediction(LeavesOut, Shown):
    """The layer to try first, and flagged layers, which may or may not score lower after fine-tuning."""

    by_layer = ("read",)

    drop_layers: tuple[int, ...]
    """The flagged last layers; empty if no drop is expected."""
    onset: int | None
    """The first flagged layer."""
    recommended_layer: int
    """The layer to try first; without a flag, the last layer."""
    rule: str
    """Name of the rule."""
    evidence: Decline | None
    """The decline of CKA, even if the rule reads other numbers; None without a reference."""
    baselines: dict[str, int]
    """Layers of simpler rules by name: last layer, best zero-shot layer, fixed fraction of depth."""
    flagged_in: tuple[float, ...] = ()
    """Share of redrawn curves, 0 .. 1, in which the rule flags each layer: its certainty over other texts, not the
    chance of a drop; empty if the errors of its readings are unknown."""
    recommended_in: tuple[float, ...] = ()
    """Share of redrawn curves in which it recommends each layer; they sum to 1."""
    record: TrackRecord | None = None
    """Track record of the rule; None if unknown."""
    read: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Readings of the rule by layer, except CKA, by name."""
    read_uncertainty: dict[str, CurveUncertainty] = field(default_factory=dict)
    """Uncertainty of these readings, where known."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out: no earlier one is recommended, and readings there repeat its value."""
    collapsed: int = field(default=0, metadata=RARE)
    """Number of last layers that give all texts the same embedding: they are flagged without a reading."""
    n_texts: tuple[int, int] | None = None
    """Number of texts read, and of texts available; None if no texts were given."""
    readable: bool = field(default=True, metadata=RARE)
    """Whether the model can read the texts; if not, there is no prediction."""

    @property
    def drops(self) -> bool:
        """Whether any layer is flagged."""
        return bool(self.drop_layers)

    @property
    def same(self) -> float | None:
        """Share of the bootstrap samples with the same prediction; None if unknown."""
        return self.recommended_in[self.recommended_layer] if self.recommended_in else None

    @property
    def n_layers(self) -> int:
        """Number of layers, from the named ones and the lengths of its curves."""
        named = (*self.drop_layers, self.recommended_layer, *self.baselines.values())
        return max(max(named) + 1, len(self.flagged_in), *(len(values) for values in self.read.values()), 1)

    @property
    def layers(self) -> range:
        """The layers that are not left out."""
        return range(self.first_layer, self.n_layers - self.collapsed)

    def flag(self, layer: int) -> str | None:
        """Return the flag of a layer: flagged or recommended; None for others, and without a reading."""
        if not self.readable:
            return None
        if layer in self.drop_layers:
            return "flagged"
        return "recommended" if layer == self.recommended_layer else None

    @property
    def read_columns(self) -> Iterator[Column]:
        """Yield the columns of the rule's readings, except CKA, with their intervals where known."""
        for name, values in self.read.items():
            yield Column(name, mask_left_out(self.layers, values), form=DIGITS, meaning="Read by the rule.")
            if (errors := self.read_uncertainty.get(name)) is not None:
                yield errors.interval_column(f"{name}_interval", self.layers, form=DIGITS)

    def flag_columns(self, n_layers: int) -> tuple[Column, ...]:
        """Return the columns of flags for so many layers, and of the share of redraws that flag each."""
        layers = range(n_layers)
        shares = mask_left_out(self.layers, self.flagged_in) if self.flagged_in else [None] * n_layers
        flagged, recommended = ([self.flag(layer) == flag for layer in layers] for flag in ("flagged", "recommended"))
        return (
            Column(
                "drop_probability",
                shares,
                "flagged in",
                probability,
                meaning="Share of redrawn curves that flag it.",
                quantity=Quantity("share of bootstrap samples that flag it"),
            ),
            Column(
                "drop",
                flagged,
                shown=False,
                meaning="Whether the prediction flags it.",
                quantity=Quantity("flagged (1) or not (0)"),
            ),
            Column("recommended", recommended, shown=False, meaning="Whether the prediction recommends it."),
        )

    def table_with(self, *columns: Column, n_layers: int) -> Table:
        """Return the table of so many layers, with further columns after the layer."""
        layers = range(n_layers)
        flags = [self.flag(layer) for layer in layers]
        return Table(
            columns=(
                Column("layer", tuple(layers), meaning="Blocks kept."),
                *columns,
                *self.read_columns,
                *self.flag_columns(n_layers),
                Column("flag", flags),
            ),
            marks=tuple(flag and {"flagged": "drop", "recommended": "chosen"}[flag] for flag in flags),
            charts=self._charts,
        )

    @property
    def _charts(self) -> tuple[Chart, ...]:
        """Charts of the rule's readings, except CKA, and of the share of bootstrap samples that flag each layer."""
        read = (
            Chart(
                lines=(Line(name, interval=f"{name}_interval" if name in self.read_uncertainty else ""),),
                name=f"read-{number}",
                heading=f"Reading of the rule “{self.rule}”: {name}",
                band=True,
            )
            for number, name in enumerate(self.read)
        )
        share = Line("drop_probability" if self.flagged_in else "drop")
        flags = Chart(lines=(share,), name="flags", heading="How often resampled texts flag a layer", kind="bars")
        return tuple(replace(chart, chosen="where to look first", drops="flagged layers") for chart in (*read, flags))

    @property
    def table(self) -> Table:
        """One row per layer: readings and flags."""
        return self.table_with(n_layers=self.n_layers)

    @property
    def conclusion(self) -> Conclusion:
        """The layer to try first, the evidence, and the track record of the rule."""
        last, fallen = self.n_layers - 1, tuple(layer for layer in self.drop_layers if layer in self.layers)
        case = "look" if fallen else "collapsed" if self.drops else "keep"
        facts = dict(self._grounds())
        if self.same is not None:
            facts["same"] = Fact(value=self.same, unit="chance")
        if self.record is not None:
            facts |= {"regret": Fact(value=self.record.mean_regret), **counts(models=self.record.models)}
        texts, available = self.n_texts or (None, None)
        facts |= counts(texts=texts, available=available)
        names = {"layer": self.recommended_layer, "last": last, "rule": self.rule, "flagged": self.drop_layers}
        reading = CKA if self.rule == PLATEAU else next(iter(self.read), "")
        return Conclusion(
            kind="predict",
            case=case if self.readable else "unread",
            verdict=Verdict.UNDECIDED if self.readable else Verdict.FAILED,
            choice=Choice.upto(last, self.recommended_layer) if self.readable else None,
            facts=facts if self.readable else {},
            names=names | {"reading": reading, "unit": READINGS[reading].unit if reading in READINGS else ""},
            checks=tuple(self.record.checks) if self.record is not None and self.readable else (),
        )

    def _grounds(self) -> Iterator[tuple[str, Fact]]:
        """Yield the fall in the rule's reading: from the highest layer, or the plateau, to the last one."""
        if self.rule == PLATEAU and self.evidence is not None:
            fall, ends = self.evidence.decline, self.evidence.decline_interval
            yield "fall", Fact(value=fall, unit="similarity", interval=ends, level=self.evidence.level)
            yield "highest", Fact(value=self.evidence.plateau, unit="similarity")
            yield "lowest", Fact(value=self.evidence.plateau - fall, unit="similarity")
            yield "threshold", Fact(value=self.evidence.threshold, unit="similarity")
            return
        for values in [*self.read.values()][:1]:
            seen = self.layers[1:] if self.first_layer == 0 else self.layers
            top = max(seen, key=values.__getitem__)
            yield "fall", Fact(value=values[top] - values[seen[-1]], unit="number")
            yield "highest", Fact(value=values[top], unit="number")
            yield "top", Fact(value=top, unit="layer")
            yield "lowest", Fact(value=values[seen[-1]], unit="number")

    @property
    def details(self) -> tuple[Table, ...]:
        """Recommendations of simpler rules."""
        ways = {self.rule: self.recommended_layer, **self.baselines}
        columns = Column("rule", tuple(ways)), Column("recommended", tuple(ways.values()), "layer")
        return (Table(columns=columns, title="Compared with simpler rules"),)

    @property
    def sources(self) -> dict[str, str]:
        """The rule."""
        return {"Rule": f"{self.rule}, also on bootstrap samples" if self.flagged_in else self.rule}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The truth about a model from fine-tuning under one budget."""

    drop: bool
    """Whether the last layer scores lower than the best one by more than the threshold."""
    effect: float
    """Size of the drop on test, x 100: the best layer of each seed is chosen by other seeds on other items."""
    threshold: float
    """Smallest drop that counts, x 100: half a point, or the noise of seeds and items."""
    standard_error: float | None
    """Standard error of the difference between the best and the last layer, over seeds, and over items if known; None
    if neither is."""
    best_layer: int
    """The layer with the highest mean score over seeds, the earlier of equals."""
    onset: int | None
    """The first of the last consecutive layers below the best one by more than the threshold; None without a drop."""
    best_layers: tuple[int, ...] = ()
    """Layers that may be the best, including the highest, at the given confidence."""
