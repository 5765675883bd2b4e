"""Which frozen layer to use: settings and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import LEVEL, check_tolerance
from layerprobe.encoders.model import ModelDescription, described
from layerprobe.errors import DataError
from layerprobe.files.serialisation import IN_MEMORY, RARE, from_json, parse_json, sealed, to_json, unsealed
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import plural, quoted, short_name, some
from layerprobe.probing.estimators import Fit
from layerprobe.results.charts import Chart, Line
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, columns_of, interval_title
from layerprobe.scoring.values import floor_columns
from layerprobe.stats.paired import ItemInfluences, ScoredLayers
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

TargetKind = Literal["scores", "classes", "labels", "pairs", "queries"]
"""scores: a number a sample; classes: one of several; labels: several of 0 and 1; pairs: of rows with a score; queries:
rows with the rows that are relevant for them."""
METHODS = {
    "scores": "ridge regression",
    "classes": "logistic regression",
    "labels": "logistic regression, one label at a time",
    "pairs": "the cosine of the two embeddings",
    "queries": "the cosines of queries with documents",
}
FOLDS, FOLDINGS = 5, 3
MOST_FOLDS = 100
"""Penalties are chosen on pairs of them."""
NAMES = str.maketrans(" @", "__")
"""Of metrics in tables."""
WEIGHTED_SUM = "weighted sum"
"""What the learned weighted sum of layers is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """How layers are probed.

    Raises:
        DataError: If a number is out of its range.
    """

    folds: int = FOLDS
    """Number of folds; each is predicted by probes that were fitted on the others."""
    foldings: int = FOLDINGS
    """Number of random divisions into folds."""
    tolerance: float = TOLERANCE
    """Score loss that you accept for a smaller model, in points of the metric x 100."""
    seed: int = 0
    """Seed of the folds."""

    def __post_init__(self) -> None:
        if not 3 <= self.folds <= MOST_FOLDS:
            raise DataError(f"expected 3 to {MOST_FOLDS} folds, of which one chooses penalties, got {self.folds}")
        if self.foldings < 1 or self.seed < 0:
            raise DataError(f"expected at least one folding and a seed from 0, got {self.foldings} and {self.seed}")
        check_tolerance(self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLayer:
    """Scores of one layer, or of the weighted sum of all."""

    name: str
    layer: int | None
    """Its number; None for the weighted sum."""
    width: int | None
    """Features; None where that is not known."""
    metrics: dict[str, float]
    """x 100, mean over foldings."""
    error: Interval | None
    """Of the primary metric, over items and foldings; None where nothing is known of it. The lower end of the best
    layer allows for its having been chosen among all of them."""
    behind: float | None = None
    """Points that the best single layer is ahead at most, by the joint statement; None for the weighted sum."""
    gain: Interval | None = None
    """Of the weighted sum: what it scores more than the best single layer."""
    better: bool = False
    """Of the weighted sum: whether that is more than its error, compared with every layer that may be the best."""
    note: str = ""
    """Of the weighted sum: its highest weights."""

    @property
    def called(self) -> str:
        """Its number, or the name of its array where that has none."""
        return str(self.layer) if self.name == f"layer {self.layer}" else self.name


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Probing(Shown):
    """Every frozen layer on a task: which to use, and how certain that is."""

    name: str
    """Of the embeddings."""
    task: str
    """Of the targets."""
    model: ModelDescription | None
    kind: str
    """Of the targets."""
    method: str
    """What a layer is scored by."""
    primary: str
    layers: tuple[ProbedLayer, ...]
    summed: ProbedLayer | None
    """The learned weighted sum of the layers as one embedding; None where it is not scored."""
    left_out: dict[str, str]
    """Layers, and the weighted sum, that are not scored, with the reason."""
    candidates: tuple[int, ...]
    """Layers of which one is the best."""
    n_items: int
    n_groups: int | None
    """Groups that were never divided; None where none were given."""
    unit: str
    """What an item is called."""
    settings: ProbeSettings
    level: float = LEVEL
    seconds: float
    """Of probing, without extraction."""
    notes: tuple[str, ...] = ()
    """What was done that nobody asked for."""
    cautions: tuple[str, ...] = field(default=(), metadata=RARE)
    """What speaks against the embeddings of a model, such as texts that were cut."""
    last: int | None = field(default=None, metadata=RARE)
    """Number of the last layer that was given, where it is left out."""
    floors: dict[str, Floor] = field(default_factory=dict, metadata=RARE)
    """By metric, what a trivial answer scores on the same items."""
    fits: dict[str, Fit] = field(default_factory=dict, compare=False, metadata=IN_MEMORY)
    """By the name of the layer, the probe that is fitted on all items; JSON has none, see `estimator`."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Of the items on the scores of single layers; None where that was not saved."""

    @property
    def scored_layers(self) -> ScoredLayers:
        """What it is compared with another result by."""
        numbered = {layer.layer: layer for layer in self.layers if layer.layer is not None}
        return ScoredLayers(
            model=self.name,
            task=self.task,
            split="all",
            primary=self.primary,
            unit=self.unit,
            scores={number: (layer.metrics[self.primary],) for number, layer in numbered.items()},
            errors={number: layer.error for number, layer in numbered.items() if layer.error is not None},
            influences=self.influences,
        )

    @property
    def best(self) -> ProbedLayer:
        """The layer with the highest score, the earlier one of equals."""
        return max(self.layers, key=lambda layer: layer.metrics[self.primary])

    @property
    def best_layer(self) -> int:
        """Its number."""
        assert self.best.layer is not None
        return self.best.layer

    def estimator(self, layer: int | str | None = None) -> Pipeline:
        """Return the probe of a layer, fitted on all items: scikit-learn's pipeline of a scaler and a linear model.

        It predicts from (n, features) embeddings as they come; of pairs of texts from both, side by side; of the
        weighted sum from those of all scored layers, side by side (`embeddings[:, numbers].reshape(n, -1)`). The
        penalty is the median of those chosen across folds. It can be pickled; `layerprobe.save(result,
        "probes.safetensors")` keeps all of them, with the result.

        Args:
            layer: Its number, below 0 from the last one, its name, or "weighted sum"; by default the best layer.

        Raises:
            DataError: If there is none, as in a result from JSON, or of cosines, for which nothing is fitted.
        """
        if not self.fits:
            reason = "JSON keeps none: probe again, or save results as .safetensors"
            nothing = f"{self.method} is compared, and nothing is fitted" if not self.folded else reason
            raise DataError(f"expected a result with fitted probes, got none: {nothing}")
        names: dict[Any, str] = {one.layer: one.name for one in self.layers} | {name: name for name in self.fits}
        last = max(one.layer for one in self.layers if one.layer is not None)
        number = self.best_layer if layer is None else layer
        number = number + 1 + last if isinstance(number, int) and number < 0 else number
        if number not in names:
            raise DataError(f"expected a layer that was scored, one of {some([*self.fits], 40)}, got {quoted(layer)}")
        return self.fits[names[number]].pipeline(self.kind)

    def as_safetensors(self) -> bytes:
        """Return the fitted probes with the result in their metadata; `from_safetensors` reads both."""
        from safetensors.numpy import save

        if not self.fits:
            self.estimator()
        tensors = {
            f"{name}/{part}": getattr(fit, part).copy() for name, fit in self.fits.items() for part in fit.arrays
        }
        names = {name: [fit.classes.tolist(), fit.pairs] for name, fit in self.fits.items()}
        return save(tensors, {"result": sealed(self, files=_digests(tensors)).decode(), "names": to_json(names)})

    @classmethod
    def from_safetensors(cls, data: bytes) -> Probing:
        """Return the result whose probes are in a file.

        Raises:
            DataError: If it is no such file, or was damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        fits = {}
        try:
            tensors = load(data)
            metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            _, checksum = unsealed(parse_json(metadata["result"]))
            if checksum is None or checksum.files != _digests(tensors):
                raise DataError("its probes are not those that were written: it was damaged or changed")
            for name, (classes, pairs) in parse_json(metadata["names"]).items():
                arrays = {part: tensors[f"{name}/{part}"] for part in Fit.arrays}
                fits[name] = Fit(**arrays, classes=np.array(classes), pairs=pairs)
        except (SafetensorError, KeyError, TypeError) as error:
            raise DataError(f"expected probes that layerprobe.save wrote, got {quoted(str(error))}") from error
        return replace(from_json(cls, metadata["result"]), fits=fits)

    @property
    def floor(self) -> Floor | None:
        """What a trivial answer scores by the primary metric; None where that is not known."""
        return self.floors.get(self.primary)

    @property
    def compared(self) -> AgainstBest | None:
        """The single layers, compared with the best of them; None where nothing is known of the errors."""
        ends = [layer.error.interval for layer in self.layers if layer.error is not None]
        behind = [layer.behind for layer in self.layers if layer.behind is not None]
        if len(ends) < len(self.layers) or len(behind) < len(self.layers):
            return None
        return AgainstBest(
            scores=tuple(layer.metrics[self.primary] for layer in self.layers),
            intervals=tuple(ends),
            behind=tuple(behind),
            candidates=tuple(i for i, layer in enumerate(self.layers) if layer.layer in self.candidates),
            level=self.level,
            tolerance=self.settings.tolerance,
            floor=self.floor,
        )

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def smallest_sufficient(self) -> int | None:
        """The first layer that is shown to be within the tolerance of the best; None where none is, or on the floor."""
        smallest = None if self.compared is None else self.compared.smallest()
        return None if smallest is None else self.layers[smallest].layer

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the embeddings, and which layers were left out, and why."""
        return (
            *self.notes,
            *self.cautions,
            *(f"{name} is left out: {reason}" for name, reason in self.left_out.items()),
        )

    @property
    def table(self) -> Table:
        """One row per layer, and below them the weighted sum."""
        rows = [*self.layers, *filter(None, [self.summed])]
        column, names = columns_of(rows), {metric: metric.translate(NAMES) for metric in self.best.metrics}
        primary, *further = (
            column(
                name,
                lambda row, metric=metric: row.metrics[metric],
                title=metric_title(metric),
                form=".2f",
                quantity=points(metric),
            )
            for metric, name in sorted(names.items(), key=lambda pair: pair[0] != self.primary)
        )
        floor, over = self.floor, f"over new {plural(self.unit)}{' and foldings' if self.folded else ''}"
        best_of = "On other items: of the best layer after its choice among all, of others by themselves."
        behind = "Points that the best layer is ahead at most, true of all layers together."
        lines = (Line(names[self.primary], interval="interval"),)
        has_floor = floor is not None and floor.value
        chart = Chart(lines=lines, name="layers", floor="floor" if has_floor else "", chosen="the best layer")
        return Table(
            columns=(
                column("embedding", lambda row: row.name),
                column("layer", shown=False, dtype="Int64"),
                column("width", shown=len({row.width for row in rows}) > 1, dtype="Int64", more=True),
                primary,
                column(
                    "interval",
                    lambda row: row.error and row.error.interval,
                    title=interval_title(self.level),
                    form=".2f",
                    meaning=best_of,
                    interval=True,
                    over=over,
                ),
                *floor_columns([floor] * len(rows)),
                column("behind", form=".2f", title="at most behind", meaning=behind, more=True),
                column(
                    "gain", lambda row: row.gain and row.gain.value, form="+.2f", meaning="Over the best single layer."
                ),
                column(
                    "gain_interval",
                    lambda row: row.gain and row.gain.interval,
                    title="of the gain",
                    form="+.2f",
                    interval=True,
                    more=True,
                ),
                *(replace(metric, more=True) for metric in further),
                column("flag", self._flag),
                column("note", shown=False),
            ),
            title="Frozen layers",
            charts=(chart,),
            marks=tuple(map(self._mark, rows)),
        )

    def _mark(self, row: ProbedLayer) -> str | None:
        if self.on_floor or row.layer is None:
            return None
        return "chosen" if row is self.best else "candidate" if row.layer in self.candidates else None

    def _flag(self, row: ProbedLayer) -> str | None:
        if row.layer is None:
            return "better" if row.better else None
        if self.compared is None:
            return "best" if row is self.best else None
        return self.compared.flag(self.layers.index(row))

    @property
    def conclusion(self) -> Conclusion:
        """Which layer to use, or their sum, which may be as good, and the smallest that will do."""
        compared, best, names = self.compared, self.best, [layer.called for layer in self.layers]
        score = Fact(value=best.metrics[self.primary], unit="score")
        facts = {"score": score} if compared is None else compared.facts("")
        facts |= {"items": Fact(value=self.n_items, unit="count"), "time": Fact(value=self.seconds, unit="seconds")}
        if self.n_groups is not None:
            facts["groups"] = Fact(value=self.n_groups, unit="count")
        checks = [] if compared is None else [*compared.checks(names, "")]
        if self.summed is not None and not self.on_floor:
            gain = self.summed.gain
            gained = {} if gain is None else {"sum_gain": Fact.of(gain)}
            checks.append(Check(name="weighted sum", passed=None if self.summed.better else True, facts=gained))
            if self.summed.better:
                facts = {"score": Fact(value=self.summed.metrics[self.primary], unit="score"), **gained, **facts}
        is_sum = self.summed is not None and self.summed.better and not self.on_floor
        left_out = tuple(name for name in self.left_out if name != WEIGHTED_SUM)
        if left_out:
            checks.append(Check(name="left out", passed=None, names={"layers": left_out}))
        chosen = None if self.on_floor or is_sum or self.model is None else self.model.n_blocks
        return Conclusion(
            kind="probe",
            case="floor" if self.on_floor else "sum" if is_sum else "best",
            verdict=Verdict.UNDECIDED if compared is None else compared.verdict,
            subject=(short_name(self.name), short_name(self.task)),
            choice=None if chosen is None else Choice.upto(chosen, self.best_layer, self.candidates),
            facts=facts,
            names={
                **({} if compared is None else compared.names(names)),
                "layer": best.called,
                "metric": f"{metric_title(self.primary)} x 100",
                "method": self.method,
            },
            checks=tuple(checks),
        )

    @property
    def sources(self) -> dict[str, str]:
        """The model, the targets, and how layers were scored."""
        folds = f"{self.settings.foldings} x {self.settings.folds} folds" if self.folded else "none"
        return {
            **({"Embeddings": self.name} if self.model is None else described(self.model)),
            "Targets": f"{self.task} ({self.kind}, {self.n_items:,} {plural(self.unit)})",
            "Scored by": self.method,
            "Folds": folds,
        }

    @property
    def folded(self) -> bool:
        """Whether probes were fitted across folds."""
        return self.kind in ("scores", "classes", "labels")


def _digests(tensors: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    return {name: sha256(array.tobytes()).hexdigest() for name, array in tensors.items()}
