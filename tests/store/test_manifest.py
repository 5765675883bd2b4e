"""What a manifest may say."""

import dataclasses

import pytest

from layerprobe.errors import DataError


def test_sizes_that_imply_too_many_shards_are_refused_before_they_are_counted(store, texts, fill):
    manifest = fill(store, texts).manifest
    with pytest.raises(DataError, match="its sizes imply 500,000,000,000 shards, of at most 100,000"):
        dataclasses.replace(manifest, n_rows=10**12)
