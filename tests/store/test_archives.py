import json
from pathlib import Path

import numpy as np

from layerprobe.store.key import StoreKey, sample_ids, texts_digest
from layerprobe.store.store import Store

V1 = Path(__file__).parent / "archives" / "v1"
TEXTS = ["a plane", "ein Flugzeug", "비행기", 'a "plane"', "an aeroplane"]


def test_format_1_is_read_for_ever():
    store = Store(V1)
    key = StoreKey(
        model="org/model",
        revision="0123abcd",
        tokenizer="4567cdef",
        pooling="mean",
        max_length=128,
        dtype="float32",
        norm="none",
        prompt="",
        random_init=None,
        trust_remote_code=False,
        texts_digest=texts_digest(TEXTS),
    )
    (entry,) = store.entries()
    assert (entry.state, entry.fingerprint) == ("complete", key.fingerprint)
    assert store.verify() == []
    stored = store.open(key)
    assert stored is not None
    assert (stored.n_layers, stored.manifest.n_rows, stored.manifest.width) == (3, 5, 4)
    assert stored.sample_ids == sample_ids(TEXTS)
    assert stored.manifest.description == {"architecture": "bert", "parameters": [10, 20, 30], "seconds": 1.5}
    expected = np.arange(3 * 5 * 4, dtype=np.float32).reshape(3, 5, 4) / 8 - 2
    for layer in range(3):
        np.testing.assert_array_equal(stored.layer(layer), expected[layer])
    assert not (V1 / "locks").exists()


def test_format_1_has_the_manifest_that_it_had():
    (path,) = V1.glob("embeddings/*/manifest.json")
    manifest = json.loads(path.read_text())
    assert set(manifest) == {
        *("format", "key", "n_rows", "n_layers", "width", "rows_per_shard", "created", "layerprobe"),
        *("samples", "shards", "complete", "description", "description_sha256"),
    }
    assert manifest["format"] == 1
    assert [shard["name"] for shard in manifest["shards"]] == [f"shard-0000{i}-of-00002.safetensors" for i in (0, 1)]
