"""What an export wrote. Values only."""

from dataclasses import dataclass, field
from typing import Literal

from layerprobe.files.serialisation import RARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """A truncated encoder on disk, whose embeddings were compared with the model's own."""

    path: str
    """The folder."""
    model: str
    """The model that was truncated."""
    revision: str
    """Its commit, or the content digest of a local folder."""
    layer: int
    """Blocks kept."""
    n_blocks: int
    """Blocks of the whole model."""
    parameters: int
    """Of the truncated model, without the pooler."""
    whole_parameters: int
    """Of the whole model, without the pooler."""
    pooling: str
    """How token states become one embedding."""
    modules: tuple[str, ...]
    """What stands behind the encoder in sentence-transformers; empty of an image encoder."""
    max_length: int | None
    """Tokens a text at most; None of an image encoder."""
    prompt: str
    """Put before every text."""
    difference: float
    """Largest difference of any feature of an embedding before and after."""
    compared_with: Literal["layer", "source"]
    """What it was compared with: the pooled layer, or also what sentence-transformers encodes by the source, cut."""
    warnings: tuple[str, ...]
    """What a user of the folder should know."""
    uploaded: str = field(default="", metadata=RARE)
    """Address of the commit on the Hub; empty where it was not uploaded."""
