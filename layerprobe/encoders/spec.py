"""A model as asked for, before anything of it is looked up. Knows names and seeds, no files."""

import os
from dataclasses import dataclass, field

from layerprobe.errors import ModelError
from layerprobe.files.serialisation import RARE


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model: a name, and where they are asked for a revision and the seed of random weights.

    Every function that takes a model takes this, or a name alone.

    Examples:
        >>> ModelSpec("google-bert/bert-base-cased", random_init=0).label
        'google-bert/bert-base-cased (random init 0)'
    """

    name: str
    """Hub id, `id@revision`, or a local folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; the name's own, or the main branch, by default."""
    random_init: int | None = None
    """Seed of fresh random weights instead of the trained ones."""
    display_name: str | None = None
    """What it is called in tables, plots and sentences; by default its name, with the seed where weights are random."""
    end_token: bool | None = field(default=None, metadata=RARE)
    """Whether its end token is appended to every text; by default where it reads from left to right, its tokenizer
    appends none, and no configuration of sentence-transformers lies beside it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", os.fspath(self.name))
        if not self.name:
            raise ModelError("expected the name of a model, a hub id or a local folder, got an empty text")
        if self.revision is not None and "@" in self.name:
            raise ModelError(f"expected one revision, got {self.revision} for {self.name}")
        if self.display_name is not None and not self.display_name.strip():
            raise ModelError(f"expected what to call {self.name}, got {self.display_name!r}")
        if self.random_init is not None and not 0 <= self.random_init < 2**63:
            raise ModelError(f"expected a seed of random weights from 0 to 2^63 - 1, got {self.random_init}")

    @property
    def full_name(self) -> str:
        """The name with its revision."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def label(self) -> str:
        """What it is called: as was asked for, or by its name with revision and seed."""
        if self.display_name is not None:
            return self.display_name
        return self.full_name if self.random_init is None else f"{self.full_name} (random init {self.random_init})"
