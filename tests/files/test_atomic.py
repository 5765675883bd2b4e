"""Files are written whole or not at all."""

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import layerprobe as lp
from layerprobe.errors import LayerProbeError, StoreError
from layerprobe.files import atomic as files
from layerprobe.files.atomic import file_sha256, locked, problem_with, remove_leftovers, write_whole
from layerprobe.readings.reading import LayerCurve

CURVE = LayerCurve(values=(3.0, 1.0, 2.0))


def fails_with(code: int) -> Any:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes in its file system")
@pytest.mark.parametrize("save", [lp.save, lambda result, path: result.table.save(path.with_suffix(".csv"))])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("real"), r"it is a link to .*real"),
        (lambda path: path.symlink_to(os.devnull), "it is a link to /dev/null"),
        (os.mkfifo, "it is a pipe"),
        (Path.mkdir, "it is a folder"),
        (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "it is a socket"),
    ],
)
def test_what_is_no_regular_file_is_not_replaced(
    save: Callable[..., Path], make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    for name in ("a.csv", "a.json"):
        make(tmp_path / name)
    before = [path.lstat() for path in sorted(tmp_path.iterdir())]
    with pytest.raises(LayerProbeError, match=rf"cannot write .*a\.\w+: {reason}: choose another"):
        save(CURVE, tmp_path / "a.json")
    after = [path.lstat() for path in sorted(tmp_path.iterdir())]
    assert [(status.st_ino, status.st_mode) for status in after] == [(old.st_ino, old.st_mode) for old in before]


@pytest.mark.parametrize("name", ["a" * 300 + ".json", "b/" * 3000 + "a.json", "file/a.json", "gone/a.json"])
def test_a_path_that_cannot_be_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(LayerProbeError, match=r": (File name too long|.* is not a folder): choose another path"):
        lp.save(CURVE, tmp_path / name)


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_a_file_keeps_its_mode(name: str, tmp_path: Path) -> None:
    path = lp.save(CURVE, tmp_path / "new" / name)
    for mode in (0o600, 0o664):
        path.chmod(mode)
        assert lp.save(CURVE, path).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    if step == "fsync":
        monkeypatch.setattr(files.os, "fsync", fails_with(errno.ENOSPC))
    else:
        monkeypatch.setattr(Path, step, fails_with(errno.ENOSPC))
    message = r"cannot write .*a\.json: No space left on device: free space, or choose another folder with --cache-dir"
    with pytest.raises(StoreError, match=message) as caught:
        write_whole(path, b"new")
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_interruption_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_to_tidy_up_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "fsync", fails_with(errno.ENOSPC))
    monkeypatch.setattr(Path, "unlink", fails_with(errno.EACCES))
    with pytest.raises(StoreError, match="No space left on device"):
        write_whole(tmp_path / "a.json", b"new")


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-0a1b").mkdir()
    (tmp_path / ".tmp-0a1b" / "file").write_text("half")
    (tmp_path / ".tmp-2c3d").write_text("half")
    (tmp_path / "kept").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ESTALE)


@pytest.mark.skipif(files.fcntl is None, reason="locks are others there")
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("number", [*NO_LOCKS, errno.EACCES, errno.EPERM, errno.EIO])
def test_a_lock_that_cannot_be_is_one_line_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, wait: bool
) -> None:
    monkeypatch.setattr(files.fcntl, "flock", fails_with(number))
    advice = "the file system does not support locks: choose another folder" if number in NO_LOCKS else "c"
    with (
        pytest.raises(StoreError, match=rf"cannot lock .*a\.lock: {os.strerror(number)}: {advice}"),
        locked(tmp_path, tmp_path / "a.lock", wait=wait),
    ):
        pytest.fail("expected no lock")


def test_a_lock_is_for_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with locked(tmp_path, path) as first:
        with locked(tmp_path, path) as second:
            assert (first, second) == (True, False)
        with locked(tmp_path, tmp_path / "b.lock") as other:
            assert other
    with locked(tmp_path, path, wait=True) as again:
        assert again


def test_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    sha256 = file_sha256(path)
    assert sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert problem_with(path, size=3, sha256=sha256) is None
    assert problem_with(path, size=3, sha256=None) is None
    assert problem_with(path, size=4, sha256=sha256) == "4 bytes expected, 3 found"
    path.write_bytes(b"abd")
    assert problem_with(path, size=3, sha256=None) is None
    assert problem_with(path, size=3, sha256=sha256) == "its checksum does not match the recorded one"
    assert problem_with(tmp_path / "b", size=3, sha256=None) == "the file is missing"
    assert problem_with(tmp_path / "a" / "b", size=3, sha256=None) == "the file is missing"


def test_a_checksum_is_remembered_while_nothing_writes_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time of change that is set back by hand, as copying tools do, hides nothing."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    read: list[Path] = []

    def counting(path: Path) -> str:
        read.append(path)
        return file_sha256(path)

    monkeypatch.setattr(files, "file_sha256", counting)
    for _ in range(2):
        assert files.known_sha256(path) == file_sha256(path)
    assert len(read) == 2  # it was written just now, and could be written again without another time
    monkeypatch.setattr(files, "_RECENT", 0.0)
    for _ in range(2):
        assert files.known_sha256(path) == file_sha256(path)
    assert len(read) == 3
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    time.sleep(0.05)
    path.write_bytes(b"abd")
    os.utime(path, ns=times)
    assert files.known_sha256(path) == file_sha256(path)
    assert len(read) == 4


@pytest.mark.skipif(os.name == "nt", reason="directories are not synced there")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_folders_that_cannot_be_made_durable_are_no_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of some network file systems; a file that cannot is one."""
    monkeypatch.setattr(files.os, "fsync", fails_with(number))
    files.sync(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        files.sync(tmp_path / "file")
