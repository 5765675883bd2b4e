"""How well untrained embeddings do a task, layer by layer."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from layerprobe.display import Shown, brief, from_layer
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError
from layerprobe.metrics.names import check_primary, metric_title
from layerprobe.metrics.seeds import best_of
from layerprobe.names import short_name
from layerprobe.serialisation import RARE

ScoreMethod = Literal["cosine", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerScores(Shown):
    """How well untrained embeddings do a task, layer by layer."""

    page_function: ClassVar[str] = "layerprobe.report.scores:scores_page"

    split: str
    """validation or test."""
    method: ScoreMethod
    """cosine of the two embeddings of a pair, or probe: a linear model fitted on the embeddings of the train split."""
    primary: str
    """The metric that chooses a layer."""
    metrics: dict[str, tuple[float, ...]]
    """By layer, x 100."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; scores before it repeat its own."""

    def __post_init__(self) -> None:
        check_primary(self.primary, self.metrics, what="zero-shot metrics")
        lengths = {len(scores) for scores in self.metrics.values()}
        if lengths == {0} or len(lengths) > 1:
            raise DataError(f"expected a score of every layer by every metric, got {sorted(lengths)} scores")

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric by layer, x 100."""
        return self.metrics[self.primary]

    def own(self, layer: int) -> float | None:
        """Return the primary metric of a layer, x 100; None where it is left out."""
        return self.scores[layer] if layer >= self.first_layer else None

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric, the earlier one of equals."""
        return self.first_layer + best_of(self.scores[self.first_layer :])

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        what = f"{metric_title(self.primary)} x 100 by {self.method} on {self.split}"
        return f"{what}, best at layer {self.best_layer}: {brief(from_layer(self.first_layer, self.scores))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """What every layer scores on one task."""

    task: str
    """As the user gave it."""
    task_digest: str
    kind: str
    scores: LayerScores


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAcross:
    """One layer on all tasks."""

    layer: int
    mean: float
    """Of the primary metrics, x 100."""
    behind: float
    """Mean over tasks of what the best layer scores more, in points; 0 for that layer."""
    interval: tuple[float, float] | None
    """Of that difference on other tasks like these: Student's t over tasks, paired. It holds the error over items, as
    each task has its own. None for the best layer, and for one task."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AcrossTasks(Shown):
    """Every layer of a model on several tasks."""

    page_function: ClassVar[str] = "layerprobe.report.scores:across_page"

    model: ModelDescription
    tasks: tuple[TaskScores, ...]
    layers: tuple[LayerAcross, ...]
    level: float
    """Of the intervals."""

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier one of equals."""
        return self.first_layer + best_of([each.mean for each in self.layers[self.first_layer :]])

    @property
    def first_layer(self) -> int:
        """The first layer that no task leaves out."""
        return max(each.scores.first_layer for each in self.tasks)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The best layer and those whose difference from it may be 0; all where there is one task."""
        layers = self.layers[self.first_layer :]
        return tuple(each.layer for each in layers if each.interval is None or each.interval[0] <= 0)

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        means = [each.mean for each in self.layers]
        return f"{short_name(self.model.name)}: {self.sentence} By layer: {brief(from_layer(self.first_layer, means))}"

    @property
    def sentence(self) -> str:
        """Which layer is best on all tasks, and which cannot be told from it."""
        best, last, n = self.layers[self.best_layer], self.model.n_blocks, len(self.tasks)
        tasks = "1 task" if n == 1 else f"{n} tasks"
        said = f"Layer {best.layer} of {last} scores best over {tasks}, {best.mean:.1f} in the mean"
        if best.layer != last:
            end = self.layers[-1]
            bounds = (
                "" if end.interval is None else f" ({self.level:.0%} {end.interval[0]:.1f} to {end.interval[1]:.1f})"
            )
            said += f"; the last layer scores {end.behind:.1f} less{bounds}"
        if n == 1:
            return f"{said}; one task says nothing of others."
        others = [str(layer) for layer in self.candidates if layer != best.layer]
        rivals = (
            f"on other tasks like these, {', '.join(others)} may be as good" if others else "no other may be as good"
        )
        return f"{said}. {rivals[0].upper()}{rivals[1:]}."
