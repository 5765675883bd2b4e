"""Choice of the backend for a model's embeddings: the requested one, or the fastest that matches torch."""

import contextlib
import itertools
import logging
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from layerprobe.encoders.backends.backend import AUTO, BACKENDS, TORCH
from layerprobe.encoders.backends.graph import Graph, PooledLayers, open_graph
from layerprobe.encoders.batching import CPU_BATCH_TOKENS, collate, token_batches
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import PROBE_TEXTS, Encoder
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.timing import Speedup, speedup, timed
from layerprobe.errors import ModelError
from layerprobe.files.serialisation import digest
from layerprobe.names import counted
from layerprobe.results.table import Column, Table
from layerprobe.store.store import Store
from layerprobe.versions import GRAPH_VERSION


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


logger = logging.getLogger(__name__)

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
