"""How well untrained embeddings do a task, layer by layer."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from layerprobe.display import Shown, brief
from layerprobe.errors import DataError
from layerprobe.metrics.names import check_primary, metric_title
from layerprobe.metrics.seeds import best_of

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

    def __post_init__(self) -> None:
        check_primary(self.primary, self.metrics, what="zero-shot metrics")
        lengths = {len(scores) for scores in self.metrics.values()}
        if lengths == {0} or len(lengths) > 1:
            raise DataError(f"expected a score of every layer by every metric, got {sorted(lengths)} scores")

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric by layer, x 100."""
        return self.metrics[self.primary]

    @property
    def best_layer(self) -> int:
        """The layer with the highest primary metric, the earlier one of equals."""
        return best_of(self.scores)

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        what = f"{metric_title(self.primary)} x 100 by {self.method} on {self.split}"
        return f"{what}, best at layer {self.best_layer}: {brief(self.scores)}"
