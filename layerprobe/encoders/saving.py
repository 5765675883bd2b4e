"""A loaded encoder -> the files of a checkpoint. Knows what transformers writes, not where the folder is to be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import quiet_transformers


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write configuration, weights and tokenizer to a folder that is there.

    Raises:
        OSError: If they cannot be written; the libraries in Rust have exceptions of their own.
    """
    tokenizer = tokenizer_to_save(encoder)
    with quiet_transformers():
        encoder.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def tokenizer_to_save(encoder: Encoder) -> Any:
    """Return a copy of the tokenizer without the truncation and padding of its last call, which would be written."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    return tokenizer
