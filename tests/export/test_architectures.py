"""Every architecture at layer 0, in the middle and at the end: transformers and sentence-transformers agree with us."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig

from layerprobe.encoders.architecture import count_blocks, count_parameters
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.export.run import ExportResult, export_model
from tests.few import USUAL_ARCHITECTURES, few
from tests.models import ARCHITECTURES, HIDDEN, MIXES_PADDING, N_BLOCKS, save_tiny

from .judges import layerprobe_embeddings, read_layout, sentence_transformers_embeddings, transformers_mean

NEEDS_A_BLOCK = frozenset({"deberta-v2", "deberta-v3", "deberta-v2-conv", "modernbert"})
CASES = [(name, layer) for name in ARCHITECTURES for layer in (0, 1, N_BLOCKS) if layer or name not in NEEDS_A_BLOCK]
FEW = few(CASES, lambda case: case[1] == 1 and case[0] in USUAL_ARCHITECTURES)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save_tiny(name, root / name) for name in ARCHITECTURES}


@pytest.mark.parametrize(("name", "layer"), FEW)
def test_everyone_has_the_same_embeddings(models: dict[str, Path], name: str, layer: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = export_model(Model(models[name], pooling="mean"), out, layer=layer)
    assert isinstance(done, ExportResult)
    assert done.difference <= 1e-5
    assert bool(done.warnings) == (name in MIXES_PADDING)
    expected = layerprobe_embeddings(models[name], layer)
    assert np.abs(expected).max() > 0.01
    together = name not in MIXES_PADDING
    np.testing.assert_allclose(sentence_transformers_embeddings(out, together=together), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(transformers_mean(out, together=together), expected, rtol=0, atol=1e-5)
    # the configuration counts as we do
    config = AutoConfig.from_pretrained(out)
    assert count_blocks(config) == layer
    whole = load_encoder(str(models[name]), device="cpu").description.parameters
    assert count_parameters(config)[-1] == whole[layer] == done.parameters
    assert done.whole_parameters == whole[-1]
    assert read_layout(out).width == HIDDEN


@pytest.mark.parametrize("name", sorted(NEEDS_A_BLOCK))
def test_layer_0_that_does_not_run_is_refused(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="does not run without a block, so layer 0 cannot"):
        export_model(models[name], tmp_path / "out", layer=0)
    assert list(tmp_path.iterdir()) == []
