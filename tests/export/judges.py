"""What others make of an exported folder, and what layerprobe has of the layer."""

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer

from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Pooling
from layerprobe.encoders.recipe import INPUT, MODES, POOLING, SETTINGS
from layerprobe.export.folder import Layout
from layerprobe.extraction.embed import embed_layers
from tests.models import TEXTS

Embeddings = NDArray[np.float32]


def layerprobe_embeddings(
    model: Path | Resolved,
    layer: int,
    *,
    texts: Sequence[str] = TEXTS,
    pooling: Pooling = "mean",
    prompt: str = "",
    max_length: int | None = None,
) -> Embeddings:
    """One layer of the whole model, as extraction has it."""
    encoder = load_encoder(model if isinstance(model, Resolved) else str(model), device="cpu")
    tokens = encoder.tokenize([prompt + text for text in texts], max_length=max_length)
    return embed_layers(encoder, tokens, pooling=pooling)[layer]


def sentence_transformer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # those of its own imports are not ours
        from sentence_transformers import SentenceTransformer
    return SentenceTransformer(str(folder), device="cpu")


def run_card(folder: Path) -> list[tuple[list[str], Embeddings]]:
    """Run the code on the card of a folder; return its texts and embeddings."""
    found = []
    for code in re.findall(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), flags=re.DOTALL):
        values: dict[str, Any] = {}
        exec(code.replace("path/to/this/folder", str(folder)), values)
        found.append((values["texts"], np.asarray(values["embeddings"])))
    return found


@torch.inference_mode()
def transformers_mean(folder: Path, *, texts: Sequence[str] = TEXTS, together: bool = True) -> Embeddings:
    """Mean pooling by transformers alone, with what its tokenizer gives."""
    kind = AutoModelForTextEncoding if "t5" in (folder / "config.json").read_text() else AutoModel
    model, tokenizer = kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rows = []
    for batch in [list(texts)] if together else [[text] for text in texts]:
        inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        mask = inputs["attention_mask"].unsqueeze(-1)
        rows.append((model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(rows).numpy()


def read_layout(folder: Path) -> Layout:
    """Return what `write_layout` wrote of a model of texts."""
    pooling, settings, reading = (json.loads((folder / file).read_text()) for file in (POOLING, SETTINGS, INPUT))
    (mode,) = (mode for mode, key in MODES.items() if pooling[key])
    name, prompts = settings["default_prompt_name"], settings["prompts"]
    return Layout(
        pooling=mode,
        width=pooling["word_embedding_dimension"],
        max_length=reading["max_seq_length"],
        prompt=prompts[name] if name else "",
        query_prompt="" if name else prompts.get("query", ""),
        document_prompt="" if name else prompts.get("document", ""),
    )
