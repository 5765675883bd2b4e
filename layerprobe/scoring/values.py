"""How well untrained embeddings do a task, layer by layer."""

from dataclasses import dataclass
from typing import Literal

from layerprobe.errors import DataError
from layerprobe.metrics.names import check_primary
from layerprobe.metrics.seeds import best_of

ScoreMethod = Literal["cosine", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores:
    """How well untrained embeddings do a task, layer by layer."""

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
