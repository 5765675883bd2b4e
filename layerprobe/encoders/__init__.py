"""Hugging Face encoders: found, loaded, understood, truncated.

Knows models and tokenizers; knows no tasks, no similarity and no store.
"""

from layerprobe.encoders.architecture import check_supported, count_blocks, count_parameters, truncated_config
from layerprobe.encoders.batching import Batch, TokenizedTexts, collate, padded_groups, token_batches, tokenize
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import Checkpoint, find_checkpoint, load_encoder, resolve_device
from layerprobe.encoders.pooling import pool

__all__ = [
    "Batch",
    "Checkpoint",
    "Encoder",
    "TokenizedTexts",
    "TruncatedEncoder",
    "check_supported",
    "collate",
    "count_blocks",
    "count_parameters",
    "find_checkpoint",
    "load_encoder",
    "padded_groups",
    "pool",
    "resolve_device",
    "token_batches",
    "tokenize",
    "truncated_config",
]
