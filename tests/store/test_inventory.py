import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import locked
from tests.store.conftest import fill, key_of, problems

DAY = 86400


def begin(store, texts, **fields) -> str:
    key = key_of(texts, **fields)
    with store.writer(key, texts=texts, n_layers=3, width=4):
        return key.fingerprint


def test_entries_say_what_is_there(store, texts):
    assert store.entries() == []
    stored = fill(store, texts)
    partial = begin(store, texts, pooling="cls")
    (store.root / "embeddings" / "notes").mkdir()
    by_state = {entry.state: entry for entry in store.entries()}
    assert set(by_state) == {"complete", "partial"}
    entry = by_state["complete"]
    assert (entry.directory, entry.fingerprint) == (stored.directory, stored.directory.name)
    assert entry.model == "org/model"
    assert entry.bytes == sum(path.stat().st_size for path in stored.directory.iterdir())
    assert entry.manifest == stored.manifest
    assert by_state["partial"].fingerprint == partial


def test_an_entry_without_manifest_is_partial(store, texts):
    directory = fill(store, texts).directory
    (directory / "manifest.json").unlink()
    assert store.open(key_of(texts)) is None
    assert [(entry.state, entry.manifest) for entry in store.entries()] == [("partial", None)]
    assert problems(store) == ()


def test_prune_by_condition(store, texts):
    old, new = fill(store, texts), fill(store, texts, pooling="max")
    partial = begin(store, texts, pooling="cls")
    os.utime(old.directory, (0, time.time() - 10 * DAY))
    sizes = {entry.fingerprint: entry.bytes for entry in store.entries()}

    dry = store.prune(older_than_days=9, dry_run=True)
    assert [entry.fingerprint for entry in dry[0]] == [old.directory.name]
    assert dry[1] == sizes[old.directory.name]
    assert len(store.entries()) == 3

    assert store.prune(older_than_days=9) == dry
    assert not old.directory.exists()
    assert store.prune(older_than_days=9, partial_only=True)[0] == []
    assert [entry.fingerprint for entry in store.prune(partial_only=True)[0]] == [partial]
    assert store.prune(fingerprint=new.directory.name)[1] == sizes[new.directory.name]
    assert store.entries() == []


def test_prune_everything_takes_results_too(store, texts):
    fill(store, texts)
    store.save_result("study", "k", {"x": 1})
    size = store.entries()[0].bytes + (store.root / "results" / "study" / "k.json").stat().st_size
    assert store.prune(everything=True, dry_run=True)[1] == size
    assert store.load_result("study", "k", dict[str, int]) == {"x": 1}
    assert store.prune(everything=True)[1] == size
    assert store.load_result("study", "k", dict[str, int]) is None
    assert store.prune(everything=True)[1] == 0


def test_prune_leaves_what_is_no_result(store):
    own = store.root / "results" / "2025" / "table.json"
    store.save_result("study", "k", {"x": 1})
    (damaged := store.root / "results" / "study" / f"{'0' * 64}.json").write_text("{")
    for path in (own, store.root / "results" / "notes.json", store.root / "results" / "study" / "notes.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"x": 1}')
    assert store.prune(everything=True)[1] > 0
    assert {path.name for path in (store.root / "results").rglob("*.*")} == {"table.json", "notes.json", "notes.txt"}
    assert not damaged.exists()


def test_runs_are_listed_with_all_else_and_removed_when_asked(store, texts):
    fill(store, texts)
    folder = store.root / "runs" / ("a" * 32)
    for name in ("layer-001-seed-0", "layer-002-seed-0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "lock").touch()
    (folder / "layer-001-seed-0" / "result.json").write_text("{}")
    (folder / "origin.json").write_text('{"model": {"name": "org/model"}, "task": "pairs"}')
    (store.root / "notes.txt").write_text("mine")
    (runs,) = store.runs()
    assert (runs.runs, runs.state, runs.model, runs.record["task"]) == (1, "partial", "org/model", "pairs")
    files = [path.stat().st_size for path in store.root.rglob("*") if path.is_file()]
    assert sum(store.sizes().values()) == sum(files)
    assert (store.sizes()["runs"], store.sizes()["other files"]) == (runs.bytes, 4)
    assert "of runs" in repr(store)
    assert store.prune(older_than_days=0, model="org", dry_run=True)[0] == store.entries()
    assert not store.prune(runs=True, model="other")[0]
    with locked(store.root, folder / "layer-002-seed-0" / "lock"):
        assert not store.prune(runs=True, fingerprint=folder.name)[0]
    assert folder.exists()
    assert store.prune(runs=True, fingerprint=folder.name)[0] == [runs]
    assert not folder.exists()
    assert store.entries()


@pytest.mark.parametrize("conditions", [{}, {"everything": True, "partial_only": True}])
def test_prune_wants_a_clear_condition(store, conditions):
    with pytest.raises(DataError, match=r"expected an age, a model, .*, or everything alone"):
        store.prune(**conditions)


@pytest.mark.parametrize("fingerprint", ["0" * 32, "..", ""])
def test_unknown_entries_are_named(store, texts, fingerprint):
    fill(store, texts)
    with pytest.raises(StoreError, match=f"no entry '{fingerprint}'"):
        store.prune(fingerprint=fingerprint)
    assert len(store.entries()) == 1


RESULT = dict[str, str]


def test_results_come_back(store):
    assert store.load_result("cka", "a.b-c_1", RESULT) is None
    store.save_result("cka", "a.b-c_1", {"x": "é"})
    store.save_result("cka", "a.b-c_1", {"x": "비"})
    assert store.load_result("cka", "a.b-c_1", RESULT) == {"x": "비"}
    assert store.load_result("other", "a.b-c_1", RESULT) is None
    assert [path.name for path in (store.root / "results" / "cka").iterdir()] == ["a.b-c_1.json"]


@pytest.mark.parametrize("data", [b"", b'{"x": ', b"\xff\xfe", b"[" * 100_000, b"5", b'{"result": {"x": "y"}}'])
def test_a_damaged_result_is_made_again(store, data, caplog):
    store.save_result("cka", "k", {"x": "y"})
    (store.root / "results" / "cka" / "k.json").write_bytes(data)
    assert store.load_result("cka", "k", RESULT) is None
    assert "k.json cannot be read (" in caplog.text
    assert "): recomputing it" in caplog.text


def test_results_are_never_half_written(store):
    results = [{"x": letter * 200_000} for letter in "abcd"]

    def save(result):
        for _ in range(5):
            store.save_result("cka", "k", result)
            assert store.load_result("cka", "k", RESULT) in results

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, results))


@pytest.fixture
def unreadable(store, texts, monkeypatch):
    """The entry of another user, who lets nobody read it; tests may run as root, who reads all."""
    mine, theirs = fill(store, texts), fill(store, texts, pooling="max").directory
    scandir = os.scandir

    def refusing(path=".", *rest):
        if not isinstance(path, int) and str(path) == str(theirs):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path, *rest)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr("layerprobe.store.store.tree_bytes", lambda path: sum(1 for _ in os.scandir(path)))
    monkeypatch.setattr("layerprobe.store.store.shutil.rmtree", lambda path: [*os.scandir(path), path.rename("gone")])
    return mine.directory, theirs


def test_an_entry_of_another_user_stops_no_other(store, unreadable, monkeypatch, tmp_path, caplog):
    mine, theirs = unreadable
    assert {entry.directory: entry.state for entry in store.entries()} == {mine: "complete", theirs: "unreadable"}
    monkeypatch.chdir(tmp_path)
    removed = store.prune(older_than_days=0)
    assert [entry.directory for entry in removed[0]] == [mine]
    assert f"not removed: cannot remove {theirs}: Permission denied" in caplog.text
    with pytest.raises(StoreError, match=r"cannot remove .*: Permission denied"):
        store.prune(fingerprint=theirs.name)


def test_prune_partial_takes_half_written_results_that_nobody_writes(store):
    store.save_result("first-use", "k", {"x": 1})
    folder = store.root / "results" / "first-use"
    (old := folder / ".tmp-old").write_text("{")
    (new := folder / ".tmp-new").write_text("{")
    os.utime(old, (0, time.time() - DAY))
    assert store.prune(partial_only=True, dry_run=True)[1] == 1
    assert store.prune(partial_only=True)[1] == 1
    assert not old.exists()
    assert new.exists(), "expected what a process may be writing to stay"
    assert store.load_result("first-use", "k", dict[str, int]) == {"x": 1}
