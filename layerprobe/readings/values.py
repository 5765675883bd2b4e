"""What a model's layers are like by the label-free metrics of Skean et al. 2025 (arXiv 2502.02013)."""

from __future__ import annotations

from dataclasses import dataclass

from layerprobe.errors import DataError
from layerprobe.extraction.values import TokenMetrics
from layerprobe.similarity.values import CurveUncertainty

SELF_CKA = "self CKA"
"""Of a layer with the one before, so that layer 0 has none and repeats the value of layer 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """How altered copies of texts are made: words are left out at random, never all of them."""

    n_texts: int = 512
    """Texts that are altered: a random choice where there are more."""
    n_views: int = 4
    """Copies of each; InfoNCE and DiME read the first two."""
    dropped: float = 0.2
    """Share of the words that is left out, on average."""
    seed: int = 0
    """Of the texts and the words."""

    def __post_init__(self) -> None:
        if self.n_texts < 2 or self.n_views < 2 or not 0 < self.dropped < 1:
            raise DataError(
                "expected at least two views of two texts and a share of dropped words between 0 and 1, "
                f"got {self.n_views} views of {self.n_texts} texts and {self.dropped:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFreeMetrics:
    """What can be said of each layer of a model without labels and without another model."""

    tokens: TokenMetrics
    dataset_entropy: tuple[float, ...]
    """By layer: nats, the von Neumann entropy of the cosines between pooled embeddings."""
    views: Views
    """How the copies were made that the following ones compare."""
    infonce: tuple[float, ...]
    """By layer: nats, what a view of a text tells of another one at least."""
    lidar: tuple[float, ...]
    """By layer: the effective rank of what tells texts apart, against what tells views apart."""
    dime: tuple[float, ...]
    """By layer: nats, how much less two views surprise together when they are of the same texts."""

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.by_name.values()}
        if len(lengths) != 1:
            raise DataError(f"expected metrics of the same layers, got {sorted(lengths)}")

    @property
    def by_name(self) -> dict[str, tuple[float, ...]]:
        """Every metric by layer, by what people call it."""
        return {
            "prompt entropy": self.tokens.prompt_entropy,
            "curvature": self.tokens.curvature,
            "dataset entropy": self.dataset_entropy,
            "InfoNCE": self.infonce,
            "LiDAR": self.lidar,
            "DiME": self.dime,
        }


AGAINST = "CKA, "
"""Goes before the name of a reference where rules read CKA against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCurve:
    """A number for every layer, and how surely it is known."""

    values: tuple[float, ...]
    """By layer."""
    standard_errors: tuple[float, ...] | None = None
    """Of the values; None where they are not at hand."""
    uncertainty: CurveUncertainty | None = None
    """How the errors of layers go together; None where it is not known. What a zoo holds has none."""

    def __post_init__(self) -> None:
        if self.standard_errors is not None and len(self.standard_errors) != len(self.values):
            raise DataError(f"expected {len(self.values)} standard errors, got {len(self.standard_errors)}")
        if self.uncertainty is not None and self.uncertainty.n_layers != len(self.values):
            raise DataError(f"expected intervals of {len(self.values)} layers, got {self.uncertainty.n_layers}")
