"""The plan of an extraction, and label-free measures of token states by layer."""

from dataclasses import dataclass

from layerprobe.errors import DataError
from layerprobe.files.atomic import readable_size
from layerprobe.names import short_name


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionPlan:
    """The estimated size of an extraction."""

    model: str
    """Its name."""
    n_texts: int
    """Distinct texts."""
    n_layers: int
    width: int
    """Features of a layer."""
    store_dtype: str
    """What embeddings are kept in."""
    bytes: int
    """To be written; less than all where a part of it is in the store."""
    free: int
    """Bytes that are free where the store is."""
    weights: int | None = None
    """Bytes of weights that are read block by block; None: the model is in memory as a whole."""
    block: int | None = None
    """Bytes of its largest block in memory."""
    outside: int | None = None
    """Bytes of its weights outside of the blocks, which stay in memory."""
    meanwhile: int | None = None
    """Bytes on disk until all is embedded: the states between two blocks, and the embeddings."""

    @property
    def sentence(self) -> str:
        """How much would be written, and how much there is room for."""
        done = (
            f"Embedding {self.n_texts:,} texts with {short_name(self.model)}, {self.n_layers} layers of {self.width} "
            f"features in {self.store_dtype}, takes {readable_size(self.bytes)} of disk; "
            f"{readable_size(self.free)} are free."
        )
        if self.weights is None or self.block is None or self.outside is None or self.meanwhile is None:
            return done
        return (
            f"{done} Block by block, files of {readable_size(self.weights)} are read; "
            f"{readable_size(self.outside)} of weights stay in memory, and of one block at a time, three at first, "
            f"{readable_size(self.block)}; states and embeddings take {readable_size(self.meanwhile)} more of disk "
            "until all is done."
        )
