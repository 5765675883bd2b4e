"""Kept results say what they are: no byte of them changes unnoticed."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DamagedStoreError, DataError, FormatError
from layerprobe.files import atomic as kept
from layerprobe.files.atomic import FREE, SUMS, folder_problems, listed_files, new_folder, read_kept, write_kept
from layerprobe.files.serialisation import CHECKSUM, from_json, sealed, to_json, unsealed
from layerprobe.finetuning.values import Protocol
from layerprobe.results.shown import load
from layerprobe.versions import FORMAT_VERSION

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
RESULTS = st.dictionaries(st.text().filter(lambda name: name != CHECKSUM), VALUES)
PLAIN = dict[str, Any]


def same(first: Any, second: Any) -> bool:
    """Whether two values are the same JSON: -0.0 is not 0, 1 not 1.0."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


@given(RESULTS, st.text(), st.dictionaries(st.text(), st.text()))
def test_what_is_sealed_comes_back(value: dict[str, Any], name: str, files: dict[str, str]) -> None:
    content, checksum = unsealed(json.loads(sealed(value, name=name, files=files)))
    assert same(content, value)
    assert checksum is not None
    assert (checksum.name, checksum.files) == (name, files)


@given(RESULTS, st.data())
def test_no_byte_changes_unnoticed(value: dict[str, Any], data: st.DataObject) -> None:
    written = bytearray(sealed(value, name="a/b.json"))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))
    try:
        content = kept.parsed_as(PLAIN, bytes(written))
    except DataError:
        return
    assert same(content, value)  # blanks, or an escape


@pytest.mark.parametrize("number", [0, 7, -3])
def test_a_change_by_hand_is_noticed_by_whoever_reads_it(number: int) -> None:
    text = sealed(Protocol(epochs=3)).decode()
    assert from_json(Protocol, text) == from_json(Protocol, to_json(Protocol(epochs=3))) == Protocol(epochs=3)
    with pytest.raises(DataError, match="its checksum does not match its content: it was damaged or edited"):
        from_json(Protocol, text.replace('"epochs": 3', f'"epochs": {number}'))


@pytest.mark.parametrize("checksum", [None, 5, {}, {"name": "", "files": {}, "sha256": 5}])
def test_a_checksum_of_another_form_is_no_result(checksum: Any) -> None:
    with pytest.raises(DataError, match="expected a Protocol as JSON"):
        from_json(Protocol, json.dumps({"epochs": 3, CHECKSUM: checksum}))


# ---- files -------------------------------------------------------------------------------------------------


def test_a_result_is_read_where_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a" / "result.json"
    path.parent.mkdir(parents=True)
    write_kept(path, {"x": 1.5}, root=tmp_path)
    assert read_kept(PLAIN, path, root=tmp_path) == {"x": 1.5}
    assert read_kept(PLAIN, path, root=path.parent.parent) == {"x": 1.5}  # what lies above may have another name
    assert read_kept(PLAIN, path.with_name("none.json"), root=tmp_path) is None
    other = tmp_path / "runs" / "b"
    path.parent.rename(other)
    with pytest.raises(
        DamagedStoreError, match=r"b/result\.json cannot be read \(it was saved as runs/a/result\.json: it was mo"
    ):
        read_kept(PLAIN, other / "result.json", root=tmp_path)
    assert read_kept(PLAIN, other / "result.json", root=other) == {"x": 1.5}


def test_the_limit_of_files_that_users_bring_is_not_that_of_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERPROBE_MAX_RECORD", "10")
    write_kept(tmp_path / "a.json", {"x": list(range(99))}, root=tmp_path)
    assert read_kept(PLAIN, tmp_path / "a.json", root=tmp_path) == {"x": list(range(99))}


def test_files_that_belong_to_a_result_are_checked(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(b"12")
    write_kept(tmp_path / "a.json", {}, root=tmp_path, files=["numbers"])
    assert read_kept(PLAIN, tmp_path / "a.json", root=tmp_path) == {}
    (tmp_path / "numbers").write_bytes(b"13")
    with pytest.raises(DamagedStoreError, match=r"a\.json cannot be read \(its file numbers: its checksum does"):
        read_kept(PLAIN, tmp_path / "a.json", root=tmp_path)
    (tmp_path / "numbers").unlink()
    with pytest.raises(DamagedStoreError, match=r"its file numbers: the file is missing"):
        read_kept(PLAIN, tmp_path / "a.json", root=tmp_path)


@pytest.mark.parametrize(("written", "message"), [(3, "an older .*: delete it and run"), (5, "a newer .*: upgrade")])
def test_a_file_of_another_version_is_refused_in_one_line(tmp_path: Path, written: int, message: str) -> None:
    """Results, runs, manifests of the store and searches are all kept so."""
    path = tmp_path / "a.json"
    text = sealed({"x": 1}, name="a.json").decode().replace(f'"format": {FORMAT_VERSION}', f'"format": {written}')
    path.write_text(text)
    with pytest.raises(FormatError, match=rf"a\.json cannot be read: {message}"):
        read_kept(PLAIN, path, root=tmp_path)
    with pytest.raises(DataError, match=rf"a\.json: {message}"):
        load(path)
    path.write_text('{"x": 1}')
    with pytest.raises(DamagedStoreError, match="it has no checksum"):
        read_kept(PLAIN, path, root=tmp_path)


# ---- folders -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of some files, written whole."""
    with new_folder(tmp_path / "model") as made:
        (made / "1_Pooling").mkdir()
        for name in ("config.json", "model.safetensors", "README.md", "1_Pooling/config.json"):
            (made / name).write_bytes(name.encode() * 50)
    return tmp_path / "model"


def test_a_folder_lists_the_checksums_of_its_files(folder: Path) -> None:
    (folder / "README.md").write_text("mine, as a model card is there to be edited")
    lines = (folder / SUMS).read_text().splitlines()
    names = [line.split("  ")[1] for line in lines[1:]]
    assert names == ["1_Pooling/config.json", "config.json", "model.safetensors"]
    assert list(folder_problems(folder)) == []
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=folder, check=False).returncode == 0


def test_no_byte_of_a_folder_changes_unnoticed(folder: Path) -> None:
    rng = random.Random(0)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in FREE)
    for _ in range(300):
        path = rng.choice([*files, folder / SUMS])
        before = path.read_bytes()
        at = rng.randrange(len(before))
        changed = before[:at] + bytes([before[at] ^ rng.randrange(1, 256)]) + before[at + 1 :]
        path.write_bytes(rng.choice((changed, before[:at])))
        assert str(path) in next(folder_problems(folder))
        path.write_bytes(before)
    assert list(folder_problems(folder)) == []


@pytest.mark.skipif(os.name == "nt", reason="no modes of files")
def test_others_can_read_what_they_can_read_of_the_folder(tmp_path: Path) -> None:
    """Safetensors lets only the owner of a file read it."""
    with new_folder(tmp_path / "model") as made:
        (made / "config.json").write_bytes(b"{}")
        (made / "model.safetensors").write_bytes(b"")
        (made / "model.safetensors").chmod(0o600)
    modes = [(tmp_path / "model" / name).stat().st_mode for name in ("config.json", "model.safetensors", SUMS)]
    assert len(set(modes)) == 1


def test_a_list_that_others_made_is_none_of_ours(folder: Path) -> None:
    lines = "".join((folder / SUMS).read_text().splitlines(keepends=True)[1:])
    (folder / "config.json").write_text("changed")
    (folder / SUMS).write_text(lines)
    assert list(folder_problems(folder)) == []
    assert listed_files(folder) == frozenset()
    (folder / SUMS).write_text(f"# of a colleague\n{lines}")
    assert list(folder_problems(folder)) == [f"{folder / SUMS}: it was damaged or edited"]
