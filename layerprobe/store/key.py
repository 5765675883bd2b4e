"""What the numbers of an extraction depend on. Knows digests, not files."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.files.serialisation import RARE, digest, to_dict
from layerprobe.store import StoreDtype
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
    store_dtype: StoreDtype = field(default="float32", metadata=RARE)
    """What the embeddings are kept in."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """The blocks that were kept; None: all."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the sha256 of all fields and of a version; names the directory."""
        return digest({"format": EMBEDDING_VERSION, **to_dict(self)})[:32]

    @property
    def item_bytes(self) -> int:
        """Bytes of a number of an embedding."""
        return 2 if self.store_dtype == "float16" else 4


def is_fingerprint(name: str) -> bool:
    """Return whether a name is one that a `StoreKey` gives.

    Examples:
        >>> is_fingerprint("notes")
        False
    """
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def texts_digest(texts: Iterable[str]) -> str:
    """Return the sha256 of texts in their order: that of their list as JSON, of which memory holds a text at a time.

    Examples:
        >>> texts_digest(["a", "b"]) == texts_digest(["b", "a"])
        False
        >>> texts_digest(["a", "b"]) == digest(["a", "b"])
        True
    """
    as_json = json.JSONEncoder(ensure_ascii=False).encode
    sha256 = hashlib.sha256(b"[")
    for number, text in enumerate(texts):
        sha256.update(f"{',' if number else ''}{as_json(text)}".encode("utf-8", "surrogatepass"))
    sha256.update(b"]")
    return sha256.hexdigest()


def sample_ids(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of the sha256 of every text, as big-endian numbers.

    Examples:
        >>> [f"{number:016x}" for number in sample_ids(["a"])]
        ['ca978112ca1bbdca']
    """
    sums = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts)
    return np.fromiter((int.from_bytes(sha) for sha in sums), dtype=np.uint64)


def first_rows(texts: Sequence[str], ids: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the rows of texts that are no copy of an earlier one, ascending; `ids` are their `sample_ids`.

    Only texts of the same id are compared, so that memory holds no more than these.

    Examples:
        >>> texts = ["b", "a", "b", "c", "a"]
        >>> first_rows(texts, sample_ids(texts)).tolist()
        [0, 1, 3]
    """
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    ends = np.append(begins[1:], len(ids))
    first = np.ones(len(ids), dtype=bool)
    several = ends - begins > 1
    for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        seen: set[str] = set()
        for row in order[begin:end].tolist():  # ascending, as the order is stable
            text = texts[row]
            first[row] = text not in seen
            seen.add(text)
    return np.flatnonzero(first)
