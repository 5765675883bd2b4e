"""The costs of serving truncated models."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

from layerprobe.checks import check_fields, convert_fields
from layerprobe.encoders.model import ModelDescription, Pooling, described
from layerprobe.encoders.timing import LEAST_ROUNDS, Speedup, speedup
from layerprobe.errors import DataError
from layerprobe.files.images import Modality
from layerprobe.files.serialisation import RARE
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.metrics.names import metric_title, points
from layerprobe.names import counted, distinct_names, short_name
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, columns_of, layer_columns, stacked

Shape = tuple[int, int]
"""Tokens per text and texts per batch; for image models, images."""
LENGTHS = (16, 64, 128)
"""Default tokens per text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """Settings of a profile: what to measure, and how often."""

    lengths: tuple[int, ...] | None = None
    """Tokens per text. By default 16,64,128, and for images as many as the model makes of one."""
    batch_sizes: tuple[int, ...] = (1, 32)
    """Texts or images per batch; 1 gives the latency of one."""
    rounds: int = 5
    """Passes over all layers, alternating direction."""
    repeats: int = 5
    """Maximum number of timed passes per round, length and batch size. All rounds together have at least five."""
    warmup: int = 2
    """Maximum number of untimed warm-up passes."""
    max_seconds: float = 1.0
    """Seconds after which no further pass of a round, length and batch size begins; at least one runs."""
    seed: int = 0
    """Seed of the random token ids, or pixels."""
    training: Protocol | None = None
    """Protocol of the fine-tuning step whose memory is measured; None measures none."""

    def __post_init__(self) -> None:
        convert_fields(self)
        expected = {
            "lengths of at least one token": self.lengths is None or (self.lengths and min(self.lengths) >= 1),
            "batches of at least one text": self.batch_sizes and min(self.batch_sizes) >= 1,
            "at least one round": self.rounds >= 1,
            "at least one repeat": self.repeats >= 1,
            "a warm-up of 0 or more passes": self.warmup >= 0,
            "a number of seconds of 0 or more": 0 <= self.max_seconds < math.inf,
            "a seed from 0 to 2^63 - 1": 0 <= self.seed < 2**63,
        }
        check_fields(self, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one batch of texts of one length."""

    length: int
    """Tokens per text."""
    batch_size: int
    """Texts or images per batch; 1 measures latency."""
    flops: int
    """FLOPs per text: matrix products and convolutions, a multiplication with its addition counted as two."""
    seconds: float
    """Seconds per batch: median over all repeats."""
    seconds_low: float
    """5 % quantile of the seconds."""
    seconds_high: float
    """95 % quantile of the seconds."""
    repeats: int
    """Number of timed passes."""
    peak_memory: int | None
    """Peak bytes above those in use before the truncated model was made: its weights and the memory of a pass.
    None if unknown."""
    by_round: tuple[float, ...] = field(default=(), metadata=RARE)
    """Median seconds of the passes in each round."""
    training_memory: int | None = field(default=None, metadata=RARE)
    """Peak bytes of a fine-tuning step: weights, activations, gradients and AdamW's moments.
    None if unknown or not measured."""

    @property
    def shape(self) -> Shape:
        """Tokens per text and texts per batch."""
        return self.length, self.batch_size

    @property
    def quantiles(self) -> tuple[float, float]:
        """5 and 95 % quantiles of the seconds."""
        return self.seconds_low, self.seconds_high

    def faster_than(self, whole: "Cost") -> Speedup:
        """Return the speed-up over another cost: paired by round, or from the ranges of both if rounds are few."""
        if len(self.by_round) == len(whole.by_round) >= LEAST_ROUNDS:
            return speedup(whole.by_round, self.by_round)
        low, high = whole.seconds_low / self.seconds_high, whole.seconds_high / self.seconds_low
        return whole.seconds / self.seconds, low, high

    @property
    def texts_per_second(self) -> float:
        """Texts per second at this batch size."""
        return self.batch_size / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at this batch size."""
        return self.length * self.texts_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """The cost of the model truncated at one layer."""

    layer: int
    parameters: int
    """Number of parameters of the truncated model, without the pooler."""
    costs: tuple[Cost, ...]
    """Costs by length, then by batch size, both ascending."""

    def cost(self, length: int, batch_size: int) -> Cost:
        """Return the cost of a batch of this shape."""
        for cost in self.costs:
            if cost.shape == (length, batch_size):
                return cost
        raise DataError(
            f"expected one of the measured shapes {[cost.shape for cost in self.costs]}, got {(length, batch_size)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(Shown):
    """The cost of serving a model truncated at each of some layers."""

    model: ModelDescription
    layers: tuple[LayerProfile, ...]
    """Profiles of the layers, ascending."""
    pooling: Pooling
    device: str
    """cpu, cuda:0, mps."""
    hardware: str
    """Name of the hardware."""
    threads: int
    """Number of torch's threads on the CPU."""
    attn: str
    """auto, or an attention implementation of transformers."""
    rounds: int
    """Number of rounds over all layers, in alternating direction."""
    repeats: int
    """Most timed passes per round, layer and shape."""
    warmup: int
    """Maximum number of untimed warm-up passes."""
    max_seconds: float
    """Seconds after which no further pass of a round, layer and shape began; one always ran."""
    seed: int
    """Seed of the random token ids, or pixels."""
    memory: str
    """How the peak memory was measured, or why it was not."""
    versions: dict[str, str]
    """Versions of Python and of the libraries that affect the numbers."""
    created: str
    """ISO 8601, UTC."""
    warnings: tuple[str, ...] = ()
    """Warnings about the numbers, in plain words."""
    training: Protocol | None = field(default=None, metadata=RARE)
    """Protocol of the fine-tuning steps whose memory was measured."""
    unit: Modality = field(default="text", metadata=RARE)
    """Kind of items in a batch."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Tokens per text and texts per batch of every cost, ascending."""
        return tuple(cost.shape for cost in self.layers[0].costs)

    @property
    def conclusion(self) -> Conclusion:
        """Speed-up of the model with half of its layers, and the cost of the whole one."""
        return Profiles(profiles=(self,), scores=((),)).conclusion

    @property
    def sources(self) -> dict[str, str]:
        """The model, the machine, and the settings of the measurement."""
        return {
            **described(self.model),
            "Device": f"{self.device}: {self.hardware}, {counted(self.threads, 'thread')}",
            "Attention": self.attn,
            "Pooling": self.pooling,
            "Repeats": f"{self.rounds} rounds over all layers, back and forth, of up to {self.repeats} passes per "
            f"shape in {self.max_seconds:g} s, after up to {self.warmup} untimed ones",
            "Texts": f"random words of the vocabulary (seed {self.seed}), no padding",
            "Memory": self.memory,
            "Versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "Created": self.created,
        }

    @property
    def table(self) -> Table:
        """One row per shape and layer, with its costs."""
        return Profiles(profiles=(self,), scores=((),)).table

    def scored(self, scores: Mapping[int, LayerOutcome], label: Callable[[str], str] = short_name) -> Table:
        """Return the table with scores of fine-tuning by layer; `label` returns a model's display name."""
        rows = [(layer, layer.cost(*shape)) for shape in self.shapes for layer in self.layers]
        outcomes = [scores.get(layer.layer) for layer, _ in rows]
        cost, outcome = columns_of(cost for _, cost in rows), columns_of(outcomes)
        primary = next((outcome.primary for outcome in outcomes if outcome), "")
        title = f"TMFT {metric_title(primary)}" if primary else "TMFT"
        scored = points(primary, "test") if primary else None
        (_, small), (_, large) = self.shapes[0], max(self.shapes, key=itemgetter(1))
        batch = f"one {self.unit}" if small == 1 else f"a batch of {small}"
        latency = Quantity(f"milliseconds for {batch}", best="lower")
        throughput = Quantity(f"{self.unit}s per second, batches of {large}", best="higher")
        one_shape, last = len(self.shapes) == 1, self.layers[-1]
        speeds = [cost.faster_than(last.cost(*cost.shape)) for _, cost in rows]
        return Table(
            columns=(
                Column("model", (self.model.name,) * len(rows), form=label, shown=False),
                *layer_columns((layer.layer for layer, _ in rows), [layer.parameters for layer, _ in rows]),
                cost("length", title="tokens", more=one_shape),
                cost("batch_size", title="batch", more=one_shape),
                cost("flops", title=f"GFLOPs per {self.unit}", form=".3g", scale=1e-9, more=True),
                cost("seconds", title="ms per batch", form=".5g", scale=1e3, quantity=latency),
                cost(
                    "seconds",
                    attrgetter("quantiles"),
                    title="5 to 95 %",
                    form=".5g",
                    scale=1e3,
                    interval=True,
                    quantity=latency,
                    over="of repeats",
                ),
                Column("speed", [speed[0] for speed in speeds], "speed-up", ".2f", meaning="Over the last layer."),
                Column("speed_range", [speed[1:] for speed in speeds], "range", ".2f", interval=True, more=True),
                cost("texts_per_second", title=f"{self.unit}s/s", form=".3g", quantity=throughput, more=not one_shape),
                cost("tokens_per_second", title="tokens/s", form=".3g", more=True),
                cost("repeats", shown=False),
                cost("peak_memory", title="memory", form=megabytes, unit="MB", more=True),
                cost("training_memory", title="fine-tuning", form=megabytes, unit="MB", more=True),
                outcome("metric", attrgetter("primary"), shown=False, dtype="string"),
                outcome("tmft_mean", attrgetter("mean"), title=title, form=".2f", quantity=scored, more=True),
                outcome(
                    "tmft_interval",
                    attrgetter("interval"),
                    title="interval",
                    form=".2f",
                    interval=True,
                    over="of the mean",
                    shown=False,
                    quantity=scored,
                ),
            ),
            title="Every layer and shape",
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profiles(Shown):
    """Models profiled at the same lengths and batch sizes, with the scores of their fine-tuned layers."""

    profiles: tuple[Profile, ...]
    scores: tuple[tuple[LayerOutcome, ...], ...]
    """Scores by layer for each profile; empty without scores."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the models in plots."""
        return tuple(map(words.label, distinct_names([profile.model.name for profile in self.profiles])))

    @property
    def by_layer(self) -> list[dict[int, LayerOutcome]]:
        """Scores of each profile by layer."""
        return [{outcome.layer: outcome for outcome in outcomes} for outcomes in self.scores]

    @property
    def metric(self) -> str | None:
        """Metric of the scores of profiled layers; None without scores."""
        pairs = zip(self.profiles, self.by_layer, strict=True)
        scored = [scores[layer.layer] for profile, scores in pairs for layer in profile.layers if layer.layer in scores]
        return scored[0].primary if scored else None

    @property
    def unit(self) -> Modality:
        """Kind of items in a batch."""
        return self.profiles[0].unit

    @property
    def shape(self) -> Shape:
        """Length and batch size that represent a layer's time: the longest texts, the smallest batch."""
        shapes = self.profiles[0].shapes
        return max(length for length, _ in shapes), min(size for _, size in shapes)

    @property
    def table(self) -> Table:
        """One row per model, shape and layer, as in a single profile; with test scores of fine-tuned layers."""
        names = [profile.model.name for profile in self.profiles]
        label = dict(zip(names, distinct_names(names), strict=True)).__getitem__
        pairs = zip(self.profiles, self.by_layer, strict=True)
        table = stacked([profile.scored(scores, label) for profile, scores in pairs], by=("model",))
        if len(names) > 1:
            columns = (replace(one, more=one.more or one.name in ("length", "batch_size")) for one in table.columns)
            table = replace(table, columns=tuple(columns))
        return replace(table, charts=tuple(self._charts))

    @property
    def _charts(self) -> Iterator[Chart]:
        """Yield latency and throughput by layer and, if there are scores, scores against time and size."""
        (length, small), large = self.shape, max(size for _, size in self.profiles[0].shapes)
        several, time = len(self.profiles) > 1, Line("seconds", interval="seconds")
        only = (("batch_size", small), ("length", length))
        yield Chart(lines=(time,), name="latency", by="model" if several else "", where=only)
        of_small = Chart(lines=(time,), by="model length" if several else "length", where=(("batch_size", small),))
        if len({length for length, _ in self.profiles[0].shapes}) > 1:
            yield replace(of_small, name="lengths", heading="Time by length")
        if self.metric is not None:
            score = Line("tmft_mean", interval="tmft_interval")
            cost = Chart(lines=(score,), kind="cost", by="model", label="layer", where=only)
            yield replace(cost, name="score-latency", heading="Score versus time", x="seconds", x_interval="seconds")
            yield replace(cost, name="score-size", heading="Score versus size", x="parameters")
        speed = Line("texts_per_second")
        heading = "Throughput by layer"
        yield replace(of_small, lines=(speed,), name="throughput", heading=heading, where=(("batch_size", large),))

    @property
    def conclusion(self) -> Conclusion:
        """Speed-up of a truncated model over the whole one or, with several models, of one whole model over another."""
        (first, *others), shape = self.profiles, self.shape
        whole, middle = first.layers[-1].cost(*shape), first.layers[len(first.layers) // 2]
        fast, slow, label = middle.cost(*shape), whole, self.labels[0]
        names: dict[str, object] = {"layer": middle.layer}
        if others:
            costs = [profile.layers[-1].cost(*shape) for profile in self.profiles]
            places = sorted(range(len(costs)), key=lambda i: costs[i].seconds)
            fast, slow, label = costs[places[0]], costs[places[-1]], self.labels[places[0]]
            names = {"slow": self.labels[places[-1]]}
        value, *ends = fast.faster_than(slow)
        facts = {"speed": Fact(value=value, unit="times", interval=(ends[0], ends[1]))}
        facts["latency"] = Fact(value=1e3 * slow.seconds, unit="milliseconds")
        facts["fast"] = Fact(value=1e3 * fast.seconds, unit="milliseconds")
        fastest = self.profiles[self.labels.index(label)]
        busy = fastest.layers[-1].costs[-1]
        facts["throughput"] = Fact(value=busy.texts_per_second, unit="number")
        facts["batch"] = Fact(value=busy.batch_size, unit="count")
        facts["length"] = Fact(value=shape[0], unit="count")
        if busy.peak_memory is not None:
            facts["memory"] = Fact(value=busy.peak_memory, unit="bytes")
        facts["rounds"] = Fact(value=first.rounds, unit="count")
        is_open = ends[0] <= 1 <= ends[1]
        case = "several" if others else "whole" if fast is slow else "truncated"
        return Conclusion(
            kind="profile",
            case=case,
            verdict=Verdict.UNDECIDED if is_open and fast is not slow else Verdict.DECIDED,
            subject=(" and ".join(self.labels), first.hardware),
            facts=facts if fast is not slow else {name: fact for name, fact in facts.items() if name != "speed"},
            names={
                "label": label,
                "unit": self.unit,
                "items": counted(shape[1], self.unit),
                **({} if others else {"last": first.layers[-1].layer}),
                **names,
            },
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of all profiles."""
        return tuple(warning for profile in self.profiles for warning in profile.warnings)

    @property
    def sources(self) -> dict[str, str]:
        """Origin of the numbers of each model."""
        if len(self.profiles) == 1:
            return self.profiles[0].sources
        return {
            f"{label}: {name}": text
            for label, profile in zip(self.labels, self.profiles, strict=True)
            for name, text in profile.sources.items()
        }


def megabytes(size: int) -> str:
    """Return a number of bytes in millions."""
    return f"{size / 1e6:.1f}" if size < 1e8 else f"{size / 1e6:.0f}"
