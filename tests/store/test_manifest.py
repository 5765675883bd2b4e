"""What a manifest may say."""

import dataclasses
import os

import pytest

from layerprobe.errors import DataError, StoreError


def test_sizes_that_imply_too_many_shards_are_refused_before_they_are_counted(store, texts, fill):
    manifest = fill(store, texts).manifest
    with pytest.raises(DataError, match="its sizes imply 500,000,000,000 shards, of at most 100,000"):
        dataclasses.replace(manifest, n_rows=10**12)


@pytest.mark.skipif(os.name == "nt", reason="no pipes with names")
def test_a_pipe_in_place_of_a_manifest_is_not_waited_for(store, texts, fill, key_of):
    path = fill(store, texts).directory / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="no regular file"):
        store.open(key_of(texts))
