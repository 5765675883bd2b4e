"""Sizes that are said are those of the weights that an export writes."""

from pathlib import Path

import pytest

from layerprobe.embedded import embedded_model
from layerprobe.encoders.architecture import declared_dtype
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load
from layerprobe.encoders.model import Model
from layerprobe.export.folder import written_bytes
from layerprobe.export.run import export_model
from tests.models import save_tiny, store_as, stored_bytes


@pytest.mark.parametrize("case", ["embedded", "half", "mixed", "albert", "t5"])
def test_the_bytes_that_are_said_are_those_that_are_written(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    match case:
        case "embedded":
            model = embedded_model("rtd")
        case "half" | "mixed":
            save_tiny("bert", folder)
            model = Model(store_as(folder, "bfloat16", norms="bfloat16" if case == "half" else "float32"))
        case _:
            model = Model(str(save_tiny(case, folder)))  # weights that are shared, or tied
    resolved = resolve(model)
    encoder = load(resolved)
    result = export_model(model, tmp_path / "out", layer=encoder.n_layers - 1)
    assert result.dtype == {"embedded": "float16", "half": "bfloat16"}.get(case, "float32")
    assert written_bytes(encoder, declared_dtype(resolved.config)) == stored_bytes(Path(result.path))
