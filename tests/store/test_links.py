"""No link leads out of a store: nothing there is read, written or removed."""

import pytest

from layerprobe.errors import StoreError
from layerprobe.store.store import Store
from tests.store.conftest import fill, key_of, problems


@pytest.fixture
def outside(tmp_path):
    """A folder of somebody else's."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("thesis.txt", "manifest.json", ".tmp-0a1b"):
        (folder / name).write_text("mine")
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_entry_that_is_a_link_is_refused(store, texts, outside, caplog):
    before = content(outside)
    directory = store.root / "embeddings" / key_of(texts).fingerprint
    directory.parent.mkdir(parents=True)
    directory.symlink_to(outside, target_is_directory=True)
    message = rf"expected .*{directory.name} itself, got a link to {outside}: remove the link; only .*cache itself"
    for act in (lambda: fill(store, texts), lambda: store.open(key_of(texts))):
        with pytest.raises(StoreError, match=message):
            act()
    assert store.entries() == []
    assert f"{directory} is a link, not an entry: remove it" in caplog.text
    with pytest.raises(StoreError, match="no entry"):
        store.prune(fingerprint=directory.name)
    assert store.prune(everything=True)[0] == []
    assert content(outside) == before


@pytest.mark.parametrize("name", ["embeddings", "results", "locks"])
def test_a_folder_of_the_store_that_is_a_link_is_refused(store, texts, outside, name):
    before = content(outside)
    store.root.mkdir()
    (store.root / name).symlink_to(outside, target_is_directory=True)
    acts = {
        "embeddings": lambda: fill(store, texts),
        "results": lambda: store.save_result("cka", "k", {}),
        "locks": lambda: fill(store, texts),
    }
    with pytest.raises(StoreError, match=rf"got a link to {outside}"):
        acts[name]()
    if name != "locks":
        with pytest.raises(StoreError, match=rf"got a link to {outside}"):
            store.prune(everything=True)
    assert content(outside) == before


def test_a_file_that_is_a_link_is_made_again_and_not_written_through(store, texts, outside, caplog):
    directory = fill(store, texts).directory
    for name in ("shard-00001-of-00003.safetensors", "samples.json"):
        (directory / name).rename(outside / name)
        (directory / name).symlink_to(outside / name)
    before = content(outside)
    assert "it is a link" in problems(store)[-1]
    fill(store, texts)
    assert "samples.json is damaged, it is a link: recomputing it" in caplog.text
    assert content(outside) == before
    assert problems(store) == ()
    assert not any(path.is_symlink() for path in directory.iterdir())


def test_the_root_may_be_a_link_and_so_may_what_it_lies_in(tmp_path, texts):
    (tmp_path / "disk" / "cache").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk", target_is_directory=True)
    (tmp_path / "link").symlink_to(tmp_path / "home" / "cache", target_is_directory=True)
    for root in (tmp_path / "link", tmp_path / "home" / "cache"):
        store = Store(root, rows_per_shard=2)
        fill(store, texts)
        store.save_result("cka", "k", {"x": 1})
        assert store.load_result("cka", "k", dict[str, int]) == {"x": 1}
        assert store.open(key_of(texts)) is not None
        assert problems(store) == ()
    assert Store(tmp_path / "link").prune(everything=True)[0]
