"""A saved step is removed only where it is damaged, not where the disk refuses to read it."""

import errno
import os
from pathlib import Path

import pytest
import torch

from layerprobe.errors import StoreError
from layerprobe.files import atomic
from layerprobe.files.atomic import new_folder
from layerprobe.finetuning.saved import has_model
from layerprobe.training.artifact import SavedSteps

TENSORS = {"a": torch.arange(3.0)}


def refuse(path: Path) -> str:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_step_that_the_disk_refuses_is_an_error_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = SavedSteps(tmp_path, dict[str, int], root=tmp_path, advice="", name=tmp_path.name)
    steps.save(1, {"step": 1}, TENSORS)
    with monkeypatch.context() as patch:
        for name in ("file_sha256", "known_sha256"):
            patch.setattr(atomic, name, refuse)
        with pytest.raises(StoreError, match=r"cannot read .*step-000000001.*: Input/output error: check the disk"):
            steps.last()
    last = steps.last()
    assert last is not None
    assert last[0] == {"step": 1}
    torch.testing.assert_close(last[1], TENSORS)
    (steps.folders()[0] / "tensors.safetensors").unlink()
    assert steps.last() is None
    assert steps.folders() == []


def test_weights_that_the_disk_refuses_are_an_error_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "runs" / "layer-001-seed-0"
    with new_folder(directory / "model") as folder:
        (folder / "layerprobe.json").write_bytes(b"{}")
    for name in ("file_sha256", "known_sha256"):
        monkeypatch.setattr(atomic, name, refuse)
    with pytest.raises(StoreError, match=r"cannot read .*layerprobe\.json: Input/output error: check the disk"):
        has_model(directory)
