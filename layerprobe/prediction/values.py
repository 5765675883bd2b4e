"""Where to look first for the layer to keep, and why."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean

from layerprobe.files.serialisation import RARE
from layerprobe.readings.reading import CKA, DIGITS, READINGS
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import LeavesOut, Shown, mask_left_out
from layerprobe.results.table import Column, Table, chance
from layerprobe.similarity.values import CurveUncertainty

PLATEAU = "plateau of CKA"
"""The rule that flags the final layers which lie below the plateau before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    """How far CKA declines in the final layers, and what counts as a decline."""

    plateau_layers: tuple[int, ...]
    """The layers just before the decline."""
    plateau: float
    """Their median CKA, from which the decline is measured."""
    decline: float
    """The plateau less CKA at the last layer; negative where the curve rises."""
    wobble: float
    """The median change from layer to layer before the decline."""
    threshold: float
    """How far below the plateau every layer of the decline must lie."""
    decline_interval: tuple[float, float] | None = None
    """Of the decline, from redrawn curves; None where the curve has no intervals."""
    level: float | None = None
    """Confidence level of that interval, the curve's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPart:
    """How a rule fares on encoders of one sort."""

    encoders: str
    """Which ones, in the plural."""
    models: int
    """All of them."""
    drops: int
    """Of these, how many drop."""
    caught: int
    """Of those that drop, how many it flags."""
    false_alarms: int
    """Of the others, how many it flags all the same."""
    mean_regret: float
    """Test score of the best layer less that of the recommended one, x 100."""
    last_regret: float
    """The same of the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """How a rule fares on the models of DropBench, each of a pretraining objective that the rule was not tuned on."""

    budget: str
    """Of the fine-tuning."""
    families: int
    """Pretraining objectives."""
    models: int
    """All models."""
    drops: int
    """Of these, how many drop."""
    caught: int
    """Of those that drop, how many it calls."""
    false_alarms: int
    """Of the others, how many it calls all the same."""
    mean_regret: float
    """Test score of the best layer less that of the recommended one, x 100."""
    median_regret: float
    """x 100."""
    parts: tuple[RecordPart, ...]
    """Pretrained and random ones of these, and others that no rule was chosen by."""

    @property
    def checks(self) -> Iterator[Check]:
        """Yield how good its layers and flags were on encoders of which some drop, and on others."""
        some, none = ([part for part in self.parts if bool(part.drops) == drops] for drops in (True, False))
        for name, parts in (("record", some), ("record without drops", none)):
            if parts:
                counts = {
                    "models": sum(part.models for part in parts),
                    "drops": sum(part.drops for part in parts),
                    "caught": sum(part.caught for part in parts),
                    "others": sum(part.models - part.drops for part in parts),
                    "false": sum(part.false_alarms for part in parts),
                }
                facts = {name: Fact(value=value, unit="count") for name, value in counts.items()}
                regrets = {"regret": [part.mean_regret for part in parts], "last": [part.last_regret for part in parts]}
                facts |= {
                    name: Fact(value=fmean(values), interval=(min(values), max(values)))
                    for name, values in regrets.items()
                }
                says_nothing = counts["caught"] + counts["false"] == counts["models"]
                yield Check(name=name, passed=False if says_nothing and parts is some else None, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DropPrediction(LeavesOut, Shown):
    """Where to look first, and which layers are flagged: they may score lower after fine-tuning, or not."""

    by_layer = ("read",)

    drop_layers: tuple[int, ...]
    """The final run of flagged layers; empty where no drop is expected."""
    onset: int | None
    """The first flagged layer."""
    recommended_layer: int
    """Where to look first; without a flag the last layer."""
    rule: str
    """Name of the rule."""
    evidence: Decline | None
    """Of the decline of CKA, also where the rule reads other numbers; None without a reference."""
    baselines: dict[str, int]
    """Layers that simpler ways recommend: last layer, best zero-shot layer, fixed fraction of depth."""
    flagged_in: tuple[float, ...] = ()
    """Share of the curves redrawn within the errors of the observed one in which the rule flags each layer, 0 .. 1: how
    certain it is for other texts, not how likely a drop is; empty where the errors of what it reads are not known."""
    recommended_in: tuple[float, ...] = ()
    """Share of them in which it recommends each layer; they sum to 1."""
    record: Record | None = None
    """How far the rule can be trusted; None where it is not known."""
    read: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """What the rule read by layer besides CKA, by name."""
    read_uncertainty: dict[str, CurveUncertainty] = field(default_factory=dict)
    """How far these may be off, where that is known."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out: none before it is recommended, and what was read there repeats its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """How many of the last layers give all texts one embedding: they are flagged without a reading."""
    n_texts: tuple[int, int] | None = None
    """How many texts were read, and how many there are; None where no texts were given."""
    readable: bool = field(default=True, metadata=RARE)
    """Whether the model can read the texts; nothing is predicted where it cannot."""

    @property
    def drops(self) -> bool:
        """Whether any layer is flagged."""
        return bool(self.drop_layers)

    @property
    def same(self) -> float | None:
        """Share of the bootstrap samples that give the same prediction; None where that is not known."""
        return self.recommended_in[self.recommended_layer] if self.recommended_in else None

    @property
    def n_layers(self) -> int:
        """How many layers it is of: those that it names, and those of what it read and redrew."""
        named = (*self.drop_layers, self.recommended_layer, *self.baselines.values())
        return max(max(named) + 1, len(self.flagged_in), *(len(values) for values in self.read.values()), 1)

    @property
    def layers(self) -> range:
        """Those that are not left out."""
        return range(self.first_layer, self.n_layers - self.collapsed)

    def flag(self, layer: int) -> str | None:
        """Return what follows for a layer: flagged or recommended; None for the others, and where nothing was read."""
        if not self.readable:
            return None
        if layer in self.drop_layers:
            return "flagged"
        return "recommended" if layer == self.recommended_layer else None

    @property
    def read_columns(self) -> Iterator[Column]:
        """What the rule read besides CKA, with its interval where that is known."""
        for name, values in self.read.items():
            yield Column(name, mask_left_out(self.layers, values), form=DIGITS, meaning="Read by the rule.")
            if (errors := self.read_uncertainty.get(name)) is not None:
                yield errors.interval_column(f"{name}_interval", self.layers, form=DIGITS)

    def flag_columns(self, n_layers: int) -> tuple[Column, ...]:
        """Return what it says of so many layers: how often redraws flag each, and which ones it flags."""
        layers = range(n_layers)
        shares = mask_left_out(self.layers, self.flagged_in) if self.flagged_in else [None] * n_layers
        flagged, recommended = ([self.flag(layer) == flag for layer in layers] for flag in ("flagged", "recommended"))
        return (
            Column(
                "drop_probability",
                shares,
                "flagged in",
                chance,
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
        """Return the table of so many layers, with further columns behind the layer."""
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
        """What the rule read besides CKA, and in how many bootstrap samples each layer is flagged."""
        read = (
            Chart(
                lines=(Line(name, interval=f"{name}_interval" if name in self.read_uncertainty else ""),),
                name=f"read-{number}",
                heading=f"What the rule “{self.rule}” reads: {name}",
                band=True,
            )
            for number, name in enumerate(self.read)
        )
        share = Line("drop_probability" if self.flagged_in else "drop")
        flags = Chart(lines=(share,), name="flags", heading="The same for other texts", kind="bars")
        return tuple(replace(chart, chosen="where to look first", drops="flagged layers") for chart in (*read, flags))

    @property
    def table(self) -> Table:
        """A row a layer: what the rule read, and what follows."""
        return self.table_with(n_layers=self.n_layers)

    @property
    def conclusion(self) -> Conclusion:
        """Where to look first, by what, and how often the rule is right."""
        last, fallen = self.n_layers - 1, tuple(layer for layer in self.drop_layers if layer in self.layers)
        case = "look" if fallen else "collapsed" if self.drops else "keep"
        facts = dict(self._grounds())
        if self.same is not None:
            facts["same"] = Fact(value=self.same, unit="chance")
        if self.record is not None:
            facts["regret"] = Fact(value=self.record.mean_regret)
            facts["models"] = Fact(value=self.record.models, unit="count")
        if self.n_texts is not None:
            facts |= {"texts": Fact(value=self.n_texts[0], unit="count")}
            facts |= {"available": Fact(value=self.n_texts[1], unit="count")}
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
        """Yield the fall that the rule reads: from the highest layer, or the plateau, to the last one."""
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
        """What simpler rules recommend."""
        ways = {self.rule: self.recommended_layer, **self.baselines}
        columns = Column("rule", tuple(ways)), Column("recommended", tuple(ways.values()), "layer")
        return (Table(columns=columns, title="Compared with simpler rules"),)

    @property
    def sources(self) -> dict[str, str]:
        """The rule."""
        return {"Rule": f"{self.rule}, also on bootstrap samples" if self.flagged_in else self.rule}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What fine-tuning under one budget says of a model."""

    drop: bool
    """Whether the last layer scores lower than the best one by more than the threshold."""
    effect: float
    """By how much, on the test split: the best layer is chosen for each seed by other seeds on other items."""
    threshold: float
    """What counts: half a point, or what the noise of seeds and items reaches, x 100."""
    standard_error: float | None
    """Of the difference of the best and the last layer, over seeds, and over items where their errors are known; None
    where neither is."""
    best_layer: int
    """By the mean score over the seeds, the earlier one of equals."""
    onset: int | None
    """The first of the final run of layers below the best one by more than the threshold; None without a drop."""
    best_layers: tuple[int, ...] = ()
    """Those that may be the best, the highest among them: it is one of these with the given confidence."""
