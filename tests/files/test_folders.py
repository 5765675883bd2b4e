"""Folders that are replaced whole: what a killed process leaves, and that there is always one."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from layerprobe.files import atomic
from layerprobe.files.atomic import TEMPORARY

KILLED = """
import os, sys
from pathlib import Path
from layerprobe.files import atomic
step, path = sys.argv[1], Path(sys.argv[2])
if step == "between":
    atomic._exchange = lambda first, second: False
    rename = Path.rename
    Path.rename = lambda self, target: os._exit(9) if target == path else rename(self, target)
with atomic.new_folder(path, replace=True) as folder:
    (folder / "file").write_text("new")
    if step == "writing":
        os._exit(9)
"""
posix = pytest.mark.skipif(os.name == "nt", reason="folders cannot be locked there")


def write(path: Path, text: str) -> None:
    with atomic.new_folder(path, replace=True) as folder:
        (folder / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@posix
@pytest.mark.parametrize(("step", "left"), [("writing", ["new"]), ("between", ["new", "old"])])
def test_what_a_killed_process_leaves_is_put_right(step: str, left: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out [1]"
    write(out, "old")
    command = [sys.executable, "-c", KILLED, step, str(out)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == 9
    assert [name.removeprefix(TEMPORARY)[:3] for name in names(tmp_path) if name.startswith(TEMPORARY)] == left
    with pytest.raises(KeyboardInterrupt), atomic.new_folder(out, replace=True):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out [1]"]
    assert (out / "file").read_text() == "old"
    write(out, "newer")
    assert (names(tmp_path), (out / "file").read_text()) == (["out [1]"], "newer")


@posix
def test_the_folder_of_another_writer_is_not_swept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with atomic.new_folder(out, replace=True) as first:
        (first / "file").write_text("first")
        write(out, "second")
        assert (out / "file").read_text() == "second"
    assert ((out / "file").read_text(), names(tmp_path)) == ("first", ["out"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need not swap at once")
def test_there_is_always_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "0")
    missing, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            missing.extend([] if out.is_dir() else ["gone"])

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(30):
        write(out, str(number))
    done.set()
    watcher.join()
    assert not missing
    assert (out / "file").read_text() == "29"
