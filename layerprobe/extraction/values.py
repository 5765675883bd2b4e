"""The plan of an extraction, and label-free measures of token states by layer."""

from dataclasses import dataclass

from layerprobe.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMetrics:
    """Label-free measures of token states by layer, averaged over the texts."""

    n_texts: int
    """Distinct texts."""
    prompt_entropy: tuple[float, ...]
    """By layer: nats, the von Neumann entropy of a text's cosines between tokens."""
    prompt_entropy_errors: tuple[float, ...]
    """Standard errors over the texts."""
    curvature: tuple[float, ...]
    """By layer: radians, the mean angle between a step from token to token and the next one."""
    curvature_errors: tuple[float, ...]
    """Standard errors over the texts that turn."""
    n_turning: tuple[int, ...]
    """By layer: texts with two steps on end, the only ones that have a curvature."""

    def __post_init__(self) -> None:
        by_layer = (self.prompt_entropy_errors, self.curvature, self.curvature_errors, self.n_turning)
        if not self.prompt_entropy or any(len(values) != len(self.prompt_entropy) for values in by_layer):
            raise DataError(
                f"expected token metrics of the same layers, got {len(self.prompt_entropy)} and "
                f"{', '.join(str(len(values)) for values in by_layer)}"
            )
