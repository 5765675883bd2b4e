"""Probing of frozen layers: settings and results."""

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
from layerprobe.files.serialisation import RARE, UNSAVED, from_json, parse_json, sealed, to_json, unsealed
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import plural, quoted, short_name, some
from layerprobe.probing.linear import Fit
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Line, Table, columns_of, interval_title
from layerprobe.scoring.values import floor_columns
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor, ItemInfluences, ScoredLayers

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

TargetKind = Literal["scores", "classes", "labels", "pairs", "queries"]
"""scores: one number per sample; classes: one of several; labels: several of 0 and 1; pairs: row pairs with a score;
queries: rows with their relevant rows."""
METHODS = {
    "scores": "ridge regression",
    "classes": "logistic regression",
    "labels": "logistic regression, one label at a time",
    "pairs": "the cosine of the two embeddings",
    "queries": "the cosines of queries with documents",
}
FOLDS, FOLDINGS = 5, 3
MOST_FOLDS = 100
"""Largest number of folds: penalties are chosen on pairs of folds."""
NAMES = str.maketrans(" @", "__")
"""Converts names of metrics to names of table columns."""
WEIGHTED_SUM = "weighted sum"
"""Name of the learned weighted sum of layers, of their standardised features."""
WEIGHTED_MEAN = "weighted mean"
"""Name of the learned weighted mean of layers as they are."""


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
            raise DataError(f"expected 3 to {MOST_FOLDS} folds (one of them chooses penalties), got {self.folds}")
        if self.foldings < 1 or self.seed < 0:
            raise DataError(f"expected at least one folding and a seed from 0, got {self.foldings} and {self.seed}")
        check_tolerance(self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLayer:
    """Scores of one layer, or of the weighted sum of all."""

    name: str
    layer: int | None
    """Layer number; None for the weighted sum."""
    width: int | None
    """Number of features; None if unknown."""
    metrics: dict[str, float]
    """Metrics x 100, mean over foldings."""
    error: Interval | None
    """Interval of the primary metric, over items and foldings; None if unknown. The lower end of the best
    layer allows for its selection among all layers."""
    behind: float | None = None
    """Most points by which the best single layer may be ahead, jointly for all layers; None for the weighted sum."""
    gain: Interval | None = None
    """For the weighted sum: its score less that of the best single layer."""
    better: bool = False
    """For the weighted sum: whether the gain exceeds its error, compared with every layer that may be the best."""
    note: str = ""
    """For the weighted sum: its highest weights."""
    weight: float | None = field(default=None, metadata=RARE)
    """Weight of a layer in the weighted sum of all items, if scored; these have sum 1."""

    @property
    def called(self) -> str:
        """Layer number, or the name of its array if it has none."""
        return str(self.layer) if self.name == f"layer {self.layer}" else self.name


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Probing(Shown):
    """Scores of every frozen layer on a task: which one to use, and how certain that is."""

    name: str
    """Name of the embeddings."""
    task: str
    """Name of the targets."""
    model: ModelDescription | None
    kind: str
    """Kind of the targets."""
    method: str
    """Method of scoring a layer."""
    primary: str
    layers: tuple[ProbedLayer, ...]
    summed: ProbedLayer | None
    """The learned weighted sum of the layers as one embedding; None if not scored."""
    left_out: dict[str, str]
    """Layers, and the weighted sum, that are not scored, with the reason."""
    candidates: tuple[int, ...]
    """Layers that may be the best."""
    n_items: int
    n_groups: int | None
    """Number of groups that were never divided; None without groups."""
    unit: str
    """Noun for an item."""
    settings: ProbeSettings
    level: float = LEVEL
    seconds: float
    """Seconds of probing, without extraction."""
    notes: tuple[str, ...] = ()
    """Choices that were made automatically."""
    cautions: tuple[str, ...] = field(default=(), metadata=RARE)
    """Problems of a model's embeddings, such as truncated texts."""
    last: int | None = field(default=None, metadata=RARE)
    """Number of the last layer given, if it is left out."""
    floors: dict[str, Floor] = field(default_factory=dict, metadata=RARE)
    """Score of a trivial answer on the same items, by metric."""
    fits: dict[str, Fit] = field(default_factory=dict, compare=False, metadata=UNSAVED)
    """Probe fitted on all items, by name of the layer; not in JSON, see `estimator`."""
    influences: ItemInfluences | None = field(default=None, metadata=RARE)
    """Influences of the items on the scores of single layers; None if not saved."""

    @property
    def scored_layers(self) -> ScoredLayers:
        """Scores for the comparison with another result."""
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
        """The layer with the highest score, the earlier one in ties."""
        return max(self.layers, key=lambda layer: layer.metrics[self.primary])

    @property
    def best_layer(self) -> int:
        """Number of the best layer."""
        assert self.best.layer is not None
        return self.best.layer

    def estimator(self, layer: int | str | None = None) -> Pipeline:
        """Return the probe of a layer, fitted on all items: scikit-learn's pipeline of a scaler and a linear model.

        It predicts from unscaled (n, features) embeddings; for pairs of texts from both, side by side; for the
        weighted sum from those of all scored layers, side by side (`embeddings[:, numbers].reshape(n, -1)`). The
        penalty is the median of those chosen across folds. It can be pickled; `layerprobe.save(result,
        "probes.safetensors")` saves all of them, with the result.

        Args:
            layer: Its number, negative from the last one, its name, or "weighted sum"; by default the best layer.

        Raises:
            DataError: If there is no probe, as in results from JSON, or for cosines, which need no fit.
        """
        if not self.fits:
            reason = "JSON does not contain them: probe again, or save results as .safetensors"
            nothing = f"layers are scored by {self.method}, without fitting" if not self.folded else reason
            raise DataError(f"this result has no fitted probes: {nothing}")
        names: dict[Any, str] = {one.layer: one.name for one in self.layers} | {name: name for name in self.fits}
        last = max(one.layer for one in self.layers if one.layer is not None)
        number = self.best_layer if layer is None else layer
        number = number + 1 + last if isinstance(number, int) and number < 0 else number
        if number not in names:
            raise DataError(f"expected a layer that was scored, one of {some([*self.fits], 40)}, got {quoted(layer)}")
        return self.fits[names[number]].pipeline(self.kind)

    def as_safetensors(self) -> bytes:
        """Return the fitted probes with the result as metadata; `from_safetensors` reads both."""
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
        """Return the result with probes from a file.

        Raises:
            DataError: If the file is invalid or damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        fits = {}
        try:
            tensors = load(data)
            metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            _, checksum = unsealed(parse_json(metadata["result"]))
            if checksum is None or checksum.files != _digests(tensors):
                raise DataError("its probes do not match their checksums: it was damaged or changed")
            for name, (classes, pairs) in parse_json(metadata["names"]).items():
                arrays = {part: tensors[f"{name}/{part}"] for part in Fit.arrays}
                fits[name] = Fit(**arrays, classes=np.array(classes), pairs=pairs)
        except (SafetensorError, KeyError, TypeError) as error:
            raise DataError(f"expected probes saved by layerprobe.save, got {quoted(str(error))}") from error
        return replace(from_json(cls, metadata["result"]), fits=fits)

    @property
    def layer_weights(self) -> dict[int | None, float | None]:
        """Weights of the learned weighted mean by layer, sum 1, for `export_model`; DataError without a mean."""
        if self.summed is None or self.summed.name != WEIGHTED_MEAN:
            reason = self.left_out.get(WEIGHTED_MEAN, "probe with weighted_mean=True")
            raise DataError(f"this result has no weighted mean of layers: {reason}")
        return {layer.layer: layer.weight for layer in self.layers}

    @property
    def floor(self) -> Floor | None:
        """Score of a trivial answer by the primary metric; None if unknown."""
        return self.floors.get(self.primary)

    @property
    def compared(self) -> AgainstBest | None:
        """The single layers compared with the best of them; None if errors are unknown."""
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
        """Whether no layer is significantly above the floor: then none is recommended."""
        return self.compared is not None and self.compared.on_floor

    @property
    def smallest_sufficient(self) -> int | None:
        """The first layer significantly within the tolerance of the best; None if there is none, or on the floor."""
        smallest = None if self.compared is None else self.compared.smallest()
        return None if smallest is None else self.layers[smallest].layer

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of the embeddings, and layers that were left out, with reasons."""
        return (
            *self.notes,
            *self.cautions,
            *(f"{name} is left out: {reason}" for name, reason in self.left_out.items()),
        )

    @property
    def table(self) -> Table:
        """One row per layer, then the weighted sum."""
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
        best_of = "For new items; the best layer's interval allows for its selection."
        behind = "Most points by which the best layer may be ahead, jointly for all layers."
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
                    title="gain interval",
                    form="+.2f",
                    interval=True,
                    more=True,
                ),
                column("weight", form=".3f", meaning="In the weighted sum or mean of all items.", more=True),
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
        """Which layer to use, or their sum, which ones may be as good, and the smallest sufficient one."""
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
        left_out = tuple(name for name in self.left_out if name not in (WEIGHTED_SUM, WEIGHTED_MEAN))
        if left_out:
            checks.append(Check(name="left out", passed=None, names={"layers": left_out}))
        cut = None if self.on_floor or is_sum or self.model is None or self.model.read else self.model
        return Conclusion(
            kind="probe",
            case="floor" if self.on_floor else "sum" if is_sum else "best",
            verdict=Verdict.UNDECIDED if compared is None else compared.verdict,
            subject=(short_name(self.name), short_name(self.task)),
            choice=None if cut is None else Choice.upto(cut.n_blocks, self.best_layer, self.candidates),
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
        """The model, the targets, and the scoring method."""
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
