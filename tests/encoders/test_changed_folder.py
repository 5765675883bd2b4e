"""A folder whose files change while its model is in use."""

import shutil
from pathlib import Path

import pytest

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from tests.models import save_tiny, tiny_model


def test_weights_that_changed_after_the_model_was_resolved_are_refused(tmp_path: Path) -> None:
    folder = save_tiny("bert", tmp_path / "bert")
    checkpoint = resolve(Model(str(folder)))
    load_encoder(checkpoint)
    kept = shutil.copytree(folder, tmp_path / "kept")
    tiny_model("bert", seed=1).save_pretrained(folder)
    with pytest.raises(ModelError, match="were changed during use: restart with a copy"):
        load_encoder(checkpoint)
    load_encoder(resolve(Model(str(folder))))
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    load_encoder(checkpoint)
