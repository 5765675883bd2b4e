"""What is refused, what is replaced, and what an interruption leaves: nothing."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, StoreError
from layerprobe.export import folder as checkpoint
from layerprobe.export.run import export_model
from layerprobe.files import atomic
from layerprobe.files.atomic import folder_errors, new_folder
from tests.models import N_BLOCKS


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# ---- refused ------------------------------------------------------------------------------------------


def test_layers_that_do_not_exist(bert: Path, tmp_path: Path) -> None:
    for layer in (-N_BLOCKS - 2, N_BLOCKS + 1):
        with pytest.raises(DataError, match=f"expected layers from 0 to 3 of .*, got {layer}"):
            export_model(bert, tmp_path / "out", layer=layer)
    with pytest.raises(DataError, match="expected a layer to truncate at"):
        export_model(bert, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_below_0_counts_from_the_last_one(bert: Path, tmp_path: Path) -> None:
    assert export_model(bert, tmp_path / "out", layer=-2).layer == N_BLOCKS - 1


def test_code_of_its_own(bert: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in bert.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((bert / "config.json").read_text())
    auto_map = {"AutoConfig": "code_of.OwnConfig", "AutoModel": "code_of.OwnModel"}
    (model / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": auto_map}))
    (model / "code_of.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(ModelError, match="needs its own code, which an export does not contain"):
        export_model(model, tmp_path / "out", layer=1)
    trusted = resolve(str(model), like=Model(trust_remote_code=True))
    with pytest.raises(ModelError, match="needs its own code, which an export does not contain"):
        export_model(trusted, tmp_path / "out", layer=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="has files that layerprobe did not write and never replaces: choose another"):
        export_model(bert, tmp_path, layer=1)
    with pytest.raises(DataError, match="has files that layerprobe did not write and never replaces: choose another"):
        export_model(bert, tmp_path, layer=1, overwrite=True)
    with pytest.raises(DataError, match="expected a folder to export to, got the file"):
        export_model(bert, tmp_path / "notes.txt", layer=1)
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_a_model_is_not_replaced_by_its_export(bert: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    export_model(bert, whole, layer=N_BLOCKS)
    before = content(whole)
    (tmp_path / "link").symlink_to(whole)
    for out in (whole, tmp_path / "link"):
        with pytest.raises(DataError, match="is the folder of the model itself"):
            export_model(whole, out, layer=1, overwrite=True)
    assert content(whole) == before


@pytest.mark.parametrize("files", [(), ("config.json", "adaptation.json")], ids=["of others", "adapted"])
def test_a_model_whose_card_names_us_is_no_export(bert: Path, files: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    if files:
        with new_folder(out) as folder:
            for name in files:
                (folder / name).write_text("{}")
    out.mkdir(exist_ok=True)
    for name in ("config.json", "modules.json", "model.safetensors"):
        (out / name).write_text("{}")
    (out / "README.md").write_text("---\ntags:\n- layerprobe\n---\n")
    before = content(out)
    with pytest.raises(DataError, match="or delete it yourself if it is an export whose SHA256SUMS is m"):
        export_model(bert, out, layer=1, overwrite=True)
    assert content(out) == before


def test_files_that_others_put_into_an_export_are_not_lost(bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(bert, out, layer=3)
    for name in (".git/HEAD", "eval/scores.txt", "notes.md"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    before = content(out)
    with pytest.raises(
        DataError, match=r"besides the export that would be lost: \.git/HEAD, eval/scores\.txt, notes\.md: move"
    ):
        export_model(bert, out, layer=1, overwrite=True)
    assert content(out) == before


# ---- written ------------------------------------------------------------------------------------------


def test_an_empty_folder_and_missing_parents_are_filled(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export_model(bert, tmp_path / "empty", layer=1)
    export_model(bert, tmp_path / "a" / "b", layer=1)
    assert content(tmp_path / "empty") == content(tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty"]


def test_whoever_reads_the_configuration_reads_the_weights(bert: Path, tmp_path: Path) -> None:
    export_model(bert, tmp_path / "out", layer=1)
    modes = {file.stat().st_mode for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert len(modes) == 1


def test_overwrite(bert: Path, tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    export_model(bert, out, layer=3)
    (out / "README.md").write_text((out / "README.md").read_text() + "mine\n")
    export_model(bert, out, layer=1, overwrite=True)
    export_model(bert, fresh, layer=1)
    assert content(out) == content(fresh)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "out"]


# ---- interrupted --------------------------------------------------------------------------------------

STEPS = ("_write_model", "write_layout", "_verify")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("earlier", [False, True])
def test_an_interruption_leaves_nothing(
    bert: Path, tmp_path: Path, step: str, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if earlier:
        export_model(bert, out, layer=3)
    before = content(tmp_path)

    done = getattr(checkpoint, step)

    def interrupted(*args: Any, **options: Any) -> None:
        done(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_model(bert, out, layer=1, overwrite=True)
    assert content(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if earlier else [])


def test_an_interruption_between_the_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    rename = Path.rename

    def once(self: Path, target: Path) -> Path:
        if target == out and not self.joinpath("old").exists():
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(KeyboardInterrupt), new_folder(out, replace=True) as folder:
        (folder / "new").write_text("new")
    assert content(tmp_path) == {"out/old": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("off", "difference"), [(3e-5, "3"), (np.nan, "nan")])
def test_other_embeddings_are_an_error(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, difference: str
) -> None:
    found = checkpoint._embeddings_of_folder

    def slightly_off(*args: Any) -> Any:
        return found(*args) + np.float32(off)

    monkeypatch.setattr(checkpoint, "_embeddings_of_folder", slightly_off)
    with pytest.raises(
        ModelError, match=rf"has other embeddings after reloading \(difference {difference}.*nothing was exported"
    ):
        export_model(bert, tmp_path / "out", layer=1)
    assert list(tmp_path.iterdir()) == []


# ---- folders ------------------------------------------------------------------------------------------


def test_a_folder_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = atomic.sync

    def noting(path: Path) -> None:
        synced.append("parent" if path == tmp_path else path.name if path.is_file() else "folder")
        assert (tmp_path / "out").exists() == (path == tmp_path)
        sync(path)

    monkeypatch.setattr(atomic, "sync", noting)
    with new_folder(tmp_path / "out") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("text")
    assert sorted(synced[:-1]) == ["SHA256SUMS", "file", "folder", "folder"]
    assert synced[-1] == "parent"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "full"), "No space left on device: free space, or try elsewhere"),
        (Exception("Error while writing: No space left (os error 28)"), "No space left on device: free space"),
        (PermissionError(errno.EACCES, "no"), "Permission denied: try elsewhere"),
    ],
)
def test_errors_of_writing(error: Exception, words: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=re.escape(words)), folder_errors(tmp_path, advice="try elsewhere"):
        raise error


def test_a_full_disk(bert: Path, tmp_path: Path) -> None:
    """Files of 20 kB at most: the weights do not fit. safetensors tells of it in an exception of its own."""
    program = (
        "import resource, signal, sys\n"
        "from layerprobe.errors import StoreError\n"
        "from layerprobe.export.run import export_model\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n    export_model(sys.argv[1], sys.argv[2], layer=3)\n"
        "except StoreError as error:\n    print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(bert), str(tmp_path / "out")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert re.match(r"cannot write the folder .*out: File too large: free space, or choose another", process.stdout)
    assert list(tmp_path.iterdir()) == []
