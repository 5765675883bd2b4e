"""Models compared on the same texts, and how surely."""

from dataclasses import dataclass, field

from layerprobe.encoders.values import ModelDescription, Pooling, check_layers
from layerprobe.errors import DataError
from layerprobe.files.images import Modality
from layerprobe.names import plural, short_names
from layerprobe.results.shown import Shown, brief, from_layer
from layerprobe.similarity.values import Difference, LayerDiagnostics, SimilarityCurve, SimilarityMap


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Two models compared on the same texts."""

    model: ModelDescription
    """The model under study."""
    reference: ModelDescription
    """What it is compared with."""
    texts_digest: str
    """sha256 of the texts that both embedded."""
    pooling: Pooling
    """Of the model, and of the reference unless its settings say otherwise."""
    map: SimilarityMap
    """Every layer of the model against every layer of the reference."""
    curve: SimilarityCurve
    """One value of the map for every layer of the model."""
    other_normalization: SimilarityMap | None = None
    """The same measure of z-scored features where `map` is of raw ones, and the other way round."""
    steps: tuple[Difference, ...] = ()
    """The curve's change from each layer to the next."""
    model_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """By layer of the model."""
    reference_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """By layer of the reference."""
    settings: dict[str, str] = field(default_factory=dict)
    """How the model's texts were embedded, where not by default: prompt, max_length, pooling and others."""
    reference_settings: dict[str, str] = field(default_factory=dict)
    """The same of the reference."""
    unit: Modality = "text"
    """What was embedded."""
    warnings: tuple[str, ...] = ()
    """What a reader of the values should know, in plain words."""

    @property
    def first_layer(self) -> int:
        """The first layer of the model that is not left out: what others have before it repeats its own."""
        return self.map.first_layers[0]

    @property
    def alone(self) -> bool:
        """Whether there is no reference: a model was compared with itself, each layer with the one before."""
        return self.curve.alignment == "previous-layer"

    def __post_init__(self) -> None:
        expected = self.model.n_layers, self.reference.n_layers
        for part in (self.map, self.other_normalization):
            if part is not None and part.shape != expected:
                raise DataError(
                    f"expected a similarity map of {expected} layers of model and reference, got {part.shape}"
                )
        if len(self.curve.values) != self.model.n_layers:
            raise DataError(f"expected a curve of {self.model.n_layers} layers, got {len(self.curve.values)}")
        check_layers(self.curve.reference_layers, self.reference, what="reference layers")
        for layers, model in ((self.model_diagnostics, self.model), (self.reference_diagnostics, self.reference)):
            if layers and len(layers) != model.n_layers:
                raise DataError(f"expected diagnostics of {model.n_layers} layers of {model.name}, got {len(layers)}")
        if self.steps and len(self.steps) != self.model.n_blocks:
            raise DataError(f"expected {self.model.n_blocks} steps from layer to layer, got {len(self.steps)}")

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        model, reference = short_names(self.model.name, self.reference.name)
        against = "with the layer before" if self.alone else f"against {reference}"
        about = f"{model} {against}, {self.map.measure.title}, {self.map.n_samples} {plural(self.unit)}"
        return f"{about}: {brief(from_layer(self.first_layer, self.curve.values))}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparisons(Shown):
    """One model compared with any number of others on the same texts."""

    comparisons: tuple[Comparison, ...]
    """One a reference."""
    differences: tuple[tuple[Difference, ...], ...] = ()
    """For each reference but the first, by layer of the model: its curve less that of the first."""

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise DataError("expected at least one comparison, got none")
        if self.differences and len(self.differences) != len(self.comparisons) - 1:
            raise DataError(
                f"expected the differences of {len(self.comparisons) - 1} references to the first, "
                f"got {len(self.differences)}"
            )

    @property
    def summary(self) -> str:
        """What it says, in one line."""
        return "; ".join(comparison.summary for comparison in self.comparisons)
