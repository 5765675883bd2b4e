"""What a loaded encoder is. Layers count from 0, the output of the embedding module."""

import re
from dataclasses import dataclass, field
from typing import Literal

from layerprobe.errors import DataError, ModelError
from layerprobe.files.serialisation import RARE
from layerprobe.results.table import Column, layer_columns

Pooling = Literal["mean", "cls", "max", "last"]

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")


def check_attn(attn: str) -> None:
    """Check the name of an attention implementation: auto, one of transformers, or a kernel on the hub."""
    if attn != "auto" and attn not in ATTENTION and not re.fullmatch(r"[^/\s]+/[^/\s]+", attn):
        raise ModelError(f"expected attn auto, {', '.join(ATTENTION)} or a kernel such as org/name, got {attn!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What a loaded encoder is."""

    name: str
    """What it is called: as was requested, or hub id, id@revision or folder, with the seed where weights are random."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    architecture: str
    """Hugging Face's model type."""
    n_blocks: int
    """Transformer blocks; layers count from 0 to this."""
    hidden_size: int
    """Features of a layer."""
    norm: Literal["none", "final", "raw"]
    """none: post-norm; final: the model's final norm is applied at every layer; raw: it was left out."""
    dtype: str
    """What the forward pass computes in."""
    parameters: tuple[int, ...]
    """Parameters of the model truncated at each layer, without the pooler."""
    random_init: int | None = None
    """Seed of random weights; None for trained ones."""
    source: str | None = None
    """Hub id, id@revision or folder, where the model is called otherwise; None: the name says it."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """The blocks of a larger model that it is made of, ascending, from 1; None: it is whole."""
    whole_parameters: tuple[int, ...] = field(default=(), metadata=RARE)
    """Of that larger model truncated at each of its layers."""

    def __post_init__(self) -> None:
        if self.n_blocks < 0 or len(self.parameters) != self.n_layers:
            raise DataError(
                f"expected the parameters of layers 0 to {self.n_blocks} of {self.name}, got {len(self.parameters)}"
            )

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return self.n_blocks + 1

    @property
    def parameters_column(self) -> Column:
        """The parameters of the model truncated at each layer, for the table of a result."""
        return layer_columns((), self.parameters)[1]


def check_layers(layers: tuple[int, ...], model: ModelDescription, *, what: str) -> None:
    """Raise unless all are layers of the model."""
    wrong = [layer for layer in layers if not 0 <= layer < model.n_layers]
    if wrong:
        raise DataError(f"expected {what} from 0 to {model.n_blocks} of {model.name}, got {', '.join(map(str, wrong))}")
