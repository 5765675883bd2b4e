"""The result of an export. Values only."""

from dataclasses import dataclass, field
from typing import Literal

from layerprobe.files.serialisation import RARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8File:
    """A graph of the exported encoder with products of 8 bits, which was read back and run."""

    backend: str
    """What runs it: onnx or openvino."""
    file: str
    """In the folder."""
    size: int
    """Bytes, with the files that belong to it."""
    n_texts: int
    """On which it was compared with the model in float32."""
    cosine: float
    """Of its pooled embeddings to those in float32: the mean over texts, -1 to 1."""
    lowest: float
    """That of the worst text."""

    @property
    def difference_text(self) -> str:
        """Its difference from float32, in words."""
        return (
            f"cosine to the embeddings in float32 {self.cosine:.4f} on average, {self.lowest:.4f} at worst "
            f"({self.n_texts} texts)"
        )


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
    """Blocks of that model."""
    parameters: int
    """Of the truncated model, without the pooler."""
    whole_parameters: int
    """Of the whole model, all of its blocks with it, without the pooler."""
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
    int8: tuple[Int8File, ...] = field(default=(), metadata=RARE)
    """Graphs with products of 8 bits, where they were requested."""
