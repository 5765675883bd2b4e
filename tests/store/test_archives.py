import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from layerprobe.errors import DamagedStoreError
from layerprobe.store.manifest import StoreKey, sample_ids, texts_digest
from layerprobe.store.store import Store

ARCHIVES = Path(__file__).parent / "archives"
V1, V2, V3 = ARCHIVES / "v1", ARCHIVES / "v2", ARCHIVES / "v3"
TEXTS = ["a plane", "ein Flugzeug", "비행기", 'a "plane"', "an aeroplane"]
KEY = StoreKey(
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
VALUES = np.arange(3 * 5 * 4, dtype=np.float32).reshape(3, 5, 4) / 8 - 2


@pytest.mark.parametrize("archive", [V1, V2, V3], ids=["1", "2", "3"])
def test_every_format_is_read_for_ever(archive):
    store = Store(archive)
    entries = {entry.fingerprint: entry.state for entry in store.entries()}
    assert entries[KEY.fingerprint] == "complete"
    found = store.verify()
    assert (found.problems, found.unchecked) == ((), ())
    stored = store.open(KEY)
    assert stored is not None
    assert (stored.n_layers, stored.manifest.n_rows, stored.manifest.width) == (3, 5, 4)
    np.testing.assert_array_equal(stored.sample_ids, sample_ids(TEXTS))
    assert stored.manifest.description == {"architecture": "bert", "parameters": [10, 20, 30], "seconds": 1.5}
    for layer in range(3):
        np.testing.assert_array_equal(stored.layer(layer), VALUES[layer])
    assert not (archive / "locks").exists()


def test_a_result_of_format_2_is_read_for_ever():
    assert Store(V2).load_result("ranks", "0" * 64, dict[str, list[float]]) is None  # no type of ours
    assert Store(V2).load_result("ranks", "0" * 64, dict[str, tuple[float, ...]]) == {"values": (1.5, 2.5)}


def test_format_3_has_float16_and_how_many_texts_were_cut():
    key = dataclasses.replace(KEY, store_dtype="float16")
    stored = Store(V3).open(key)
    assert stored is not None
    assert stored.manifest.n_cut == 3
    for layer in range(3):
        np.testing.assert_array_equal(stored.layer(layer), VALUES[layer])  # eighths are float16
        assert stored.layer(layer).dtype == np.float32
        assert stored.rows(layer).dtype == np.float16


def test_formats_have_the_manifests_that_they_had():
    own = {1: {"description_sha256"}, 2: {"checksum"}}
    for number, archive in ((1, V1), (2, V2)):
        (path,) = archive.glob("embeddings/*/manifest.json")
        manifest = json.loads(path.read_text())
        assert set(manifest) == own[number] | {
            *("format", "key", "n_rows", "n_layers", "width", "rows_per_shard", "created", "layerprobe"),
            *("samples", "shards", "complete", "description"),
        }
        assert manifest["format"] == number
        assert [shard["name"] for shard in manifest["shards"]] == [
            f"shard-0000{i}-of-00002.safetensors" for i in (0, 1)
        ]


def test_an_entry_of_format_1_is_mended_to_one_of_today(tmp_path):
    shutil.copytree(V1, tmp_path / "cache")
    store = Store(tmp_path / "cache")
    first, second = sorted(tmp_path.rglob("shard-*"))
    before = first.stat().st_mtime_ns
    second.write_bytes(second.read_bytes()[:-1] + b"!")
    with store.writer(KEY, texts=TEXTS, n_layers=3, width=4) as writer:
        assert writer.pending == [(1, 3, 5)]
        writer.write(1, VALUES[:, 3:])
        stored = writer.finish()
    assert first.stat().st_mtime_ns == before
    manifest = json.loads((stored.directory / "manifest.json").read_text())
    assert (manifest["format"], manifest["checksum"]["name"]) == (3, f"{KEY.fingerprint}/manifest.json")
    assert store.verify().problems == ()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("n_layers", 2, "its header is garbled .expected 2 layers, got 3"),
        ("n_rows", 6, "its header is garbled"),
        ("width", 2, "its header is garbled"),
        ("description", {}, "its description is not the one that was written"),
        ("key", {}, "garbled"),
    ],
)
def test_what_numbers_depend_on_is_checked_in_format_1(tmp_path, field, value, problem):
    shutil.copytree(V1, tmp_path / "cache")
    (path,) = tmp_path.rglob("manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(DamagedStoreError, match=problem):
        Store(tmp_path / "cache").open(KEY)
