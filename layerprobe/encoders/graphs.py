"""An encoder as one graph from token ids to the pooled embeddings of every layer; made once and stored on disk.

root/results/graphs/<key>/ has the library's own files and SHA256SUMS. A graph is compared with torch whenever it is
opened. `backend_graph` chooses the backend: the requested one, or the fastest that matches torch.
"""

import contextlib
import itertools
import logging
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.encoders.backends import AUTO, BACKENDS, TORCH, Engine
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, Batch, collate, pool, token_batches
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import PROBE_TEXTS, Encoder, float32_attention
from layerprobe.encoders.failures import first_sentence, is_out_of_memory
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.model import Pooling
from layerprobe.encoders.timing import Speedup, speedup, timed
from layerprobe.errors import ModelError, another_folder, option
from layerprobe.files.atomic import SUMS, folder_errors, folder_problems, inside, locked, make_directory, new_folder
from layerprobe.files.serialisation import digest
from layerprobe.names import counted
from layerprobe.process import silence, while_needed, without_warnings
from layerprobe.results.table import Column, Table
from layerprobe.rng import without_autocast
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION

PLAIN = "eager"
"""transformers' attention written as plain products and a softmax."""
FEATURES = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """An encoder with its pooling, compiled by a library other than torch."""

    backend: str
    """Name of the engine."""
    run: Callable[[Batch], NDArray[np.float32]]
    """Function from a padded batch to (layer, text, feature) float32."""


Tokens = Literal["tokens"]

TOKENS: Tokens = "tokens"
"""Replaces a pooling: none."""


class PooledLayers(nn.Module):
    """An encoder in float32 with its pooling; it outputs one embedding per text and layer.

    With `TOKENS` instead of a pooling it outputs the token states of the last layer only.
    """

    def __init__(self, encoder: Encoder, pooling: Pooling | Tokens) -> None:
        super().__init__()
        self.model = encoder.model
        self.encoder = encoder
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return (layer, text, feature), or (text, token, feature), float32 for padded (text, token) ids."""
        values = (input_ids, attention_mask, token_type_ids)
        batch = {name: value for name, value in zip(FEATURES, values, strict=True) if value is not None}
        if self.pooling == TOKENS:
            return list(self.encoder.layer_states(batch))[-1]
        return torch.stack([pool(states, attention_mask, self.pooling) for states in self.encoder.layer_states(batch)])


@without_autocast()
def exported(encoder: Encoder, pooling: Pooling | Tokens, *, plain: bool = False) -> torch.export.ExportedProgram:
    """Return an encoder and its pooling as a torch graph, for any number of texts and tokens.

    Plain: with attention as plain products and a softmax, instead of the encoder's own.
    """
    batch = probes(encoder)[0]
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), quiet_export(), float32_attention(encoder.model, plain=plain):
        return torch.export.export(
            PooledLayers(encoder, pooling).train(False),
            (),
            kwargs=batch,
            dynamic_shapes=dict.fromkeys(batch, any_size),
            strict=False,  # the hooks that capture layers run unchanged
        )


def probes(encoder: Encoder, *, max_length: int | None = None) -> list[Batch]:
    """Return batches for comparing a graph with torch: padded ones, single texts, a long one, a single token.

    The first has three texts, or one length, but several texts and tokens: graphs are traced on it.
    """
    tokens = encoder.tokenize([*PROBE_TEXTS, " ".join(PROBE_TEXTS * 64)], max_length=max_length)
    n_texts = len(PROBE_TEXTS)
    together = [list(range(n_texts))] if encoder.padding_invariant else [[1, 1, 1]]
    batches = [collate(tokens, rows, "cpu") for rows in (*together, *([row] for row in range(n_texts + 1)))]
    return [*batches, {name: values[:, :1] for name, values in batches[1].items()}]


@without_autocast()
@torch.inference_mode()
def differences(
    graph: Graph, encoder: Encoder, pooling: Pooling, *, max_length: int | None = None
) -> tuple[float, ...]:
    """Return the difference of a graph from torch at every layer, as a share of the layer's largest feature."""
    worst = np.zeros(encoder.n_layers)
    for batch in probes(encoder, max_length=max_length):
        expected = PooledLayers(encoder, pooling)(**batch).numpy()
        layers = graph.run(batch)
        if layers.shape != expected.shape:
            return (np.inf,) * encoder.n_layers
        error = np.abs(layers - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
        worst = np.maximum(worst, error)  # NaN stays
    return tuple(worst.tolist())


@while_needed
@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Silence what exporters print, log and warn; the graph is compared afterwards."""
    before, nothing = logging.root.manager.disable, logging.NullHandler()
    if not logging.root.handlers:
        logging.root.addHandler(nothing)  # openvino logs to the root logger, which would keep a handler for ever
    try:
        logging.disable(max(before, logging.WARNING))
        with without_warnings(), silence():
            yield
    finally:
        logging.disable(before)
        logging.root.removeHandler(nothing)


logger = logging.getLogger(__name__)

TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest difference from torch in float32, as a share of a layer's largest feature."""
_OPENING = threading.RLock()
"""Lock: torch.export, and silencing it, are not thread-safe."""

Opened = tuple[Graph, tuple[float, ...]]
"""A graph, and its difference from torch at every layer."""


def open_graph(engine: Engine, encoder: Encoder, model: Resolved) -> Opened:
    """Return the graph of an encoder from the store; make it first if it is missing.

    Waits for other processes that make the same graph, and for other threads that open any graph; replaces a damaged
    graph.
    """
    root = Store(model.asked.cache_dir).root
    folder = _folder(engine, encoder, model, root)
    with _OPENING, locked(root, root / "locks" / f"{folder.name}.lock", wait=True):
        problems = list(folder_problems(folder))
        for problem in problems:
            logger.warning("%s: rebuilding the graph", problem)
        if problems or not (folder / SUMS).is_file():
            _make(engine, encoder, model, folder)
        return _compiled(engine, encoder, model, folder)


def _folder(engine: Engine, encoder: Encoder, model: Resolved, root: Path) -> Path:
    """Return the folder of an encoder's graph, named by everything that the graph depends on.

    One graph serves float32 and bfloat16, all tokenizers with the same features, and all processors.
    """
    key = digest(
        {
            **{name: value for name, value in model.store_identity.items() if name != "tokenizer"},
            "features": sorted(probes(encoder)[0]),
            "pooling": model.pooling,
            "norm": encoder.description.norm,
            "attn": model.asked.attn,
            "backend": engine.name,
            "version": GRAPH_VERSION,
            **LIBRARIES,
            **engine.versions(),
        }
    )
    return inside(root, root / "results" / "graphs" / key)


def _make(engine: Engine, encoder: Encoder, model: Resolved, folder: Path) -> None:
    """Make a graph with the encoder's own attention, or else with plain attention; keep the first that matches torch.

    OpenVINO's fused attention returns NaN where a token can attend to nothing, such as padding next to windows.
    """
    make_directory(folder.parent)
    for plain in (False, True) if encoder.model.config._attn_implementation != PLAIN else (True,):
        try:
            with folder_errors(folder, advice=another_folder()), new_folder(folder, replace=True) as new:
                logger.info("converting %s to %s", encoder.description.name, engine.name)
                with _one_line(engine, encoder, "be converted to"):
                    engine.write(exported(encoder, model.pooling, plain=plain), new)
                _compiled(engine, encoder, model, new)
            return
        except ModelError as error:
            if plain:
                raise
            logger.info("%s; trying plain attention", error)


def _compiled(engine: Engine, encoder: Encoder, model: Resolved, folder: Path) -> Opened:
    """Compile the graph of a folder, and compare it with torch."""
    dtype, name = model.dtype, encoder.description.name
    with _one_line(engine, encoder, "be run by"):
        graph = engine.compile(folder, dtype)
        errors = differences(graph, encoder, model.pooling, max_length=model.max_length)
    wrong = [layer for layer, difference in enumerate(errors) if not difference <= TOLERANCES[dtype]]  # NaN is wrong
    if wrong:
        raise ModelError(
            f"{engine.name} does not match torch for {name}: layer {wrong[0]} differs by "
            f"{errors[wrong[0]]:.1e} of its largest feature, expected at most {TOLERANCES[dtype]:.0e}; "
            f"use {option('backend', 'torch')}"
        )
    return graph, errors


@contextlib.contextmanager
def _one_line(engine: Engine, encoder: Encoder, doing: str) -> Iterator[None]:
    """Turn a library's error into one line; failed writes and exhausted memory pass unchanged."""
    try:
        yield
    except Exception as error:  # exporters raise all kinds of errors
        if isinstance(error, OSError) or is_out_of_memory(error):
            raise
        first: BaseException = error
        while first.__cause__ is not None:  # the original error is hidden behind advice
            first = first.__cause__
        raise ModelError(
            f"{encoder.description.name} cannot {doing} {engine.name}: {first_sentence(first)}; use "
            f"{option('backend', 'torch')}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSurvey:
    """Speed and correctness of every backend for a model on this machine, by the name of the backend."""

    speeds: dict[str, float] = field(default_factory=dict)
    """Tokens per second in a short measurement, for torch and the other usable backends; empty without another."""
    speedups: dict[str, Speedup] = field(default_factory=dict)
    """Speed-up over torch of each other usable backend."""
    differences: dict[str, float] = field(default_factory=dict)
    """Largest difference of any layer from torch in float32, as a share of the layer's largest feature."""
    problems: dict[str, str] = field(default_factory=dict)
    """Reason why each of the other backends cannot be used."""
    threads: int = 1
    """Number of threads in the measurement."""

    @property
    def _fastest(self) -> str | None:
        """The fastest other than torch, preferring those with a speed-up interval above 1; None without another."""
        return max(self.speedups, key=lambda name: (self.speedups[name][1] > 1, self.speedups[name]), default=None)

    @property
    def chosen(self) -> str:
        """The backend that `auto` uses: the fastest with a speed-up interval above 1, else torch."""
        return self._fastest if self._fastest is not None and self.speedups[self._fastest][1] > 1 else TORCH

    @property
    def reason(self) -> str:
        """Reason for the choice: the speed-up over torch, or that the fastest other backend is not faster."""
        if self._fastest is None:
            return "no other backend can be used"
        times, low, high = self.speedups[self._fastest]
        threads = counted(self.threads, "thread")
        figures = f"{times:.2f} times as fast as {TORCH} with {threads}, 95 % interval {low:.2f} to {high:.2f}"
        return figures if low > 1 else f"{self._fastest} is {'slower' if high < 1 else 'not faster'} ({figures})"

    @property
    def table(self) -> Table:
        """One row per backend: its speed and the result of its check."""
        outcomes = {
            TORCH: "",
            **{
                name: f"matches torch at every layer (largest difference {of:.0e})"
                for name, of in self.differences.items()
            },
            **self.problems,
        }
        speedups = [self.speedups.get(name) for name in outcomes]
        return Table(
            columns=(
                Column("backend", list(outcomes)),
                Column("tokens_per_second", [self.speeds.get(name) for name in outcomes], "tokens/s", ",.0f"),
                Column("speedup", [times and times[0] for times in speedups], "times torch", ".2f"),
                Column("interval", [times and times[1:] for times in speedups], "95 % interval", ".2f", interval=True),
                Column("finding", list(outcomes.values())),
            ),
            title="Backends",
        )


USUAL_TEXTS = tuple(" ".join(PROBE_TEXTS[i:j]) for i, j in itertools.combinations(range(len(PROBE_TEXTS) + 1), 2))
"""Texts for measuring speed if none are given: sentences of different lengths."""
MEASURED_TEXTS, MEASURED_TOKENS = 256, CPU_BATCH_TOKENS
ROUNDS, SECONDS = (7, 15), 10.0
"""Smallest and largest number of rounds, and the seconds after which no further round starts."""


def backend_graph(encoder: Encoder, model: Resolved) -> Graph | None:
    """Return the graph that computes an encoder's embeddings with its chosen backend; None: torch.

    With auto, libraries that are missing, or do not match torch for the model, are skipped.
    """
    name = model.asked.backend
    if name == AUTO:
        name = TORCH if encoder.modality == "image" else _kept_choice(encoder, model)
    if name == TORCH:
        return None
    engine = BACKENDS[name]
    if encoder.modality == "image":
        raise ModelError(f"expected the backend {TORCH} for images, got {name}")
    engine.check(encoder.device.type, model.dtype)
    return open_graph(engine, encoder, model)[0]


def survey(encoder: Encoder, model: Resolved, texts: Sequence[str] = USUAL_TEXTS) -> BackendSurvey:
    """Check every backend on a model: whether it matches torch at every layer, and how fast it is.

    Speeds are measured on texts, with torch's number of threads. The survey is stored: `auto` uses the latest choice.
    """
    graphs: dict[str, Graph] = {}
    differences: dict[str, float] = {}
    problems: dict[str, str] = {}
    for name, engine in BACKENDS.usable().items():
        try:
            engine.check(encoder.device.type, model.dtype)
            graphs[name], errors = open_graph(engine, encoder, model)
            differences[name] = max(errors)
        except ModelError as error:
            problems[name] = str(error)
    lengths, seconds = timed_rounds(encoder, graphs, model, texts) if graphs else ([], {})
    result = BackendSurvey(
        speeds={name: sum(lengths) / statistics.median(of) for name, of in seconds.items()},
        speedups={name: speedup(seconds[TORCH], seconds[name]) for name in graphs},
        differences=differences,
        problems=problems,
        threads=torch.get_num_threads(),
    )
    if (key := _key(encoder, model)) is not None:
        Store(model.asked.cache_dir).save_result("backend-survey", key, result)
    return result


def _key(encoder: Encoder, model: Resolved) -> str | None:
    """Return the key of a stored survey: model, settings, machine and packages; None if nothing is installed."""
    installed: dict[str, str] = {}
    for engine in BACKENDS.usable().values():
        with contextlib.suppress(ModelError):
            engine.check(encoder.device.type, model.dtype)
            installed |= engine.versions()
    if not installed:
        return None
    return digest(
        {
            **model.store_identity,
            "options": [model.pooling, model.asked.attn, encoder.description.norm, model.dtype],
            "machine": [platform.node(), platform.machine(), torch.get_num_threads()],
            "version": GRAPH_VERSION,
            "measured": [MEASURED_TEXTS, MEASURED_TOKENS, *ROUNDS],
            **LIBRARIES,
            **installed,
        }
    )


def _kept_choice(encoder: Encoder, model: Resolved) -> str:
    """Return the backend chosen by the latest survey; without one, make a survey."""
    if (key := _key(encoder, model)) is None:
        return TORCH
    latest = Store(model.asked.cache_dir).load_result("backend-survey", key, BackendSurvey)
    if latest is None:
        latest = survey(encoder, model)
        logger.info("embeddings of %s by %s: %s", encoder.description.name, latest.chosen, latest.reason)
    return latest.chosen


@torch.inference_mode()
def timed_rounds(
    encoder: Encoder, graphs: dict[str, Graph], model: Resolved, texts: Sequence[str]
) -> tuple[Sequence[int], dict[str, list[float]]]:
    """Return tokens per text, and the seconds per round of torch and of each graph, in batches as in an extraction.

    Every second round runs in reverse. On one thread only the process's own time counts, whatever else runs.
    """
    drawn = np.random.default_rng(0).integers(len(texts), size=MEASURED_TEXTS)
    tokens = encoder.tokenize([texts[int(row)] for row in drawn], max_length=model.max_length)
    lengths = tokens.lengths[: 1 + int(np.searchsorted(np.cumsum(tokens.lengths), MEASURED_TOKENS))]
    budget, alike = model.asked.batch_tokens or CPU_BATCH_TOKENS, not encoder.padding_invariant
    batches = [collate(tokens, rows) for rows in token_batches(lengths, budget=budget, same_length=alike)]
    layers = PooledLayers(encoder, model.pooling)

    def run_torch() -> None:
        with encoder.precision():
            for batch in batches:
                layers(**batch)

    runs = {name: lambda graph=graph: [graph.run(batch) for batch in batches] for name, graph in graphs.items()}
    ways: dict[str, Callable[[], object]] = {TORCH: run_torch, **runs}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return lengths, timed(ways, rounds=ROUNDS[0], most=ROUNDS[1], max_seconds=SECONDS, clock=clock)
