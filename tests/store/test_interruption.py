import errno
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from layerprobe.errors import StoreError
from layerprobe.files import atomic as files
from layerprobe.store.store import Store
from tests.store.conftest import fill, key_of, problems, values_of

# Writes shards until it is killed or done; says each on stdout.
SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from conftest import key_of, values_of
from layerprobe.store.store import Store
import logging
logging.basicConfig(level=logging.INFO)
texts = [str(i) for i in range(12)]
with Store(sys.argv[2], rows_per_shard=2).writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
    print("begun", len(writer.pending), flush=True)
    for index, start, stop in writer.pending:
        time.sleep(float(sys.argv[3]))
        writer.write(index, values_of(texts)[:, start:stop])
        print("written", index, flush=True)
    writer.finish()
"""
TEXTS = [str(i) for i in range(12)]


def writing(root: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(root), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def shard_bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.safetensors")}


def test_a_killed_writer_is_resumed_to_the_same_bytes(tmp_path, store):
    with writing(tmp_path / "killed", pause=0.2) as process:
        assert process.stdout is not None
        for _ in range(4):  # begun and three shards
            process.stdout.readline()
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    killed = Store(tmp_path / "killed", rows_per_shard=5)
    directory = killed._directory(key_of(TEXTS).fingerprint)
    (directory / ".tmp-0123456789ab").write_bytes(b"half a shard")
    assert killed.open(key_of(TEXTS)) is None
    assert [entry.state for entry in killed.entries()] == ["partial"]
    with killed.writer(key_of(TEXTS), texts=TEXTS, n_layers=3, width=4) as writer:
        assert [index for index, _, _ in writer.pending] in ([3, 4, 5], [4, 5])
        assert writer.pending[-1] == (5, 10, 12)  # two rows a shard, as it was begun
        assert not list(directory.glob(".tmp-*"))
    resumed = fill(killed, TEXTS)
    assert shard_bytes(resumed.directory) == shard_bytes(fill(store, TEXTS).directory)
    assert problems(killed) == ()


@pytest.mark.slow
def test_two_processes_write_one_entry_once(tmp_path):
    with writing(tmp_path, pause=0.5) as first:  # the second one needs some seconds to begin, on busy cores
        assert first.stdout is not None
        assert first.stdout.readline() == "begun 6\n"
        with writing(tmp_path, pause=0) as second:
            outputs = first.communicate(timeout=120), second.communicate(timeout=120)
    assert outputs[1][0] == "begun 0\n", outputs[1][1]
    assert "INFO:layerprobe.store.store:waiting for another process to write" in outputs[1][1]
    stored = Store(tmp_path).open(key_of(TEXTS))
    assert stored is not None
    np.testing.assert_array_equal(stored.layer(2), values_of(TEXTS)[2])
    assert problems(Store(tmp_path)) == ()


def test_prune_leaves_alone_what_is_being_written(tmp_path, caplog):
    with writing(tmp_path, pause=0.5) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pruned, _ = Store(tmp_path).prune(everything=True)
        states = [entry.state for entry in Store(tmp_path).entries()]
        process.kill()
        process.communicate()
    assert (pruned, states) == ([], ["partial"])
    assert "is being written: not removed" in caplog.text


def test_an_exception_in_the_writer_keeps_whole_shards(store, texts):
    def interrupted():
        with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
            writer.write(1, values_of(texts)[:, 2:4])
            raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"):
        interrupted()
    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        assert [index for index, _, _ in writer.pending] == [0, 2]
    np.testing.assert_array_equal(fill(store, texts).layer(0), values_of(texts)[0])


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device: free space, or choose another folder with --cache-dir"),
        (errno.EROFS, "Read-only file system: choose another folder with --cache-dir or LAYERPROBE_CACHE"),
        (errno.EIO, "Input/output error: check the disk"),
    ],
)
def test_a_full_disk_leaves_nothing_half_written(store, texts, monkeypatch, number, advice):
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with store.writer(key_of(texts), texts=texts, n_layers=3, width=4) as writer:
        writer.write(0, values_of(texts)[:, :2])
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(
                StoreError, match=rf"cannot write .*shard-00001-of-00003\.safetensors: {advice}"
            ) as caught:
                writer.write(1, values_of(texts)[:, 2:4])
        assert "\n" not in str(caught.value)
        assert [index for index, _, _ in writer.pending] == [1, 2]
    directory = store._directory(key_of(texts).fingerprint)
    assert sorted(path.name for path in directory.iterdir()) == [
        "manifest.json",
        "samples.json",
        "shard-00000-of-00003.safetensors",
    ]
    np.testing.assert_array_equal(fill(store, texts).layer(0), values_of(texts)[0])


def test_a_shard_that_the_manifest_does_not_know_is_written_again(store, texts):
    directory = fill(store, texts).directory
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(
        json.dumps(manifest | {"complete": False, "shards": manifest["shards"][:1]})
    )
    np.testing.assert_array_equal(fill(store, texts).layer(1), values_of(texts)[1])


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_folder_without_permission(tmp_path, texts):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"Permission denied: choose another folder with --cache-dir"):
        fill(Store(tmp_path / "cache"), texts)


def test_a_read_only_store_can_be_read(store, texts, monkeypatch, caplog):
    fill(store, texts)

    def denied(*_, **__):
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", denied)
    with caplog.at_level(logging.INFO):
        assert store.open(key_of(texts)) is not None
        assert [entry.state for entry in store.entries()] == ["complete"]
        assert problems(store) == ()
    assert not caplog.records
