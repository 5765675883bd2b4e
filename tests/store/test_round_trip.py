import dataclasses
import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file

from layerprobe.errors import DamagedStoreError, DataError, StoreError
from layerprobe.files.atomic import file_sha256
from layerprobe.files.serialisation import from_dict
from layerprobe.store.manifest import Manifest, sample_ids, write_manifest
from layerprobe.store.store import Store
from tests.store.conftest import fill, ids_of, key_of, problems, values_of

DESCRIPTIONS = ({}, {"model": {"name": "caf\udce9"}}, {"numbers": {10: 0.1, 9: (-0.0, 1e300)}})


@settings(deadline=None)
@given(st.data())
def test_what_was_written_comes_back(data):
    texts = data.draw(st.lists(st.text(st.characters()), min_size=1, max_size=7, unique=True))
    n_layers, width, rows = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8)))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = data.draw(arrays(np.float32, (n_layers, len(texts), width), elements=finite))
    description = data.draw(st.sampled_from(DESCRIPTIONS))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, rows_per_shard=rows)
        key = key_of(texts, model="caf\udce9")  # a folder whose name is no UTF-8
        with store.writer(key, texts=texts, n_layers=n_layers, width=width, description=description) as writer:
            for index, start, stop in data.draw(st.permutations(writer.pending)):
                writer.write(index, np.asfortranarray(values)[:, start:stop])
            finished = writer.finish()
        stored = Store(folder).open(key)
        assert stored is not None
        for each in (stored, finished):
            assert ids_of(each) == [f"{number:016x}" for number in sample_ids(texts)]
        assert (stored.manifest.n_rows, stored.n_layers, stored.manifest.width) == (len(texts), n_layers, width)
        assert stored.manifest.description == json.loads(json.dumps(description))
        assert [(entry.state, entry.model) for entry in store.entries()] == [("complete", "caf\udce9")]
        for layer in range(n_layers):
            np.testing.assert_array_equal(stored.layer(layer), values[layer])
        assert problems(store) == ()


@pytest.mark.parametrize(("rows", "mapped"), [(5, True), (2, False)])
def test_layers_are_read_only_and_a_single_shard_is_mapped(tmp_path, texts, rows, mapped):
    layer = fill(Store(tmp_path, rows_per_shard=rows), texts).layer(1)
    assert isinstance(layer, np.memmap) is mapped
    assert layer.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        layer[0, 0] = 1


@pytest.mark.parametrize("layer", [-4, 3])
def test_there_are_no_other_layers(store, texts, layer):
    with pytest.raises(DataError, match=f"expected layers from 0 to 2 of the model, got {layer}"):
        fill(store, texts).layer(layer)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_rows_of_a_layer_are_read_across_shards(tmp_path, texts, rows):
    stored = fill(Store(tmp_path, rows_per_shard=rows), texts)
    layer, whole = stored.rows(1), np.array(stored.layer(1))
    assert (layer.shape, layer.dtype, len(layer)) == (whole.shape, whole.dtype, len(whole))
    np.testing.assert_array_equal(np.asarray(layer), whole)
    order = np.random.default_rng(0).permutation(len(whole))
    for chosen in (slice(0, 3), slice(1, None, 2), slice(3, 3), slice(-3, 90), order, order[:2], np.array([1, 1])):
        np.testing.assert_array_equal(layer[chosen], whole[chosen])
        assert layer[chosen].flags.writeable


@pytest.mark.parametrize(
    ("n_layers", "width", "rows"), [(13, 768, 1680), (1, 1, 65536), (200, 100_000, 256), (37, 1024, 442)]
)
def test_shards_have_about_64_mib(tmp_path, monkeypatch, n_layers, width, rows):
    monkeypatch.setattr("layerprobe.store.store.shutil.disk_usage", lambda _: SimpleNamespace(free=2**60))
    store, texts = Store(tmp_path), [str(i) for i in range(70_000)]
    with store.writer(key_of(texts), texts=texts, n_layers=n_layers, width=width) as writer:
        assert writer.pending[0] == (0, 0, rows)
        assert writer.pending[-1][2] == 70_000


def test_every_field_of_the_key_counts(store, texts):
    fill(store, texts)
    key = key_of(texts)
    for field in dataclasses.fields(key):
        value = getattr(key, field.name)
        other = 7 if value is None else (*value, "b") if isinstance(value, tuple) else value + type(value)(1)
        changed = dataclasses.replace(key, **{field.name: other})
        assert changed.fingerprint != key.fingerprint
        assert store.open(changed) is None
    assert re.fullmatch("[0-9a-f]{32}", key.fingerprint)


def test_what_is_pending_is_not_finished(store, texts):
    with (
        store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer,
        pytest.raises(DataError, match="it is marked complete but lacks shards"),
    ):
        writer.finish()


def test_default_root(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path))
    assert Store().root == tmp_path
    monkeypatch.setenv("LAYERPROBE_CACHE", "")
    assert Store().root.name == "layerprobe"
    assert Store("~/x").root == Path.home() / "x"


def test_a_user_without_a_home_is_told_to_choose_a_folder(monkeypatch, tmp_path):
    def nobody(*names, **options):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("LAYERPROBE_CACHE", raising=False)
    monkeypatch.setattr("layerprobe.store.store.user_cache_path", nobody)
    with pytest.raises(
        StoreError, match="determine the home directory: choose another folder with --cache-dir or LAYER"
    ):
        Store()
    assert Store(tmp_path).root == tmp_path


def test_what_was_opened_stays_readable_in_another_working_directory(texts, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stored = fill(Store("cache"), texts)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_array_equal(stored.layer(0), values_of(texts)[0])


def test_float16_is_half_the_size_and_rounded_once(store, texts):
    full, half = fill(store, texts), fill(store, texts, store_dtype="float16")
    assert full.directory != half.directory
    tensors = [sum(array.nbytes for array in load_file(path).values()) for path in shards_of(half)]
    assert sum(tensors) * 2 == values_of(texts).nbytes
    n_bytes, _ = Store(store.root / "empty").room(
        half.manifest.key, n_rows=5, n_layers=half.n_layers, width=half.manifest.width
    )
    assert n_bytes == sum(tensors) + (half.directory / "samples.json").stat().st_size
    for layer, values in enumerate(values_of(texts)):
        rounded = values.astype(np.float16)
        np.testing.assert_array_equal(half.layer(layer), rounded.astype(np.float32))
        assert half.layer(layer).dtype == np.float32
        np.testing.assert_array_equal(half.rows(layer)[:], rounded)
        assert half.rows(layer).dtype == half.rows(layer)[1:2].dtype == np.asarray(half.rows(layer)).dtype == np.float16
    assert problems(store) == ()
    assert {entry.state for entry in store.entries()} == {"complete"}


def shards_of(stored):
    return sorted(stored.directory.glob("*.safetensors"))


def test_a_header_of_another_dtype_is_damage(store, texts):
    full, half = fill(store, texts), fill(store, texts, store_dtype="float16")
    manifest = json.loads((half.directory / "manifest.json").read_text())
    for path, file in zip(shards_of(full), manifest["shards"], strict=True):
        (half.directory / path.name).write_bytes(path.read_bytes())
        file.update(bytes=path.stat().st_size, sha256=file_sha256(path))
    write_manifest(half.directory, from_dict(Manifest, {k: v for k, v in manifest.items() if k != "checksum"}))
    with pytest.raises(DamagedStoreError, match=r"its header is garbled .expected F16 of shape .2, 4., got F32"):
        store.open(key_of(texts, store_dtype="float16"))


def test_a_value_beyond_float16_is_refused_and_not_made_infinite(store, texts):
    values = values_of(texts)
    values[2, 1, 3] = -65_520  # the first that is rounded to infinity
    with store.writer(key_of(texts, store_dtype="float16"), texts=texts, n_layers=3, width=4) as writer:
        with pytest.raises(DataError, match=r"layer 2 has a value of 65,520, above float16's limit of 65,504: store"):
            writer.write(0, values[:, :2])
        values[2, 1, 3] = -65_504
        writer.write(0, values[:, :2])
        assert len(writer.pending) == 2


def test_what_the_disk_has_no_room_for_is_not_begun(store, texts, monkeypatch):
    needed = 5 * (3 * 4 * 4 + 20)
    assert store.room(key_of(texts), n_rows=5, n_layers=3, width=4)[0] == needed
    monkeypatch.setattr("layerprobe.store.store.shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    message = "embeddings need 340 B of free space in .*, which has 339 B: free some space, choose another folder with"
    with pytest.raises(StoreError, match=message) as caught:
        fill(store, texts)
    assert str(caught.value).endswith("or halve them with --store-dtype float16")
    assert not store.root.exists()
    assert fill(store, texts, store_dtype="float16").manifest.complete
    # what is there already needs no room
    monkeypatch.setattr("layerprobe.store.store.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert fill(store, texts, store_dtype="float16").manifest.complete


def test_texts_that_were_cut_are_counted_by_shard(store, texts):
    def write(counts):
        with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
            for index, start, stop in writer.pending:
                writer.write(index, values_of(texts)[:, start:stop], n_cut=counts[index])
            return writer.finish()

    stored = write([1, 0, 2])
    assert stored.manifest.n_cut == store.open(key_of(texts)).manifest.n_cut == 3
    shards_of(stored)[2].unlink()
    assert write({2: 1}).manifest.n_cut == 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's list of open files")
def test_many_shards_are_not_open_at_a_time(store):
    texts = [str(i) for i in range(80)]
    stored = fill(store, texts)
    before = len(list(Path("/proc/self/fd").iterdir()))
    layers = [stored.rows(layer) for layer in range(3)]
    for layer, values in zip(layers, values_of(texts), strict=True):
        np.testing.assert_array_equal(layer[1:78], values[1:78])
        np.testing.assert_array_equal(layer[::-7], values[::-7])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
