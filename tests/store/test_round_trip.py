import dataclasses
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file

from layerprobe.errors import DataError, StoreError
from layerprobe.store.key import sample_ids
from layerprobe.store.store import Store


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_was_written_comes_back(key_of, data):
    texts = data.draw(st.lists(st.text(st.characters()), min_size=1, max_size=7, unique=True))
    n_layers, width, rows = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8)))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = data.draw(arrays(np.float32, (n_layers, len(texts), width), elements=finite))
    with tempfile.TemporaryDirectory() as folder:
        store, key = Store(folder, rows_per_shard=rows), key_of(texts)
        with store.writer(key, texts=texts, n_layers=n_layers, width=width, description={"note": ["x", 1]}) as writer:
            for index, start, stop in data.draw(st.permutations(writer.pending)):
                writer.write(index, values[:, start:stop])
            finished = writer.finish()
        stored = Store(folder).open(key)
        assert stored is not None
        assert stored.sample_ids == finished.sample_ids == sample_ids(texts)
        assert (stored.manifest.n_rows, stored.n_layers, stored.manifest.width) == (len(texts), n_layers, width)
        assert stored.manifest.description == {"note": ["x", 1]}
        for layer in range(n_layers):
            np.testing.assert_array_equal(stored.layer(layer), values[layer])
        assert store.verify().problems == ()


@pytest.mark.parametrize(
    "description", [{}, {"model": {"name": "caf\udce9"}}, {"numbers": {10: 0.1, 9: (-0.0, 1e300)}}]
)
def test_any_description_comes_back(store, texts, key_of, description):
    key = key_of(texts, model="caf\udce9")  # a folder whose name is no UTF-8
    with store.writer(key, texts=texts, n_layers=3, width=4, description=description):
        pass
    (entry,) = store.entries()
    assert entry.state == "partial"
    assert entry.manifest.description == json.loads(json.dumps(description))
    assert entry.model == "caf\udce9"


def test_shards_are_plain_safetensors(store, texts, fill, values_of):
    stored = fill(store, texts)
    names = sorted(path.name for path in stored.directory.iterdir())
    shards = [f"shard-0000{i}-of-00003.safetensors" for i in range(3)]
    assert names == ["manifest.json", "samples.json", *shards]
    tensors = load_file(stored.directory / shards[1])
    assert set(tensors) == {"layer.0", "layer.1", "layer.2"}
    np.testing.assert_array_equal(tensors["layer.2"], values_of(texts)[2, 2:4])


@pytest.mark.parametrize(("rows", "mapped"), [(5, True), (2, False)])
def test_layers_are_read_only_and_a_single_shard_is_mapped(tmp_path, texts, fill, rows, mapped):
    layer = fill(Store(tmp_path, rows_per_shard=rows), texts).layer(1)
    assert isinstance(layer, np.memmap) is mapped
    assert layer.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        layer[0, 0] = 1


@pytest.mark.parametrize("layer", [-1, 3])
def test_there_are_no_other_layers(store, texts, fill, layer):
    with pytest.raises(DataError, match=f"expected a layer from 0 to 2, got {layer}"):
        fill(store, texts).layer(layer)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_rows_of_a_layer_are_read_across_shards(tmp_path, texts, fill, rows):
    stored = fill(Store(tmp_path, rows_per_shard=rows), texts)
    layer, whole = stored.rows(1), np.array(stored.layer(1))
    assert (layer.shape, layer.dtype, len(layer)) == (whole.shape, whole.dtype, len(whole))
    np.testing.assert_array_equal(np.asarray(layer), whole)
    order = np.random.default_rng(0).permutation(len(whole))
    for chosen in (slice(0, 3), slice(1, None, 2), slice(3, 3), order, order[:2], np.array([1, 1])):
        np.testing.assert_array_equal(layer[chosen], whole[chosen])
        assert layer[chosen].flags.writeable


@pytest.mark.parametrize("layer", [-1, 3])
def test_there_are_no_rows_of_other_layers(store, texts, fill, layer):
    with pytest.raises(DataError, match=f"expected a layer from 0 to 2, got {layer}"):
        fill(store, texts).rows(layer)


@pytest.mark.parametrize(
    ("n_layers", "width", "rows"), [(13, 768, 1680), (1, 1, 65536), (200, 100_000, 256), (37, 1024, 442)]
)
def test_shards_have_about_64_mib(tmp_path, key_of, n_layers, width, rows):
    store, texts = Store(tmp_path), [str(i) for i in range(70_000)]
    with store.writer(key_of(texts), texts=texts, n_layers=n_layers, width=width) as writer:
        assert writer.pending[0] == (0, 0, rows)
        assert writer.pending[-1][2] == 70_000


def test_every_field_of_the_key_counts(store, texts, fill, key_of):
    fill(store, texts)
    key = key_of(texts)
    for field in dataclasses.fields(key):
        value = getattr(key, field.name)
        other = 7 if value is None else value + type(value)(1)
        changed = dataclasses.replace(key, **{field.name: other})
        assert changed.fingerprint != key.fingerprint
        assert store.open(changed) is None
    assert re.fullmatch("[0-9a-f]{32}", key.fingerprint)


def test_texts_are_those_of_the_key(store, key_of):
    for texts, message in [
        (["a", "b", "a"], "expected distinct texts, 1 of 3 are copies"),
        ([], "expected at least one text, got none"),
        (["b", "a"], "expected the texts of the key"),
    ]:
        with (
            pytest.raises(DataError, match=message),
            store.writer(key_of(["a", "b"]), texts=texts, n_layers=3, width=4),
        ):
            pass
    assert store.entries() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:2], r"expected .* = \(3, 2, 4\), got \(2, 2, 4\)"),
        (lambda v: v[:, :1], r"got \(3, 1, 4\)"),
        (lambda v: v.astype(np.float64), "expected float32 embeddings, got float64"),
        (lambda v: np.where(np.arange(3)[:, None, None] == 1, np.float32("nan"), v), "layer 1 is not finite in 2 of 2"),
        (lambda v: v + np.float32("inf"), "layer 0 is not finite"),
    ],
)
def test_other_arrays_are_refused(store, texts, key_of, values_of, change, message):
    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        with pytest.raises(DataError, match=message):
            writer.write(0, change(values_of(texts)[:, :2]))
        with pytest.raises(DataError, match=r"expected one of the pending shards \[0, 1, 2\], got 3"):
            writer.write(3, values_of(texts)[:, :2])
        assert len(writer.pending) == 3
        with pytest.raises(StoreError, match=r"the shards \[0, 1, 2\] are pending"):
            writer.finish()


def test_strided_arrays_are_written_right(store, texts, key_of, values_of):
    transposed = np.asfortranarray(values_of(texts))
    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        for index, start, stop in writer.pending:
            writer.write(index, transposed[:, start:stop])
        np.testing.assert_array_equal(writer.finish().layer(2), values_of(texts)[2])


def test_default_root(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path))
    assert Store().root == tmp_path
    monkeypatch.setenv("LAYERPROBE_CACHE", "")
    assert Store().root.name == "layerprobe"
    assert Store("~/x").root == Path.home() / "x"
