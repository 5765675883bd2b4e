"""The files that make a Hugging Face checkpoint a sentence-transformers folder. Knows JSON; needs no such library.

They are the names and keys that sentence-transformers 3 to 6 all read: 6 has newer ones, which 3 refuses. A
configuration without `modality_config` is one of plain text there, so a chat template of the tokenizer stays unused.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from layerprobe.encoders.recipe import MODES, MODULES, POOLING, SETTINGS
from layerprobe.encoders.values import Pooling
from layerprobe.errors import DataError

INPUT = "sentence_bert_config.json"
IMAGES = "embedding.json"
# `encode` takes the default prompt; `encode_query` and `encode_document` take those of their names, empty or not.
_PROMPTS = ("default", "query", "document")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How token states become one embedding."""

    pooling: Pooling
    width: int
    """Features of a token state."""
    max_length: int
    """Tokens a text at most, special tokens included."""
    prompt: str
    """Put before every text."""
    n_extra: int | None = None
    """Of a model of images: tokens before the patches, which mean and max leave out; None for one of texts."""
    query_prompt: str = ""
    """Put before every query in its place, where documents have another."""
    document_prompt: str = ""
    """Put before every document in its place."""

    @property
    def prompts(self) -> dict[str, str]:
        """By the name that sentence-transformers gives them."""
        if self.query_prompt != self.document_prompt:
            return {"query": self.query_prompt, "document": self.document_prompt}
        return dict.fromkeys(_PROMPTS, self.prompt) if self.prompt else {}


def write_layout(folder: Path, layout: Layout) -> None:
    """Write what sentence-transformers needs next to a checkpoint: modules, pooling, length, prompt, similarity.

    Of a model of images, how its states become an embedding, for whoever reads it.

    Raises:
        OSError: If a file cannot be written.
    """
    if layout.n_extra is not None:
        # sentence-transformers would take a mean over all tokens, [CLS] and registers with them
        _write(folder / IMAGES, {"pooling": layout.pooling, "width": layout.width, "tokens_before": layout.n_extra})
        return
    kind = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(
        folder / MODULES,
        [{"idx": i, "name": str(i), "path": path, "type": f"{kind}.{name}"} for i, (path, name) in enumerate(modules)],
    )
    _write(folder / INPUT, {"max_seq_length": layout.max_length, "do_lower_case": False})
    modes = {key: mode == layout.pooling for mode, key in MODES.items()}
    _write(folder / POOLING, {"word_embedding_dimension": layout.width, **modes, "include_prompt": True})
    _write(
        folder / SETTINGS,
        {
            "model_type": "SentenceTransformer",
            "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
            "prompts": layout.prompts,
            "default_prompt_name": _PROMPTS[0] if layout.prompt else None,
            "similarity_fn_name": "cosine",
        },
    )


def read_layout(folder: Path) -> Layout:
    """Return what `write_layout` wrote.

    Raises:
        DataError: If a file is missing or is not one that `write_layout` writes.
    """
    try:
        if (folder / IMAGES).is_file():
            said = _read(folder / IMAGES)
            width, n_extra = int(said["width"]), int(said["tokens_before"])
            return Layout(pooling=said["pooling"], width=width, max_length=0, prompt="", n_extra=n_extra)
        pooling, settings = _read(folder / POOLING), _read(folder / SETTINGS)
        (mode,) = (mode for mode, key in MODES.items() if pooling[key])
        name, prompts = settings["default_prompt_name"], settings["prompts"]
        return Layout(
            pooling=mode,
            width=int(pooling["word_embedding_dimension"]),
            max_length=int(_read(folder / INPUT)["max_seq_length"]),
            prompt=prompts[name] if name else "",
            query_prompt="" if name else prompts.get("query", ""),
            document_prompt="" if name else prompts.get("document", ""),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"expected the folder of an exported model at {folder}: {error}") from error


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
