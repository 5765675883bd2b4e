import dataclasses
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from layerprobe.errors import DamagedStoreError, DataError, FormatError, StoreError
from layerprobe.store.manifest import SAMPLES, read_manifest, stored_file, write_manifest
from tests.store.conftest import fill, key_of, problems, values_of

SHARD = "shard-00001-of-00003.safetensors"


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def garble_header(path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"?" * 20 + data[28:])


def other_shape(path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"shape":[2,4]', b'"shape":[4,2]'))


def outside(path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"data_offsets":[64,96]', b'"data_offsets":[65,97]'))


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path) -> None:
    path.write_bytes(b"")


def delete(path) -> None:
    path.unlink()


def vouch_for(path) -> None:
    """Give the manifest the checksum that a file has now, as somebody would who made the store by hand."""
    manifest = read_manifest(path.parent)
    assert manifest is not None
    new = stored_file(path.name, path.read_bytes())
    shards = tuple(new if shard.name == path.name else shard for shard in manifest.shards)
    samples = new if path.name == manifest.samples.name else manifest.samples
    write_manifest(path.parent, dataclasses.replace(manifest, shards=shards, samples=samples))


@pytest.mark.parametrize("name", [SHARD, "samples.json"])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut, "bytes expected, .* found"),
        (empty, "0 found"),
        (delete, "the file is missing"),
        (flip, "its checksum does not match the recorded one"),
    ],
)
def test_a_damaged_file_is_named_and_redone(store, texts, name, damage, problem):
    path = fill(store, texts).directory / name
    damage(path)
    with pytest.raises(
        DamagedStoreError, match=f"{name} is damaged, .*{problem}: extract again; only damaged parts are"
    ):
        store.open(key_of(texts))
    (found,) = problems(store)
    assert found.startswith(f"{path} is damaged, ")
    assert [entry.state for entry in store.entries()] == ["complete" if damage is flip else "damaged"]
    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        assert writer.pending == ([(1, 2, 4)] if name == SHARD else [])
        assert (store.open(key_of(texts)) is None) == (name == SHARD)  # while recomputing it
    np.testing.assert_array_equal(fill(store, texts).layer(2), values_of(texts)[2])
    assert problems(store) == ()


@pytest.mark.parametrize("damage", [garble_header, other_shape, outside])
def test_a_garbled_header_is_seen_on_opening(store, texts, damage):
    path = fill(store, texts).directory / SHARD
    damage(path)
    vouch_for(path)
    with pytest.raises(DamagedStoreError, match=f"{SHARD} is damaged, its header is garbled"):
        store.open(key_of(texts))


def edited(**changes):
    return lambda text: json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "\x00" * len(text),
        lambda text: "[" * 100_000,
        edited(n_rows="5"),
        edited(checksum=[]),
    ],
)
def test_a_garbled_manifest_is_named_and_the_entry_begun_afresh(store, texts, edit, caplog):
    path = fill(store, texts).directory / "manifest.json"
    path.write_text(edit(path.read_text()))
    with pytest.raises(
        DamagedStoreError, match=r"manifest\.json cannot be read .*: extract again to start this entry afresh"
    ):
        store.open(key_of(texts))
    (found,) = problems(store)
    assert str(path) in found
    assert [(entry.state, entry.model) for entry in store.entries()] == [("damaged", "")]
    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        assert len(writer.pending) == 3
    assert "cannot be read" in caplog.text
    assert not list(path.parent.glob("shard-*"))
    np.testing.assert_array_equal(fill(store, texts).layer(2), values_of(texts)[2])


def test_the_manifest_of_another_entry_is_refused(store, texts):
    first, second = fill(store, texts), fill(store, texts, pooling="cls")
    (second.directory / "manifest.json").write_bytes((first.directory / "manifest.json").read_bytes())
    with pytest.raises(
        DamagedStoreError, match=r"manifest\.json cannot be read \(it was saved as .*: it was moved, or"
    ):
        store.open(key_of(texts, pooling="cls"))


@pytest.mark.parametrize(("written", "message"), [(None, "an older .*: delete it"), (99, "a newer .*: upgrade")])
def test_another_format_is_refused_and_left_alone_until_it_is_pruned(store, texts, written, message):
    path = fill(store, texts).directory / "manifest.json"
    manifest = json.loads(path.read_text())
    checksum = {name: value for name, value in manifest["checksum"].items() if name != "format"}
    path.write_text(json.dumps(manifest | {"checksum": checksum | ({"format": written} if written else {})}))
    for act in (lambda: store.open(key_of(texts)), lambda: fill(store, texts)):
        with pytest.raises(FormatError, match=rf"manifest\.json cannot be read: {message}.*, or choose another"):
            act()
    assert [entry.state for entry in store.entries()] == ["other version"]
    assert len(list(path.parent.iterdir())) == 5
    assert len(store.prune(fingerprint=path.parent.name)[0]) == 1
    assert fill(store, texts).n_layers == 3


def test_an_entry_of_another_shape_is_refused(store, texts):
    fill(store, texts)
    with (
        pytest.raises(StoreError, match=r"begun with \(5, 3, 4\) as rows, layers and width, now \(5, 3, 6\)"),
        store.writer(key_of(texts), texts=texts, n_layers=3, width=6),
    ):
        pass


def to_pipe(path) -> None:
    os.mkfifo(path)


def to_itself(path) -> None:
    path.symlink_to(path.name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes in its file system")
@pytest.mark.parametrize("plant", [to_pipe, to_itself, Path.mkdir, Path.exists])
def test_what_is_no_file_is_named_where_a_reader_has_an_entry_open(store, texts, plant):
    stored = fill(store, texts)
    rows = stored.rows(0)
    for name in (SHARD, SAMPLES):
        (stored.directory / name).unlink()
        plant(stored.directory / name)
    with pytest.raises(StoreError, match=f"{SHARD}"):
        rows[0:5]
    with pytest.raises(StoreError, match=r"is damaged, (it is |the file is missing)"):
        stored.layer(0)
    assert store.entries()[0].state == "damaged"
    assert problems(store)


def test_too_many_open_files_are_no_damage(store, texts, monkeypatch):
    entry = fill(store, texts)

    def fail(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(np, "memmap", fail)
    with pytest.raises(StoreError, match=r"Too many open files: raise the limit of open files") as raised:
        entry.layer(0)
    assert not isinstance(raised.value, DamagedStoreError)


def test_a_shard_that_changes_after_opening_is_named(store, texts):
    """Before its numbers are used, so that no error about numbers hides what is wrong with the store."""
    stored = fill(store, texts)
    np.testing.assert_array_equal(stored.layer(0), stored.layer(0))
    path = stored.directory / SHARD
    path.write_bytes(path.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    for read in (stored.layer, stored.rows):
        with pytest.raises(DamagedStoreError, match=f"{SHARD} is damaged, its checksum does not match"):
            read(2)


def test_sizes_that_imply_too_many_shards_are_refused_before_they_are_counted(store, texts):
    manifest = fill(store, texts).manifest
    with pytest.raises(DataError, match="its sizes imply 500,000,000,000 shards, of at most 100,000"):
        dataclasses.replace(manifest, n_rows=10**12)
