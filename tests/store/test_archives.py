import dataclasses
from pathlib import Path

import numpy as np

from layerprobe.store.manifest import sample_ids
from layerprobe.store.store import Store
from tests.store.conftest import ids_of, key_of, problems

ARCHIVES = Path(__file__).parent / "archives"
V4 = ARCHIVES / "v4"
TEXTS = ["a plane", "ein Flugzeug", "비행기", 'a "plane"', "an aeroplane"]
KEY = key_of(TEXTS)
VALUES = np.arange(3 * 5 * 4, dtype=np.float32).reshape(3, 5, 4) / 8 - 2


def test_every_format_since_0_4_is_read_for_ever():
    store = Store(V4)
    assert [entry.state for entry in store.entries()] == ["complete"] * 2
    assert problems(store) == ()
    for key, n_cut in ((KEY, 0), (dataclasses.replace(KEY, store_dtype="float16"), 3)):
        stored = store.open(key)
        assert stored is not None
        manifest = stored.manifest
        assert (stored.n_layers, manifest.n_rows, manifest.width, manifest.n_cut) == (3, 5, 4, n_cut)
        assert ids_of(stored) == [f"{number:016x}" for number in sample_ids(TEXTS)]
        assert manifest.description == {"architecture": "bert", "parameters": [10, 20, 30], "seconds": 1.5}
        for layer in range(3):
            np.testing.assert_array_equal(stored.layer(layer), VALUES[layer])  # eighths are float16
            assert stored.layer(layer).dtype == np.float32
    assert not (V4 / "locks").exists()


def test_a_result_is_read_for_ever():
    assert Store(V4).load_result("ranks", "0" * 64, dict[str, list[float]]) is None  # no type of ours
    assert Store(V4).load_result("ranks", "0" * 64, dict[str, tuple[float, ...]]) == {"values": (1.5, 2.5)}
