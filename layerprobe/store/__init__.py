"""Embeddings and results on disk. Knows files, not models and not maths."""

from layerprobe.store.entries import Entry
from layerprobe.store.key import FORMAT_VERSION, StoreKey, sample_ids, texts_digest
from layerprobe.store.shards import ShardWriter, StoredEmbeddings, StoredLayer
from layerprobe.store.store import Pruned, Store

__all__ = [
    "FORMAT_VERSION",
    "Entry",
    "Pruned",
    "ShardWriter",
    "Store",
    "StoreKey",
    "StoredEmbeddings",
    "StoredLayer",
    "sample_ids",
    "texts_digest",
]
