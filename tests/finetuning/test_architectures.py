"""Every architecture: truncated, fine-tuned, saved, loaded again with the same scores, and fine-tuned from there."""

from pathlib import Path

import pytest

from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.scoring.score import score_split
from tests.few import few_architectures
from tests.models import ARCHITECTURES, given, save_tiny
from tests.toy_task import toy_task

TASK = toy_task(train=16, validation=8, test=24)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=1, batch_size=8)
LAYER = 2


@pytest.mark.parametrize("name", few_architectures(ARCHITECTURES))
def test_a_fine_tuned_model_comes_back_and_learns_on(name: str, tmp_path: Path) -> None:
    model, options = str(save_tiny(name, tmp_path / "model")), Model(device="cpu", cache_dir=tmp_path / "cache")
    settings = {"seeds": (0,), "protocol": PROTOCOL, "save_models": True}
    (run,) = finetune(given(model, options), TASK, (LAYER,), **settings).runs
    directory = run.directory
    again = load_encoder(str(directory / "model"), device="cpu")
    assert again.description.n_blocks == LAYER
    assert again.description.architecture == ARCHITECTURES[name][0]
    assert again.description.parameters[-1] == run.parameters
    scores, _ = score_split(given(directory / "model", options), TASK)
    untrained, _ = score_split(given(model, options), TASK)
    for metric, value in run.test.items():
        assert scores.metrics[metric][LAYER] == pytest.approx(value, abs=1e-3)
    # a Pearson correlation changes with every weight, ranks may not
    before, after = untrained.metrics["pearson"][LAYER], run.test["pearson"]
    assert abs(before - after) > 0.01, "expected weights that were trained"
    (further,) = finetune(given(directory / "model", options), TASK, (1,), **settings).runs
    assert further.layer == 1
    assert further.parameters == again.description.parameters[1]
