import json
from typing import Any

import numpy as np
import pytest

from layerprobe.errors import StoreError
from layerprobe.store.manifest import StoreKey, read_manifest, texts_digest
from layerprobe.store.shards import StoredEmbeddings, check_files
from layerprobe.store.store import Store

N_LAYERS, WIDTH = 3, 4


def ids_of(stored: StoredEmbeddings) -> Any:
    return json.loads((stored.directory / "samples.json").read_text())


def key_of(texts, **fields) -> StoreKey:
    fixed = {
        "model": "org/model",
        "revision": "0123abcd",
        "tokenizer": "4567cdef",
        "pooling": "mean",
        "max_length": 128,
        "dtype": "float32",
        "norm": "none",
        "prompt": "",
        "random_init": None,
        "trust_remote_code": False,
        "texts_digest": texts_digest(texts),
    }
    return StoreKey(**(fixed | fields))


def values_of(texts) -> np.ndarray:
    return np.random.default_rng(len(texts)).normal(size=(N_LAYERS, len(texts), WIDTH)).astype(np.float32)


def fill(store: Store, texts, **fields) -> StoredEmbeddings:
    """Write everything that is pending."""
    with store.writer(key_of(texts, **fields), texts=texts, n_layers=N_LAYERS, width=WIDTH) as writer:
        for index, start, stop in writer.pending:
            writer.write(index, values_of(texts)[:, start:stop])
        return writer.finish()


def problems(store: Store) -> tuple[str, ...]:
    """Return what is said of each entry."""
    found = []
    for entry in store.entries():
        try:
            if (manifest := read_manifest(entry.directory)) is not None:
                check_files(entry.directory, manifest)
        except StoreError as error:
            found.append(str(error))
    return tuple(found)


@pytest.fixture
def store(tmp_path) -> Store:
    """An empty store with two rows a shard."""
    return Store(tmp_path / "cache", rows_per_shard=2)


@pytest.fixture
def texts() -> list[str]:
    """Five texts: three shards."""
    return ["a", "b", "", "비행기", "two\nlines"]
