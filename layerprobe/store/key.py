"""What the numbers of an extraction depend on. Knows digests, not files."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from layerprobe.serialisation import digest, to_dict
from layerprobe.versions import EMBEDDING_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKey:
    """Everything the numbers depend on; what else is worth knowing goes into the description."""

    model: str
    """Hub id or folder."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    tokenizer: str
    """Digest of the tokenizer."""
    pooling: str
    """mean, cls, max or last."""
    max_length: int
    """Tokens a text at most."""
    dtype: str
    """What the forward pass computes in."""
    norm: str
    """final or raw; and that layers are what the blocks read, where transformers hands out other hidden states."""
    prompt: str
    """What stands before every text."""
    random_init: int | None
    """Seed of random weights; None for those of the checkpoint."""
    trust_remote_code: bool
    """Whether code of the checkpoint could run."""
    texts_digest: str
    """Of the distinct texts in their order, by `texts_digest`."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the sha256 of all fields and of a version; names the directory."""
        return digest({"format": EMBEDDING_VERSION, **to_dict(self)})[:32]


def is_fingerprint(name: str) -> bool:
    """Return whether a name is one that a `StoreKey` gives.

    Examples:
        >>> is_fingerprint("notes")
        False
    """
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def texts_digest(texts: Sequence[str]) -> str:
    """Return the sha256 of texts in their order.

    Examples:
        >>> texts_digest(["a", "b"]) == texts_digest(["b", "a"])
        False
    """
    return digest(list(texts))


def sample_ids(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first 16 hexadecimal digits of the sha256 of every text.

    Examples:
        >>> sample_ids(["a"])
        ('ca978112ca1bbdca',)
    """
    return tuple(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in texts)
