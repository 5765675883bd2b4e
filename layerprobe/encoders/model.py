"""Model settings: which model, how it is loaded and run; and its description. Knows names and settings, loads nothing.

Layers count from 0, the output of the embedding module.
"""

import os
import re
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from layerprobe.checks import convert_fields
from layerprobe.encoders.backends import TORCH, check_backend
from layerprobe.errors import DataError, ModelError
from layerprobe.files.images import Modality
from layerprobe.files.inputs import from_home
from layerprobe.files.serialisation import RARE, UNSAVED
from layerprobe.names import counted
from layerprobe.store import StoreDtype

Pooling = Literal["mean", "cls", "max", "last"]

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Description of a loaded encoder."""

    name: str
    """Display name: as requested, or hub id, id@revision or folder, with the seed of random weights."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    architecture: str
    """Hugging Face's model type."""
    n_blocks: int
    """Number of transformer blocks; layers count from 0 to this."""
    hidden_size: int
    """Number of features per layer."""
    norm: Literal["none", "final", "raw", "last"]
    """none: post-norm; final: the model's final norm is applied at every layer; raw: it was omitted; last: it is only
    applied at the last one."""
    dtype: str
    """Precision of the forward pass."""
    parameters: tuple[int, ...]
    """Parameters of the model truncated at each layer, without the pooler; of the whole one if that is impossible."""
    random_init: int | None = None
    """Seed of random weights; None for trained ones."""
    source: str | None = None
    """Hub id, id@revision or folder, if the display name differs; None: the name is the source."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """Blocks of the larger model that were kept, ascending, from 1; None: all."""
    whole_parameters: tuple[int, ...] = field(default=(), metadata=RARE)
    """Parameters of the larger model truncated at each of its layers, or of the model with all tokens."""
    vocabulary: tuple[int, int] | None = field(default=None, metadata=RARE)
    """Number of kept tokens, and of tokens in the full vocabulary; None: all were kept."""
    read: str = field(default="", metadata=RARE)
    """Why its blocks cannot be removed: layers are then the states between them, and the last is its own output."""

    @property
    def n_layers(self) -> int:
        """Number of blocks plus the embedding output."""
        return self.n_blocks + 1


def described(*models: ModelDescription) -> dict[str, str]:
    """Return one line per model: name, revision, architecture, size, and how it was run."""
    lines = [
        f"{model.name} ({f'from {model.source}, ' if model.source else ''}revision {model.revision}): "
        f"{model.architecture}, {model.n_blocks} blocks, {model.hidden_size} features, {model.parameters[-1]:,} "
        f"parameters, {model.dtype}, norm {model.norm}{', read, not cut' * bool(model.read)}"
        for model in models
    ]
    return {f"Model {number}" if len(lines) > 1 else "Model": line for number, line in enumerate(lines, start=1)}


@dataclass(frozen=True)
class Model:
    """A model, and how it is loaded and run: the first argument of every function that uses a model.

    Its name is the name of a model, `(model, tokenizer)` of transformers, or a `SentenceTransformer`; without a name it
    sets how models named elsewhere are loaded and run. A name or a folder alone is a model with the defaults. If
    a function takes several models, those given by name alone are loaded and run like the first.

    Examples:
        >>> model = Model("google-bert/bert-base-cased", random_init=0, pooling="cls", dtype="bfloat16")
        >>> model.label, model.pooling
        ('google-bert/bert-base-cased (random init 0)', 'cls')
    """

    name: Any = None
    """Hub id, id@revision, or a local folder. For CLIP-like models, images go to the image tower and texts to the text
    tower; append :image or :text to choose."""
    revision: str | None = None
    """Branch, tag or commit on the hub; the name's own, or the main branch, by default."""
    random_init: int | None = None
    """Fresh random weights with this seed instead of the trained ones."""
    display_name: str | None = None
    """Display name in tables, plots and sentences. By default the model's name, with the seed of random weights."""
    end_token: bool | None = field(default=None, metadata=RARE)
    """Whether the end token is appended to every text. By default only for models that read from left to right, whose
    tokenizer appends none, and that have no configuration of sentence-transformers."""
    blocks: tuple[int, ...] | None = field(default=None, metadata=RARE)
    """The blocks to keep, ascending, from 1, such as 1,5,6. The others are removed first, and layers count the blocks
    that are left. By default all."""
    tokens: tuple[int, ...] | None = field(default=None, repr=False, metadata=RARE)
    """Ids of the tokens to keep, ascending; the embeddings of all others are removed, and their texts are spelt with
    shorter pieces. By default all. `shrink` chooses them by texts."""
    _: KW_ONLY
    pooling: Pooling | None = field(default=None, metadata=RARE)
    """How token states become one embedding: mean, cls, max or last. By default as in the model's configuration of
    sentence-transformers, else last for models that read from left to right, and mean for others."""
    max_length: int | None = field(default=None, metadata=RARE)
    """Maximum number of tokens per text. By default as in the model's configuration of sentence-transformers, else the
    model's limit, at most 512; in fine-tuning 128, or as the protocol says."""
    prompt: str | None = field(default=None, metadata=RARE)
    """Text put before every text. By default as in the model's configuration of sentence-transformers, else none."""
    dtype: str = field(default="float32", metadata=RARE)
    """Precision of the forward pass: float32, bfloat16, float16, or auto, which is bfloat16 where that is faster."""
    norm: str = field(default="final", metadata=RARE)
    """Pre-norm models: apply the final norm at every layer, as truncated models do (final), or not (raw)."""
    device: str = field(default="auto", metadata=RARE)
    """auto, cpu, cuda, cuda:1 or mps."""
    attn: str = field(default="auto", metadata=RARE)
    """auto, or an attention implementation of transformers."""
    backend: str = field(default=TORCH, metadata=RARE)
    """What computes embeddings on a CPU: a registered backend, or auto, the fastest of those that equal torch for the
    model. Stored embeddings are shared between backends and devices, which differ by rounding. Fine-tuning and token
    states always use torch."""
    batch_tokens: int | None = field(default=None, metadata=RARE)
    """Tokens per forward pass, padding included. By default 1024 on a CPU and 32768 elsewhere; in fine-tuning elsewhere
    a whole step. Results depend on it only by rounding and by the draws of dropout, so runs with different values are
    stored separately."""
    trust_remote_code: bool = field(default=False, metadata=RARE)
    """Run model code that comes with a checkpoint."""
    token: str | None = field(default=None, repr=False, metadata=UNSAVED)
    """Token of the hub, for private and gated models; by default HF_TOKEN. It is never stored."""
    local_files_only: bool = field(default=False, metadata=RARE)
    """Use only downloaded files, without contacting the hub."""
    model_kwargs: dict[str, Any] = field(default_factory=dict, hash=False, metadata=UNSAVED)
    """Further arguments of the model's `from_pretrained`, other than fields of this class."""
    processor_kwargs: dict[str, Any] = field(default_factory=dict, hash=False, metadata=UNSAVED)
    """The same for the tokenizer or the image processor, such as {"padding_side": "left"}."""
    cache_dir: Path | None = field(default=None, metadata=RARE)
    """Where embeddings and runs are kept. By default LAYERPROBE_CACHE, or the user's cache folder."""
    store_dtype: StoreDtype = field(default="float32", metadata=RARE)
    """Precision of stored embeddings: float32, or float16, which takes half the disk space and rounds to 3 digits."""

    def __post_init__(self) -> None:
        for name in ("device", "dtype"):  # of torch, by their names
            if type(option := getattr(self, name)).__module__ == "torch":
                object.__setattr__(self, name, str(option).removeprefix("torch."))
        convert_fields(self)
        if isinstance(self.name, os.PathLike):
            object.__setattr__(self, "name", os.fspath(self.name))
        if isinstance(self.name, str):
            if not self.name:
                raise ModelError("expected the name of a model, a hub id or a local folder, got an empty text")
            if self.revision is not None and "@" in self.name:
                raise ModelError(f"expected one revision, got {self.revision} for {self.name}")
            if self.random_init is not None and not 0 <= self.random_init < 2**63:
                raise ModelError(f"expected a seed of random weights from 0 to 2^63 - 1, got {self.random_init}")
        elif self.name is not None:
            for name, usual in _OF_LOADING.items():
                if (option := getattr(self, name)) != usual:
                    got = "one" if name == "token" else repr(option)
                    raise ModelError(f"expected no {name} for a loaded model, got {got}")
        if self.display_name is not None and not self.display_name.strip():
            called = self.name if isinstance(self.name, str) else "a loaded model"
            raise ModelError(f"expected a display name for {called}, got {self.display_name!r}")
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise DataError(f"expected pooling by one of {', '.join(get_args(Pooling))}, got {self.pooling!r}")
        check_backend(self.backend)
        if self.attn not in ("auto", *ATTENTION) and not re.fullmatch(r"[^/\s]+/[^/\s]+", self.attn):
            names = ", ".join(ATTENTION)
            raise ModelError(f"expected attn auto, {names} or a kernel such as org/name, got {self.attn!r}")
        if self.norm not in ("final", "raw"):
            raise ModelError(f"expected norm final or raw, got {self.norm!r}")
        if self.store_dtype not in get_args(StoreDtype):
            raise DataError(f"expected embeddings in {' or '.join(get_args(StoreDtype))}, got {self.store_dtype!r}")
        if self.max_length is not None and self.max_length < 2:
            raise DataError(f"expected at least two tokens per text, got max_length={self.max_length}")
        for name in ("model_kwargs", "processor_kwargs"):
            for key in getattr(self, name):
                if key in _FIELDS:
                    raise ModelError(f"expected no {key} in {name}: {_FIELDS[key] or 'layerprobe'} sets that")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise DataError(f"expected at least one token per batch, got batch_tokens={self.batch_tokens}")

    @property
    def full_name(self) -> str:
        """The name with its revision."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def label(self) -> str:
        """Display name: as requested, or the name with revision, seed, blocks and tokens."""
        if self.display_name is not None:
            return self.display_name
        parts = [] if self.random_init is None else [f"random init {self.random_init}"]
        parts += [] if self.blocks is None else [f"blocks {', '.join(map(str, self.blocks))}"]
        parts += [] if self.tokens is None else [counted(len(self.tokens), "token")]
        return f"{self.full_name} ({'; '.join(parts)})" if parts else self.full_name

    @classmethod
    def of(cls, model: Any, like: "Model") -> "Model":
        """Return `model` as a `Model`; names and folders are loaded and run like `like`."""
        return model if isinstance(model, Model) else cls(model).like(like)

    def like(self, other: "Model") -> "Model":
        """Return this model, loaded and run like another."""
        loaded = not isinstance(self.name, str | os.PathLike | None)
        names = (name for name in OPTIONS if not loaded or name not in _OF_LOADING)
        return replace(self, **{name: getattr(other, name) for name in names})


_OF_LOADING = dict.fromkeys(("revision", "random_init", "end_token", "token"))
_OF_LOADING |= {"local_files_only": False, "model_kwargs": {}, "processor_kwargs": {}}
"""Fields for loading a named model, with their defaults: loaded models cannot have them."""
_LOADING = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn", "device_map": "device"}
_ALIKE = ("revision", "trust_remote_code", "token", "local_files_only", "cache_dir")
_OURS = ("config", "weights_only", "output_loading_info", "ignore_mismatched_sizes", "use_auth_token", "backend")
_FIELDS = _LOADING | {name: name for name in _ALIKE} | dict.fromkeys(_OURS, "")
"""Keywords of `from_pretrained`, and the equivalent field; empty if there is none."""
OPTIONS = tuple(field.name for field in fields(Model) if field.kw_only)
"""Fields for loading and running a model."""
DEFAULTS = Model()
"""Default settings for loading and running."""

TOWERS: dict[str, Modality] = {":text": "text", ":image": "image"}
"""Suffixes for the towers of a model with two towers."""


def split_name(name: str) -> tuple[str, str | None]:
    """Split `name` into the folder or hub id and the revision, without a tower; ~ is the user's home.

    Examples:
        >>> split_name("google/electra-base-discriminator@main")
        ('google/electra-base-discriminator', 'main')
    """
    if name.endswith(tuple(TOWERS)):
        name = name.rpartition(":")[0]
    path = from_home(name)
    name = str(path) if name.startswith("~") else name
    if Path(name).is_dir():
        return name, None
    source, _, revision = name.partition("@")
    if revision and Path(source).is_dir():
        raise ModelError(f"a local folder has no revisions: expected {source} or a hub id, got {name}")
    return source, revision or None
