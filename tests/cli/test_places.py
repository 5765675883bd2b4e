"""A home that cannot be written: a folder for the time of a command that keeps nothing, one line elsewhere."""

import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import Pair, call


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (home := tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


def test_what_keeps_nothing_runs_with_one_note(pair: Pair, pairs_file: Path, home: Path, tmp_path: Path) -> None:
    done = call("", "score", pair[0], "-t", pairs_file)
    assert done.code == 0, done.err
    assert done.err.count(f"{home} is not a folder") == 1
    assert "nothing is cached for the next command" in done.err
    assert "could not save" not in done.err
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("command", [("extract",), ("score", "--cache-dir")])
def test_what_is_to_be_kept_is_refused_in_one_line(
    command: tuple[str, ...], pair: Pair, pairs_file: Path, home: Path
) -> None:
    place = (home / "kept",) if "--cache-dir" in command else ()
    done = call("", command[0], pair[0], "-t", pairs_file, *command[1:], *place)
    assert done.code == 1
    assert "cannot make the folder " in done.error
    assert done.error.endswith(": Not a directory: choose another folder with --cache-dir or LAYERPROBE_CACHE")


def test_the_usual_cache_is_used_again(pair: Pair, pairs_file: Path, home: Path) -> None:
    home.unlink()
    home.mkdir()
    for _ in range(2):
        done = call("", "score", pair[0], "-t", pairs_file)
        assert done.code == 0, done.err
        assert "nothing is kept" not in done.err
    assert list(home.rglob("manifest.json"))
